"""Fit the constants of the roofline to measured operators, and a grid to what they leave.

The fit is a search for the least mean absolute logarithm of predicted over measured time, with
a pull towards the start that a few tens of rows outweigh: each transformed constant has a
normal prior of width `PRIOR_WIDTH` around its start.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from traincast.calibrate.contract import FloatArray
from traincast.calibrate.measurements import IntArray
from traincast.calibrate.operator_measurements import OperatorMeasurements
from traincast.calibrate.search import minimise
from traincast.errors import CalibrationError
from traincast.estimate.operators import FamilyConstants, OperatorCall, OperatorConstants, price_calls, work_of
from traincast.estimate.operators.constants import LIMIT, Correction, corners
from traincast.estimate.operators.cost import machine_for
from traincast.estimate.operators.roofline import Machine, WorkColumns, columns_of, least_s, roofline
from traincast.hardware.gpu import Gpu

Key = tuple[str, str, str]
"""GPU, name of the constants, element type."""

PRIOR_WIDTH = 1.0
"""Width of the prior of a constant, as logarithm or log-odds: a factor of e."""
NOISE = 0.1
"""Relative error of one measurement: two libraries differ by so much on the same GEMM (docs/measured.md)."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Measurements of one family on one GPU with one element type.

    Parameters
    ----------
    columns : WorkColumns
        The work of its calls.
    machine : Machine
        The peaks.
    time_s_N : array of float
        Measured seconds, one per measurement.
    owner_C : array of int
        Measurement that each call belongs to; some cover several calls.
    rest_s_N : array of float
        Seconds of what else a measurement covers, by prices of other families.
    factor_C : array of float, optional
        Correction of each call's price, where one is taken as known.
    """

    columns: WorkColumns
    machine: Machine
    time_s_N: FloatArray
    owner_C: IntArray
    rest_s_N: FloatArray
    factor_C: FloatArray | None = None

    def __len__(self) -> int:
        """Return the number of measurements."""
        return len(self.time_s_N)

    def thinned(self, most: int = MOST) -> "Sample":
        """Return at most so many of the measurements, evenly spread over their order in time."""
        if len(self) <= most:
            return self
        order = np.argsort(self.time_s_N, kind="stable")
        return self.select(np.sort(order[np.linspace(0, len(order) - 1, most).astype(np.int64)]))

    def select(self, rows: IntArray) -> "Sample":
        """Return some of the measurements, chosen by rising positions."""
        position = np.full(len(self), -1, np.int64)
        position[rows] = np.arange(len(rows))
        calls = np.flatnonzero(position[self.owner_C] >= 0)
        columns = self.columns.select(calls)
        return Sample(
            columns=columns,
            machine=self.machine,
            time_s_N=self.time_s_N[rows],
            owner_C=position[self.owner_C[calls]],
            rest_s_N=self.rest_s_N[rows],
            factor_C=None if self.factor_C is None else self.factor_C[calls],
        )

    def corrected(self, grid: Correction | None) -> "Sample":
        """Return the same measurements with the corrections of a grid taken as known."""
        fits = grid is not None and self.columns.coordinates_ND.shape[1:] == (len(grid.axes),)
        return replace(self, factor_C=grid.factors(self.columns.coordinates_ND) if grid and fits else None)


def samples_of(measured: OperatorMeasurements, constants: OperatorConstants) -> dict[Key, Sample]:
    """Return the samples of measurements by GPU, name of the constants and dtype.

    Parameters
    ----------
    measured : OperatorMeasurements
        The rows; where one covers several families, it is a measurement of the matrix products.
    constants : OperatorConstants
        Price the rest.
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


def main_call(calls: Sequence[OperatorCall]) -> OperatorCall:
    """Return the call of a measurement that it is of: a matrix product, if there is one."""
    return next((call for call in calls if work_of(call).tiling is not None), calls[0])


def _sample(measured: OperatorMeasurements, rows: Sequence[int], gpu: Gpu, constants: OperatorConstants) -> Sample:
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
    works = [work_of(call) for call in calls]
    rest = np.bincount(np.array(others_owner, np.int64), price_calls(others, gpu, constants), len(rows))
    return Sample(
        columns=columns_of(works),
        machine=machine_for(gpu, calls[0].dtype, works[0]),
        time_s_N=measured.time_s[list(rows)],
        owner_C=np.array(owner, np.int64),
        rest_s_N=rest.astype(np.float64),
    )


def free_constants(sample: Sample, *, events: bool = False) -> tuple[str, ...]:
    """Return which constants measurements of a family can tell.

    Parameters
    ----------
    sample : Sample
        The measurements.
    events : bool
        Whether the timings hold more than the kernel.
    """
    more = ("event_s",) if events else ()
    if not sample.columns.tiled:
        return ("memory", *more)
    if sample.columns.whole_n:
        return ("compute", "k_fill", "wave", "edge", "unhidden", *more)
    if not sample.columns.aligned_N.all():
        more = ("unaligned", *more)
    return ("compute", "memory", "k_fill", "wave", "edge", "unhidden", *more)


def fit_constants(sample: Sample, base: FamilyConstants, free: Sequence[str]) -> FamilyConstants:
    """Return constants fitted to measurements.

    Parameters
    ----------
    sample : Sample
        The measurements.
    base : FamilyConstants
        Start of the fit, and the values of what is not free.
    free : sequence of str
        Fields to fit.

    Returns
    -------
    FamilyConstants
        With the number of rows and their errors.

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

    fitted = _with(base, free, minimise(loss, start, rounds=3))
    errors_N = np.abs(predict(sample, fitted) / sample.time_s_N - 1.0)
    median, p90 = np.quantile(errors_N, (0.5, 0.9))
    return replace(fitted, rows=len(sample), median_error=float(median), p90_error=float(p90))


def predict(sample: Sample, constants: FamilyConstants) -> FloatArray:
    """Return the predicted seconds of each measurement, with what its timing holds beside the kernel."""
    time_C = roofline(sample.columns, sample.machine, constants).time_N
    if sample.factor_C is not None:
        time_C = np.maximum(time_C * sample.factor_C, least_s(sample.columns, sample.machine))
    time_N: FloatArray = np.bincount(sample.owner_C, time_C, len(sample)) + sample.rest_s_N + constants.event_s
    return time_N


def fit_correction(
    sample: Sample,
    constants: FamilyConstants,
    nodes: Sequence[int],
    smooth: float = 0.3,
    ridge: float = 0.02,
    rounds: int = 4,
) -> Correction:
    """Return the grid that brings predictions nearest to measurements and stays smooth.

    Parameters
    ----------
    sample : Sample
        The measurements.
    constants : FamilyConstants
        What is corrected.
    nodes : sequence of int
        Nodes per size, spread evenly between the least and greatest measured one.
    smooth, ridge : float
        Weights of the squared differences between neighbours and of the squares themselves,
        against one measurement.
    rounds : int
        Rounds of reweighting, which turn squared errors into absolute ones.

    Returns
    -------
    Correction
    """
    octaves_ND = np.log2(sample.columns.coordinates_ND)
    axes = tuple(
        (float(low), float(high), count if high > low else 1)
        for low, high, count in zip(octaves_ND.min(axis=0), octaves_ND.max(axis=0), nodes, strict=True)
    )
    kernel_N = np.maximum(sample.time_s_N - constants.event_s, 0.1 * sample.time_s_N)
    target_N = np.clip(np.log(kernel_N / (predict(sample, constants) - constants.event_s)), -LIMIT, LIMIT)
    nodes_NC, weights_NC = corners(octaves_ND, axes)
    penalty = _penalty(axes, smooth, ridge)
    values_V = np.zeros(len(penalty))
    trust_N = np.ones(len(target_N))
    for _ in range(rounds):
        values_V = _solve(nodes_NC, weights_NC, target_N, trust_N, penalty)
        left_N = target_N - (values_V[nodes_NC] * weights_NC).sum(axis=1)
        trust_N = 1.0 / np.maximum(np.abs(left_N) / NOISE, 0.2)
    return Correction(
        gpu=constants.gpu,
        family=constants.family,
        dtype=constants.dtype,
        axes=axes,
        log_factor_V=np.clip(values_V, -LIMIT, LIMIT),
        rows=len(sample),
    )


def _solve(
    nodes_NC: IntArray,
    weights_NC: FloatArray,
    target_N: FloatArray,
    trust_N: FloatArray,
    penalty: FloatArray,
) -> FloatArray:
    """Return the node values of least weighted squares with a penalty."""
    matrix, right = penalty.copy(), np.zeros(len(penalty))
    for column in range(nodes_NC.shape[1]):
        weight_N = trust_N * weights_NC[:, column]
        np.add.at(right, nodes_NC[:, column], weight_N * target_N)
        for other in range(nodes_NC.shape[1]):
            np.add.at(matrix, (nodes_NC[:, column], nodes_NC[:, other]), weight_N * weights_NC[:, other])
    return np.asarray(np.linalg.solve(matrix, right), np.float64)


def _penalty(axes: Sequence[tuple[float, float, int]], smooth: float, ridge: float) -> FloatArray:
    counts = [count for _, _, count in axes]
    index = np.arange(int(np.prod(counts))).reshape(counts)
    matrix = np.eye(index.size) * ridge
    for axis in range(len(counts)):
        lower, upper = np.delete(index, -1, axis).ravel(), np.delete(index, 0, axis).ravel()
        for a, b, sign in ((lower, lower, 1), (upper, upper, 1), (lower, upper, -1), (upper, lower, -1)):
            np.add.at(matrix, (a, b), sign * smooth)
    return matrix


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
