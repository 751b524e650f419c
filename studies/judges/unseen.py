"""Steps of tables that no factor and no width was fitted to, by what is shipped.

Shown, and not counted among all: what says how slow something went, not how fast a machine is. Nanotron's sweep on 64
GPUs and more, where its cluster had a defect, items of verification cards that are no tuned runs, and a run on AMD that
a fault of its software made slow.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from forecasts import MLPERF, shipped_forecasts, timed_rows
from judges.board import Board, board_of
from traincast.calibration.runs import MeasuredRun

_SUBJECT = "steps, in no fit"
_CARDS, _SWEPT, _AMD = "mbridge_cards.csv", "nanotron_ultrascale_h100.csv", "amd_other.csv"
_TUNED, _FAULTY = "performance item", "known slow"
_FEW_GPUS = 32
"""GPUs up to which no run of the sweep is known to be spoilt (data/README.md)."""
_INSIDE, _INSIDE_OF_TABLES = 87, 85


def unseen_runs() -> Mapping[str, Sequence[MeasuredRun]]:
    """Return the runs of each table by its name on the boards."""
    return {
        "MLPerf v6.0": timed_rows(MLPERF),
        "Megatron-Bridge's cards": [run for run in timed_rows(_CARDS) if _says(run, _TUNED)],
        "nanotron": [run for run in timed_rows(_SWEPT) if not _has_many(run)],
        "TPU": timed_rows("tpu_runs.csv"),
        "AMD": [run for run in timed_rows(_AMD) if not _says(run, _FAULTY)],
    }


def slow_runs() -> Mapping[str, Sequence[MeasuredRun]]:
    """Return the runs that are shown alone."""
    return {
        "Megatron-Bridge's cards, not tuned": [run for run in timed_rows(_CARDS) if not _says(run, _TUNED)],
        "nanotron, where its cluster had a defect": [run for run in timed_rows(_SWEPT) if _has_many(run)],
        "AMD, known slow": [run for run in timed_rows(_AMD) if _says(run, _FAULTY)],
    }


def _says(run: MeasuredRun, words: str) -> bool:
    return words in run.cells["notes"]


def _has_many(run: MeasuredRun) -> bool:
    return (run.request.gpus or 0) > _FEW_GPUS


def boards() -> list[Board]:
    """Return the boards of all these runs and of each table, and the share inside with each table counted once."""
    tables = [_judged(runs) for runs in unseen_runs().values()]
    share = float(np.mean([np.mean([inside for _, _, inside in table]) for table in tables]))
    return [
        _board("all", [each for table in tables for each in table])._replace(asked={"inside": _INSIDE}),
        *map(_board, unseen_runs(), tables),
        Board(
            _SUBJECT, "each table once", len(tables), {"inside": round(100 * share, 2)}, {"inside": _INSIDE_OF_TABLES}
        ),
        *(_board(name, _judged(runs)) for name, runs in slow_runs().items()),
    ]


def _judged(runs: Sequence[MeasuredRun]) -> list[tuple[float, float, bool]]:
    """Return what was forecast and measured of runs, and whether what was measured lies inside the interval."""
    pairs = zip(runs, shipped_forecasts(runs), strict=True)
    return [
        (each.step_s, run.measured_s, each.holds(run.measured_s))
        for run, each in pairs
        if each.step_s is not None and run.measured_s is not None
    ]


def _board(name: str, judged: Sequence[tuple[float, float, bool]]) -> Board:
    return board_of(_SUBJECT, name, *zip(*judged, strict=True))
