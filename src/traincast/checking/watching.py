"""Watch a run through the lines of its log: points for the detector, alarms, and what a monitor wants to know now."""

import math
from collections.abc import Mapping

from msgspec import Struct

from traincast.checking.alarm import Alarm
from traincast.checking.detector import Detector, LoggedStep
from traincast.checking.explained import Explainer
from traincast.errors import FormatError
from traincast.formats.training_log.dialects import DIALECTS
from traincast.formats.training_log.following import LogFollower

REMEMBERED_POINTS = 60
"""Points for which an alarm stays the verdict."""


class WatchState(Struct, frozen=True, kw_only=True):
    """What is known of a run now."""

    step: int
    step_s: float
    """Of the last line."""
    usual_s: float
    """Median of the last points."""
    low_s: float
    high_s: float
    """Within which nine in ten of the last points lie."""
    points: int
    alarms: Mapping[str, int]
    """How many of each kind there were."""
    verdict: str
    """Kind of the last alarm, if it is not long ago, else ``well``."""


class Watch:
    """Takes the lines of a log as they come.

    Parameters
    ----------
    path : str
        Where they come from, for messages.
    known : mapping, optional
        ``global_batch``, ``seq_length`` and ``gpus`` of the job, for logs that say tokens per second alone.
    explainer : Explainer, optional
        Explains alarms by forecasts of the job.

    Examples
    --------
    >>> from traincast.checking.watching import Watch
    >>> watch = Watch("run.log")
    >>> text = "iteration {}/ 500 | elapsed time per iteration (ms): {} |"
    >>> [alarm for step in range(1, 400) for alarm in watch.feed(text.format(step, 2000 + step % 3))]
    []
    """

    def __init__(self, path: str, known: Mapping[str, int] | None = None, explainer: Explainer | None = None) -> None:
        self.path = path
        self.follower = LogFollower(path, known)
        self.detector = Detector()
        self.explainer = explainer
        self.alarms: dict[str, int] = {}
        self._last_alarm: tuple[str, int] | None = None
        self._step_s = math.nan

    def feed(self, line: str) -> list[Alarm]:
        """Take in a line; return the alarms that it raises."""
        told = self.follower.feed(line)
        if told is None:
            return []
        self._step_s = told.step_s
        point = LoggedStep(
            step=told.step,
            step_s=told.step_s,
            start=told.start,
            memory_bytes=told.values.get("memory_bytes", math.nan),
            interrupted=told.interrupted,
            steps=max(1, told.steps),
        )
        return self._counted([self._explained(each) for each in self.detector.feed(point)])

    def _explained(self, alarm: Alarm) -> Alarm:
        if self.explainer is None:
            return alarm
        begun_at = self.detector.begun_at
        return self.explainer.explained(alarm, restarted=bool(begun_at) and alarm.began_step == begun_at)

    def waited(self, waited_s: float) -> list[Alarm]:
        """Take in that no line of a step came for some seconds; return the alarm of a stall."""
        stall = self.detector.stalled(waited_s)
        return self._counted([stall] if stall else [])

    @property
    def points(self) -> int:
        """How many steps were read."""
        return self.detector.seen

    def check_read(self) -> None:
        """See that a log that was read to its end has steps.

        Raises
        ------
        FormatError
            If no line told the time of a step.
        """
        if not self.points:
            known = ", ".join(each.title for each in DIALECTS)
            raise FormatError(
                f"no line tells the time of a step as one of these prints it: {known}; a document that is written "
                "whole, such as trainer_state.json, is for traincast check",
                self.path,
            )

    def state(self) -> WatchState:
        """Return what is known now; times are NaN before the first step."""
        low_s, high_s = self.detector.band()
        last = self._last_alarm
        recent = last is not None and self.points - last[1] < REMEMBERED_POINTS
        return WatchState(
            step=self.detector.last.step if self.detector.last else 0,
            step_s=self._step_s,
            usual_s=self.detector.usual_s,
            low_s=low_s,
            high_s=high_s,
            points=self.points,
            alarms=dict(self.alarms),
            verdict=last[0] if last is not None and recent else "well",
        )

    def _counted(self, found: list[Alarm]) -> list[Alarm]:
        for alarm in found:
            self.alarms[alarm.kind] = self.alarms.get(alarm.kind, 0) + 1
            self._last_alarm = alarm.kind, self.points
        return found
