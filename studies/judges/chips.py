"""Runs on TPU and AMD chips, each forecast with factors of a fit that has not seen its source.

The factors are fitted to these runs and to one run of every other configuration. A run of a source that no factor saw
is forecast with what all others say.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
from msgspec.structs import replace

from datafiles import table_path
from forecasts import MLPERF, published_rows, shipped_forecasts
from judges.board import Board, board_of
from published.reading import in_common_schema
from traincast.calibration.columns import read_measurements
from traincast.calibration.run_factors import (
    Forecast,
    Sample,
    factors_of,
    forecast_run,
    representatives,
    sample_of,
)
from traincast.calibration.runs import HARD, MeasuredRun, is_fitted, read_runs
from traincast.estimate.factors import FactorTable, is_found, shipped_factors
from traincast.hardware.gpu import load_gpu

TABLES = ("tpu_runs.csv", "amd_other.csv")
"""Tables of these chips alone; others are among all runs."""
ASKED = {"TPU": {"median": 10.0, "p90": 22.0}, "AMD": {"median": 7.0, "p90": 20.0}}
_MAKERS = {"Google": "TPU", "AMD": "AMD"}
_SUBJECT = "runs on TPU and AMD, source left out"


def boards() -> list[Board]:
    """Return the boards of each maker, of each of its chips, and of each task and kind of model."""
    runs = list(chip_runs())
    pairs = [
        (run, each.step_s)
        for run, each in zip(runs, without_sources(runs), strict=True)
        if each.step_s is not None and run.measured_s is not None
    ]
    found: dict[str, list[tuple[float, float]]] = {}
    for run, step_s in pairs:
        for name in _names(run):
            found.setdefault(name, []).append((step_s, run.measured_s or 0.0))
    return [
        board_of(_SUBJECT, name, *zip(*steps, strict=True))._replace(asked=ASKED.get(name, {}))
        for name, steps in sorted(found.items(), key=lambda each: (each[0] not in ASKED, each[0]))
    ]


def _names(run: MeasuredRun) -> tuple[str, ...]:
    """Return the boards that a run is on."""
    maker, kind = maker_of(run), "dense" if run.request.model.experts is None else "MoE"
    return maker, f"{maker}: {run.groups.gpu}", f"{maker}: {run.groups.task}, {kind}, {run.groups.precision}"


def maker_of(run: MeasuredRun) -> str:
    """Return ``TPU`` or ``AMD``; empty for chips of others."""
    return _MAKERS.get(load_gpu(run.groups.gpu).vendor, "")


def chip_runs() -> Iterable[MeasuredRun]:
    """Return the published runs on these chips that have a step."""
    named = (runs_of(name) for name in TABLES)
    return filter(_is_measured, chain(filter(maker_of, (*published_rows(), *_judged_alone())), *named))


def _judged_alone() -> Iterator[MeasuredRun]:
    """Yield the runs of a table that are on the boards and in no fit, marked so."""
    for run in runs_of(MLPERF):
        yield replace(run, cells={**run.cells, HARD: "judged alone"})


def _is_measured(run: MeasuredRun) -> bool:
    return run.measured_s is not None


def runs_of(name: str) -> tuple[MeasuredRun, ...]:
    """Return the runs of a table."""
    return read_runs(in_common_schema(read_measurements(table_path(name)))).rows


def without_sources(runs: Sequence[MeasuredRun]) -> list[Forecast]:
    """Return the forecast of each run with factors of a fit to all others but those of its source."""
    others, weight_I = representatives([run for run in published_rows() if is_fitted(run) and not maker_of(run)], 1)
    shipped = shipped_factors()
    every = [*others, *runs]
    forecasts = shipped_forecasts(every)
    sample = sample_of(every, forecasts, shipped)
    sample = sample._replace(weight_I=np.concatenate([weight_I, sample.weight_I[len(others) :]]))
    tables = _tables(every, sample, shipped)
    return [forecast_run(run, tables(run.groups.source), "kernel") for run in runs]


def _tables(runs: Sequence[MeasuredRun], sample: Sample, shipped: FactorTable) -> Callable[[str], FactorTable]:
    """Return what gives the factors of a fit without a source."""
    seen_I = np.array(list(map(is_fitted, runs)))
    sources = np.array([run.groups.source for run in runs])
    kept = {key: each for key, each in shipped.factors.items() if not is_found(key)}
    known: dict[str, FactorTable] = {}

    def without(source: str) -> FactorTable:
        if source not in known:
            found = factors_of(sample.without(~seen_I | (sources == source)))
            known[source] = replace(found, factors={**kept, **found.factors})
        return known[source]

    return without
