"""Did the level of a run jump, when, and by how much.

The window-limited generalised likelihood ratio of Lai, Sequential Changepoint Detection in Quality Control and
Dynamical Systems, J. R. Statist. Soc. B 57 (1995), section 3, made robust: the last points are held against those
before them, for a short window that finds large shifts soon and long ones that find small shifts at all. Times are
logarithms; a low quantile stands for a level, since slow steps come in bursts and fast ones do not.

How far two levels may lie apart without a shift, the run says itself: the scatter of such quantiles of ten points,
which counts noise, autocorrelation and wandering together. A young run has few of them: its estimate is drawn towards
what its points' own scatter would make of independent ones, and the threshold is wider (as Student's is). A window that
holds a burst of scattered slow points is none of a new level, nor is one of which a slow phase fills a part: both
halves of a long window must lie nearer to the new level. A slower level makes all steps slower: where slow and fast
steps took turns before, a window of more slow ones is none, so that its points must also rank above those before (Mann
and Whitney, On a Test of Whether One of Two Random Variables is Stochastically Larger than the Other, Ann. Math. Stat.
18, 1947). Nor does a slower level make steps restless, as the work of others on the same machine does: neighbours
differ as they did before (von Neumann, Distribution of the Ratio of the Mean Square Successive Difference to the
Variance, Ann. Math. Stat. 12, 1941).

After a shift the run goes on at its new level: the points before it are lifted there, and go on telling its scatter.

Constants were searched on runs of many tests: `studies/watch.py` shows what either half of the tests would choose, and
what it makes of the other.
"""

import math
from bisect import bisect
from collections import deque
from itertools import pairwise

from msgspec import Struct, field

from traincast.checking.alarm import FoundChange, confidence_of, quantile

SKIPPED = 18
"""First points of a start, of which nothing is learned: compiling, allocations, fp16's search for a loss scale."""
FEWEST = 8
"""Points to be held against."""
REFERENCE = 120
"""The most of them."""
NEAR = 40
"""Those of them that say what the level was; runs wander, so that earlier ones say no more of it."""
SHARE, SHARE_SHORT = 0.45, 0.5
"""The quantile that is a level; of a short window it is the median."""
SHORT = 8
LONG = (27, 29)
"""Points of the windows: a large shift is to be told within ten points, any within thirty."""
STAYS = 0.5
"""Share of a shift that both halves of a long window must show: each lies nearer to the new level than to the old."""
LEAST_SHORT, LEAST_LONG = 0.1, 0.026
"""Shifts, as logarithms, that are told at least."""
TIMES_SHORT, TIMES_LONG = 4.2, 3.0
"""Times the scatter of levels of ten points that a shift must be."""
BLOCK = 10
PRIOR_BLOCKS = 3.0
"""Blocks that the estimate from single points counts as."""
PRIOR_S, PRIOR_POINTS = 0.002, 0.36
"""Scatter of blocks where points do not scatter, and over the scatter of points: 1.25 over the root of ten is 0.40."""
YOUNG = 0.4
"""How much wider the threshold is without a block: by this share, less with each."""
BURST = 1.0
"""The shift over the scatter that its points have more than those before."""
UNREST_SHORT, UNREST_LONG = (3.0, 0.12), (2.0, 0.25)
"""Times the scatter between neighbours that there was before, and share of the shift: a window whose neighbours differ
by more than both is restless. Of the few neighbours of a short one the scatter itself is known badly."""
RANKS_ABOVE = 0.72
"""Share of pairs of a point of the window and one of those before it of which the window's must be slower."""
BACK = 45
"""Points among which the onset is looked for."""
LEARNED = 29
"""Points of a start after which a shift may begin: what changes sooner belongs to the warm-up (routers balance, caches
fill)."""
_MAD = 1.4826


class Reference(Struct, frozen=True):
    """What points are like that others are held against."""

    level: float
    of_blocks: float
    """Of levels of ten points, wider for few of them."""
    width: float
    """Between the 20 % and 80 % quantile of points."""


class LevelShift(Struct):
    """Takes the points of a run one by one; memory stays the same."""

    points: deque[float] = field(default_factory=lambda: deque(maxlen=REFERENCE + LONG[-1]))
    steps: deque[int] = field(default_factory=lambda: deque(maxlen=REFERENCE + LONG[-1]))
    to_skip: int = SKIPPED
    seen: int = 0
    learned: int = LEARNED - SKIPPED
    """Points seen before which no shift begins."""
    _quick: float = math.inf
    """The level of the reference a few points ago."""

    def feed(self, step: int, log_s: float) -> FoundChange | None:
        """Take in the logarithm of a time; return a shift upwards."""
        if self.to_skip > 0:
            self.to_skip -= 1
            return None
        self.seen += 1
        self.points.append(log_s)
        self.steps.append(step)
        if len(self.points) < FEWEST + SHORT:
            return None
        points = list(self.points)
        if self.seen % 5 == 0 or math.isinf(self._quick):
            self._quick = quantile(sorted(points[: -LONG[0]] or points[:FEWEST]), SHARE)
        for window in (SHORT, *LONG):
            if len(points) - window < FEWEST:
                break
            level = quantile(sorted(points[-window:]), SHARE_SHORT if window == SHORT else SHARE)
            # Most points are at the level of those before; all that follows is for the few that are not.
            if level - self._quick > LEAST_LONG / 2 and (found := self._held(points, window, level)):
                self._lift(found)
                return found
        return None

    def restart(self) -> None:
        """Forget all points, and skip the first ones of a new start."""
        self.points.clear()
        self.steps.clear()
        self.to_skip, self.learned = SKIPPED, self.seen + LEARNED - SKIPPED
        self._quick = math.inf

    def _lift(self, change: FoundChange) -> None:
        """Go on from a new level: points before it stand for the scatter that they had, at the new level."""
        shift = math.log1p(change.size)
        for at, step in enumerate(self.steps):
            if step < change.began:
                self.points[at] += shift
        self.learned, self._quick = self.seen, math.inf

    def known(self) -> Reference | None:
        """Return what the points of this start are like; None for fewer than twenty."""
        return reference_of(list(self.points)) if len(self.points) >= 2 * BLOCK else None

    def _held(self, points: list[float], window: int, level: float) -> FoundChange | None:
        """Return the shift between the last points and those before, if it is one."""
        before = points[max(0, len(points) - window - REFERENCE) : -window]
        after = sorted(points[-window:])
        known = reference_of(before)
        shift = level - known.level
        least, times = (LEAST_SHORT, TIMES_SHORT) if window == SHORT else (LEAST_LONG, TIMES_LONG)
        needed = max(least, times * known.of_blocks)
        burst = max(0.0, quantile(after, 0.8) - quantile(after, 0.2) - known.width)
        if shift <= needed or shift <= BURST * burst or _ranks_above(before[-NEAR:], after) < RANKS_ABOVE:
            return None
        if _restless(before, points[-window:], shift, UNREST_SHORT if window == SHORT else UNREST_LONG):
            return None
        if window != SHORT and min(_halves(points[-window:])) - known.level < STAYS * shift:
            return None
        onset = _onset(points, known.level, shift)
        if self.seen - len(points) + onset < self.learned:
            return None
        deviations = shift / known.of_blocks * math.sqrt(window / BLOCK)
        return FoundChange(self.steps[onset], math.expm1(shift), confidence_of(deviations, self.seen / window))


def reference_of(points: list[float]) -> Reference:
    """Return what the points before a window are like."""
    ordered = sorted(points)
    level, middle = quantile(sorted(points[-NEAR:]), SHARE), quantile(ordered, 0.5)
    scatter = _MAD * quantile(sorted(abs(each - middle) for each in points), 0.5)
    count = len(points) // BLOCK
    blocks = [
        quantile(sorted(points[end - BLOCK : end]), SHARE)
        for end in range(len(points), len(points) - count * BLOCK, -BLOCK)
    ]
    prior = PRIOR_S**2 + (PRIOR_POINTS * scatter) ** 2
    variance = (PRIOR_BLOCKS * prior + sum((each - level) ** 2 for each in blocks)) / (PRIOR_BLOCKS + count)
    return Reference(
        level=level,
        of_blocks=math.sqrt(variance) * (1 + YOUNG / (1 + count)),
        width=quantile(ordered, 0.8) - quantile(ordered, 0.2),
    )


def _halves(points: list[float]) -> tuple[float, float]:
    """Return the levels of both halves of some points; of an odd number the first belongs to neither."""
    half = len(points) // 2
    return quantile(sorted(points[-2 * half : -half]), SHARE), quantile(sorted(points[-half:]), SHARE)


def _ranks_above(before: list[float], after: list[float]) -> float:
    """Return in what share of pairs of a point before and one after the one after is the larger."""
    ordered = sorted(before)
    return sum(bisect(ordered, each) for each in after) / (len(before) * len(after))


def _restless(before: list[float], after: list[float], shift: float, most: tuple[float, float]) -> bool:
    """Say whether neighbours differ more than points at another level would."""
    times, share = most
    unrest = _between_neighbours(after)
    return unrest > share * shift and unrest > times * _between_neighbours(before)


def _between_neighbours(points: list[float]) -> float:
    """Return the standard deviation of points that their neighbours tell, which a level or a drift hardly moves."""
    return _MAD / math.sqrt(2) * quantile(sorted(abs(after - before) for before, after in pairwise(points)), 0.5)


def _onset(points: list[float], level: float, shift: float) -> int:
    """Return the point from which on the points are likelier at the new level than at the old one.

    The largest sum, from the last point back, of how far each lies above the middle between both levels (Page's
    cumulative sum); no point counts more than the shift.
    """
    middle, total, best, onset = level + shift / 2, 0.0, 0.0, len(points) - 1
    for at in range(len(points) - 1, max(-1, len(points) - 1 - BACK), -1):
        total += max(-shift, min(shift, points[at] - middle))
        if total > best:
            best, onset = total, at
    return onset
