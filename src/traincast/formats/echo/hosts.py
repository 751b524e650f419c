"""Find the ranks that share a clock.

What two ranks ended together says whether their clocks are one. Where nothing does, clocks that
read about alike within eight consecutive ranks are taken as one: that is the usual host.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

from traincast.formats.echo.ends import Ends

RANKS_PER_HOST = 8
"""Ranks that are taken to share a host where the clocks do not tell."""

_OTHER_BOOT_S = 3600.0
_SAME_CLOCK_S = 0.020
"""Clocks nearer than this are one: ends on one host agree within 3 ms, and no two boots are so near."""

Hosts = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class _Islands:
    """Ranks whose clocks are known relative to each other; at first each rank is alone."""

    ahead_s: dict[int, float]
    """How far a rank's clock is ahead of the zero of its island."""
    members: dict[int, list[int]] = field(init=False)
    """Ranks of the island that a rank is on."""

    def __post_init__(self) -> None:
        self.members = {rank: [rank] for rank in self.ahead_s}

    def join(self, here: int, there: int, ahead_s: float) -> None:
        """Learn how far one clock is ahead of another; what was learned before stays."""
        mainland, island = self.members[here], self.members[there]
        if mainland is island:
            return
        shift_s = self.ahead_s[here] + ahead_s - self.ahead_s[there]
        for rank in island:
            self.ahead_s[rank] += shift_s
            self.members[rank] = mainland
        mainland += island

    def hosts(self) -> Hosts:
        """Return the ranks of each island that have one clock, eight consecutive ones at most."""
        found: list[tuple[int, ...]] = []
        for island in {id(each): each for each in self.members.values()}.values():
            parts: dict[tuple[int, int], list[int]] = defaultdict(list)
            clock, last_s = 0, None
            for rank in sorted(island, key=lambda rank: self.ahead_s[rank]):
                if last_s is not None and self.ahead_s[rank] - last_s > _SAME_CLOCK_S:
                    clock += 1
                # should two eights be one host, what they share gives about zero between them
                parts[clock, rank // RANKS_PER_HOST].append(rank)
                last_s = self.ahead_s[rank]
            found += [tuple(sorted(ranks)) for ranks in parts.values()]
        return tuple(sorted(found))


def find_hosts(first_s: dict[int, float], ends: Ends) -> Hosts:
    """Group ranks by clock.

    Parameters
    ----------
    first_s : dict
        First start in seconds, on its own clock, by rank.
    ends : dict
        What two ranks ended together (see `traincast.formats.echo.ends.matched_ends`).

    Returns
    -------
    tuple of tuple of int
        Ranks of each host in rising order.
    """
    islands = _Islands(dict.fromkeys(first_s, 0.0))
    pairs = sorted({(min(pair), max(pair)) for pair in ends if pair[0] != pair[1]})
    # a message one way holds its delay, so it counts where nothing better joins two ranks
    for both_ways in (True, False):
        for here, there in pairs:
            onward, back = ends.get((here, there)), ends.get((there, here))
            if bool(onward and back) is both_ways:
                ahead_s = _evidence_s(onward, back, first_s[there] - first_s[here])
                if ahead_s is not None:
                    islands.join(here, there, ahead_s)
    for here, there in _usual_pairs(first_s):
        islands.join(here, there, 0.0)
    return islands.hosts()


def clock_ahead_s(onward: list[float] | None, back: list[float] | None) -> float | None:
    """Return how far the clock at the other end of the messages is ahead, in seconds; None without any."""
    if onward and back:
        return (median(onward) - median(back)) / 2
    if onward:
        return median(onward)
    return -median(back) if back else None


def _evidence_s(onward: list[float] | None, back: list[float] | None, starts_apart_s: float) -> float | None:
    """Return how far the clock at the other end is shown to be ahead: 0 for the same clock, None if nothing is shown.

    A delay can hold up the end at a receiver, but nothing arrives before it was sent. So different
    clocks show in both directions only by an arrival before the sending; in one direction, by first
    starts that come nearer, for the ranks of a step start together.
    """
    shift_s = clock_ahead_s(onward, back)
    if shift_s is None or abs(shift_s) <= _SAME_CLOCK_S:
        return None if shift_s is None else 0.0
    if onward and back:
        # Of two clocks the same shift shows both ways; where the ends of one direction coincide it is one clock.
        if min(abs(median(onward)), abs(median(back))) <= _SAME_CLOCK_S:
            return 0.0
        return shift_s if min(median(onward), median(back)) < -_SAME_CLOCK_S else None
    return shift_s if abs(starts_apart_s - shift_s) < abs(starts_apart_s) else None


def _usual_pairs(first_s: dict[int, float]) -> list[tuple[int, int]]:
    """Pair ranks that share a host if nothing speaks against it, those that start most alike first.

    A jump of more than an hour is another boot, and another eight ranks are another host.
    """
    usual: dict[tuple[int, int], list[int]] = defaultdict(list)
    boot, last_s = 0, None
    for rank, start_s in sorted(first_s.items(), key=lambda item: item[1]):
        if last_s is not None and start_s - last_s > _OTHER_BOOT_S:
            boot += 1
        usual[boot, rank // RANKS_PER_HOST].append(rank)
        last_s = start_s
    pairs = [pair for ranks in usual.values() for pair in combinations(sorted(ranks), 2)]
    return sorted(pairs, key=lambda pair: (abs(first_s[pair[0]] - first_s[pair[1]]), pair))
