"""The timing loop against a GPU of its own clock: order, repetitions, limits, the file and its continuation."""

import csv
from itertools import cycle, islice

import pytest

from fake_gpu import FakeGpu, tasks
from traincast.files import read_text
from traincast.measuring.timing import (
    FEWEST,
    MOST,
    TASK_S,
    WARM_UP,
    CannotTimeError,
    MeasureError,
    Summary,
    half_interval,
    measure,
)


def run(gpu, what, out, **limits):
    return measure(what, gpu, out, read_text=read_text, clock=gpu.clock, **limits)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_what_takes_most_of_a_step_is_timed_first_and_each_row_says_what_it_is(tmp_path):
    gpu, out = FakeGpu({"a": 1e-3, "b": 2e-3, "c": 3e-3}), tmp_path / "t.csv"
    told = []
    found = run(gpu, tasks(a=0.2, b=0.7, c=0.1), out, tell=told.append)
    assert gpu.prepared == ["b", "a", "c"]
    assert (found.done, found.known, found.left, found.skipped) == (3, 0, 0, [])
    assert found.share == pytest.approx(1.0)
    first, *_ = rows(out)
    assert (first["name"], float(first["time_s"]), first["count"], first["share"]) == ("b", 2e-3, "2", "0.7")
    assert (first["gpu"], float(first["spread"]), float(first["host_s"])) == ("Fake 1", 0.0, 5e-6)
    # Clocks are those of the moment, not of the start.
    assert [row["sm_clock_mhz"] for row in rows(out)] == ["1001", "1002", "1003"]
    assert [line.split(":")[0] for line in told] == ["[1/3] b", "[2/3] a", "[3/3] c"]
    assert "70% of the time is covered" in told[0]
    assert gpu.alive == 0, "the tensors of every task are given back"
    assert found.lines(out)[0] == f"timed 3, 0 in {out} before, 0 skipped, 0 left"


def test_repetitions_end_when_the_median_is_known_and_go_on_while_it_is_not(tmp_path):
    steady = FakeGpu({"a": 1e-3})
    run(steady, tasks(a=1.0), tmp_path / "steady.csv")
    (row,) = rows(tmp_path / "steady.csv")
    assert FEWEST <= int(row["repeats"]) <= 2 * FEWEST
    noisy = [1e-3 * (1 + 0.2 * (number % 7 - 3) / 3) for number in range(7)]
    wide = FakeGpu({"a": list(islice(cycle(noisy), 2 * MOST))})
    run(wide, tasks(a=1.0), tmp_path / "noisy.csv", spread=0.01)
    (row,) = rows(tmp_path / "noisy.csv")
    assert int(row["repeats"]) > 4 * FEWEST
    assert float(row["time_s"]) == pytest.approx(1e-3, rel=0.05)
    never = FakeGpu({"a": list(islice(cycle([1e-3, 2e-3]), 2 * MOST))})
    run(never, tasks(a=1.0), tmp_path / "never.csv", spread=1e-4)
    (row,) = rows(tmp_path / "never.csv")
    assert MOST <= int(row["repeats"]) < MOST + 2 * FEWEST
    assert float(row["spread"]) > 1e-4, "what was not reached is said"


def test_the_warm_up_is_in_no_median(tmp_path):
    gpu = FakeGpu({"a": [1.0] * WARM_UP + [1e-3] * MOST})
    run(gpu, tasks(a=1.0), tmp_path / "t.csv")
    (row,) = rows(tmp_path / "t.csv")
    assert float(row["time_s"]) == 1e-3


def test_a_long_operator_is_not_repeated_beyond_its_time(tmp_path):
    gpu = FakeGpu({"a": [1.0, 1.1] * MOST})
    run(gpu, tasks(a=1.0), tmp_path / "t.csv", spread=1e-6)
    assert gpu.now_s <= WARM_UP * 1.1 + TASK_S + FEWEST * 1.1


def test_half_the_interval_of_the_median_is_that_of_the_ranks():
    # 100 values: ranks 50 -+ 9.8, so the values at the places 40 and 60 (Conover 1999, 3.2).
    values = [float(value) for value in range(1, 101)]
    assert half_interval(values) == pytest.approx((61 - 41) / 2 / 50.5)
    assert half_interval([3.0] * 12) == 0.0
    assert half_interval(values[::-1]) == half_interval(values)


def test_the_time_limit_ends_the_run_and_the_next_goes_on(tmp_path):
    gpu, out = FakeGpu({"a": 0.1, "b": 0.1, "c": 0.1}), tmp_path / "t.csv"
    what = tasks(a=0.5, b=0.3, c=0.2)
    found = run(gpu, what, out, limit_s=1.0)
    assert (found.done, found.left) == (1, 2)
    assert found.share == pytest.approx(0.5)
    assert "--minutes" in " ".join(found.lines(out))
    before = out.read_text().splitlines()
    again = FakeGpu({"b": 0.1, "c": 0.1})
    more = run(again, what, out, limit_s=100.0)
    assert again.prepared == ["b", "c"]
    assert (more.done, more.known, more.left) == (2, 1, 0)
    assert more.share == pytest.approx(1.0)
    assert out.read_text().splitlines()[: len(before)] == before


def test_what_cannot_run_is_skipped_with_its_reason_and_tried_again(tmp_path):
    gpu, out = FakeGpu({"a": "out of memory", "b": 1e-3}), tmp_path / "t.csv"
    found = run(gpu, tasks(a=0.9, b=0.1), out)
    assert (found.done, found.skipped) == (1, [("a", "out of memory")])
    first, _ = rows(out)
    assert (first["name"], first["time_s"], first["skipped"]) == ("a", "", "out of memory")
    assert gpu.alive == 0
    mended = FakeGpu({"a": 1e-3})
    assert run(mended, tasks(a=0.9, b=0.1), out).done == 1
    assert [(row["name"], row["skipped"]) for row in rows(out)] == [("a", ""), ("b", "")]


def test_a_file_of_another_gpu_or_of_other_columns_is_not_continued(tmp_path):
    out = tmp_path / "t.csv"
    run(FakeGpu({"a": 1e-3}), tasks(a=1.0), out)
    kept = out.read_bytes()
    with pytest.raises(MeasureError, match="was measured on Fake 1, and this is Fake 2"):
        run(FakeGpu({"a": 1e-3}, "Fake 2"), tasks(a=1.0), out)
    out.write_text("op,time_s\nall_reduce,1\n")
    with pytest.raises(MeasureError, match="does not have these columns"):
        run(FakeGpu({"a": 1e-3}), tasks(a=1.0), out)
    assert out.read_text() == "op,time_s\nall_reduce,1\n"
    out.write_bytes(kept[:-20])
    with pytest.raises(MeasureError, match="does not have these columns"):
        run(FakeGpu({"a": 1e-3}), tasks(a=1.0), out)
    with pytest.raises(MeasureError, match="cannot be written"):
        run(FakeGpu({"a": 1e-3}), tasks(a=1.0), tmp_path / "no" / "t.csv")


def test_a_stop_in_the_middle_leaves_whole_rows(tmp_path):
    class Stopped(FakeGpu):
        def prepare(self, cells):
            if cells["name"] == "b":
                raise KeyboardInterrupt
            return super().prepare(cells)

    out = tmp_path / "t.csv"
    with pytest.raises(KeyboardInterrupt):
        run(Stopped({"a": 1e-3}), tasks(a=0.9, b=0.1), out)
    assert [row["name"] for row in rows(out)] == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_all_ranks_decide_as_the_one_that_writes(tmp_path):
    """A rank whose clock runs ahead times what rank 0 times, and writes nothing."""
    first = FakeGpu({"a": 0.1, "b": 0.1})
    decided = []

    class First(FakeGpu):
        def agreed(self, value):
            decided.append(value)
            return value

    class Second(FakeGpu):
        writes = False

        def agreed(self, _):
            return decided.pop(0)

        def clock(self):
            return 1e9 * self.now_s

    first = First({"a": 0.1, "b": "out of memory"})
    run(first, tasks(a=0.5, b=0.5), tmp_path / "one.csv", limit_s=10.0)
    second = Second({"a": 0.1, "b": "out of memory"})
    found = run(second, tasks(a=0.5, b=0.5), tmp_path / "two.csv", limit_s=10.0)
    assert (second.prepared, second.launches, decided) == (first.prepared, first.launches, [])
    assert not (tmp_path / "two.csv").exists()
    assert found.lines(tmp_path / "two.csv") == []


def test_nothing_to_time_is_nothing_done(tmp_path):
    assert run(FakeGpu({}), [], tmp_path / "t.csv") == Summary()
    assert not (tmp_path / "t.csv").exists()
    with pytest.raises(CannotTimeError):
        FakeGpu({"a": "no kernel"}).prepare({"name": "a"})
