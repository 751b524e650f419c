"""Is one step in so many slow, again and again: which period.

A spike is a point far above the points before it. Whenever one comes, every distance to a spike before is tried as a
period: the spike must have followed the last ones of its height at that distance, one point earlier or later at most.
By chance each of these places holds such a spike as often as any point does; what chance would make of it decides.
"""

import math
from collections import deque

from msgspec import Struct, field

from traincast.checking.alarm import quantile

NEIGHBOURS = 40
"""Points before a spike that it stands out of."""
LEAST = 0.05
"""Share of a step that a spike has at least."""
SPREADS = 5.0
"""Times the spread (median absolute deviation) of its neighbours that a spike stands above their median."""
ALIKE = 0.6
"""Share of a spike's height that another must have to be one of its series."""
HIGHER = 1.5
"""Times the height of a period's spikes from which on those at a multiple of it are another's."""
REMEMBERED = 64
"""Spikes."""
IN_A_ROW = 4
"""Spikes at one distance that make a period."""
BY_CHANCE = 1e-3
LEAST_LOST = 0.002
"""Share of the time that spikes must cost to be told."""
LEAST_POINTS = 4
"""Shorter periods are how the run is."""


class SpikePeriod(Struct, frozen=True):
    """Spikes that come again and again."""

    began: int
    """Step of the first of them."""
    points: int
    """Points of the log from one to the next."""
    steps: int
    excess: float
    """How much longer such a step is, as a share, in the median."""
    lost: float
    """Share of the time that they cost."""
    by_chance: float


class PeriodicSpikes(Struct):
    """Takes the points of a run one by one; memory stays the same."""

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=NEIGHBOURS))
    spikes: deque[tuple[int, int, float]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """Point, step and height of each."""
    seen: int = 0
    told: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """Periods that were told, each with how much longer its steps are."""
    _level: tuple[float, float] = (math.nan, math.nan)

    def feed(self, step: int, log_s: float) -> SpikePeriod | None:
        """Take in the logarithm of a time; return a period, each once."""
        self.seen += 1
        found = None
        if len(self.recent) == NEIGHBOURS:
            if self.seen % 5 == 0 or math.isnan(self._level[0]):
                ordered = sorted(self.recent)
                middle = quantile(ordered, 0.5)
                self._level = middle, quantile(sorted(abs(each - middle) for each in ordered), 0.5)
            middle, spread = self._level
            if log_s - middle > max(LEAST, SPREADS * spread):
                self.spikes.append((self.seen, step, log_s - middle))
                found = self._period()
        self.recent.append(log_s)
        return found

    def _period(self) -> SpikePeriod | None:
        """Return the period that the last spike is of."""
        last, _, least = self.spikes[-1]
        places = {place: (step, height) for place, step, height in self.spikes if height > ALIKE * least}
        rate = len(places) / max(last - self.spikes[0][0], 1)
        for before in reversed(places):
            period = last - before
            if period < LEAST_POINTS:
                continue
            chain = _chain(places, last, period)
            if len(chain) <= IN_A_ROW:
                continue
            by_chance = len(places) * min(1.0, 3 * rate) ** (len(chain) - 1)
            steps = round((places[chain[0]][0] - places[chain[-1]][0]) / (len(chain) - 1))
            excess = sorted(places[each][1] for each in chain)[len(chain) // 2]
            lost = math.expm1(excess) / period
            if by_chance > BY_CHANCE or lost < LEAST_LOST or any(_same(steps, excess, *each) for each in self.told):
                continue
            self.told.append((steps, excess))
            return SpikePeriod(places[chain[-1]][0], period, steps, math.expm1(excess), lost, by_chance)
        return None


def _chain(places: dict[int, tuple[int, float]], last: int, period: int) -> list[int]:
    """Return the spikes before one that follow each other at a distance, the last first."""
    chain = [last]
    while (found := next((at for off in (0, -1, 1) if (at := chain[-1] - period + off) in places), None)) is not None:
        chain.append(found)
    return chain


def _same(steps: int, excess: float, told: int, told_excess: float) -> bool:
    """Say whether a period is one that was told, or some spikes of one; much higher ones among them are others."""
    turns = round(steps / told)
    return turns >= 1 and abs(steps - turns * told) <= max(1, told // 25) and excess <= HIGHER * told_excess
