"""Constants of a GPU from a few timings: its own fit, or those of a measured GPU at another speed.

Twenty timings tell how fast a GPU is, hardly how its rate depends on the shape; a measured GPU with
the same kernels knows that, in its constants and its correction. So each measured GPU's are tried,
scaled by one factor, and the nearest also with a new balance of compute and memory, beside a fit of
all constants. Whichever predicts timings best that it was not given is taken: for one factor each timing
from all others (leave one out), for a fit a fifth from the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincast.calibrate.contract import FloatArray
from traincast.calibrate.operator_fit import FEWEST, Sample, fit_constants, free_constants, predict
from traincast.estimate.operators import FamilyConstants, OperatorConstants
from traincast.estimate.operators.constants import ANY

FEW = 100
"""Timings beyond which a GPU's own fit is all that is tried."""
FOLDS = 5
NEAREST = 2
"""Measured GPUs whose balance of compute and memory is fitted as well."""
_EVENTS_S = (0.0, 1e-5, 2e-5, 4e-5)
"""What an event may add to a timing; NeuSight's hold 10 to 70 us."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Constants and the error that they are expected to have, as a mean absolute logarithm."""

    error: float
    constants: FamilyConstants


def constants_from_few(
    sample: Sample, start: FamilyConstants, known: OperatorConstants, *, events: bool = False
) -> FamilyConstants:
    """Return the constants that predict timings best which they were not fitted to.

    Parameters
    ----------
    sample : Sample
        The timings.
    start : FamilyConstants
        Where a fit of all constants starts; names GPU, family and type.
    known : OperatorConstants
        Constants and corrections of measured GPUs.
    events : bool
        Whether the timings hold more than the kernel.

    Returns
    -------
    FamilyConstants
        `grid_of` names the GPU whose correction holds as well, if any.

    Raises
    ------
    CalibrationError
        If there are too few timings.
    """
    free = free_constants(sample, events=events)
    start = replace(start, grid_of="")
    if not FEWEST + FOLDS <= len(sample) <= FEW:
        return fit_constants(sample, start, free)
    candidates = [_Candidate(_fold_error(sample, start, free), fit_constants(sample, start, free))]
    scaled = sorted(_scaled_from_others(sample, start, known, events=events), key=lambda each: each.error)
    candidates += scaled[:1]
    balance = tuple(name for name in ("compute", "memory", "event_s") if name in free)
    for near in scaled[:NEAREST]:
        corrected = sample.corrected(known.correction(near.constants) if near.constants.grid_of else None)
        error = _fold_error(corrected, near.constants, balance)
        candidates.append(_Candidate(error, fit_constants(corrected, near.constants, balance)))
    return min(candidates, key=lambda each: each.error).constants


def _scaled_from_others(
    sample: Sample, start: FamilyConstants, known: OperatorConstants, *, events: bool
) -> Iterator[_Candidate]:
    for row in known.rows:
        if row.gpu == ANY or row.family != start.family or row.dtype not in (start.dtype, ANY) or not row.rows:
            continue
        like = replace(row, gpu=start.gpu, dtype=start.dtype, event_s=0.0, floor_s=start.floor_s, grid_of="")
        events_s = _EVENTS_S if events else _EVENTS_S[:1]
        yield _scaled(sample, like, events_s)
        grid = known.correction(row)
        if grid is not None:
            yield _scaled(sample.corrected(grid), replace(like, grid_of=grid.gpu), events_s)


def _scaled(sample: Sample, like: FamilyConstants, events_s: Sequence[float]) -> _Candidate:
    """Return constants slowed down by one factor, and the error of each timing by the factor of the others."""
    price_N = predict(sample, like)
    measured_N = sample.time_s_N
    left_out = [
        abs(np.log(_slowed(price_N[at], *_factor(np.delete(price_N, at), np.delete(measured_N, at), events_s))
                   / measured_N[at]))
        for at in range(len(sample))
    ]  # fmt: skip
    factor, event_s = _factor(price_N, measured_N, events_s)
    constants = replace(
        like, compute=min(like.compute / factor, 1.0), memory=min(like.memory / factor, 1.0), event_s=event_s
    )
    errors_N = np.abs(predict(sample, constants) / measured_N - 1.0)
    median, p90 = np.quantile(errors_N, (0.5, 0.9))
    described = replace(constants, rows=len(sample), median_error=float(median), p90_error=float(p90))
    return _Candidate(float(np.mean(left_out)), described)


def _factor(price_N: FloatArray, measured_N: FloatArray, events_s: Sequence[float]) -> tuple[float, float]:
    """Return the factor and the event time of least mean absolute logarithm."""
    found = []
    for event_s in events_s:
        factor = float(np.exp(np.median(np.log(np.maximum(measured_N - event_s, 0.1 * measured_N) / price_N))))
        error = float(np.mean(np.abs(np.log(_slowed(price_N, factor, event_s) / measured_N))))
        found.append((error, factor, event_s))
    _, factor, event_s = min(found)
    return factor, event_s


def _slowed(price: FloatArray, factor: float, event_s: float) -> FloatArray:
    return price * factor + event_s


def _fold_error(sample: Sample, start: FamilyConstants, free: Sequence[str]) -> float:
    """Return the mean absolute logarithm over fifths of the timings, each predicted by a fit to the others."""
    order = np.argsort(sample.time_s_N, kind="stable")
    fold_N = np.empty(len(sample), np.int64)
    fold_N[order] = np.arange(len(sample)) % FOLDS
    errors: list[FloatArray] = []
    for fold in range(FOLDS):
        inside, outside = (np.flatnonzero(which) for which in (fold_N != fold, fold_N == fold))
        fitted = fit_constants(sample.select(inside), start, free)
        left = sample.select(outside)
        errors.append(np.abs(np.log(predict(left, fitted) / left.time_s_N)))
    return float(np.mean(np.concatenate(errors)))
