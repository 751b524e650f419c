"""Did the level of a run jump, when, and by how much.

The window-limited generalised likelihood ratio of Lai, Sequential Changepoint Detection in Quality Control and
Dynamical Systems, J. R. Statist. Soc. B 57 (1995), section 3, made robust: the last points are held against those
before them, for a short window that finds large shifts soon and long ones that find small shifts at all. Times are
logarithms; a low quantile stands for a level, since slow steps come in bursts and fast ones do not.

How far two levels may lie apart without a shift, the run says itself: the scatter of such quantiles of ten points,
which counts noise, autocorrelation and wandering together. A young run has few of them: its estimate is drawn towards
what its points' own scatter would make of independent ones, and the threshold is wider (as Student's is). A window that
holds a burst of scattered slow points is none of a new level, nor is one of which a slow phase fills a part: both
halves of a long window must lie at the new level. A slower level makes all steps slower: where slow and fast steps took
turns before, a window of more slow ones is none, so that its points must also rank above those before (Mann and
Whitney, On a Test of Whether One of Two Random Variables is Stochastically Larger than the Other, Ann. Math. Stat. 18,
1947).

Constants were searched on runs of many tests; those that either half of the tests would choose are the same:
`studies/watch.py`.
"""

import math
from bisect import bisect
from collections import deque

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
SHARE, SHARE_SHORT = 0.45, 0.4
"""The quantile that is a level; of a short window a lower one: more of its points must be slow."""
SHORT = 10
LONG = (27, 29)
"""Points of the windows: a large shift is to be told within ten points, any within thirty."""
STAYS = 0.8
"""Share of a shift that both halves of a long window must show."""
LEAST_SHORT, LEAST_LONG = 0.1, 0.026
"""Shifts, as logarithms, that are told at least."""
TIMES_SHORT, TIMES_LONG = 3.8, 3.0
"""Times the scatter of levels of ten points that a shift must be."""
BLOCK = 10
PRIOR_BLOCKS = 4.0
"""Blocks that the estimate from single points counts as."""
PRIOR_S, PRIOR_POINTS = 0.002, 0.36
"""Scatter of blocks where points do not scatter, and over the scatter of points: 1.25 over the root of ten is 0.40."""
YOUNG = 0.4
"""How much wider the threshold is without a block: by this share, less with each."""
BURST = 1.0
"""The shift over the scatter that its points have more than those before."""
RANKS_ABOVE = 0.7
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
                self.restart()
                return found
        return None

    def restart(self, skipped: int = 0) -> None:
        """Forget all points; skip some of the next."""
        self.points.clear()
        self.steps.clear()
        self.to_skip = skipped
        self.learned = self.seen + (LEARNED - SKIPPED if skipped else 0)
        self._quick = math.inf

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
