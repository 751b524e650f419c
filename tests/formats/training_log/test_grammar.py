"""Lines of steps are read as each framework prints them, behind whatever a launcher puts before them."""

import math

import pytest

from traincast.errors import FormatError
from traincast.formats.training_log.reader import parse
from traincast.formats.training_log.sniff import looks_like
from training_logs import (
    bridge_lines,
    deepspeed_line,
    maxtext_line,
    megatron_line,
    megatron_settings,
    megatron_world,
    nemo_line,
    progress_bar,
    torchtitan_line,
    torchtitan_start,
)


def read(*lines):
    return parse("run.log", "\n".join(lines) + "\n")


def numbers(log):
    return log.steps.step.tolist()


def times(log):
    return log.steps.step_s.tolist()


@pytest.mark.parametrize("dated", [True, False])
def test_megatron(dated):
    log = read(*(megatron_line(step, 2100.5 + step, tflops=400.25, dated=dated) for step in (1, 2, 3)))
    assert log.framework.name == "megatron"
    assert (numbers(log), log.planned, log.starts, log.ranks) == ([1, 2, 3], 100, 1, 1)
    assert times(log) == pytest.approx([2.1015, 2.1025, 2.1035])
    assert log.steps.flops_per_s.tolist() == pytest.approx([400.2e12] * 3, rel=1e-3)
    assert log.steps.global_batch.tolist() == [128] * 3
    assert log.steps.steps.tolist() == [1, 1, 1]
    assert log.steps.loss[0] == 10.5


def test_megatron_deepspeed_says_seconds_and_flops_at_the_end():
    log = read(f"[default7]:{deepspeed_line(12, 105.22)}", f"[default7]:{deepspeed_line(13, 104.87)}")
    assert times(log) == [105.22, 104.87]
    assert log.steps.flops_per_s.tolist() == [140e12] * 2


def test_megatron_bridge_prints_two_lines_a_step_in_either_order():
    first, second = (bridge_lines(step, 5.391, 812.3 + step) for step in (10, 20))
    log = read(*first, *reversed(second))
    assert log.framework.name == "megatron-bridge"
    assert times(log) == pytest.approx([5.391, 5.391])
    assert log.steps.flops_per_s.tolist() == pytest.approx([822.3e12, 832.3e12])
    assert log.steps.steps.tolist() == [0, 10]


def test_the_first_line_of_megatron_bridge_alone_tells_steps_too():
    log = read(*(bridge_lines(step, 5.0 + step, 800.0)[0] for step in (1, 2)))
    assert (log.framework.name, numbers(log), times(log)) == ("megatron-bridge", [1, 2], [6.0, 7.0])


@pytest.mark.parametrize("coloured", [True, False])
@pytest.mark.parametrize(("word", "tflops", "mfu"), [("tps", 412.34, None), ("tps", 412.34, 41.7), ("wps", None, 33.0)])
def test_torchtitan(coloured, word, tflops, mfu):
    lines = [
        torchtitan_line(step, 7012.4, tflops=tflops, mfu=mfu, coloured=coloured, word=word) for step in (1, 10, 20)
    ]
    log = read(torchtitan_start(), *lines)
    assert (log.framework.name, numbers(log)) == ("torchtitan", [1, 10, 20])
    assert log.steps.tokens_per_s.tolist() == [7012.0] * 3
    assert log.steps.flops_per_s.tolist() == pytest.approx([math.nan if tflops is None else 412.34e12] * 3, nan_ok=True)
    assert log.steps.steps.tolist() == [1, 9, 10]
    assert log.facts == {
        **{"gpu": "NVIDIA H100 80GB HBM3", "gpus": 64, "pp": 1, "cp": 1, "tp": 1, "ep": 1},
        **{"micro_batch": 1, "global_batch": 64, "seq_length": 8192},
    }


def test_the_validation_of_torchtitan_is_no_step():
    text = torchtitan_line(10, 5000).replace("step: 10", "validate step: 10")
    log = read(torchtitan_line(10, 7000), text, torchtitan_line(20, 7000))
    assert [*zip(numbers(log), log.steps.interrupted.tolist(), strict=True)] == [(10, False), (20, True)]


def test_nemo_counts_from_zero():
    log = read(*(nemo_line(step, 7.126 - step, tflops=755.5) for step in (0, 1)))
    assert (log.framework.name, numbers(log), log.planned) == ("nemo", [1, 2], 100)
    assert times(log) == pytest.approx([7.126, 6.126], rel=1e-3)
    assert log.steps.global_batch.tolist() == [512, 512]
    assert log.steps.flops_per_s[0] == pytest.approx(755.5e12)


def test_maxtext_counts_from_zero():
    log = read(*(maxtext_line(step, 9.5 - step) for step in (0, 1, 2)))
    assert (log.framework.name, numbers(log), times(log)) == ("maxtext", [1, 2, 3], [9.5, 8.5, 7.5])
    assert (log.steps.tokens_per_s[0], log.steps.flops_per_s[0], log.steps.loss[0]) == (7000.25, 400.5e12, 10.5)


def test_a_progress_bar_rewrites_its_line():
    bars = "".join(progress_bar(step, 5.25) for step in (1, 2, 2, 3))
    log = parse("run.log", f"Starting\n{bars}")
    assert (log.framework.name, numbers(log), times(log)) == ("lightning", [1, 2, 3], [5.25] * 3)
    assert set(log.steps.line.tolist()) == {2}


def test_a_progress_bar_without_step_times_has_a_clock():
    bars = "".join(progress_bar(10 * step, None, elapsed=65 * step) for step in range(3))
    log = parse("run.log", bars)
    assert [*zip(numbers(log), log.steps.clock_s.tolist(), strict=True)] == [(0, 0.0), (10, 65.0), (20, 130.0)]


def test_epochs_add_up():
    bars = "".join(progress_bar(step, 5.0, steps=4, epoch=epoch) for epoch in (0, 1, 2) for step in (2, 4))
    log = parse("run.log", bars)
    assert (numbers(log), log.starts) == ([2, 4, 6, 8, 10, 12], 1)


@pytest.mark.parametrize(
    "tag", ["", "[rank3]:", "[default7]:", "12: ", "  0: ", "[1,3]<stdout>:", "[pretrain-worker-3] ", "ain_fp8_mx/0 "]
)
def test_launchers_put_something_before_each_line(tag):
    log = read(tag + megatron_settings(seq_length=4096), *(tag + megatron_line(step, 2000) for step in (1, 2)))
    assert (numbers(log), times(log), log.ranks) == ([1, 2], [2.0, 2.0], 1)


def test_several_ranks_of_a_step_are_one_step_of_their_median():
    lines = [
        f"[rank{rank}]:{torchtitan_line(step, tps)}" for step in (1, 10) for rank, tps in enumerate((90, 100, 300))
    ]
    log = read(*lines)
    assert (log.ranks, numbers(log)) == (3, [1, 10])
    assert log.steps.tokens_per_s.tolist() == [100.0, 100.0]
    # The same without a word on who prints: a step that is printed again is the same step.
    assert numbers(read(*(line.partition(":")[2] for line in lines))) == [1, 10]


def test_a_run_that_starts_again_repeats_steps():
    log = read(*(megatron_line(step, 2000) for step in (98, 99, 100, 98, 99)))
    assert [*zip(log.steps.start.tolist(), numbers(log), strict=True)] == [(0, 98), (0, 99), (0, 100), (1, 98), (1, 99)]
    assert log.steps.steps.tolist() == [0, 1, 1, 0, 1]


def test_a_run_that_goes_on_where_it_ended_starts_again_too():
    settings = megatron_settings(hidden_size=4096)
    lines = [megatron_line(step, 2000) for step in (1, 2, 3)]
    log = read(settings, lines[0], lines[1], settings, lines[2])
    assert [*zip(log.steps.start.tolist(), numbers(log), strict=True)] == [(0, 1), (0, 2), (1, 3)]
    # The first rank prints the settings, the last one steps.
    log = read(f"0: {settings}", f"7: {lines[0]}", f"0: {settings}", f"7: {lines[1]}")
    assert log.starts == 2


def test_settings_tell_the_run():
    settings = megatron_settings(
        **{"world_size": 64, "global_batch_size": 128, "micro_batch_size": 2, "seq_length": 4096, "num_layers": 32},
        **{"virtual_pipeline_model_parallel_size": None, "hidden_size": 4096, "context_parallel_size": 1},
    )
    log = read(megatron_world(), settings, megatron_line(1, 2000))
    assert log.facts == {
        **{"gpus": 64, "cp": 1, "tp": 4, "pp": 2, "global_batch": 128, "micro_batch": 2, "seq_length": 4096},
        **{"layers": 32, "hidden": 4096},
    }


def test_settings_as_yaml_and_json_tell_the_run_and_what_is_not_set_tells_nothing():
    yaml = "model:\n  seq_length: 8192\n  tensor_model_parallel_size: 8\n  context_parallel_size: null"
    json = '  "local_batch_size": 4,\n  "global_batch_size": -1,\n  "pipeline_parallel_degree": 2,'
    lightning = "Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/16"
    log = read(yaml, json, lightning, nemo_line(0, 5.0))
    assert log.facts == {"seq_length": 8192, "tp": 8, "micro_batch": 4, "pp": 2, "gpus": 16}


def test_settings_after_steps_are_those_of_another_program():
    log = read(megatron_settings(seq_length=4096), megatron_line(1, 2000), "  hidden_size: 99", megatron_line(2, 2000))
    assert log.facts == {"seq_length": 4096}


def test_the_mesh_of_older_torchtitan():
    log = read("x - INFO - Building 3-D device mesh with ['pp', 'dp', 'tp'], [2, 4, 8]", torchtitan_line(1, 100))
    assert log.facts == {"pp": 2, "tp": 8, "gpus": 64}


@pytest.mark.parametrize(
    "said",
    ["saving checkpoint at iteration       2 to /ckpt in torch_dist format", " validation loss at iteration 2 | lm"],
)
def test_what_else_is_done_is_told(said):
    log = read(*(megatron_line(step, 2000) for step in (1, 2)), said, *(megatron_line(step, 2000) for step in (3, 4)))
    assert log.steps.interrupted.tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2000.0", "-1", "-1"),
        ("2000.0", "1e999", "1e999"),
        ("2000.0", "nan", "nan"),
        ("2000.0", "0.0", "a step takes time"),
        ("size:   128", "size: 1.5", "1.5"),
    ],
)
def test_a_line_with_a_wrong_number_is_passed_over_and_told_of(old, new, message):
    whole, wrong = megatron_line(1, 1000), megatron_line(2, 2000).replace(old, new)
    log = read(whole, wrong, megatron_line(3, 2000))
    assert numbers(log) == [1, 3]
    ((code, place, text),) = [(note.code, note.place, note.text) for note in log.warnings]
    assert (code, place) == ("step-wrong", "run.log:2")
    assert message in text
    with pytest.raises(FormatError, match=message) as caught:
        read("noise", wrong)
    assert caught.value.line == 2


def test_a_line_that_was_cut_or_garbled_is_told_of_and_passed_over():
    whole = megatron_line(2, 2000)
    for cut in (whole[: whole.index("(ms): ") + 6], whole.replace("iteration        2/", "iterat")):
        log = read(megatron_line(1, 2000), cut, megatron_line(3, 2000))
        assert numbers(log) == [1, 3]
        ((code, place),) = [(note.code, note.place) for note in log.warnings]
        assert (code, place) == ("step-cut", "run.log:2")


def test_a_log_without_steps_is_refused():
    with pytest.raises(FormatError, match="no line tells the time of a step"):
        read(megatron_settings(seq_length=4096))


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        (megatron_line(1, 2000), 0.9, 1),
        (torchtitan_line(1, 2000), 0.9, 1),
        (nemo_line(0, 2.0), 0.9, 1),
        (progress_bar(1, 2.0), 0.9, 1),
        (bridge_lines(1, 2.0, 800)[0], 0.9, 1),
        (megatron_settings(seq_length=1), 0.5, 0.9),
        (torchtitan_start(), 0.5, 0.9),
        ("[NeMo W 2026-03-01 10:00:00 nemo_logging:405] a warning", 0.5, 0.9),
        ("loss: 3\nstep: 4", 0, 0),
        ("name,value\n1,2\n", 0, 0),
    ],
)
def test_a_log_is_told_by_its_steps_or_what_comes_before_them(text, least, most):
    for head in (text, "noise\n" + text, text + "\r\n"):
        assert least <= looks_like(head).confidence <= most


def test_numbers_of_thousands_of_digits_are_no_numbers():
    digits = "9" * 5000
    garbled = torchtitan_line(2, 100, coloured=False).replace("step:  2", f"step: {digits}")
    log = read(megatron_world(world=digits), megatron_line(1, 2000), garbled)
    assert (numbers(log), log.facts) == ([1], {})
    with pytest.raises(FormatError, match="it must be"):
        read(megatron_line(1, 2000).replace("2000.0", digits))
    bars = progress_bar(1, 2.0) + progress_bar(2, 2.0).replace("[00:00", f"[{digits}:00")
    assert numbers(parse("run.log", bars)) == [1]
