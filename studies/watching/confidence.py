"""What share of alarms are of a change that was put in, where every other run has one."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from traincast.checking.alarm import Alarm
from traincast.checking.detector import Detector
from watching.injected import (
    DRIFT_WITHIN,
    FIRST,
    LARGE,
    PERIOD,
    SHIFT,
    SOON,
    SPIKES,
    SPREADS,
    TRIES,
    WITHIN,
    Outcome,
    Run,
    alarms,
    drift_outcomes,
    shift_outcomes,
    spike_outcomes,
)

NEEDED = {
    "level shift": FIRST + WITHIN,
    "drift": FIRST + DRIFT_WITHIN,
    "periodic spikes": FIRST + PERIOD * SPIKES,
}
"""Points of a run into which a change of a kind is put."""


class SaidAndTrue(NamedTuple):
    """Alarms of one kind in one half of the tests, and what share of them is of a change that was put in."""

    kind: str
    half: int
    said: float
    """Their mean confidence."""
    true: float
    alarms: int


def said_and_true(runs: Sequence[Run], spreads: dict[str, float]) -> Iterator[SaidAndTrue]:
    """Yield how often alarms are right, by kind and half of the tests.

    Of each run the first alarm of a kind, as it came, is of no change that was put in; changes are put in several
    times, and count as one.
    """
    said, false, true = defaultdict(list), Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for run in runs:
        first: dict[str, Alarm] = {}
        for alarm in alarms(run, Detector()):
            if len(run.step) >= NEEDED.get(alarm.kind, len(run.step) + 1):
                first.setdefault(alarm.kind, alarm)
        for kind, alarm in first.items():
            false[kind, run.half] += 1
            said[kind, run.half].append(alarm.confidence)
    for outcome, weight in _told(runs, spreads):
        if (told := outcome.told) is not None:
            true[told.kind, outcome.run.half] += weight
            said[told.kind, outcome.run.half].append(told.confidence)
    for at in sorted(true):
        right = true[at] / (2 * TRIES)
        yield SaidAndTrue(*at, sum(said[at]) / len(said[at]), right / (right + false[at]), len(said[at]))


def _told(runs: Sequence[Run], spreads: dict[str, float]) -> Iterator[tuple[Outcome, int]]:
    """Yield what becomes of all changes; both kinds of shifts are put in, so that one counts half."""
    for each in shift_outcomes(runs, lambda run: max(SHIFT, SPREADS * spreads[run.name]), WITHIN):
        yield each, 1
    for each in shift_outcomes(runs, lambda run: LARGE + SPREADS * spreads[run.name], SOON):
        yield each, 1
    for each in drift_outcomes(runs):
        if each.told is not None and each.told.kind == "drift":
            yield each, 2
    for each in spike_outcomes(runs):
        yield each, 2
