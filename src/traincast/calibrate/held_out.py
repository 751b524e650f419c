"""Predict measurements by constants that never saw them: parts of a file are left out of the fit, each in turn.

Of runs ``family`` (source, model, GPU family, precision) and ``source``: the factors are fitted again without each of
them in turn; of kernels ``gpu`` (predicted by its datasheet, the constants of its kin, and the medians of the others)
and ``shape`` (a fifth of the shapes, by a hash, is predicted by constants and corrections fitted to the other rows of
the file); of collectives ``gpu`` (by its datasheet and the other GPUs), beside ``ranks``.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traincast.calibrate.collectives import CollectiveMeasurements
from traincast.calibrate.fit_links import fit_links, from_others
from traincast.calibrate.kind import Predictions, Request
from traincast.calibrate.kinds import operators, runs
from traincast.calibrate.kinds.collectives import Plan, RowsOf
from traincast.calibrate.kinds.runs import Forecast, forecast_runs, is_fitted, step_predictions
from traincast.calibrate.operator_recipe import price_held_out_shapes, price_without_each_gpu
from traincast.calibrate.run_factors import factors_of, sample_of
from traincast.calibrate.runs import MeasuredRun, read_runs
from traincast.calibrate.tables import Table
from traincast.errors import ConfigError
from traincast.estimate.factors import FactorTable, shipped_factors


def predict_runs(table: Table, request: Request) -> Predictions:
    """Return training runs with their forecasts, each group left out of the fit of its factors."""
    leave_out = request.leave_out or ""
    read = read_runs(table, request.cluster)
    rows = [run for run in read.rows if run.measured_s is not None]
    shipped = shipped_factors()
    known = request.kept if isinstance(request.kept, list) else []
    forecasts = [each for each in known if isinstance(each, Forecast)]
    if len(forecasts) != len(rows):
        forecasts = forecast_runs(rows, [shipped] * len(rows), runs.counter(request, len(rows)))
    tables = without_each(rows, forecasts, shipped, leave_out)
    changed = [index for index, each in enumerate(tables) if each is not shipped]
    of_rows, by_tables = [rows[index] for index in changed], [tables[index] for index in changed]
    again = forecast_runs(of_rows, by_tables, runs.counter(request, len(changed)))
    for index, each in zip(changed, again, strict=True):
        forecasts[index] = each
    return step_predictions(table, rows, forecasts, read.skipped)


def without_each(
    rows: Sequence[MeasuredRun], forecasts: Sequence[Forecast], shipped: FactorTable, leave_out: str
) -> list[FactorTable]:
    """Return for each run the factors of a fit that has not seen its group; others keep the shipped ones.

    Near the shipped factors the logarithm of a forecast is linear in theirs, so each fit is solved from the
    sensitivities of one simulation; the forecasts themselves are then simulated with what it gives.
    """
    sample = sample_of(rows, forecasts, shipped)
    seen_I = np.array([is_fitted(row) for row in rows])
    names = np.array([row.groups[leave_out] for row in rows])
    found = {name: factors_of(sample.without(~seen_I | (names == name))) for name in sorted(set(names[seen_I]))}
    return [found[row.groups[leave_out]] if is_fitted(row) else shipped for row in rows]


def predict_operators(table: Table, request: Request) -> Predictions:
    """Return measured operators with the costs of constants that never saw their shapes, or their GPU."""
    if request.leave_out == "shape":
        return operators.predicted_by(table, request, lambda rows: price_held_out_shapes(rows, request.progress))
    return operators.predicted_by(table, request, price_without_each_gpu)


def plan_without_each_gpu(measured: CollectiveMeasurements, rows_of: RowsOf) -> Plan:
    """Return for each cluster the constants of its datasheet and of the other clusters, each fitted to its rows."""
    fitted = {cluster: fit_links(measured.select(rows), cluster).cluster for cluster, rows in rows_of.items()}
    found: Plan = []
    for cluster, rows in rows_of.items():
        others = [each for other, each in fitted.items() if other != cluster]
        if not others:
            found.append(([*rows], "there is no other GPU to learn from"))
            continue
        try:
            found.append(([*rows], from_others(replace(cluster, measured=None), others)))
        except ConfigError as error:
            found.append(([*rows], f"cannot be learnt from others: {error}"))
    return found
