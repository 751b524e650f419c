"""Healthy runs as they came, and with changes put into them: what `watch` says of each."""

from collections.abc import Sequence

import numpy as np

from judges.board import Board
from traincast.checking.detector import Detector
from watching.injected import (
    LARGE,
    SHIFT,
    SOON,
    SPREADS,
    WITHIN,
    Outcome,
    Run,
    alarms,
    drift_outcomes,
    long_enough,
    read_series,
    shift_outcomes,
    slower_alarms,
    spike_outcomes,
    spread_of,
)
from watching.lasting import changes
from watching.natural import holds_change

SUBJECT = "watched steps of healthy runs"


def boards() -> list[Board]:
    """Return the share of runs that are called changed, and of changes that are told, and dated right, in per cent."""
    runs = long_enough(read_series())
    spreads = {run.name: spread_of(run) for run in runs}

    def shift(run: Run) -> float:
        return max(SHIFT, SPREADS * spreads[run.name])

    def large(run: Run) -> float:
        return LARGE + SPREADS * spreads[run.name]

    return [
        _false(runs, "as they came", saves_told=False),
        _false(runs, "as they came, checkpoints told as a log does", saves_told=True),
        _unchanged(runs),
        _held(runs, "as they came, with a change as large as asked", saves_told=False),
        _held(runs, "the same, checkpoints told", saves_told=True),
        _of("level shifts of 3 % or three spreads", list(shift_outcomes(runs, shift, WITHIN)), told=95, dated=95),
        _of("level shifts 10 % beyond three spreads", list(shift_outcomes(runs, large, SOON)), told=95, dated=95),
        _of("drifts of 1 % per 100 points", list(drift_outcomes(runs)), told=95),
        _of("one slow step in 50", list(spike_outcomes(runs)), told=95),
    ]


def _false(runs: Sequence[Run], name: str, *, saves_told: bool) -> Board:
    called = _percent([bool(slower_alarms(alarms(run, Detector(), saves_told=saves_told))) for run in runs])
    return Board(SUBJECT, name, len(runs), {"called": called}, {"called": 5.0})


def _unchanged(runs: Sequence[Run]) -> Board:
    """Return how many runs are called changed that do not change, by a rule that knows no detector."""
    called = _percent([bool(slower_alarms(alarms(run, Detector()))) and not changes(run) for run in runs])
    return Board(SUBJECT, "as they came, without a change that lasts", len(runs), {"called": called}, {"called": 5.0})


def _held(runs: Sequence[Run], name: str, *, saves_told: bool) -> Board:
    """Return how many runs a detector that finds what it must has to call changed: the least for `_false`."""
    return Board(
        SUBJECT, name, len(runs), {"called": _percent([holds_change(run, saves_told=saves_told) for run in runs])}, {}
    )


def _of(name: str, outcomes: Sequence[Outcome], *, told: float, dated: float | None = None) -> Board:
    figures, asked = {"rightly told": _percent([each.found for each in outcomes])}, {"rightly told": told}
    if dated is not None:
        figures["within"] = _percent([each.dated for each in outcomes if each.found])
        asked["within"] = dated
    return Board(SUBJECT, name, len(outcomes), figures, asked)


def _percent(flags: Sequence[bool]) -> float:
    return round(100 * float(np.mean(flags)), 1) if flags else 0.0
