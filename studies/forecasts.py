"""Forecasts of published runs by all that is shipped: each is made once, however many judges and fits ask for it."""

from collections.abc import Hashable, Sequence
from functools import cache
from pathlib import Path

from datafiles import DATA, table_path
from published.reading import read_published
from traincast.calibration.run_factors import Forecast, forecast_runs
from traincast.calibration.runs import MeasuredRun, read_runs
from traincast.estimate.factors import factors_on

PUBLISHED = "measured_training_runs.csv"
"""The table that the factors are fitted to."""
MLPERF = "mlperf_v6.csv"
_RECIPES = "recipe_settings.csv"
_MADE: dict[Hashable, Forecast] = {}


@cache
def published_rows(name: str = PUBLISHED, folder: Path = DATA) -> tuple[MeasuredRun, ...]:
    """Return the runs of a table, `PUBLISHED` with the settings of its recipes."""
    recipes = table_path(_RECIPES, folder) if name == PUBLISHED else None
    return read_runs(read_published(table_path(name, folder), recipes)).rows


@cache
def timed_rows(name: str = PUBLISHED, folder: Path = DATA) -> tuple[MeasuredRun, ...]:
    """Return the runs of a table whose step was measured."""
    return tuple(run for run in published_rows(name, folder) if run.measured_s is not None)


def shipped_forecasts(runs: Sequence[MeasuredRun]) -> list[Forecast]:
    """Return the forecasts of runs; those that are new are made on all cores."""
    keys = [_key(run) for run in runs]
    new = {key: run for key, run in zip(keys, runs, strict=True) if key not in _MADE}
    made = forecast_runs(list(new.values()), [factors_on(run.cluster) for run in new.values()])
    _MADE.update(zip(new, made, strict=True))
    return [_MADE[key] for key in keys]


def _key(run: MeasuredRun) -> Hashable:
    """Return all of a run that its forecast hangs on."""
    return run.request, run.cluster, run.stage_layers, run.notes
