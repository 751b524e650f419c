"""What measured runs say of the factors of end-to-end runs.

Each simulated run is asked how it answers to every factor; then those factors are solved for that bring forecasts
nearest to measurements. A factor that few runs speak for stays near 1. (`studies/fit_runs.py` simulates again with
what it finds, until nothing changes.)

Letters: I rows (runs), K factors.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from traincast.calibrate.kind import FloatArray
from traincast.calibrate.kinds.runs import Forecast
from traincast.calibrate.runs import MeasuredRun
from traincast.estimate.factors import Factor, FactorTable, Key, keys_of, prior_deviation, prior_mean
from traincast.hardware.gpu import load_gpu

NOISE = 0.05
"""Deviation of a measured step from a perfect model: repeats with equal columns differ by 1 % in the median and
7 to 10 % at the 90th percentile (docs/measured.md, noise)."""

_ROUNDS = 50
_TURN = 1.5
"""Residuals beyond so many deviations count linearly (Huber 1964)."""
_LEAST_SLOPE = 0.02
"""A factor that moves no run by more than this share of its own change is left alone."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the fit needs of a set of runs: how each forecast answers, and how far off it is."""

    keys: tuple[Key, ...]
    slope_IK: FloatArray
    residual_I: FloatArray
    weight_I: FloatArray
    current_K: FloatArray

    def without(self, left_out_I: "np.typing.NDArray[np.bool_]") -> "Sample":
        """Return the sample without some of its runs."""
        keep = ~left_out_I
        return Sample(self.keys, self.slope_IK[keep], self.residual_I[keep], self.weight_I[keep], self.current_K)


def sample_of(rows: Sequence[MeasuredRun], forecasts: Sequence[Forecast], table: FactorTable) -> Sample:
    """Return what the fit needs of forecasts that were made with some factors; runs without a forecast count 0."""
    slopes = [_by_key(each) for each in forecasts]
    most: dict[Key, float] = {}
    for row in slopes:
        for key, slope in row.items():
            most[key] = max(most.get(key, 0.0), slope)
    keys = tuple(sorted(key for key, slope in most.items() if slope >= _LEAST_SLOPE))
    number = {key: index for index, key in enumerate(keys)}
    slope_IK = np.zeros((len(rows), len(keys)))
    for index, row in enumerate(slopes):
        for key, slope in row.items():
            if key in number:
                slope_IK[index, number[key]] = slope
    known = [each.step_s is not None and row.measured_s is not None for row, each in zip(rows, forecasts, strict=True)]
    residual_I = np.array(
        [
            np.log(row.measured_s / each.step_s) if fine else 0.0  # type: ignore[operator]
            for row, each, fine in zip(rows, forecasts, known, strict=True)
        ]
    )
    current_K = np.array([np.log(table.factors[key].factor) if key in table.factors else 0.0 for key in keys])
    return Sample(keys, slope_IK, residual_I, _weights(rows) * np.array(known), current_K)


def factors_of(sample: Sample) -> FactorTable:
    """Return the factors that a sample asks for."""
    prior_K = np.array([prior_deviation(key) for key in sample.keys])
    mean_K = np.log([prior_mean(key) for key in sample.keys])
    found = solve(sample.slope_IK, sample.residual_I, sample.weight_I, prior_K, sample.current_K, mean_K)
    rows_K = ((sample.slope_IK >= _LEAST_SLOPE) & (sample.weight_I[:, None] > 0)).sum(axis=0)
    return FactorTable.of(
        Factor(
            level=key[0],
            name=key[1],
            cost_class=key[2],
            factor=float(np.exp(found.log_factor_K[index])),
            deviation=float(found.deviation_K[index]),
            rows=int(rows_K[index]),
        )
        for index, key in enumerate(sample.keys)
    )


def _by_key(forecast: Forecast) -> dict[Key, float]:
    if forecast.step_s is None:
        return {}
    gpu = load_gpu(forecast.gpu)
    found = forecast.slopes.items()
    return {key: slope for name, slope in found for key in keys_of(name, gpu, forecast.framework)}


def _weights(rows: Iterable[MeasuredRun]) -> FloatArray:
    """Return the weight of each row: one configuration at many scales or releases is no more than its square root.

    Rows of a configuration share their errors, so that twice as many do not say twice as much
    (docs/measured.md, noise).
    """
    names = [_configuration(row) for row in rows]
    count = Counter(names)
    return np.array([count[name] ** -0.5 for name in names])


def _configuration(row: MeasuredRun) -> tuple[object, ...]:
    request = row.request
    layout = (request.tp, request.pp, request.cp, request.ep, request.seq_length, request.micro_batch)
    return (row.groups["family"], *layout)


@dataclass(frozen=True, slots=True)
class Solution:
    """Logarithms of factors, and how sure they are."""

    log_factor_K: FloatArray
    deviation_K: FloatArray


def solve(
    slope_IK: FloatArray,
    residual_I: FloatArray,
    weight_I: FloatArray,
    prior_K: FloatArray,
    current_K: FloatArray,
    mean_K: FloatArray,
    noise: float = NOISE,
) -> Solution:
    """Return the factors that bring predictions nearest to measurements.

    Parameters
    ----------
    slope_IK : float array [I, K]
        Change of the logarithm of each prediction with the logarithm of each factor.
    residual_I : float array [I]
        Logarithm of measured over predicted at the current factors.
    weight_I : float array [I]
        How much each row counts; rows of one configuration share one weight.
    prior_K : float array [K]
        Deviation of each factor's logarithm before any row is seen.
    current_K : float array [K]
        Logarithms of the factors that the predictions were made with.
    mean_K : float array [K]
        Logarithms of the factors that are expected before any row is seen.
    noise : float
        Deviation of a row that a perfect model would leave.

    Returns
    -------
    Solution
    """
    # What the rows ask for, seen from what is expected.
    target_I = residual_I + slope_IK @ (current_K - mean_K)
    solution_K = current_K - mean_K
    prior_KK: FloatArray = np.diag(prior_K**-2.0)
    normal_KK: FloatArray = prior_KK
    for _ in range(_ROUNDS):
        distance_I = np.abs(target_I - slope_IK @ solution_K) / noise
        robust_I = weight_I * np.minimum(1.0, _TURN / np.maximum(distance_I, 1e-12)) / noise**2
        normal_KK = np.asarray(prior_KK + slope_IK.T @ (robust_I[:, None] * slope_IK), np.float64)
        new_K = np.asarray(np.linalg.solve(normal_KK, slope_IK.T @ (robust_I * target_I)), np.float64)
        if np.max(np.abs(new_K - solution_K), initial=0.0) < 1e-6:
            solution_K = new_K
            break
        solution_K = new_K
    return Solution(solution_K + mean_K, np.sqrt(np.diag(np.linalg.inv(normal_KK))))
