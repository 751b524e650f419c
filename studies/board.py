"""Hold shipped constants against the tables that they were fitted to, with parts of these left out of the fit.

    python studies/board.py FILE [--cv GROUP] [--by A,B] [--kind KIND] [--cluster NAME|FILE] [--json]

What `traincast validate` prints, with more to leave out, which needs all published measurements: of runs ``family``
(source, model, GPU family, precision) and ``source``: the factors are fitted again without each of them in turn; of
kernels ``gpu`` (predicted by its datasheet, the constants of its kin, and the medians of the others) and ``shape`` (a
fifth of the shapes, by a hash, is predicted by constants and corrections fitted to the other rows of the file); of
collectives ``gpu`` (by its datasheet and the other GPUs), beside ``ranks``.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from rich.console import Console

from fit_links import plan_without_each_gpu
from kernel_recipe import price_held_out_shapes, price_without_each_gpu
from run_factors import factors_of, sample_of
from traincast.calibrate.kind import KINDS, MeasurementKind, Predictions, Request, kind_of
from traincast.calibrate.kinds import collectives, operators, runs
from traincast.calibrate.kinds.runs import Forecast, forecast_runs, is_fitted, step_predictions
from traincast.calibrate.runs import MeasuredRun, read_runs
from traincast.calibrate.tables import Table, read_table
from traincast.calibrate.validate import validate
from traincast.errors import TraincastError
from traincast.estimate.factors import FactorTable, shipped_factors
from traincast.report.json import validation_to_dict
from traincast.report.terminal.accuracy import print_validation


def predict_runs(table: Table, request: Request) -> Predictions:
    """Return published runs with their forecasts, each group left out of the fit of its factors where asked for."""
    if request.leave_out is None:
        return runs.predict_steps(table, request)
    read = read_runs(table, request.cluster)
    rows = [run for run in read.rows if run.measured_s is not None]
    shipped = shipped_factors()
    known = request.kept if isinstance(request.kept, list) else []
    forecasts = [each for each in known if isinstance(each, Forecast)]
    if len(forecasts) != len(rows):
        forecasts = forecast_runs(rows, [shipped] * len(rows), runs.counter(request, len(rows)))
    tables = without_each(rows, forecasts, shipped, request.leave_out)
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
    """Return measured operators with the prices of constants that never saw them, where asked for."""
    if request.leave_out == "shape":
        return operators.predicted_by(table, request, lambda rows: price_held_out_shapes(rows, request.progress))
    pricer = operators.price_measurements if request.leave_out is None else price_without_each_gpu
    return operators.predicted_by(table, request, pricer)


def predict_collectives(table: Table, request: Request) -> Predictions:
    """Return measured collectives with the prices of clusters that were not fitted to them, where asked for."""
    if request.leave_out == "gpu":
        return collectives.predicted_by(table, request, plan_without_each_gpu)
    return collectives.predict(table, request)


BOARD_KINDS = {
    "training-runs": replace(runs.KIND, predict=predict_runs, leaves_out=("family", "source")),
    "operators": replace(operators.KIND, predict=predict_operators, leaves_out=("gpu", "shape")),
    "collectives": replace(collectives.KIND, predict=predict_collectives, leaves_out=("ranks", "gpu")),
}
"""Kinds of measurements with all that can be left out of their fits."""


def board_kind(columns: Sequence[str], name: str | None = None) -> MeasurementKind | None:
    """Return the kind of that name, or else of a file with these columns."""
    kind = kind_of(columns) if name is None else KINDS.get(name)
    return kind if kind is None else BOARD_KINDS.get(kind.name, kind)


def main() -> int:
    """Predict and print the errors; return the exit code."""
    parser = argparse.ArgumentParser(description="hold shipped constants against measurements left out of the fit")
    parser.add_argument("file")
    parser.add_argument("--cluster", help="preset, GPU or TOML file that all rows ran on")
    parser.add_argument("--by", default="", metavar="A,B", help="groups to show, such as gpu,op+size")
    parser.add_argument("--cv", metavar="GROUP", help="what to leave out: family, source, gpu, shape, ranks")
    parser.add_argument("--kind", help="what to predict where a file holds several things: memory-of-runs")
    parser.add_argument("--json", action="store_true", help="print the statistics as JSON")
    given = parser.parse_args()
    by = [name.strip() for name in given.by.split(",") if name.strip()]
    try:
        kind = board_kind(read_table(given.file).columns, given.kind)
        found = validate(given.file, given.cluster, by, given.cv, kind=kind)
    except TraincastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(validation_to_dict(found), indent=2))
    else:
        print_validation(Console(), found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
