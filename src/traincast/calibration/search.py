"""Find the least value of a function of several numbers without its slope."""

from collections.abc import Callable

import numpy as np

from traincast.calibration.kind import FloatArray

_STEPS_PER_NUMBER = 120
"""Function values per number and round; more did not lower any fit here."""
_SCANNED = 25
"""Values of each number that a scan looks at."""
_FLAT = 1e-7
"""The search stops where all corners agree so well."""


def minimise(
    function: Callable[[FloatArray], float], start: FloatArray, rounds: int = 4, step: float = 0.5
) -> FloatArray:
    """Return where a function is least, near a start; the same start gives the same answer.

    It restarts from the best point, each round with half the `step` of the one before. Source: Nelder and Mead, A
    simplex method for function minimization, 1965.
    """
    best = np.asarray(start, dtype=np.float64)
    for turn in range(rounds):
        corners = np.vstack([best, best + np.eye(best.size) * step / 2**turn])
        best = _simplex(function, corners)
    return best


def scan(function: Callable[[FloatArray], float], start: FloatArray, reach: float = 1.5) -> FloatArray:
    """Return a better point to start from: the best along each number in turn, twice.

    A simplex stops in a corner where two limits meet; from afar it comes down on the right side of it. Each number is
    looked at as far as `reach` on both sides; of logarithms 1.5 is a factor of 4.5.
    """
    best, least = np.array(start, dtype=np.float64), function(start)
    for _ in range(2):
        for number in range(best.size):
            for value in start[number] + np.linspace(-reach, reach, _SCANNED):
                trial = best.copy()
                trial[number] = value
                if (at_trial := function(trial)) < least:
                    best, least = trial, at_trial
    return best


def _simplex(function: Callable[[FloatArray], float], corners: FloatArray) -> FloatArray:
    values = np.array(list(map(function, corners)))
    for _ in range(_STEPS_PER_NUMBER * corners.shape[1]):
        order = np.argsort(values, kind="stable")
        corners, values = corners[order], values[order]
        if values[-1] - values[0] < _FLAT:
            break
        middle, worst = corners[:-1].mean(axis=0), corners[-1]
        trial, value = _probe(function, middle, worst, 1.0)
        if value < values[0]:
            further, further_value = _probe(function, middle, worst, 2.0)
            if further_value < value:
                trial, value = further, further_value
        elif value >= values[-2]:
            trial, value = _probe(function, middle, worst, 0.5 if value < values[-1] else -0.5)
            if value >= values[-1]:
                corners = corners[0] + (corners - corners[0]) / 2
                values = np.array(list(map(function, corners)))
                continue
        corners[-1], values[-1] = trial, value
    best: FloatArray = corners[np.argmin(values)]
    return best


def _probe(
    function: Callable[[FloatArray], float], middle: FloatArray, worst: FloatArray, factor: float
) -> tuple[FloatArray, float]:
    """Return the point on the line from the worst corner through the middle, and its value."""
    point = middle + factor * (middle - worst)
    return point, function(point)
