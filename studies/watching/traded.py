"""How many runs are called changed, against what is found of changes put in, over constants of the level shift.

Changes are put at every few points of each run and not at random ones, so that the figures of two variants differ by
what they are; each run counts as much as any other.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from traincast.checking import level_shift
from traincast.checking.detector import Detector
from watching.injected import FIRST, LARGE, LONGEST, SHIFT, SOON, SPREADS, WITHIN, Run, alarms, slower_alarms

APART, PLACES = 5, 8
"""Points between two changes, and changes of a long run."""


VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "as it is": {},
    "no window is restless": {"UNREST_SHORT": (9.0, 9.0), "UNREST_LONG": (9.0, 9.0)},
    "restless from twice the unrest": {"UNREST_SHORT": (2.0, 0.12)},
    "restless from a quarter of the shift": {"UNREST_SHORT": (3.0, 0.25)},
    "restless from a tenth, all windows": {"UNREST_SHORT": (2.0, 0.1), "UNREST_LONG": (2.0, 0.1)},
    "no rank asked": {"RANKS_ABOVE": 0.0},
    "halves not looked at": {"STAYS": 0.0},
    "2.8 % at least": {"LEAST_LONG": 0.028},
    "4 % at least": {"LEAST_LONG": 0.04},
    "thresholds x 0.85": {"TIMES_SHORT": 3.6, "TIMES_LONG": 2.55},
    "thresholds x 1.5": {"TIMES_SHORT": 6.3, "TIMES_LONG": 4.5, "LEAST_SHORT": 0.15, "LEAST_LONG": 0.039},
    "thresholds x 2": {"TIMES_SHORT": 8.4, "TIMES_LONG": 6.0, "LEAST_SHORT": 0.2, "LEAST_LONG": 0.052},
    "thresholds x 3": {"TIMES_SHORT": 12.6, "TIMES_LONG": 9.0, "LEAST_SHORT": 0.3, "LEAST_LONG": 0.078},
}
"""Constants of `traincast.checking.level_shift` that differ from its own."""
UNREST: Mapping[str, Mapping[str, Any]] = {
    f"{short}, {long}": {"UNREST_SHORT": short, "UNREST_LONG": long}
    for short in ((2.0, 0.12), (3.0, 0.12), (3.0, 0.2), (4.0, 0.12))
    for long in ((1.5, 0.25), (2.0, 0.25), (2.0, 0.4))
}
"""How restless windows may be: what either half of the tests chooses."""


class Judged(NamedTuple):
    """What becomes of a run and of the changes put into it."""

    run: Run
    called: bool
    shifts: float
    """Share of shifts of 3 % or three spreads that are found."""
    large: float
    """Share of shifts 10 % beyond three spreads that are found in ten points."""


class Traded(NamedTuple):
    """A variant, and what it makes of each run."""

    name: str
    runs: Sequence[Judged]

    def of_half(self, half: int | None = None) -> tuple[float, float, float]:
        """Return the shares of runs that are called, and of both kinds of shifts that are found, of a half or all."""
        rows = [each for each in self.runs if half in (None, each.run.half)]
        called, shifts, large = (float(np.mean([each[at] for each in rows])) for at in (1, 2, 3))
        return called, shifts, large


def traded(
    runs: Sequence[Run], spreads: Mapping[str, float], variants: Mapping[str, Mapping[str, Any]] = VARIANTS
) -> Iterator[Traded]:
    """Yield what each variant makes of runs, and of changes put into them."""
    for name, constants in variants.items():
        own = {each: getattr(level_shift, each) for each in constants}
        for each, value in constants.items():
            setattr(level_shift, each, value)
        try:
            yield Traded(name, [_judged(run, spreads[run.name]) for run in runs])
        finally:
            for each, value in own.items():
                setattr(level_shift, each, value)


def best_of(rows: Sequence[Traded], half: int) -> Traded:
    """Return the variant with the fewest runs called and changes missed of a half, each kind counting alike."""

    def wrong(row: Traded) -> float:
        called, shifts, large = row.of_half(half)
        return called + (1 - shifts) + (1 - large)

    return min(rows, key=wrong)


def _judged(run: Run, spread: float) -> Judged:
    return Judged(
        run=run,
        called=bool(slower_alarms(alarms(run, Detector()))),
        shifts=_found(run, 1 + max(SHIFT, SPREADS * spread), WITHIN),
        large=_found(run, 1 + LARGE + SPREADS * spread, SOON),
    )


def _found(run: Run, times: float, within: int) -> float:
    """Return the share of shifts that are found, put at every few points."""
    last = min(len(run.step), LONGEST) - WITHIN
    watcher, read, found = Detector(), 0, []
    for at in range(FIRST, last + 1, max(APART, (last - FIRST) // PLACES)):
        alarms(run, watcher, read, at)
        read = at
        slower = run._replace(step_s=np.where(np.arange(len(run.step)) >= at, times, 1.0) * run.step_s)
        found.append(bool(slower_alarms(alarms(slower, copy.deepcopy(watcher), at, at + within))))
    return float(np.mean(found))
