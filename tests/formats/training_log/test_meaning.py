"""A step in steady state: what does not count, and the median and spread of what does."""

import pytest

from traincast.formats.training_log.meaning import WARM_UP, steady_step, timed_steps
from traincast.formats.training_log.reader import parse
from training_logs import (
    megatron_line,
    megatron_settings,
    megatron_world,
    progress_bar,
    torchtitan_line,
    torchtitan_start,
)

JOB = {"global_batch": 64, "seq_length": 8192, "gpus": 64}


def read(*lines):
    return parse("run.log", "\n".join(lines) + "\n")


def codes(steady):
    return [note.code for note in steady.notes]


def test_warm_up_does_not_count_and_the_rest_makes_median_and_percentiles():
    slow = [megatron_line(step, 9000) for step in range(1, WARM_UP + 1)]
    times_ms = [*range(2000, 2101)]
    times_ms = [times_ms[37 * n % 101] for n in range(101)]
    steady = steady_step(read(*slow, *(megatron_line(WARM_UP + 1 + n, ms) for n, ms in enumerate(times_ms))))
    assert (steady.step_s, steady.low_s, steady.high_s) == pytest.approx((2.05, 2.005, 2.095))
    assert (steady.lines, steady.steps) == (101, 101)
    assert codes(steady) == ["warm-up"]
    assert steady.notes[0].text.startswith("10 lines of warm-up left out (the first 10 steps;")


@pytest.mark.parametrize(("lines", "left"), [(1, 1), (2, 1), (3, 2), (10, 5), (19, 10), (20, 10), (21, 11), (50, 40)])
def test_a_short_log_keeps_half(lines, left):
    steady = steady_step(read(*(megatron_line(step, 2000) for step in range(1, lines + 1))))
    assert steady.lines == left
    assert codes(steady) == (["warm-up-only"] if lines == 1 else ["warm-up"])


def test_lines_that_are_means_of_many_steps_lose_the_one_with_the_warm_up_alone():
    steady = steady_step(read(*(megatron_line(100 * n, 2000 + n) for n in range(1, 6))))
    assert (steady.lines, steady.steps) == (4, 400)
    assert codes(steady) == ["warm-up", "means"]
    # The second line tells of steps 2 to 10, which are warm-up too.
    steady = steady_step(read(*(megatron_line(step, 2000) for step in (1, 10, 20, 30, 40))))
    assert steady.lines == 3


def test_a_log_from_the_middle_of_a_run_loses_the_lines_after_its_first_step():
    steady = steady_step(read(*(megatron_line(step, 2000) for step in range(5000, 5100))))
    assert steady.lines == 100 - WARM_UP


def test_every_start_has_its_warm_up():
    steps = [*range(1, 31), *range(21, 51)]
    times = [9000] * 10 + [2000] * 20 + [8000] * 10 + [2002] * 20
    steady = steady_step(read(*(megatron_line(step, ms) for step, ms in zip(steps, times, strict=True))))
    assert (steady.lines, steady.low_s, steady.high_s) == pytest.approx((40, 2.0, 2.002))
    assert "of each of 2 starts" in steady.notes[0].text


def test_longer_steps_after_a_checkpoint_or_evaluation_do_not_count_and_others_do():
    lines = [megatron_line(step, 2000 + step) for step in range(1, 61)]
    lines[29] = "saving checkpoint at iteration      29 to /ckpt\n" + megatron_line(30, 30_000)
    # A version that leaves the checkpoint out of the step.
    lines[39] = "saving checkpoint at iteration      39 to /ckpt\n" + megatron_line(40, 2040)
    lines[49] = megatron_line(50, 4000)
    steady = steady_step(read(*lines))
    assert (steady.lines, codes(steady)) == (49, ["warm-up", "interrupted", "slow-steps"])
    assert steady.notes[1].place == "run.log:31"
    assert "1 line above 1.5 x the median, up to 4 s; they count" in steady.notes[2].text


def test_of_a_growing_batch_the_last_counts():
    lines = [megatron_line(step, 1000 + 10 * step, batch=32 if step <= 50 else 64) for step in range(1, 81)]
    steady = steady_step(read(*lines))
    assert (steady.lines, steady.step_s) == (30, pytest.approx(1.655))
    assert codes(steady) == ["warm-up", "batch-changes"]


def test_tokens_per_second_and_gpu_follow_from_batch_and_gpus():
    head = (megatron_world(world=64), megatron_settings(seq_length=4096))
    steady = steady_step(read(*head, *(megatron_line(step, 2000, tflops=400) for step in range(1, 31))))
    assert steady.tokens_per_s == pytest.approx(128 * 4096 / 2.0 / 64)
    assert steady.flops_per_s == 400e12


def test_torchtitan_says_no_time_and_it_follows_from_tokens():
    steps = [torchtitan_line(step, 8192 / 1.28) for step in (1, *range(10, 201, 10))]
    steady = steady_step(read(torchtitan_start(), *steps))
    assert steady.step_s == pytest.approx(1.28)
    assert codes(steady)[0] == "from-tokens"
    assert "524,288 tokens / (6,400 tokens/s/GPU x 64 GPUs) = 1.28 s" in steady.notes[0].text
    # Of a log that lost its beginning the job says them.
    assert steady_step(read(*steps), JOB).step_s == pytest.approx(1.28)
    assert steady_step(read(*steps), JOB).tokens_per_s == 6400
    # Model-parallel ranks share their tokens, as torchtitan counts.
    start = torchtitan_start(dp_shard=16, tp=4)
    assert steady_step(read(start, *steps)).step_s == pytest.approx(1.28)


def test_where_tokens_are_not_known_the_clock_tells():
    steps = [torchtitan_line(step, 6400, seconds=1.25 * step) for step in range(1, 200)]
    steady = steady_step(read(*steps))
    assert steady.step_s == pytest.approx(1.25, rel=1e-3)
    assert (codes(steady)[0], steady.tokens_per_s) == ("from-clock", 6400)


def test_a_clock_of_fractions_tells_each_line_and_one_of_seconds_those_far_apart():
    rows = [f"{step},{0.5 + 1.5 * step}" for step in range(1, 41)]
    timed = timed_steps(read("step,_runtime", *rows))
    assert timed.steps.step.tolist() == [*range(2, 41)]
    assert timed.steps.step_s.tolist() == pytest.approx([1.5] * 39)
    timed = timed_steps(read("step,_runtime", *(f"{step},{2 * step}" for step in range(1, 41))))
    assert timed.steps.step.tolist() == [11, 21, 31]


def test_a_progress_bar_without_step_times_is_told_by_its_clock():
    bars = "".join(progress_bar(step, None, steps=1000, elapsed=int(2.5 * step)) for step in range(1, 501))
    steady = steady_step(parse("run.log", bars))
    assert steady.step_s == pytest.approx(2.5, rel=0.05)


def test_without_any_time_there_is_no_step():
    log = parse("run.log", "step:  1  loss:  8.00000  memory: 1.00GiB(1.00%)  tps: 6,400  mfu: 40.00%\n")
    assert steady_step(log) is None
