"""NeuSight files run: what is in them, what is assumed, and what overlaps."""

import pytest

from neusight_files import (
    GPT2_LARGE,
    QUIET,
    bert_rows,
    gradient,
    json_rows,
    node,
    opt_rows,
    pipeline_rows,
    row,
    tensor_rows,
    write,
)
from support import ALONE
from traincast import api
from traincast.errors import ConfigError, FormatError, InfeasibleError, UnknownNameError
from traincast.hardware.dtypes import DTYPE_BYTES
from traincast.job.options import LayoutOptions
from traincast.workload.words import Kind, Phase, Provenance

LAYERS_S = 2.2793233
"""Forward time of the sample with its layer taken 36 times."""


def simulate(path, cluster="a100", **options):
    result = api.simulate(path, cluster=cluster, **options)
    assert sum(result.breakdown_s.values()) == pytest.approx(result.iteration_time_s)
    return result


LATENCY_S = 5e-5
"""More than the steps of a collective add to the time of its bytes."""


def about(seconds):
    return pytest.approx(seconds, abs=LATENCY_S)


def codes(notes):
    return {note.code for note in notes}


@pytest.mark.parametrize("cluster", ["ideal", "a100"])
def test_the_sample_with_36_layers_forward(cluster):
    result = simulate(GPT2_LARGE, cluster, layers=36, forward_only=True)
    assert result.iteration_time_s == pytest.approx(2.27932, rel=1e-4)
    assert result.collectives == ()
    assert codes(result.assumptions) == {"layers-repeated", "dp-absent", "forward-only"}
    (said,) = [note.text for note in result.assumptions if note.code == "forward-only"]
    assert "219 gradient reductions of 774080337 elements" in said
    assert result.warnings == ()


def test_the_sample_reduces_every_gradient_of_36_layers():
    result = simulate(GPT2_LARGE, layers=36, **ALONE)
    assert result.parallel.world_size == result.parallel.dp == 4
    assert sum(each.size_bytes * each.count for each in result.collectives) == 4 * 774_080_337
    assert {(each.group, each.op, each.ranks) for each in result.collectives} == {("dp", "all_reduce", 4)}
    assert result.ranks[0].compute_s == pytest.approx(3 * LAYERS_S, rel=1e-6)
    assert codes(result.warnings) == {"embedding-gradient-small"}
    (said,) = [note.text for note in result.assumptions if note.code == "backward-estimated"]
    assert "2 x 2279.32 ms = 4558.65 ms" in said


def test_the_last_reductions_are_exposed_the_more_the_slower_the_links():
    exposed = []
    for rate in (2e11, 2e10, 2e9, 5e8):
        result = simulate(GPT2_LARGE, layers=36, busbw_bytes_per_s={"dp": rate}, **ALONE)
        exposed.append(result.breakdown_s["exposed_dp"])
        assert result.breakdown_s["compute"] == pytest.approx(3 * LAYERS_S, rel=1e-6)
        assert result.iteration_time_s == pytest.approx(3 * LAYERS_S + exposed[-1], rel=1e-6)
    assert 0 < exposed[0] < exposed[1] < exposed[2] < exposed[3]
    # At 0.5 GB/s the queue never empties: only the backward before the first reduction hides nothing.
    whole = 1.5 * 4 * 774_080_337 / 5e8
    assert exposed[3] == pytest.approx(whole - 2 * (LAYERS_S - 0.1273467), rel=0.01)
    assert simulate(GPT2_LARGE, "ideal", layers=36).breakdown_s["exposed_dp"] == 0


def test_reductions_beside_the_backward_slow_it_and_are_slowed():
    tenth = {"overlap_slowdown": dict.fromkeys(("compute", "memory", "unknown"), 0.1)}
    alone, beside, by_class = (simulate(GPT2_LARGE, layers=36, **options) for options in (ALONE, tenth, {}))
    busy = sum(each.time_s * each.count for each in alone.collectives)
    hidden = busy - alone.breakdown_s["exposed_dp"]
    extra = beside.ranks[0].compute_s - alone.ranks[0].compute_s
    # 10 % of the reductions, themselves 13 % longer; of a computation that itself grew by up to 10 %.
    assert 0.10 * 1.13 * hidden / 1.1 < extra < 0.10 * 1.13 * hidden
    # By class: more than if all were matrix products, less than if all streamed through memory.
    assert 0.01 * 1.13 * hidden < by_class.ranks[0].compute_s - alone.ranks[0].compute_s < 0.125 * 1.13 * hidden
    assert "overlap-slowdown" in codes(beside.assumptions)


def test_without_layers_the_sample_runs_as_written():
    result = simulate(GPT2_LARGE, "ideal", forward_only=True)
    assert result.iteration_time_s == pytest.approx(0.18754, rel=1e-4)
    assert codes(result.warnings) == {"layers-as-listed"}


def test_a_reduction_starts_right_after_its_node_and_holds_nobody_back(tmp_path):
    rows = [*node("first", 1, 1000), *node("second", 2, 3000), row("third", 3)]
    result = simulate(write(tmp_path / "w.tsv", rows), dp=2, busbw_bytes_per_s={"dp": 12e6}, **ALONE)
    program, timeline = result.program, result.timeline
    mine = program.rank_slice(0)
    ops = [
        (program.ops.name_T[line], round(start * 1e3, 1), round(end * 1e3, 1))
        for line, start, end in zip(program.row_N[mine], timeline.start_s_N[mine], timeline.end_s_N[mine], strict=True)
        if program.ops.kind_T[line] != Kind.WAIT
    ]
    forward = [("first", 0, 1), ("second", 1, 3), ("third", 3, 6)]
    backward = [("third", 6, 9), ("third", 9, 12), ("second", 12, 14), ("second", 14, 16), ("second_grad", 16, 17)]
    assert ops[:8] == forward + backward
    assert ops[8:] == [("first", 16, 17), ("first", 17, 18), ("first_grad", 18, 18.3)]
    assert result.breakdown_s["exposed_dp"] == about(1e-3 / 3)


def test_backward_times_of_a_file_are_used(tmp_path):
    rows = [row("a", 1, 3, 0.5), *node("b", 2, 64, 5, 0.25), row("c", 4)]
    path = write(tmp_path / "w.tsv", rows)
    workload = api.read(path)
    ops = workload.ops
    times = {
        (ops.name_T[index], Phase(int(ops.phase_T[index]))): float(ops.duration_s_T[index])
        for index in range(len(ops))
        if ops.kind_T[index] == Kind.COMPUTE
    }
    assert times == {
        ("a", Phase.FORWARD): pytest.approx(1e-3),
        ("b", Phase.FORWARD): pytest.approx(2e-3),
        ("c", Phase.FORWARD): pytest.approx(4e-3),
        ("a", Phase.BACKWARD): pytest.approx(3e-3),
        ("b", Phase.BACKWARD): pytest.approx(5e-3),
        ("a", Phase.WEIGHT_GRADIENT): pytest.approx(5e-4),
        ("b", Phase.WEIGHT_GRADIENT): pytest.approx(2.5e-4),
    }
    assert simulate(path, "ideal").iteration_time_s == pytest.approx(15.75e-3)
    assert simulate(path, "ideal", forward_only=True).iteration_time_s == pytest.approx(7e-3)
    assert "backward-estimated" not in codes(workload.assumptions)


def test_an_estimated_backward_is_marked_as_assumed(tmp_path):
    ops = api.read(write(tmp_path / "w.tsv", [row("a", 1)])).ops
    assert [Provenance(int(each)) for each in ops.provenance_T] == [Provenance.FILE, *[Provenance.ASSUMED] * 2]
    assert ops.line_T.tolist() == [2, 2, 2]


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_dtype_gives_the_bytes(tmp_path, dtype):
    path = write(tmp_path / "w.tsv", bert_rows())
    elements = sum(each[6] for each in bert_rows())
    result = simulate(path, dtype=dtype)
    assert sum(each.size_bytes * each.count for each in result.collectives) == elements * DTYPE_BYTES[dtype]
    assert "dtype-absent" not in codes(result.assumptions)


@pytest.mark.parametrize(
    ("rows", "layers", "forward_s"), [(bert_rows(), 12, 50.0e-3), (opt_rows(), 24, 105.25e-3)], ids=["bert", "opt"]
)
def test_other_models(tmp_path, rows, layers, forward_s):
    path = write(tmp_path / "w.tsv", rows)
    assert simulate(path, "ideal", layers=layers, forward_only=True).iteration_time_s == pytest.approx(forward_s)
    assert simulate(path, "ideal", layers=layers).iteration_time_s == pytest.approx(3 * forward_s)


def test_tensor_parallel_communication_blocks(tmp_path):
    path = write(tmp_path / "w.tsv", tensor_rows(elements=1_000_000))
    result = simulate(path, busbw_bytes_per_s={"tp": 6e9})
    assert (result.parallel.tp, result.parallel.dp) == (4, 1)
    assert "tp-absent" in codes(result.assumptions)
    # 1.5 x 4 MB / 6 GB/s, forward and backward.
    assert result.breakdown_s["exposed_tp"] == about(2e-3)
    assert result.iteration_time_s == about(14.5e-3)
    assert simulate(path, "ideal").iteration_time_s == pytest.approx(12.5e-3)
    assert simulate(path, forward_only=True, busbw_bytes_per_s={"tp": 6e9}).iteration_time_s == about(5e-3)


def test_a_pipeline_has_the_stages_of_the_file(tmp_path):
    path = write(tmp_path / "w.tsv", pipeline_rows(4))
    result = simulate(path, "ideal")
    assert (result.parallel.pp, result.parallel.microbatches) == (4, 1)
    assert result.iteration_time_s == pytest.approx(4 * 9e-3)
    assert {"single-microbatch"} <= codes(result.warnings)
    assert {"microbatches-absent"} <= codes(result.assumptions)
    for microbatches, schedule in ((8, "1f1b"), (16, "gpipe")):
        tiled = simulate(path, "ideal", microbatches=microbatches, schedule=schedule)
        assert tiled.iteration_time_s == pytest.approx((microbatches + 3) * 9e-3)
    assert simulate(path, "ideal", microbatches=8, forward_only=True).iteration_time_s == pytest.approx(11 * 3e-3)
    assert simulate(path, "ideal", pp=4, dp=2, vpp=1).parallel.world_size == 8


def test_the_message_between_stages_is_that_of_the_row(tmp_path):
    rows = pipeline_rows(3, elements=1000)
    rows[5] = row("send_1", (0.5, "SENDRECV", 3000), (0, "SENDRECV", 2000))
    workload = api.read(write(tmp_path / "w.tsv", rows), LayoutOptions(dtype="bf16"))
    assert workload.message_bytes_Q.tolist() == [2000, 6000, 0]
    assert "message-sizes-differ" in codes(workload.warnings)
    # A SENDRECV row may compute: it belongs to the stage that sends.
    stages = [
        workload.ops.duration_s_T[workload.segments[index]].sum() for index in workload.templates[0].forward_QM[:, 0]
    ]
    assert stages == pytest.approx([3e-3, 3.5e-3, 3e-3])
    one_way = pipeline_rows(2)
    one_way[2] = row("send", QUIET, (0, "SENDRECV", 500))
    assert api.read(write(tmp_path / "w.tsv", one_way)).message_bytes_Q.tolist() == [2000, 0]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_gradients_are_reduced_once_however_many_microbatches(tmp_path, schedule):
    path = write(tmp_path / "w.tsv", bert_rows())
    result = simulate(path, microbatches=4, schedule=schedule, **ALONE)
    assert sum(each.count for each in result.collectives) == 5
    assert result.breakdown_s["compute"] == pytest.approx(4 * 3 * 6e-3)
    assert "reduced-once" in codes(result.assumptions)


def test_json_gives_the_same_step(tmp_path):
    rows = [line.split("\t") for line in GPT2_LARGE.read_text().splitlines()[1:]]
    path = tmp_path / "w.json"
    path.write_text(json_rows(rows))
    result = simulate(path, layers=36)
    assert result.iteration_time_s == simulate(GPT2_LARGE, layers=36).iteration_time_s
    assert result.inputs[0].format == "neusight"


@pytest.mark.parametrize(
    ("rows", "options", "degrees"),
    [
        (bert_rows(), {"gpus": 16}, (1, 16)),
        (bert_rows(), {"dp": 2}, (1, 2)),
        (bert_rows(), {"tp": 2, "gpus": 8}, (2, 4)),
        (tensor_rows(), {"gpus": 8}, (8, 1)),
        (tensor_rows(), {"gpus": 8, "dp": 4}, (2, 4)),
        (tensor_rows(), {"tp": 2}, (2, 1)),
        ([*tensor_rows(), *bert_rows()], {}, (4, 4)),
        ([*tensor_rows(), *bert_rows()], {"gpus": 8}, (4, 2)),
        ([row("a", 1)], {}, (1, 1)),
        ([row("a", 1)], {"gpus": 4}, (1, 4)),
    ],
)
def test_degrees_follow_from_the_gpus_and_the_communications(tmp_path, rows, options, degrees):
    parallel = api.read(write(tmp_path / "w.tsv", rows), LayoutOptions(**options)).parallel
    assert (parallel.tp, parallel.dp) == degrees


@pytest.mark.parametrize(
    ("rows", "options", "error", "words"),
    [
        (bert_rows(), {"pp": 2}, ConfigError, "describes 1 stage"),
        (pipeline_rows(4), {"pp": 2}, ConfigError, "describes 4 stage"),
        (bert_rows(), {"vpp": 2}, ConfigError, "no virtual stages"),
        (bert_rows(), {"gpus": 6, "dp": 4}, InfeasibleError, "gpus=6 contradicts dp 4 x tp 1 x pp 1 = 4"),
        (pipeline_rows(4), {"gpus": 6}, InfeasibleError, "6 ranks do not divide into tp 1 x pp 4 = 4; 2 would"),
        (tensor_rows(), {"gpus": 4, "dp": 3}, InfeasibleError, "gpus=4 contradicts dp 3 x tp 1"),
        (bert_rows(), {"cp": 2}, ConfigError, "^--cp has no meaning for a NeuSight operator forecast$"),
        (bert_rows(), {"pp_message_bytes": 2}, ConfigError, "^--pp-comm has no meaning"),
        (bert_rows(), {"stage_roles": "as-written"}, ConfigError, "^--stage-roles has no meaning"),
        (bert_rows(), {"overlap_grad_reduce": True}, ConfigError, "^--overlap-grad-reduce has no meaning"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path, rows, options, error, words):
    with pytest.raises(error, match=words):
        api.read(write(tmp_path / "w.tsv", rows), LayoutOptions(**options))


@pytest.mark.parametrize(
    "options", [{"layers": 2}, {"layer_block": "a:b"}, {"dtype": "bf16"}, {"forward_only": True}], ids=str
)
def test_options_of_neusight_mean_nothing_to_aicb(options):
    flag = "--" + next(iter(options)).replace("_", "-")
    with pytest.raises(ConfigError, match=f"^{flag} has no meaning for an AICB/SimAI workload$"):
        api.read(GPT2_LARGE.with_name("aicb_scaled_512gpu.txt"), LayoutOptions(**options))


def test_an_unknown_dtype_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match="fp32"):
        LayoutOptions(dtype="fp31")


def test_several_files_are_not_one_run():
    with pytest.raises(FormatError, match="give one file"):
        api.read([GPT2_LARGE, GPT2_LARGE])


@pytest.mark.parametrize(("tp", "said"), [(None, False), (1, False), (2, True)])
def test_a_tp_that_rescales_nothing_is_said(tmp_path, tp, said):
    result = simulate(write(tmp_path / "w.tsv", [row("a", 1)]), tp=tp)
    assert ("tp-not-rescaled" in codes(result.warnings)) is said
    communicating = simulate(write(tmp_path / "c.tsv", tensor_rows()), tp=tp)
    assert ("tp-not-rescaled" in codes(communicating.warnings)) is (tp is not None)


def test_what_takes_no_time_is_said(tmp_path):
    rows = [row("a", (1, "ALLREDUCE", 0)), gradient("b", 0), row("b", 1)]
    result = simulate(write(tmp_path / "w.tsv", rows), dp=2, tp=2)
    assert result.collectives == ()
    assert "zero-size" in codes(result.assumptions)


def test_asynchronous_communication_of_the_forward_pass_is_waited_for(tmp_path):
    path = write(tmp_path / "w.tsv", [row("a", (1, "ALLGATHER_ASYNC", 4_000_000))])
    result = simulate(path, forward_only=True, busbw_bytes_per_s={"dp": 6e9})
    assert result.iteration_time_s == about(3e-3)
    assert result.breakdown_s["exposed_dp"] == about(2e-3)


def test_process_time_follows_each_communication(tmp_path):
    path = write(tmp_path / "w.tsv", [row("a", (1, "ALLREDUCE", 4_000_000), process_ms=0.5)])
    result = simulate(path, forward_only=True, busbw_bytes_per_s={"tp": 12e9})
    assert result.iteration_time_s == about(3.5e-3)
    assert "process-time" in codes(result.warnings)
