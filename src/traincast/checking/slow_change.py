"""Does something grow slowly: times of steps that drift, memory that creeps.

Values are taken together in blocks of ten, the mean of the seven smallest of each, which spikes do not move. The last
blocks are cut into three parts: what grows steadily grows from each part to the next, and a line through the blocks
rises by more than the least that counts and by several times its own standard error. The error counts how alike
neighbouring blocks are (effective number of independent ones, as of an autoregressive series of first order). Windows
of several lengths are looked at, so that a fast drift is found early and a slow one at all.
"""

import math
from collections import deque
from itertools import pairwise

from msgspec import Struct, field

from traincast.checking.alarm import FoundChange, confidence_of

BLOCK = 10
"""Points of a block."""
LOWEST = 7
"""Points of a block whose mean stands for it: where steps scatter evenly (t5) it scatters by a sixth less than a low
quantile, and where they have spikes not more."""
PARTS = 3
LEAPS = 5
"""Blocks whose median one is held against, and the most that are left out in a row: what lasts is a level."""
WINDOWS = (24, 28, 40, 60)
"""Blocks that are looked at together, the longest kept in memory."""
FAST = 8
"""Blocks in which a fast change is looked for, as of a job that slows within each start: such a one ends before the
others are full."""
FAST_ERRORS = 2.0
"""How many times more standard errors these must show: of eight blocks the error itself is known badly (three and
a half of a normal distribution are as seldom as seven of Student's with six degrees of freedom)."""


class SlowChange(Struct):
    """Looks for growth in values that come one by one, in logarithms; memory stays the same."""

    least: float
    """Growth over a window below which nothing is said."""
    errors: float
    """Standard errors of the growth that it must be larger than."""
    fast: float = math.inf
    """Growth over `FAST` blocks below which nothing is said of these."""
    leap: float = math.inf
    """How far above the last blocks one is of a phase, which is nothing slow, and left out."""
    skipped: int = 20
    """First values that are not looked at: the run warms up."""
    points: list[tuple[int, float]] = field(default_factory=list)
    blocks: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=WINDOWS[-1]))
    seen: int = 0
    leapt: int = 0
    """Blocks of a phase that were just left out."""

    def feed(self, step: int, value: float) -> FoundChange | None:
        """Take in the logarithm of a value; return what grows, once."""
        self.seen += 1
        if self.seen <= self.skipped:
            return None
        self.points.append((step, value))
        if len(self.points) < BLOCK:
            return None
        block = self.points[0][0], sum(sorted(each for _, each in self.points)[:LOWEST]) / LOWEST
        self.points.clear()
        if self._leaps(block[1]):
            return None
        self.blocks.append(block)
        for window in (FAST, *WINDOWS):
            least, errors = (self.fast, FAST_ERRORS * self.errors) if window == FAST else (self.least, self.errors)
            if len(self.blocks) >= window and (found := self._over(list(self.blocks)[-window:], least, errors)):
                self.restart()
                return found
        return None

    def restart(self, skipped: int = 0) -> None:
        """Forget all values; look at none of the next ones."""
        self.points.clear()
        self.blocks.clear()
        self.seen = self.skipped - skipped

    def _leaps(self, value: float) -> bool:
        """Say whether a block is of a phase."""
        last = sorted(each for _, each in list(self.blocks)[-LEAPS:])
        leaps = len(last) == LEAPS and value - last[LEAPS // 2] > self.leap and self.leapt < LEAPS
        self.leapt = self.leapt + 1 if leaps else 0
        return leaps

    def _over(self, blocks: list[tuple[int, float]], least: float, errors: float) -> FoundChange | None:
        """Return the growth over blocks, where it is one."""
        count = len(blocks)
        values = [value for _, value in blocks]
        size = count // PARTS
        parts = [sorted(values[count - size * (PARTS - part) :][:size])[size // 2] for part in range(PARTS)]
        if parts[-1] - parts[0] < least * (PARTS - 1) / PARTS or any(
            after - before < 0.25 * least / PARTS for before, after in pairwise(parts)
        ):
            return None
        middle, mean = (count - 1) / 2, sum(values) / count
        width = sum((at - middle) ** 2 for at in range(count))
        slope = sum((at - middle) * (value - mean) for at, value in enumerate(values)) / width
        rest = [value - mean - slope * (at - middle) for at, value in enumerate(values)]
        square = sum(each**2 for each in rest)
        alike = max(0.0, sum(a * b for a, b in pairwise(rest)) / square) if square else 0.0
        error = math.sqrt(square / (count - 2) / width * (1 + alike) / max(1 - alike, 0.1)) * count
        growth = slope * count
        if growth < max(least, errors * error):
            return None
        looks = self.seen / BLOCK
        return FoundChange(blocks[0][0], math.expm1(growth), confidence_of(growth / max(error, 1e-9), looks))
