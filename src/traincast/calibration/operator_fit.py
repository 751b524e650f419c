"""Fit the constants of the roofline to measured operators.

The fit is a search for the least mean absolute logarithm of predicted over measured time, with
a pull towards the start that a few tens of rows outweigh: each transformed constant has a
normal prior of width `PRIOR_WIDTH` around its start.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.calibration.kind import FloatArray, IntArray
from traincast.calibration.operators import OperatorMeasurements, is_plain_gemm, main_call
from traincast.calibration.search import minimise
from traincast.errors import CalibrationError
from traincast.estimate.clocks import at_full_clock
from traincast.estimate.operators import FamilyConstants, OperatorCall, OperatorConstants, estimate_calls, work_of
from traincast.estimate.operators.constants import Correction
from traincast.estimate.operators.cost import machine_for
from traincast.estimate.operators.roofline import Machine, WorkColumns, columns_of, least_s, roofline
from traincast.hardware.gpu import Gpu

Key = tuple[str, str, str]
"""GPU, name of the constants, element type."""

PRIOR_WIDTH = 1.0
"""Width of the prior of a constant, as logarithm or log-odds: a factor of e."""
NOISE = 0.1
"""Relative error of one measurement: two libraries differ by so much on the same GEMM (docs/published-runs.md)."""
FEWEST = 5
"""Rows below which nothing is fitted."""
MOST = 800
"""Rows beyond which a fit no longer changes; more are thinned evenly."""
_SHARES = ("compute", "memory", "wave", "unhidden", "unaligned")
_STARTS = {
    "compute": 0.75,
    "memory": 0.75,
    "wave": 0.35,
    "unhidden": 0.1,
    "k_fill": 77.0,
    "edge": 5.0,
    "event_s": 2e-5,
    "unaligned": 0.5,
}
"""Where a constant starts that the base has as zero: shares as usual, k_fill as of training runs."""


class Timings(Struct, frozen=True, kw_only=True):
    """Measurements of one family on one GPU with one element type.

    Letters: N measurements, C calls, of which some measurements cover several.
    """

    columns: WorkColumns
    """The work of its calls."""
    machine: Machine
    """The peaks."""
    time_s_N: FloatArray
    owner_C: IntArray
    """Measurement that each call belongs to."""
    rest_s_N: FloatArray
    """Seconds of what else a measurement covers, by estimates of other families."""
    factor_C: FloatArray | None = None
    """Correction of each call's estimate, where one is taken as known."""

    def __len__(self) -> int:
        """Return the number of measurements."""
        return len(self.time_s_N)

    def thinned(self, most: int = MOST) -> "Timings":
        """Return at most so many of the measurements, evenly spread over their order in time."""
        if len(self) <= most:
            return self
        order = np.argsort(self.time_s_N, kind="stable")
        return self.select(np.sort(order[np.linspace(0, len(order) - 1, most).astype(np.int64)]))

    def select(self, rows: IntArray) -> "Timings":
        """Return some of the measurements, chosen by rising positions."""
        position = np.full(len(self), -1, np.int64)
        position[rows] = np.arange(len(rows))
        calls = np.flatnonzero(position[self.owner_C] >= 0)
        columns = self.columns.select(calls)
        return Timings(
            columns=columns,
            machine=self.machine,
            time_s_N=self.time_s_N[rows],
            owner_C=position[self.owner_C[calls]],
            rest_s_N=self.rest_s_N[rows],
            factor_C=None if self.factor_C is None else self.factor_C[calls],
        )

    def corrected(self, grid: Correction | None) -> "Timings":
        """Return the same measurements with the corrections of a grid taken as known."""
        fits = grid is not None and self.columns.coordinates_ND.shape[1:] == (len(grid.axes),)
        return replace(self, factor_C=grid.factors(self.columns.coordinates_ND) if grid and fits else None)


def samples_of(measured: OperatorMeasurements, constants: OperatorConstants) -> dict[Key, Timings]:
    """Return the samples of measurements by GPU, name of the constants and dtype.

    Where a row covers several families, it is a measurement of the GEMMs; the constants estimate the rest.
    """
    rows_of: dict[Key, list[int]] = {}
    gpus: dict[Key, Gpu] = {}
    for row, (gpu, calls) in enumerate(zip(measured.gpu, measured.calls, strict=True)):
        call = main_call(calls)
        work = work_of(call)
        if work.parts or (work.tiling is not None and not gpu.has_peak(call.dtype)):
            continue
        key = key_of(gpu, calls)
        rows_of.setdefault(key, []).append(row)
        gpus[key] = gpu
    return {key: _sample(measured, rows, gpus[key], constants) for key, rows in rows_of.items()}


def key_of(gpu: Gpu, calls: Sequence[OperatorCall]) -> Key:
    """Return the sample that a measurement belongs to."""
    call = main_call(calls)
    return gpu.name, (*work_of(call).constants, "")[0], call.dtype


def _sample(measured: OperatorMeasurements, rows: Sequence[int], gpu: Gpu, constants: OperatorConstants) -> Timings:
    family = main_call(measured.calls[rows[0]]).family
    calls: list[OperatorCall] = []
    others: list[OperatorCall] = []
    owner: list[int] = []
    others_owner: list[int] = []
    for position, row in enumerate(rows):
        for call in measured.calls[row]:
            mine = call.family == family
            (calls if mine else others).append(call)
            (owner if mine else others_owner).append(position)
    works = list(map(work_of, calls))
    time_s_N = measured.time_s[list(rows)]
    rest = np.bincount(np.array(others_owner, np.int64), estimate_calls(others, gpu, constants), len(rows))
    return Timings(
        columns=columns_of(works),
        machine=machine_for(gpu, calls[0].dtype, works[0]),
        time_s_N=at_full_clock(gpu, time_s_N) if is_plain_gemm(calls[0]) else time_s_N,
        owner_C=np.array(owner, np.int64),
        rest_s_N=rest.astype(np.float64),
    )


def free_constants(sample: Timings, *, events: bool = False) -> tuple[str, ...]:
    """Return which constants measurements of a family can tell; with `events` the timings hold more than the kernel."""
    more = ("event_s",) if events else ()
    if not sample.columns.tiled:
        return ("memory", *more)
    if sample.columns.whole_n:
        return ("compute", "k_fill", "wave", "edge", "unhidden", *more)
    if not sample.columns.aligned_N.all():
        more = ("unaligned", *more)
    return ("compute", "memory", "k_fill", "wave", "edge", "unhidden", *more)


def fit_constants(sample: Timings, base: FamilyConstants, free: Sequence[str]) -> FamilyConstants:
    """Return constants fitted to measurements, with the number of rows and their errors.

    `base` is where the fit starts, and what the fields that are not `free` keep.

    Raises
    ------
    CalibrationError
        If there are fewer than `FEWEST` rows.
    """
    if len(sample) < FEWEST:
        raise CalibrationError(
            f"{len(sample)} timings of {base.family} are too few to fit; at least {FEWEST} are needed",
            rows=len(sample),
            needed_rows=FEWEST,
        )
    thin = sample.thinned()
    start = np.array([_to_line(name, getattr(base, name) or _STARTS[name]) for name in free])
    log_N = np.log(thin.time_s_N)
    pull = NOISE / (2 * len(thin) * PRIOR_WIDTH**2)

    def loss(point: FloatArray) -> float:
        predicted_N = predict(thin, _with(base, free, point))
        return float(np.mean(np.abs(np.log(predicted_N) - log_N)) + pull * np.sum((point - start) ** 2))

    return described(_with(base, free, minimise(loss, start, rounds=3)), sample)


def described(constants: FamilyConstants, sample: Timings) -> FamilyConstants:
    """Return constants with the number of measurements and their errors on them."""
    errors_N = np.abs(predict(sample, constants) / sample.time_s_N - 1.0)
    median, p90 = np.quantile(errors_N, (0.5, 0.9))
    return replace(constants, rows=len(sample), median_error=float(median), p90_error=float(p90))


def predict(sample: Timings, constants: FamilyConstants) -> FloatArray:
    """Return the predicted seconds of each measurement, with what its timing holds in addition to the kernel."""
    time_C = roofline(sample.columns, sample.machine, constants).time_N
    if sample.factor_C is not None:
        time_C = np.maximum(time_C * sample.factor_C, least_s(sample.columns, sample.machine))
    time_N: FloatArray = np.bincount(sample.owner_C, time_C, len(sample)) + sample.rest_s_N + constants.event_s
    return time_N


def _with(base: FamilyConstants, free: Sequence[str], point: FloatArray) -> FamilyConstants:
    values: dict[str, Any] = {name: _from_line(name, value) for name, value in zip(free, point, strict=True)}
    return replace(base, **values)


def _to_line(name: str, value: float) -> float:
    """Return a constant as a number without bounds: log-odds of a share, logarithm of the others."""
    if name in _SHARES:
        kept = min(max(value, 0.01), 0.99)
        return float(np.log(kept / (1 - kept)))
    return float(np.log(value))


def _from_line(name: str, value: float) -> float:
    if name in _SHARES:
        return float(1.0 / (1.0 + np.exp(-np.clip(value, -30, 30))))
    return float(np.exp(np.clip(value, -40, 40)))
