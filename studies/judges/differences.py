"""Differences: every two published jobs of one source that differ in one thing, and what was said of the change.

Each pair is forecast by factors that have not seen its source, and its interval by widths fitted to four fifths of the
sources without it. A change is told in points of the time of a GPU for a token. Two releases that nothing modelled
tells apart are no change: how far they are apart is a board of its own. Another is of a sweep over layouts, which no
fit has seen, of factors or of widths.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from fit_differences import Told, fit_widths, spreads_of, told_of, told_pairs
from forecasts import shipped_forecasts, timed_rows
from judges.board import Board
from published.pairs import changed_pairs
from traincast.calibration.kind import BoolArray, FloatArray
from traincast.calibration.runs import job_of_run
from traincast.estimate.factors import factors_on
from traincast.simulation.differences import Doubts, difference_widths
from traincast.simulation.doubts import doubts

CLEAR = 0.03
"""Measured change from which on its sign is held against the forecast's."""
_FOLDS = 5
_FEWEST = 10
"""Pairs of a kind from which on it has a line of its own."""
_ASKED = {"median": 3.0, "rightly told": 90.0, "inside": 85.0}
SUBJECT, SWEEP = "changes, source left out", "changes of layouts, in no fit"
_SWEPT = "nanotron_ultrascale_h100.csv"
_FEW_GPUS = 16
"""GPUs up to which its runs are taken: on more the cluster had a defect (data/README.md), and those are many."""


def boards() -> list[Board]:
    """Return the boards of all changes, of each kind of them, of what is no change to us, and of the sweep."""
    swept = swept_pairs()
    inside = np.abs([each.error for each in swept]) <= spreads_of(swept, difference_widths())
    return [*boards_of(told_pairs()), _board("nanotron", swept, inside, SWEEP)]


def swept_pairs() -> list[Told]:
    """Return the pairs of the sweep that differ in one thing."""
    rows = [run for run in timed_rows(_SWEPT) if run.request.gpus <= _FEW_GPUS]
    known: dict[str, tuple[float, Doubts]] = {}
    for run, found in zip(rows, shipped_forecasts(rows), strict=True):
        if found.step_s is not None and found.basis is not None:
            doubted = doubts(found.basis, factors_on(run.cluster), job_of_run(run), run.cluster, found.step_s)
            known[run.id] = (found.step_s, doubted)
    pairs = changed_pairs(run for run in rows if run.id in known)
    told = [told_of(pair, known[pair.before.run.id], known[pair.after.run.id]) for pair in pairs]
    return [each for each in told if not each.is_one_job]


def boards_of(told: Sequence[Told]) -> list[Board]:
    """Return the boards of pairs that were forecast."""
    changes = [each for each in told if not each.is_one_job]
    inside = inside_of(changes)
    kinds = np.array([each.pair.kind for each in changes])
    common = sorted({str(kind) for kind in kinds if (kinds == kind).sum() >= _FEWEST})
    of_kind = {**{kind: kinds == kind for kind in common}, "all others": ~np.isin(kinds, common)}
    alike = [each for each in told if each.is_one_job]
    return [
        _board("all", changes, inside, **_ASKED),
        *(_board(kind, _chosen(changes, mine), inside[mine]) for kind, mine in of_kind.items()),
        _board("releases that we take for one", alike, np.array([], np.bool_)),
    ]


def _chosen(told: Sequence[Told], mine: BoolArray) -> list[Told]:
    return [each for each, is_mine in zip(told, mine.tolist(), strict=True) if is_mine]


def inside_of(told: Sequence[Told]) -> BoolArray:
    """Return which measured ratios lie inside intervals whose widths have not seen their source."""
    return np.asarray(np.abs([each.error for each in told]) <= left_out_spreads(told), np.bool_)


def left_out_spreads(told: Sequence[Told]) -> FloatArray:
    """Return by how much the logarithm of each ratio may be off, by widths that have not seen its source, [J]."""
    sources = sorted({each.pair.source for each in told})
    fold_J = np.array([sources.index(each.pair.source) % _FOLDS for each in told])
    found = np.zeros(len(told))
    for fold in range(_FOLDS):
        found[fold_J == fold] = spreads_of(told, fit_widths(told, fold_J != fold))[fold_J == fold]
    return found


def _board(name: str, told: Sequence[Told], inside: BoolArray, subject: str = SUBJECT, /, **asked: float) -> Board:
    """Return the board of some pairs, in points of the change."""
    if not told:
        return Board(subject, name, 0, {}, asked)
    said, measured = (
        np.array(values) for values in zip(*((each.ratio, each.pair.ratio) for each in told), strict=True)
    )
    median, p90 = np.quantile(np.abs(said - measured), (0.5, 0.9))
    figures = {"median": median, "p90": p90, "bias": np.median(said - measured)}
    if len(inside):
        figures["inside"] = np.mean(inside)
        clear = np.abs(measured - 1) > CLEAR
        if clear.any():
            figures["rightly told"] = np.mean(((said < 1) == (measured < 1))[clear])
    in_points = {each: round(100 * float(value), 2) for each, value in figures.items()}
    return Board(subject, name, len(told), in_points, asked)


def worst_of(told: Sequence[Told]) -> Iterator[Told]:
    """Yield pairs, those whose change was said most wrongly first."""
    yield from sorted(told, key=lambda each: -abs(each.ratio - each.pair.ratio))
