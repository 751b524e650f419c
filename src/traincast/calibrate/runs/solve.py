"""Fit factors to measured steps: a robust, regularised least squares of logarithms.

Letters: I rows (runs), K factors.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

NOISE = 0.05
"""Deviation of a measured step from a perfect model: repeats with equal columns differ by 1 % in the median and
7 to 10 % at the 90th percentile (docs/measured.md, noise)."""

_ROUNDS = 50
_TURN = 1.5
"""Residuals beyond so many deviations count linearly (Huber 1964)."""


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
