"""Training logs of one job, against its forecast."""

from msgspec.structs import replace

from traincast.calibration.kind import KINDS, MeasurementKind, Predictions, Request
from traincast.calibration.kinds.runs import step_predictions
from traincast.calibration.log_runs import read_log_runs
from traincast.calibration.run_factors import forecast_runs
from traincast.calibration.tables import LOG_COLUMN, MeasurementTable
from traincast.estimate.factors import factors_on


def predict(table: MeasurementTable, request: Request) -> Predictions:
    """Return the steps of training logs with the forecast of the job that the request names."""
    runs, skipped = read_log_runs(table, request.job, request.cluster)
    found = step_predictions(table, runs, forecast_runs(runs, [factors_on(run.cluster) for run in runs]), skipped)
    return replace(found, notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)))


KIND = KINDS.register("training-logs")(
    MeasurementKind(
        name="training-logs",
        title="steps of training logs",
        quantity="step_s",
        fits=lambda columns: tuple(columns) == (LOG_COLUMN,),
        predict=predict,
        by=("gpu", "framework"),
        commands="traincast compare, and traincast validate and calibrate with --job, take it",
        takes_job=True,
    )
)
