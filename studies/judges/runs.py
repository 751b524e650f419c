"""Steps of published runs, each by factors and energies that have not seen its source, framework or publisher.

Widths of intervals are those of a fit to the other four fifths of the sources: what judges an interval has tuned none.
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from fit_widths import LEFT_OUT, LeftOut, fit_widths, left_out, published_runs
from judges.board import Board, board_of
from refit import Runs
from traincast.calibration.kind import BoolArray
from traincast.calibration.kinds.runs import BOARD, labels_of

_NVIDIA = re.compile(r"^(dgxc|nemo|megatron|jax-toolbox)")
"""Sources that NVIDIA publishes; its submissions to MLPerf are mixed with those of others."""
_FOLDS = 5
_ALL = "all"
_ASKED: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("source", "dense BF16/FP16"): {"median": 4.5, "p90": 13},
    ("source", "dense FP8"): {"median": 4.5, "p90": 11},
    ("source", "dense FP4"): {"median": 8, "p90": 14},
    ("source", "MoE"): {"median": 6, "p90": 17},
    ("framework", _ALL): {"median": 5, "p90": 14},
    ("publisher", "MoE"): {"median": 6.5, "p90": 17},
}
_FEWEST = 20
"""Runs of a kind from which on its share inside is asked for."""
_INSIDE, _INSIDE_OF_KIND, _INSIDE_OF_SOURCES = 87, 80, 85


def boards() -> list[Board]:
    """Return the boards of all runs, of each kind, and the share inside with each source counted once."""
    runs = published_runs()
    forecasts = {by: left_out(runs, by) for by in (*LEFT_OUT, "source+chip")}
    publishers = ["NVIDIA" if _NVIDIA.match(run.groups.source) else run.groups.source for run in runs.rows]
    forecasts["publisher"] = left_out(runs, "publisher", publishers)
    inside, late = _judged(runs, forecasts)
    found = [board for by, each in forecasts.items() for board in _boards(runs, each, inside[by])]
    return [*found, _called_slower(late["source"])]


def _called_slower(late_I: BoolArray) -> Board:
    """Return the share of runs that a check without a baseline calls slower: published runs are as fast as they get."""
    called = {"called": round(100 * float(late_I.mean()), 2)}
    return Board("check without a baseline, source left out", _ALL, len(late_I), called, {"called": 10.0})


def _judged(runs: Runs, forecasts: dict[str, LeftOut]) -> tuple[dict[str, BoolArray], dict[str, BoolArray]]:
    """Return which steps lie inside their intervals, and which above them, by what was left out.

    Widths have not seen the source of the run either.
    """
    sources = sorted({run.groups.source for run in runs.rows})
    fold_I = np.array([sources.index(run.groups.source) % _FOLDS for run in runs.rows])
    inside, late = ({by: np.zeros(len(fold_I), np.bool_) for by in forecasts} for _ in range(2))
    for fold in range(_FOLDS):
        widths = fit_widths([forecasts[by] for by in LEFT_OUT], fold_I != fold)
        for by, each in forecasts.items():
            inside[by][fold_I == fold] = each.inside_J(widths)[fold_I == fold]
            late[by][fold_I == fold] = each.late_J(widths)[fold_I == fold]
    return inside, late


def _boards(runs: Runs, forecasts: LeftOut, inside_I: BoolArray) -> Iterator[Board]:
    """Yield the boards of runs of which one thing was left out."""
    measured_I = np.array([run.measured_s for run in runs.rows], np.float64)
    forecast_I = measured_I * np.exp(forecasts.log_ratio_J)
    kinds, subject = np.array(labels_of(runs.rows)[BOARD]), f"steps, {forecasts.by} left out"
    for kind in (_ALL, *sorted(set(kinds))):
        mine_I = (kinds == kind) | (kind == _ALL)
        asked: dict[str, float] = dict(_ASKED.get((forecasts.by, kind), {}))
        if forecasts.by in LEFT_OUT and mine_I.sum() >= _FEWEST:
            asked["inside"] = _INSIDE if kind == _ALL else _INSIDE_OF_KIND
        yield board_of(subject, kind, forecast_I[mine_I], measured_I[mine_I], inside_I[mine_I], **asked)
    sources = np.array([run.groups.source for run in runs.rows])
    share = np.mean([inside_I[sources == source].mean() for source in sorted(set(sources))])
    asked = {"inside": _INSIDE_OF_SOURCES} if forecasts.by in LEFT_OUT else {}
    yield Board(subject, "each source once", len(set(sources)), {"inside": round(100 * float(share), 2)}, asked)
