"""Prices of measured operators, and what is left of the measurements beside them."""

from collections.abc import Mapping, Sequence

import numpy as np

from traincast.calibrate.contract import FloatArray
from traincast.calibrate.operator_measurements import OperatorMeasurements
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
