"""The steps of one run, judged: which are steady, which are left out and why, their mean and how sure it is.

What is no ordinary step is told by the log (`told`), by what the job does every so many steps (`every`), or by its time
alone: a run warms up until its level is that of the rest, and a spike lies far from its neighbours. Steps follow each
other, so that a slow one is rarely alone: the mean's interval counts their autocorrelation as the initial positive
sequence of Geyer, Practical Markov Chain Monte Carlo, Statistical Science 7 (1992), section 3.3.

Letters: N points of the log, K those that are kept, W points of a window.
"""

import math
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from traincast.workload.ops import BoolArray, FloatArray, IntArray

NOT_A_NUMBER, WARM_UP, SPIKE = "not a number", "warm-up", "spike"
REASONS = (NOT_A_NUMBER, WARM_UP, "checkpoint", "evaluation", "garbage collection", SPIKE)
"""Why a point is left out, the first that holds."""
LEVEL = 0.9
"""Confidence of the interval of a mean."""
LONGEST_WARM_UP = 20
"""Points: compiling, first allocations and the search for a loss scale (fp16 halves 2^32 until it fits) end sooner."""
NEIGHBOURS = 11
"""Points of the window whose median a spike stands out of; at most five slow points in a row are one."""
SPIKES = 5.0
"""Standard deviations of its neighbours beyond which a point is a spike: one normal point in two million."""
LEAST = 0.03
"""Share of a step below which nothing is a spike or a warm-up."""
MOST_SPIKES = 0.2
"""Share of the points that may be spikes; what happens more often is how the run is."""
BLOCK = 10
"""Points of a block, of whose medians `spread` is."""
_MAD = 1.4826
"""Standard deviation over the median absolute deviation of a normal distribution."""
_MEDIAN = 1.2533
"""Standard deviation of a median over that of a mean of as many points, for many of them."""
_NORMAL = 1.645
"""Half of the interval of 90 % in standard deviations."""
_P10_TO_P90 = 2.563


class LeftOut(Struct, frozen=True):
    """Points that say nothing of a steady step, and why."""

    reason: str
    """One of `REASONS`."""
    steps: tuple[int, ...]
    """Their numbers."""


class Series(Struct, frozen=True, kw_only=True):
    """The steps of one run, and what they say together; figures are NaN where no point is steady."""

    step: IntArray
    step_s: FloatArray
    steady: BoolArray
    """Which points are steady."""
    left_out: tuple[LeftOut, ...]
    """All others, in the order of `REASONS`."""
    mean_s: float
    """Of the steady points."""
    low_s: float
    high_s: float
    """Where the mean lies with a confidence of 90 %, autocorrelation counted."""
    spread: float
    """Between the tenth and the ninetieth percentile of medians of ten points, over their median."""
    autocorrelation: float
    """Of a point with the next."""
    points: int
    """Steady ones."""
    independent_points: float
    """How many independent points would say as much of the mean."""
    share_lost: float
    """How much longer the mean of all points after the warm-up is, as a share: what the left-out ones cost."""


def judged_series(
    step: IntArray,
    step_s: FloatArray,
    *,
    told: Mapping[str, BoolArray] | None = None,
    every: Mapping[str, int] | None = None,
) -> Series:
    """Judge the steps of a run.

    Parameters
    ----------
    step : int array
        Numbers of the logged steps, rising.
    step_s : float array
        What each took, or the mean of those since the one before; not-a-number and what is not positive is left out.
    told : mapping, optional
        Which points the log itself says to hold a ``checkpoint`` or ``evaluation``, by `REASONS`: left out
        whatever they took.
    every : mapping, optional
        After how many steps the job does so, by `REASONS`: a spike there is called by it.

    Returns
    -------
    Series
    """
    step, step_s = np.asarray(step, np.int64), np.asarray(step_s, np.float64)
    reason = np.full(len(step), "", object)
    valid = np.isfinite(step_s) & (step_s > 0)
    reason[~valid] = NOT_A_NUMBER
    log_s = np.log(np.where(valid, step_s, 1.0))
    kept = np.flatnonzero(valid)
    reason[kept[: warm_up_points(log_s[kept])]] = WARM_UP
    for name, mask in (told or {}).items():
        reason[np.asarray(mask, bool) & (reason == "")] = name
    kept = np.flatnonzero(reason == "")
    spikes = kept[spikes_of(log_s[kept])]
    reason[spikes] = SPIKE
    for name, steps in (every or {}).items():
        reason[[at for at in spikes if reason[at] == SPIKE and _holds(step, int(at), steps)]] = name
    return _with_figures(step, step_s, reason)


def warm_up_points(log_s: FloatArray) -> int:
    """Return how many first points are not at the level of the rest: logarithms of times of steps."""
    most = min(LONGEST_WARM_UP, len(log_s) // 3)
    if most == 0:
        return 0
    rest = log_s[most:]
    middle = float(np.median(rest))
    # The rest may wander: nothing within its own spread is told from it.
    low, high = np.quantile(rest, (0.1, 0.9))
    outside = (log_s[:most] < min(low, middle - LEAST)) | (log_s[:most] > max(high, middle + LEAST))
    # The warm-up ends where most points of a window are at the level, so that one lucky point does not end it.
    padded = np.concatenate((outside, np.zeros(4, bool)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 5)[:most].sum(axis=1)
    ends = np.flatnonzero(windows <= 2)
    end = int(ends[0]) if len(ends) else most
    while end < most and outside[end]:
        end += 1
    return end


def spikes_of(log_s: FloatArray) -> BoolArray:
    """Say which points lie far from their neighbours: logarithms of times of steps, in order."""
    if len(log_s) < 3:
        return np.zeros(len(log_s), bool)
    half = NEIGHBOURS // 2
    padded = np.pad(log_s, half, mode="reflect" if len(log_s) > half else "edge")
    beyond = log_s - np.median(np.lib.stride_tricks.sliding_window_view(padded, NEIGHBOURS), axis=1)
    spread = _MAD * float(np.median(np.abs(beyond)))
    far: BoolArray = np.abs(beyond) > max(SPIKES * spread, LEAST)
    return far if far.mean() <= MOST_SPIKES else np.zeros(len(log_s), bool)


def _holds(step: IntArray, at: int, every: int) -> bool:
    """Say whether what is done every so many steps falls into a point, or right before its first step."""
    before = int(step[at - 1]) if at else int(step[at]) - 1
    return every > 0 and int(step[at]) // every > max(before - 1, 0) // every


def _with_figures(step: IntArray, step_s: FloatArray, reason: np.ndarray[tuple[int], np.dtype[np.object_]]) -> Series:
    steady = np.equal(reason, "").astype(bool)
    kept_s = step_s[steady]
    names = [each for each in REASONS if (reason == each).any()]
    mean_s = float(kept_s.mean()) if len(kept_s) else math.nan
    lag_one, independent = _autocorrelation(kept_s)
    error_s = float(kept_s.std(ddof=1)) / math.sqrt(independent) if len(kept_s) > 1 else math.nan
    half_s = _student(independent - 1) * error_s
    after = step_s[~np.isin(reason, (NOT_A_NUMBER, WARM_UP))]
    return Series(
        step=step,
        step_s=step_s,
        steady=steady,
        left_out=tuple(LeftOut(each, tuple(map(int, step[reason == each]))) for each in names),
        mean_s=mean_s,
        low_s=max(0.0, mean_s - half_s) if math.isfinite(half_s) else mean_s,
        high_s=mean_s + half_s if math.isfinite(half_s) else mean_s,
        spread=spread_of_medians(kept_s),
        autocorrelation=lag_one,
        points=len(kept_s),
        independent_points=independent,
        share_lost=float(after.mean()) / mean_s - 1 if len(kept_s) else math.nan,
    )


def spread_of_medians(step_s: FloatArray) -> float:
    """Return the p10 to p90 spread of medians of ten points, over their median.

    Fewer than twenty points have no two blocks: then it is what independent points of their spread would give.
    """
    blocks = len(step_s) // BLOCK
    if len(step_s) == 0:
        return math.nan
    if blocks < 2:
        low, middle, high = np.quantile(step_s, (0.1, 0.5, 0.9))
        return float((high - low) / middle * _MEDIAN / math.sqrt(BLOCK))
    medians = np.median(step_s[: blocks * BLOCK].reshape(blocks, BLOCK), axis=1)
    low, middle, high = np.quantile(medians, (0.1, 0.5, 0.9))
    return float((high - low) / middle)


def _autocorrelation(step_s: FloatArray) -> tuple[float, float]:
    """Return the autocorrelation of neighbours, and how many independent points say as much of the mean."""
    count = len(step_s)
    if count < 4 or not np.ptp(step_s):
        return 0.0, float(count)
    beyond = step_s - step_s.mean()
    variance = float(beyond @ beyond) / count

    def share(lag: int) -> float:
        return float(beyond[:-lag] @ beyond[lag:]) / count / variance

    total = 1.0 + share(1)
    # Sums of two neighbouring lags are positive for a reversible chain; from the first that is not on, all is noise.
    for lag in range(2, min(count // 2, 500), 2):
        pair = share(lag) + share(lag + 1)
        if pair <= 0:
            break
        total += pair
    return share(1), min(float(count), count / max(1.0, 2 * total - 1))


def _student(freedom: float) -> float:
    """Return the 95 % quantile of Student's distribution (Cornish and Fisher's series from three degrees on)."""
    free = max(1.0, freedom)
    if free < 3:
        return float(np.interp(free, (1.0, 2.0, 3.0), (6.314, 2.920, 2.353)))
    z = _NORMAL
    return z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
