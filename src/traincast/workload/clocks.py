"""Bring the ranks of a measured run on one clock.

A time stamp counts from the boot of its host, so ranks of one host compare and ranks of two do not. A message between
two ranks ends on both at nearly the same time, and so does a synchronous collective on its members: over messages in
both directions the delays cancel, and half the difference of the medians of these ends is the difference of the two
clocks. That tells which ranks share a host, and then how far the hosts' clocks are apart. Where nothing tells, clocks
that read about alike within eight consecutive ranks are taken as one: that is the usual host.

A reader says when each rank started and which ends were of one rendezvous (`Ends.of_messages`,
`Ends.of_collectives`); `align` returns what to subtract from each clock.

Letter: J ends, or pairs of them.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import median

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from traincast.diagnostics import Note

RANKS_PER_HOST = 8
"""Ranks that are taken to share a host where the clocks do not tell."""

SAME_CLOCK_S = 0.020
"""Clocks nearer than this are one: ends on one host agree within 3 ms, and no two boots are so near."""

_ONE_RENDEZVOUS_S = 0.005
"""Spread of the differences between two members of one group; more, and they are not of one group."""

_OTHER_BOOT_S = 3600.0
"""Jump between the first starts of ranks that is another boot."""

_READS_ALIKE_S = 60.0
_WORTH_SAYING_S = 0.001
_SHOWN_HOSTS = 4

Hosts = tuple[tuple[int, ...], ...]
"""Ranks of each host in rising order."""

_Pair = tuple[int, int]
_Numbers = Sequence[float] | npt.NDArray[np.generic]
_Apart = Mapping[_Pair, list[float]]


class Ends(Struct, frozen=True):
    """How much the two ends of what pairs of ranks did together differ."""

    apart_s: _Apart = field(default_factory=dict)
    """By two ranks: the end at the second less the end at the first, in seconds, of each message from the first to
    the second. Collectives have no direction and are there both ways, as messages without a delay would be."""

    @classmethod
    def of_messages(cls, source_J: _Numbers, target_J: _Numbers, sent_s_J: _Numbers, received_s_J: _Numbers) -> "Ends":
        """Return the ends of messages: each one's ranks, and its ends on the clocks of these in seconds."""
        found: dict[_Pair, list[float]] = defaultdict(list)
        columns = (np.asarray(each).tolist() for each in (source_J, target_J, sent_s_J, received_s_J))
        for source, target, sent_s, received_s in zip(*columns, strict=True):
            found[int(source), int(target)].append(received_s - sent_s)
        return cls(dict(found))

    @classmethod
    def of_collectives(cls, rendezvous_J: _Numbers, rank_J: _Numbers, end_s_J: _Numbers) -> "Ends":
        """Return the ends of synchronous collectives, from each member's end on its own clock in seconds.

        `rendezvous_J` numbers the rendezvous. Members are compared with the next higher rank of it, and two whose
        ends differ now by this and now by that were not of one rendezvous and tell nothing.
        """
        end_s = np.asarray(end_s_J, dtype=np.float64)
        order_J = np.lexsort((np.asarray(rank_J), np.asarray(rendezvous_J)))
        met_J, ranks_J = np.asarray(rendezvous_J)[order_J], np.asarray(rank_J)[order_J]
        at = np.flatnonzero(met_J[1:] == met_J[:-1])
        here, there = ranks_J[at], ranks_J[at + 1]
        found = cls.of_messages(here, there, end_s[order_J][at], end_s[order_J][at + 1]).apart_s
        both: dict[_Pair, list[float]] = {}
        for (first, second), apart_s in found.items():
            middle_s = median(apart_s)
            if median([abs(each - middle_s) for each in apart_s]) <= _ONE_RENDEZVOUS_S:
                both[first, second], both[second, first] = apart_s, [-each for each in apart_s]
        return cls(both)

    def __or__(self, better: "Ends") -> "Ends":
        """Return what either tells; where both tell of two ranks, what `better` tells."""
        return Ends({**self.apart_s, **better.apart_s})


class Alignment(Struct, frozen=True):
    """What to subtract from the clock of each rank."""

    offset_s: dict[int, float]
    """Seconds by rank; a time stamp less its offset is the time since the first start of any rank."""
    hosts: Hosts
    """Ranks that are taken to share a clock."""
    notes: tuple[Note, ...]
    """Hosts that were aligned and by how much, and those aligned by less than messages in both directions."""


def align(
    first_s: Mapping[int, float | None],
    ends: Ends,
    place: str | None = None,
    *,
    same_clock_s: float = SAME_CLOCK_S,
) -> Alignment:
    """Find the offsets that bring all ranks of a run on one clock.

    Parameters
    ----------
    first_s : mapping
        First start of each rank on its own clock, in seconds. A rank without any time (None) gets the offset of the
        first host.
    ends : Ends
        What pairs of these ranks ended together.
    place : str, optional
        The run, for notes.
    same_clock_s : float
        Clocks that are shown to be nearer than this are one.
    """
    timed_s = {rank: start_s for rank, start_s in first_s.items() if start_s is not None}
    known = {pair: apart_s for pair, apart_s in ends.apart_s.items() if timed_s.keys() >= set(pair)}
    hosts = _hosts(timed_s, known, same_clock_s)
    host_of = {rank: host for host, ranks in enumerate(hosts) for rank in ranks}
    between: dict[_Pair, list[float]] = defaultdict(list)
    for (rank, other), apart_s in known.items():
        if host_of[rank] != host_of[other]:
            between[host_of[rank], host_of[other]] += apart_s
    clocks_s, notes = _host_clocks(place, hosts, timed_s, between)
    zero_s = min((start_s - clocks_s[host_of[rank]] for rank, start_s in timed_s.items()), default=0.0)
    offset_s = {rank: zero_s + (clocks_s[host_of[rank]] if rank in host_of else 0.0) for rank in first_s}
    return Alignment(offset_s, hosts, tuple(notes))


def _hosts(first_s: Mapping[int, float], ends: _Apart, same_clock_s: float) -> Hosts:
    """Group ranks by clock: join them by how far their clocks are apart, what is shown best first."""
    ahead_s = dict.fromkeys(first_s, 0.0)
    islands = {rank: [rank] for rank in first_s}  # ranks whose clocks are known relative to each other
    for here, there, apart_s in (*_shown_apart(first_s, ends, same_clock_s), *_usually_together(first_s)):
        mainland, island = islands[here], islands[there]
        if mainland is not island:
            shift_s = ahead_s[here] + apart_s - ahead_s[there]
            for rank in island:
                ahead_s[rank] += shift_s
                islands[rank] = mainland
            mainland += island
    distinct = {id(each): each for each in islands.values()}.values()
    return tuple(sorted(host for island in distinct for host in _of_one_clock(ahead_s, island, same_clock_s)))


def _of_one_clock(reading_s: Mapping[int, float], ranks: Iterable[int], jump_s: float) -> list[tuple[int, ...]]:
    """Group ranks: a jump between readings is another clock, and another eight ranks are another host."""
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    clock, last_s = 0, float("inf")
    for rank in sorted(ranks, key=reading_s.__getitem__):
        clock += reading_s[rank] - last_s > jump_s
        # should two eights be one host, what they share gives about zero between them
        found[clock, rank // RANKS_PER_HOST].append(rank)
        last_s = reading_s[rank]
    return [tuple(sorted(part)) for part in found.values()]


def _shown_apart(first_s: Mapping[int, float], ends: _Apart, same_clock_s: float) -> Iterator[tuple[int, int, float]]:
    """Yield two ranks and how far the second one's clock is shown to be ahead.

    A message one way holds its delay, so it counts where nothing better joins two ranks.
    """
    pairs = sorted({(min(pair), max(pair)) for pair in ends if pair[0] != pair[1]})
    for both_ways in (True, False):
        for here, there in pairs:
            onward, back = ends.get((here, there)), ends.get((there, here))
            if bool(onward and back) is both_ways:
                ahead_s = _evidence_s(onward, back, first_s[there] - first_s[here], same_clock_s)
                if ahead_s is not None:
                    yield here, there, ahead_s


def _clock_ahead_s(onward: list[float] | None, back: list[float] | None) -> float | None:
    """Return how far the clock at the other end of the messages is ahead, in seconds; None without any."""
    if onward and back:
        return (median(onward) - median(back)) / 2
    if onward:
        return median(onward)
    return -median(back) if back else None


def _evidence_s(
    onward: list[float] | None, back: list[float] | None, starts_apart_s: float, same_clock_s: float
) -> float | None:
    """Return how far the clock at the other end is shown to be ahead: 0 for the same clock, None if nothing is shown.

    A delay can hold up the end at a receiver, but nothing arrives before it was sent. So different
    clocks show in both directions only by an arrival before the sending; in one direction, by first
    starts that come nearer, for the ranks of a step start together.
    """
    shift_s = _clock_ahead_s(onward, back)
    if shift_s is None or abs(shift_s) <= same_clock_s:
        return None if shift_s is None else 0.0
    if onward and back:
        # Of two clocks the same shift shows both ways; where the ends of one direction coincide it is one clock.
        if min(abs(median(onward)), abs(median(back))) <= same_clock_s:
            return 0.0
        return shift_s if min(median(onward), median(back)) < -same_clock_s else None
    return shift_s if abs(starts_apart_s - shift_s) < abs(starts_apart_s) else None


def _usually_together(first_s: Mapping[int, float]) -> list[tuple[int, int, float]]:
    """Pair ranks that share a host if nothing speaks against it, those that start most alike first."""
    pairs = [pair for ranks in _of_one_clock(first_s, first_s, _OTHER_BOOT_S) for pair in combinations(ranks, 2)]
    near = sorted(pairs, key=lambda pair: (abs(first_s[pair[0]] - first_s[pair[1]]), pair))
    return [(here, there, 0.0) for here, there in near]


def _host_clocks(
    place: str | None, hosts: Hosts, first_s: Mapping[int, float], ends: _Apart
) -> tuple[dict[int, float], list[Note]]:
    """Return how far each host's clock is ahead of the first one's, in seconds, with what is to be said of it."""
    clocks_s: dict[int, float] = {}
    notes: list[Note] = []
    start_s = [min(first_s[rank] for rank in ranks) for ranks in hosts]
    for root, ranks in enumerate(hosts):
        if root in clocks_s:
            continue
        clocks_s[root] = 0.0
        if root:
            ahead_s, text = (
                start_s[root] - start_s[0],
                f"no message reaches the host of ranks {_span(ranks)}; its clock",
            )
            if abs(ahead_s) <= _READS_ALIKE_S:
                notes.append(Note("clock-taken-as-same", f"{text} reads alike and is taken as the same", place))
            else:
                clocks_s[root] = ahead_s
                notes.append(Note("clock-by-first-start", f"{text} is aligned by its first start", place))
        notes += _follow_messages(place, hosts, ends, root, clocks_s)
    return clocks_s, notes


def _follow_messages(
    place: str | None, hosts: Hosts, ends: _Apart, root: int, clocks_s: dict[int, float]
) -> list[Note]:
    """Set the clock of every host that messages join to the root, the nearest ones first."""
    one_way: list[Note] = []
    joined: list[int] = []
    near: dict[int, set[int]] = defaultdict(set)
    for host, other in ends:
        near[host].add(other)
        near[other].add(host)
    queue = deque([root])
    while queue:
        host = queue.popleft()
        for other in sorted(near[host]):
            there, back = ends.get((host, other)), ends.get((other, host))
            apart_s = _clock_ahead_s(there, back)
            if other in clocks_s or apart_s is None:
                continue
            clocks_s[other] = clocks_s[host] + apart_s
            queue.append(other)
            joined.append(other)
            if not (there and back):
                text = (
                    f"the hosts of ranks {_span(hosts[host])} and {_span(hosts[other])} have messages in one direction "
                    "only; their clocks agree to about the time of one message"
                )
                one_way.append(Note("clock-one-way", text, place))
    aligned_s = {hosts[other]: clocks_s[other] - clocks_s[root] for other in sorted(joined)}
    shown = [
        f"that of ranks {_span(ranks)} is {abs(ahead_s):.4f} s {'ahead of' if ahead_s > 0 else 'behind'} it"
        for ranks, ahead_s in aligned_s.items()
        if abs(ahead_s) >= _WORTH_SAYING_S
    ]
    if not shown:
        return one_way
    more = [f"{len(shown) - _SHOWN_HOSTS} more"] if len(shown) > _SHOWN_HOSTS else []
    text = (
        f"hosts have clocks of their own, which are brought to that of ranks {_span(hosts[root])} by what both ended "
        f"together: {', '.join(shown[:_SHOWN_HOSTS] + more)}"
    )
    which = "the clock of 1 host is" if len(shown) == 1 else f"the clocks of {len(shown)} hosts are"
    brief = f"{which} brought to that of ranks {_span(hosts[root])}"
    return [Note("clocks-aligned", text, place, brief), *one_way]


def _span(ranks: tuple[int, ...]) -> str:
    """Write ranks as their unbroken stretches: ``0 to 1 and 4 to 7``."""
    stretches: list[list[int]] = []
    for rank in ranks:
        if not stretches or rank != stretches[-1][-1] + 1:
            stretches.append([])
        stretches[-1].append(rank)
    return " and ".join(str(each[0]) if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in stretches)
