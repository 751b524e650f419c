"""Measured operators: kernels of any family, against their prices on the GPU they ran on."""

import numpy as np

from traincast.calibrate.contract import KINDS, FloatArray, Grouping, Kind, Predictions, Request
from traincast.calibrate.measurements import Skipped
from traincast.calibrate.operator_defaults import without_gpu
from traincast.calibrate.operator_measurements import OperatorMeasurements, holds_operators, operators_of
from traincast.calibrate.operator_prices import price_measurements, rows_of_gpus
from traincast.calibrate.tables import Table
from traincast.errors import ConfigError
from traincast.estimate.operators import shipped_constants
from traincast.spec.notes import Note

_BANDS_S = (1e-4, 1e-3, 1e-2)
_BAND_NAMES = ("up to 0.1 ms", "0.1 to 1 ms", "1 to 10 ms", "over 10 ms")
_EVENTS = Note(
    "event-time",
    "timings of NeuSight's tables hold 10 to 70 us of event timing each; that much is added to these predictions",
)


def predict(table: Table, request: Request) -> Predictions:
    """Return measured operators with their prices.

    Parameters
    ----------
    table : Table
        As `operators_of` reads it.
    request : Request
        It can leave out ``gpu``: each GPU is then predicted by its datasheet, the constants of its
        kin, and the medians of the others.

    Returns
    -------
    Predictions
        Rows whose GPU or operator is unknown are skipped.

    Raises
    ------
    ConfigError
        If a cluster is given: each row says its GPU.
    """
    if request.cluster is not None:
        raise ConfigError("measured operators say their GPU row by row; leave the cluster out", "cluster")
    measured = operators_of(table)
    predicted, reasons = _predictions(measured, request.leave_out)
    return Predictions(
        ids=measured.ids,
        measured=measured.time_s,
        predicted=predicted,
        details={
            "gpu": tuple(gpu.name for gpu in measured.gpu),
            "op": measured.op,
            "dtype": tuple(calls[-1].dtype for calls in measured.calls),
            "shape": tuple("x".join(map(str, calls[0].shape)) for calls in measured.calls),
        },
        groupings=_groupings(measured),
        skipped=(*measured.skipped, *(Skipped(measured.ids[row], why) for row, why in sorted(reasons.items()))),
        rows=len(table.rows),
        notes=(_EVENTS,) if {"op", "shape"} <= set(table.columns) else (),
    )


def _predictions(measured: OperatorMeasurements, leave_out: str | None) -> tuple[FloatArray, dict[int, str]]:
    if leave_out is None:
        predicted, reasons = price_measurements(measured)
        return predicted, dict(reasons)
    predicted, reasons = np.full(len(measured), np.nan), {}
    for gpu, rows in rows_of_gpus(measured).items():
        part, why = price_measurements(measured.select(rows), without_gpu(shipped_constants(), gpu))
        predicted[rows] = part
        reasons |= {rows[position]: reason for position, reason in why.items()}
    return predicted, reasons


def _groupings(measured: OperatorMeasurements) -> tuple[Grouping, ...]:
    band = np.searchsorted(np.array(_BANDS_S), measured.time_s)
    return (
        Grouping.of("gpu", [gpu.name for gpu in measured.gpu]),
        Grouping.of("op", measured.op),
        Grouping.of("dtype", [calls[-1].dtype for calls in measured.calls]),
        Grouping(by="duration", names=_BAND_NAMES, index=band.astype(np.int64)),
    )


KINDS.register("operators")(
    Kind(
        name="operators",
        title="measured operators",
        quantity="time_s",
        fits=holds_operators,
        predict=predict,
        by=("gpu", "op", "dtype", "duration"),
        leaves_out=("gpu",),
    )
)
