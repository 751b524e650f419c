"""How far predictions are from measurements: the figures of ``traincast.validation/1``."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Figures over some rows. Errors are fractions of the measured value; None where there is nothing to count."""

    rows: int
    """Rows there are."""
    evaluated: int
    """Rows with a prediction."""
    coverage: float | None
    """Their share."""
    mean_abs_error: float | None = None
    median_abs_error: float | None = None
    p90_abs_error: float | None = None
    p95_abs_error: float | None = None
    bias: float | None = None
    """Signed median: positive where predictions are too long."""
    spearman: float | None = None
    """Rank correlation of predictions and measurements; None where either is the same for all rows."""
    interval_coverage: float | None = None
    """Share of the measurements inside the predicted interval; None where none was predicted."""


def statistics(
    predicted: FloatArray, measured: FloatArray, rows: int | None = None, spread: FloatArray | None = None
) -> Statistics:
    """Return the error figures of predictions.

    Parameters
    ----------
    predicted : array of float
        Predictions; NaN where there is none.
    measured : array of float
        Positive measurements, one per prediction.
    rows : int, optional
        Rows there are, with those that are in neither array; the length of the arrays by default.
    spread : array of float, optional
        Half the width of each prediction's interval, in logarithms.

    Returns
    -------
    Statistics
        Over the rows that have a prediction.
    """
    known = ~np.isnan(predicted)
    evaluated, total = int(known.sum()), len(predicted) if rows is None else rows
    coverage = evaluated / total if total else None
    if not evaluated:
        return Statistics(rows=total, evaluated=0, coverage=coverage)
    errors = relative_errors(predicted[known], measured[known])
    median, p90, p95 = np.quantile(np.abs(errors), (0.5, 0.9, 0.95))
    return Statistics(
        rows=total,
        evaluated=evaluated,
        coverage=coverage,
        mean_abs_error=float(np.mean(np.abs(errors))),
        median_abs_error=float(median),
        p90_abs_error=float(p90),
        p95_abs_error=float(p95),
        bias=float(np.median(errors)),
        spearman=spearman(predicted[known], measured[known]),
        interval_coverage=None if spread is None else _inside(predicted[known], measured[known], spread[known]),
    )


def _inside(predicted: FloatArray, measured: FloatArray, spread: FloatArray) -> float:
    return float(np.mean(np.abs(np.log(measured / predicted)) <= spread))


def relative_errors(predicted: FloatArray, measured: FloatArray) -> FloatArray:
    """Return signed errors as fractions of the measured values."""
    return predicted / measured - 1.0


def spearman(a: FloatArray, b: FloatArray) -> float | None:
    """Return the correlation of the ranks of two arrays; equal values share the mean of their ranks.

    None where there are fewer than two values, or one of the arrays is constant.
    """
    if len(a) < 2:
        return None
    first, second = (mean_ranks(values) - (len(values) + 1) / 2 for values in (a, b))
    norm = float(np.sqrt((first @ first) * (second @ second)))
    # Rounding must not make a perfect order more than perfect.
    return max(-1.0, min(1.0, float(first @ second) / norm)) if norm else None


def mean_ranks(values: FloatArray) -> FloatArray:
    """Return the rank of each value, from 1; equal values share the mean of their ranks."""
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    means: FloatArray = (last - (count - 1) / 2)[group.reshape(-1)]
    return means
