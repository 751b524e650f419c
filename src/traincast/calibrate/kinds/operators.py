"""Measured operators: kernels of any family, against their prices on the GPU they ran on."""

from collections.abc import Mapping, Sequence

import numpy as np

from traincast.calibrate.contract import KINDS, FloatArray, Grouping, Kind, Predictions, Request
from traincast.calibrate.measurements import Skipped
from traincast.calibrate.operator_fit import key_of, main_call
from traincast.calibrate.operator_measurements import OperatorMeasurements, holds_operators, operators_of
from traincast.calibrate.operator_recipe import LONG_S, held_out_rows, without_gpu, without_held_out
from traincast.calibrate.tables import Table
from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.estimate.operators import (
    FamilyConstants,
    OperatorCall,
    OperatorConstants,
    price_calls,
    shipped_constants,
    work_of,
)
from traincast.hardware.gpu import Gpu

_BANDS_S = (1e-4, 1e-3, 1e-2)
_LENGTHS = ("up to 0.1 ms", "over 0.1 ms")
_BAND_NAMES = ("up to 0.1 ms", "0.1 to 1 ms", "1 to 10 ms", "over 10 ms")
_EVENTS = Note(
    "event-time",
    "timings of tables with a column op hold 10 to 70 us of event timing each; that much is added to these predictions",
)


def predict(table: Table, request: Request) -> Predictions:
    """Return measured operators with their prices.

    Parameters
    ----------
    table : Table
        As `operators_of` reads it.
    request : Request
        It can leave out ``gpu``: each GPU is then predicted by its datasheet, the constants of its
        kin, and the medians of the others; and ``shape``: a fifth of the shapes, by a hash, is predicted
        by constants and corrections fitted to the other rows of this file.

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
    events = {"op", "shape"} <= set(table.columns)
    if request.leave_out == "shape":
        predicted, reasons = _held_out_shapes(measured, request, events=events)
    else:
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
        rows=table.size,
        notes=(_EVENTS,) if events else (),
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


def _held_out_shapes(
    measured: OperatorMeasurements, request: Request, *, events: bool
) -> tuple[FloatArray, dict[int, str]]:
    """Return the prices of the held-out fifth by constants that never saw it."""
    fit = without_held_out(measured, shipped_constants(), events=events, progress=request.progress)
    out = held_out_rows(measured)
    rows = np.flatnonzero(out).tolist()
    predicted = np.full(len(measured), np.nan)
    reasons = dict.fromkeys(np.flatnonzero(~out).tolist(), "its shape is in the four fifths that are fitted to")
    priced, why = price_measurements(measured.select(rows), fit.constants)
    reasons |= {rows[position]: reason for position, reason in why.items()}
    for position, row in enumerate(rows):
        if fit.refitted.get(key_of(measured.gpu[row], measured.calls[row]), False):
            predicted[row] = priced[position]
        else:
            reasons.setdefault(row, "too few rows are left to fit its family to")
    return predicted, reasons


def _groupings(measured: OperatorMeasurements) -> tuple[Grouping, ...]:
    band = np.searchsorted(np.array(_BANDS_S), measured.time_s)
    return (
        Grouping.of("gpu", [gpu.name for gpu in measured.gpu]),
        Grouping.of("op", measured.op),
        Grouping.of("dtype", [calls[-1].dtype for calls in measured.calls]),
        Grouping(by="duration", names=_BAND_NAMES, index=band.astype(np.int64)),
        Grouping.of("family", [_family(calls) for calls in measured.calls]),
        Grouping(by="length", names=_LENGTHS, index=(measured.time_s >= LONG_S).astype(np.int64)),
    )


def _family(calls: Sequence[OperatorCall]) -> str:
    """Return the name of the constants and the type of a row: ``gemm fp32``."""
    work = work_of(main_call(calls))
    return f"{(*work.constants, 'parts')[0]} {calls[-1].dtype}"


def price_measurements(
    measured: OperatorMeasurements, constants: OperatorConstants | None = None
) -> tuple[FloatArray, Mapping[int, str]]:
    """Return the price of each measured operator, with what its timing holds beside the kernel.

    Parameters
    ----------
    measured : OperatorMeasurements
        The rows.
    constants : OperatorConstants, optional
        The shipped ones by default.

    Returns
    -------
    predicted : array of float
        Seconds; NaN where there is no price.
    reasons : mapping
        Row to why it has none.
    """
    known = constants or shipped_constants()
    predicted_N = np.full(len(measured), np.nan)
    reasons: dict[int, str] = {}
    for gpu, rows in rows_of_gpus(measured).items():
        usable: list[int] = []
        for row in rows:
            reason = _reason(measured.calls[row], gpu)
            if reason is None:
                usable.append(row)
            else:
                reasons[row] = reason
        predicted_N[usable] = _prices([measured.calls[row] for row in usable], gpu, known)
    return predicted_N, reasons


def rows_of_gpus(measured: OperatorMeasurements) -> dict[Gpu, list[int]]:
    """Return the rows of each GPU."""
    found: dict[Gpu, list[int]] = {}
    for row, gpu in enumerate(measured.gpu):
        found.setdefault(gpu, []).append(row)
    return found


def row_of_constants(call: OperatorCall, gpu: Gpu, constants: OperatorConstants) -> FamilyConstants:
    """Return the constants that price a call."""
    return constants.find(gpu, work_of(call).constants, call.dtype)


def _reason(calls: Sequence[OperatorCall], gpu: Gpu) -> str | None:
    for call in calls:
        work = work_of(call)
        if work.tiling is not None and not gpu.has_peak(call.dtype):
            return f"{gpu.name} has no known peak for {call.dtype}"
    return None


def _prices(rows: Sequence[Sequence[OperatorCall]], gpu: Gpu, constants: OperatorConstants) -> FloatArray:
    flat = [call for calls in rows for call in calls]
    owner = np.repeat(np.arange(len(rows)), [len(calls) for calls in rows])
    times = price_calls(flat, gpu, constants)
    total = np.bincount(owner, weights=times, minlength=len(rows)).astype(np.float64)
    # One timing holds one event and one launch, however many kernels it covers.
    for position, calls in enumerate(rows):
        total[position] += _event_s(calls[0], gpu, constants)
    return total


def _event_s(call: OperatorCall, gpu: Gpu, constants: OperatorConstants) -> float:
    try:
        return row_of_constants(call, gpu, constants).event_s
    except ConfigError:
        return 0.0


KINDS.register("operators")(
    Kind(
        name="operators",
        title="measured operators",
        quantity="time_s",
        fits=holds_operators,
        predict=predict,
        by=("gpu", "op", "dtype", "duration", "family", "length"),
        leaves_out=("gpu", "shape"),
        shown=("gpu", "op", "duration", "length+family"),
    )
)
