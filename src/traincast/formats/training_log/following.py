"""Follow a log that is still written: each line as it comes, with its step's time, in memory that stays the same."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from traincast.formats.training_log.assembly import StepLine
from traincast.formats.training_log.contract import Dialect
from traincast.formats.training_log.dialects import DIALECTS
from traincast.formats.training_log.lines import LogLines
from traincast.formats.training_log.meaning import far_apart


class TimedPoint(NamedTuple):
    """A step as a line tells it, with its time."""

    step: int
    step_s: float
    """Mean time of a step."""
    line: int
    start: int
    """Which start of the run it belongs to, from 0."""
    steps: int
    """Steps of which it is the mean; 0 where that is not known."""
    values: Mapping[str, float]
    """What else the line says, some of `traincast.formats.training_log.contract.QUANTITIES`: memory, FLOP/s, loss."""
    interrupted: bool
    """Whether an evaluation or a checkpoint came between the line before and this one."""


class LogFollower:
    """Takes the lines of a log one by one, and says the time of the step that each tells of.

    Times are those that are printed, else from tokens or sequences per second, else between two clock times, as
    `traincast.formats.training_log.meaning.timed_steps` has them of a whole log.

    Parameters
    ----------
    path : str
        Where the lines come from, for messages.
    known : mapping, optional
        ``global_batch``, ``seq_length`` and ``gpus`` of the job, for logs that say tokens per second alone.
    dialects : sequence of Dialect

    Examples
    --------
    >>> from traincast.formats.training_log.following import LogFollower
    >>> follower = LogFollower("run.log")
    >>> follower.feed("[2026-03-01 10:00:20] something else")
    >>> follower.feed("completed step: 9, seconds: 5.120, TFLOP/s/device: 400.5, Tokens/s/device: 7000.2").step_s
    5.12
    """

    def __init__(
        self, path: str, known: Mapping[str, int] | None = None, dialects: tuple[Dialect, ...] = DIALECTS
    ) -> None:
        self.lines = LogLines(path, keep=False, dialects=dialects)
        self._known = dict(known or {})
        self._printed = self._rated = False
        self._before: StepLine | None = None
        self._last, self._since = (0, 0), 0
        self._told = (0, -1)
        """Start and number of the last step that was told."""

    def feed(self, text: str, number: int | None = None) -> TimedPoint | None:
        """Take in one line, of this 1-based number (default: the next); return the step that it tells the time of."""
        point = self.lines.feed(text, number)
        if point is None:
            return None
        at = (point.start, point.step)
        if at <= self._told:
            # Another rank, or a line that says something else of the same step.
            return None
        start, step = self._last
        if at != self._last:
            self._since = max(0, point.step - step) if point.start == start and step else int(point.step == 1)
            self._last = at
        steps = point.steps or self._since
        step_s = self._step_s(point)
        if step_s is None:
            return None if self._printed or self._rated else self._by_clock(point)
        self._told = at
        return TimedPoint(point.step, step_s, point.line, point.start, steps, point.values, point.interrupted)

    def _step_s(self, point: StepLine) -> float | None:
        """Return the time that a line prints, or that follows from its rates; None where it says neither."""
        if "step_s" in point.values:
            self._printed = True
            return point.values["step_s"]
        if self._printed:
            return None
        said = {**self._known, **self.lines.facts}
        batch = point.values.get("global_batch", said.get("global_batch", math.nan))
        tokens = float(said.get("tokens", float(batch) * float(said.get("seq_length", math.nan))))
        for name, amount in (
            ("tokens_per_s", tokens / float(said.get("gpus", math.nan))),
            ("job_tokens_per_s", tokens),
            ("samples_per_s", float(batch)),
        ):
            if name in point.values and not math.isnan(amount):
                self._rated = True
                return amount / point.values[name]
        return None

    def _by_clock(self, point: StepLine) -> TimedPoint | None:
        """Return the mean time of the steps since the last line that stands far enough before."""
        clock_s, before = point.values.get("clock_s"), self._before
        if clock_s is None:
            return None
        if before is None or before.start != point.start or clock_s < before.values["clock_s"]:
            self._before = point
            return None
        elapsed_s, done = clock_s - before.values["clock_s"], point.step - before.step
        if not far_apart(before.values["clock_s"], clock_s) or done <= 0:
            return None
        self._before = point
        self._told = (point.start, point.step)
        return TimedPoint(point.step, elapsed_s / done, point.line, point.start, done, point.values, point.interrupted)
