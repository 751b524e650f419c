"""Bad logs: one clear message, or a skip that is told of; nothing else is lost."""

import gzip
import json
import math
import tracemalloc

import numpy as np
import pytest

from traincast.errors import FormatError
from traincast.formats.training_log.lines import LogLines
from traincast.formats.training_log.meaning import steady_step, timed_steps
from traincast.formats.training_log.reader import parse, read_chunks, read_log
from training_logs import (
    event_file,
    maxtext_line,
    megatron_line,
    megatron_memory,
    megatron_settings,
    torchtitan_line,
    trainer_bar,
    trainer_state,
)


def read(*lines):
    return parse("run.log", "\n".join(lines) + "\n")


def codes(notes):
    return [note.code for note in notes]


def test_ranks_that_nothing_tells_apart_are_medians_of_each_step():
    lines = [
        megatron_line(step + lag, 2000 + step + 10 * rank)
        for step in range(1, 60)
        for rank, lag in enumerate((2, 0, 1))
    ]
    log = read(*lines)
    assert log.starts == 1
    assert log.steps.step.tolist() == [*range(1, 62)]
    assert log.steps.step_s[5] == pytest.approx(2.014, abs=0.01)
    (note,) = [note for note in log.warnings if note.code == "mixed-ranks"]
    assert "medians of each step count" in note.text


def test_two_runs_that_write_into_one_file_are_refused():
    lines = [line for step in range(1, 60) for line in (megatron_line(step + 500, 1000), megatron_line(step, 3000))]
    with pytest.raises(FormatError, match="lines of two runs are mixed; give the log of one") as caught:
        read(*lines, *(megatron_line(step, 1000) for step in range(1, 60)))
    assert caught.value.line is not None


def test_a_run_behind_another_is_a_later_start_and_told_of():
    first = [megatron_settings(seq_length=4096, num_layers=32), *(megatron_line(step, 2000) for step in range(1, 21))]
    other = [megatron_settings(seq_length=8192, num_layers=32), *(megatron_line(step, 4000) for step in range(1, 21))]
    log = read(*first, *other)
    assert (log.starts, log.facts["seq_length"], len(log.steps)) == (2, 4096, 40)
    (note,) = [note for note in log.warnings if note.code == "another-run"]
    assert note.text == "a later start is of another run: seq_length is 8192, and 4096 in the first"


def test_a_restart_is_told_of():
    log = read(*(megatron_line(step, 2000) for step in (1, 2, 3, 4, 5, 3, 4, 5, 6)))
    ((code, place, text),) = [(note.code, note.place, note.text) for note in log.warnings]
    assert (code, place) == ("restart", "run.log:6")
    assert "from 5 to 3" in text


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-5.0", "1e300", "0"])
def test_times_that_are_none_are_passed_over_in_lines_and_told_of(value):
    log = read(maxtext_line(0, 5.0), maxtext_line(1, 5.0).replace("5.000", value), maxtext_line(2, 5.5))
    assert log.steps.step_s.tolist() == [5.0, 5.5]
    assert codes(log.warnings) == ["step-wrong"]


def test_rows_without_a_time_are_left_out_and_told_of():
    log = read("step,step_s,_runtime", "1,1.5,10", "2,NaN,20", "3,,30", "4,1.25,40")
    timed = timed_steps(log)
    assert timed.steps.step.tolist() == [1, 4]
    assert [(note.code, note.text) for note in timed.notes] == [
        ("without-time", "2 lines of steps without a time left out")
    ]


def test_a_row_of_another_length_is_passed_over_and_told_of():
    log = read("step,step_s", "1,1.5", "2,1.5,7", "3", "4,1.25", "step,step_s", "5,1.5")
    assert log.steps.step.tolist() == [1, 4, 5]
    assert [(note.code, note.place) for note in log.warnings] == [("step-cut", "run.log:3")]


def test_columns_of_two_runs_are_refused():
    with pytest.raises(FormatError, match="are of two runs; export one run"):
        read('"Step","a - step_time","b - step_time"', '"1","1.5","2.5"')


def test_rows_of_several_runs_are_refused():
    for rows in (
        ["run,step,step_s", "a,1,1.5", "a,2,1.5", "b,1,2.5"],
        [json.dumps({"run_name": name, "step": 1, "step_s": 1.5}) for name in "aab"],
    ):
        with pytest.raises(FormatError, match=r"steps of several runs \(column run(_name)?: 'a', 'b'\)") as caught:
            read(*rows)
        assert caught.value.line == len(rows)


def test_a_clock_that_goes_back_tells_no_step_across():
    lines = [torchtitan_line(step, 7000, seconds=25 * step - (300 if step > 20 else 0)) for step in range(1, 40)]
    timed = timed_steps(read(*lines))
    assert timed.steps.step_s.tolist() == pytest.approx([25.0] * 37)
    assert codes(timed.notes) == ["from-clock", "clock-back"]


def test_a_date_that_is_none_is_no_clock():
    line = torchtitan_line(1, 7000).replace("2026-03-01", "2026-13-41")
    assert np.isnan(read(line).steps.clock_s[0])


def test_a_time_that_only_rises_is_that_of_a_clock():
    log = read("step,time,loss", *(f"{10 * n},{25.5 * n},2.5" for n in range(1, 30)))
    assert codes(log.warnings) == ["time-is-clock"]
    assert timed_steps(log).steps.step_s.tolist() == pytest.approx([2.55] * 28)
    # Another name says what it is, however the step grows.
    log = read("step,step_s", *(f"{n},{1 + n / 100}" for n in range(1, 30)))
    assert log.warnings == ()
    assert len(timed_steps(log).steps) == 29
    since_1970 = read("step,time", *(f"{n},{1.7e9 + 25 * n}" for n in range(1, 9)))
    assert timed_steps(since_1970).steps.step_s.tolist() == pytest.approx([25.0] * 7)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n\n",
        bytes(range(256)) * 500,
        b"\0" * 100_000,
        b"no newline " * 200_000,
        b"iteration,\n" * 1000,
        b'{"step": 1}\n' * 1000,
        b'{"log_history": []}',
        b'[{"step": 1, "step_s": "x"}]',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        event_file([(1.7e9, 1, "something", 1.0)]),
    ],
)
def test_what_holds_no_step_is_one_message_that_says_what_was_looked_for(data):
    with pytest.raises(FormatError) as caught:
        read_chunks("run.log", [data])
    text = str(caught.value)
    assert "\n" not in text
    for looked_for in ("elapsed time per iteration (ms)", "train_step_timing in s", "completed step:", '"step_s"'):
        assert looked_for in text


def test_event_files_with_damage_keep_what_is_whole():
    whole = event_file([(1.7e9 + step, step, "iteration-time", 1.5) for step in range(1, 40)])
    flipped = bytearray(whole)
    flipped[whole.index(b"iteration-time", len(whole) // 2) + 3] ^= 1
    log = read_chunks("events", [bytes(flipped)])
    assert (len(log.steps), codes(log.warnings)) == (38, ["record-damaged"])
    assert "not what was written" in log.warnings[0].text
    log = read_chunks("events", [whole[:-5]])
    assert (len(log.steps), codes(log.warnings)) == (38, ["record-damaged"])
    assert "ends within a record" in log.warnings[0].text


def test_a_document_that_was_cut_keeps_its_whole_entries():
    text = trainer_state([{"step": step, "step_time": 1.5} for step in range(1, 30)])
    log = parse("trainer_state.json", text[: text.index('"step": 20')])
    assert (len(log.steps), codes(log.warnings)) == (19, ["step-cut"])


def test_a_packed_log_that_was_cut_is_refused(tmp_path):
    path = tmp_path / "run.log.gz"
    path.write_bytes(gzip.compress(megatron_line(1, 2000).encode() * 500)[:-20])
    with pytest.raises(FormatError, match="gzip"):
        read_log(path)


def test_long_lines_are_passed_over_and_told_of():
    log = read(megatron_line(1, 2000), "x" * 30_000 + megatron_line(2, 2000), megatron_line(3, 2000))
    assert (log.steps.step.tolist(), codes(log.warnings)) == ([1, 3], ["long-line"])


def test_a_bar_that_is_rewritten_for_hours_is_read_as_it_comes():
    bars = "".join(trainer_bar(step, 30 * step, steps=20_000) for step in range(20_000)).encode()
    assert bars.count(b"\n") == 0
    log = read_chunks("run.log", (bars[at : at + 2**20] for at in range(0, len(bars), 2**20)))
    assert len(log.steps) == 20_000


def test_memory_and_time_do_not_grow_with_what_is_passed_over():
    noise = (
        "W0301 10:00:00.123456 140234 site-packages/torch/somewhere.py:79 some library warns of something\n" * 10_000
    )
    data = (noise + megatron_line(1, 2000) + "\n").encode()
    tracemalloc.start()
    try:
        log = read_chunks("run.log", (piece for _ in range(30) for piece in (data, b"no end of a line " * 50_000)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(data)
    assert len(log.steps) == 1


def test_memory_of_its_own_line_belongs_to_the_step_before():
    log = read(
        *(megatron_line(step, 2000) for step in (1, 2)),
        megatron_memory(2, 50_000.5, rank=0),
        megatron_memory(2, 60_000.5, rank=8),
        *(megatron_line(step, 2000) for step in (3, 4)),
    )
    assert log.steps.memory_bytes.tolist() == pytest.approx(
        [math.nan, 60_000.5 * 2**20, math.nan, math.nan], nan_ok=True
    )
    assert steady_step(log).memory_bytes == 60_000.5 * 2**20
    assert log.starts == 1


def test_throughput_is_megatrons_next_to_its_time_alone():
    log = read(*(json.dumps({"iteration": n, "iteration-time": 1.5, "throughput": 410.5}) for n in (1, 2)))
    assert log.steps.flops_per_s.tolist() == [410.5e12] * 2
    log = read(*(json.dumps({"step": n, "step_s": 1.5, "throughput": 52000}) for n in (1, 2)))
    assert np.isnan(log.steps.flops_per_s).all()


def test_warnings_of_a_long_log_are_few():
    lines = LogLines("run.log", keep=False)
    for step in range(20_000):
        lines.feed(maxtext_line(step % 7, 5.0).replace("5.000", "nan" if step % 3 else "5.0"))
    assert len(lines.warnings.notes()) <= 3
