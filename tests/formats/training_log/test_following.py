"""A log that is followed line by line says what the whole log says."""

import pytest

from traincast.formats.training_log.following import LogFollower
from traincast.formats.training_log.meaning import timed_steps
from traincast.formats.training_log.reader import parse
from training_logs import maxtext_line, megatron_line, megatron_settings, torchtitan_line, torchtitan_start

LOGS = {
    "megatron": [megatron_line(step, 2000 + step % 7) for step in range(1, 40)],
    "maxtext": [maxtext_line(step, 5 + step % 3) for step in range(40)],
    "torchtitan": [torchtitan_start(), *(torchtitan_line(step, 7000 + step) for step in (1, *range(10, 200, 10)))],
    "clock": [torchtitan_line(step, 7000, seconds=1.25 * step) for step in range(1, 200)],
    "restarted": [megatron_line(step, 2000 + step) for step in (1, 2, 3, 4, 2, 3, 4, 5)],
    "evaluated": [megatron_line(1, 2000), " validation loss at iteration 1 | lm", megatron_line(2, 2000)],
    "late": [megatron_line(step, 2000 + step) for step in (1, 2, 1, 3, 2, 4, 3, 4, 5, 5, 4)],
    "ranks": [f"[rank{rank}]:{megatron_line(step, 2000 + step)}" for step in range(1, 9) for rank in (0, 1)],
}


def followed(lines, **known):
    follower = LogFollower("run.log", known)
    return follower, [point for line in lines if (point := follower.feed(line)) is not None]


@pytest.mark.parametrize("name", LOGS)
def test_line_by_line_is_as_at_once(name):
    lines = "\n".join(LOGS[name]).split("\n")
    _, points = followed(lines)
    steps = timed_steps(parse("run.log", "\n".join(lines) + "\n")).steps
    for column in ("step", "start", "steps", "line", "interrupted"):
        assert [getattr(point, column) for point in points] == getattr(steps, column).tolist(), column
    assert [point.step_s for point in points] == pytest.approx(steps.step_s.tolist())


def test_what_the_job_says_makes_times_of_rates():
    lines = [torchtitan_line(step, 6400, coloured=False) for step in (1, 10, 20)]
    _, points = followed(lines, gpus=64, global_batch=64, seq_length=8192)
    assert [point.step_s for point in points] == pytest.approx([1.28] * 3)


def test_nothing_is_kept_of_a_long_log():
    follower, _ = followed(megatron_settings(seq_length=4096).split("\n"))
    for step in range(1, 3000):
        assert follower.feed(megatron_line(step, 2000)).step == step
    assert len(follower.lines.assembly.rows) == 0
    assert follower.lines.facts == {"seq_length": 4096}
