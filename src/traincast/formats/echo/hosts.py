"""Find the ranks that share a clock, by what two ranks ended together.

A message ends on both of its ranks at nearly the same time, and so does a synchronous collective on its members:
the differences of these ends, each on the clock of its own rank, tell how far one clock is ahead of the other. Where
nothing does, clocks that read about alike within eight consecutive ranks are taken as one: that is the usual host.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from statistics import median

from traincast.formats.echo.files import RankTrace, Run
from traincast.formats.echo.lines import TraceOp
from traincast.formats.echo.vocabulary import MESSAGES
from traincast.workload.words import Group

RANKS_PER_HOST = 8
"""Ranks that are taken to share a host where the clocks do not tell."""

_OTHER_BOOT_S = 3600.0
_SAME_CLOCK_S = 0.020
"""Clocks nearer than this are one: ends on one host agree within 3 ms, and no two boots are so near."""

Hosts = tuple[tuple[int, ...], ...]

_ONE_MEETING_S = 0.005
"""Spread of the differences between two members of one group; more, and they are not of one group."""

Ends = dict[tuple[int, int], list[float]]
_Message = tuple[str, int, int, int | None]
_Place = tuple[str, int | None, int]
"""Operation, microbatch, and number among the collectives of the operation."""


def matched_ends(run: Run, stride: int) -> Ends:
    """Match what ranks ended together.

    Parameters
    ----------
    run : Run
        Traces of a run; some ranks may be missing.
    stride : int
        Ranks per pipeline stage: how far apart the two ends of a message are.

    Returns
    -------
    dict
        By two ranks: the end at the second less the end at the first in seconds, of each message
        from the first to the second. Collectives of two tensor-parallel neighbours have no
        direction and are there both ways, as messages without a delay would be.
    """
    return _message_ends(run, stride) | _collective_ends(run, stride)


def _message_ends(run: Run, stride: int) -> Ends:
    sent_s: dict[_Message, list[float]] = defaultdict(list)
    received_s: dict[_Message, list[float]] = defaultdict(list)
    for rank, trace in run.traces.items():
        for op in trace.ops:
            if op.op in MESSAGES and op.end_s is not None:
                side_s = sent_s if op.op.startswith("send") else received_s
                side_s[_message(op, rank, stride)].append(op.end_s)
    found: Ends = defaultdict(list)
    for message, ends_s in sent_s.items():
        for sent, received in zip(ends_s, received_s.get(message, ()), strict=False):
            found[message[1], message[2]].append(received - sent)
    return found


def _message(op: TraceOp, rank: int, stride: int) -> _Message:
    """Return direction, source, target and microbatch of the message that an operation sends or receives."""
    side, direction = op.op.split("_")
    if direction == "forward":
        source = rank if side == "send" else rank - stride
        return direction, source, source + stride, op.batch_id
    source = rank if side == "send" else rank + stride
    return direction, source, source - stride, op.batch_id


def _collective_ends(run: Run, stride: int) -> Ends:
    """Match the collectives of neighbours in the tensor-parallel groups that the names of the files tell."""
    ends_s = {rank: ends for rank, trace in run.traces.items() if (ends := _tensor_ends(trace))}
    found: Ends = {}
    for here, there in pairwise(sorted(ends_s)):
        tp = run.traces[here].name.tp or 1
        if stride % tp or here // tp != there // tp:
            continue
        places = ends_s[here].keys() & ends_s[there].keys()
        apart_s = [ends_s[there][place] - ends_s[here][place] for place in places]
        if apart_s and _is_tight(apart_s):
            found[here, there], found[there, here] = apart_s, [-each for each in apart_s]
    return found


def _tensor_ends(trace: RankTrace) -> dict[_Place, float]:
    """Return the ends of a rank's synchronous tensor-parallel collectives that other ranks took part in."""
    found: dict[_Place, float] = {}
    for op in trace.ops:
        # one GPU that plays all ranks does so one after the other: alike places are not one meeting
        if op.sub_ops and not op.is_simulated:
            meetings = [sub for sub in op.sub_ops if sub.group is Group.TP and not sub.is_async]
            for number, sub in enumerate(meetings):
                if sub.end_s is not None:
                    found[op.op, op.batch_id, number] = sub.end_s
    return found


def _is_tight(apart_s: list[float]) -> bool:
    middle_s = median(apart_s)
    return median([abs(each - middle_s) for each in apart_s]) <= _ONE_MEETING_S


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
        What two ranks ended together (see `traincast.formats.echo.hosts.matched_ends`).

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
