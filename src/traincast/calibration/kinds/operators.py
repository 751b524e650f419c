"""Measured operators, against the costs of the GPU they ran on."""

import numpy as np

from traincast.calibration.kind import KINDS, Grouping, MeasurementKind, Predictions, Request
from traincast.calibration.operator_recipe import estimate_held_out_shapes, estimate_without_each_gpu
from traincast.calibration.operators import (
    LONG_S,
    OperatorMeasurements,
    estimate_measurements,
    holds_operators,
    main_call,
    operators_of,
)
from traincast.calibration.tables import MeasurementTable, Skipped
from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.estimate.operators import work_of

_BANDS_S = (LONG_S, 1e-3, 1e-2)
_BAND_NAMES = ("up to 0.1 ms", "0.1 to 1 ms", "1 to 10 ms", "over 10 ms")
_LENGTHS = ("up to 0.1 ms", "over 0.1 ms")
_EVENTS = Note(
    "event-time",
    "timings by events (column timing) hold 10 to 70 us each; that much is added to these predictions",
)


def predict(table: MeasurementTable, request: Request) -> Predictions:
    """Return measured operators with their costs; rows whose GPU or operator is unknown are skipped.

    It can leave out ``shape``: a fifth of the shapes, by a hash, is predicted by constants and corrections fitted to
    the other rows of the file; and ``gpu``, predicted by its datasheet, the constants of its kin, and the medians of
    the others. A `ConfigError` if a cluster is given: each row says its GPU.
    """
    if request.cluster is not None:
        raise ConfigError("measured operators say their GPU row by row; leave the cluster out", "cluster")
    measured = operators_of(table)
    if request.leave_out == "shape":
        predicted, reasons = estimate_held_out_shapes(measured, request.progress)
    else:
        predicted, reasons = (estimate_without_each_gpu if request.leave_out else estimate_measurements)(measured)
    dtypes = tuple(calls[-1].dtype for calls in measured.calls)
    return Predictions(
        ids=measured.ids,
        measured=measured.time_s,
        predicted=predicted,
        details={
            "gpu": tuple(gpu.name for gpu in measured.gpu),
            "op": measured.op,
            "dtype": dtypes,
            "shape": tuple("x".join(map(str, calls[0].shape)) for calls in measured.calls),
        },
        groupings=_groupings(measured, dtypes),
        skipped=(*measured.skipped, *(Skipped(measured.ids[row], why) for row, why in sorted(reasons.items()))),
        rows=table.size,
        notes=(_EVENTS,) if measured.events else (),
    )


def _groupings(measured: OperatorMeasurements, dtypes: tuple[str, ...]) -> tuple[Grouping, ...]:
    # The name of the constants and the type of a row: gemm fp32.
    names = [(*work_of(main_call(calls)).constants, "parts")[0] for calls in measured.calls]
    return (
        Grouping.from_labels("gpu", [gpu.name for gpu in measured.gpu]),
        Grouping.from_labels("op", measured.op),
        Grouping.from_labels("dtype", dtypes),
        Grouping(by="duration", names=_BAND_NAMES, index=np.searchsorted(_BANDS_S, measured.time_s)),
        Grouping.from_labels("family", [f"{name} {dtype}" for name, dtype in zip(names, dtypes, strict=True)]),
        Grouping(by="length", names=_LENGTHS, index=(measured.time_s >= LONG_S).astype(np.int64)),
    )


KINDS.register("operators")(
    MeasurementKind(
        name="operators",
        title="measured operators",
        quantity="time_s",
        fits=holds_operators,
        predict=predict,
        by=("gpu", "op", "dtype", "duration", "family", "length"),
        leaves_out=("gpu", "shape"),
        shown=("gpu", "op", "duration", "length+family"),
        commands="traincast validate and traincast calibrate --gpu take it",
    )
)
