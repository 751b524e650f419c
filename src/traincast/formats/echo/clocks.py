"""Bring the ranks of a run on one clock.

A timestamp counts from the boot of its host, so ranks of one host compare and ranks of two do
not. A message between pipeline stages ends on both of its ranks at nearly the same time: over
messages in both directions the delays cancel, and half the difference of the medians is the
difference of the two clocks.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from traincast.formats.echo.files import Run
from traincast.formats.echo.lines import TraceOp
from traincast.formats.echo.vocabulary import MESSAGES
from traincast.spec.notes import Note

RANKS_PER_HOST = 8
"""Ranks that are taken to share a host where the clocks do not tell."""

_OTHER_BOOT_S = 3600.0
_SAME_CLOCK_S = 60.0

Hosts = tuple[tuple[int, ...], ...]
Message = tuple[str, int, int, int | None]
Edges = dict[tuple[int, int], list[float]]


@dataclass(frozen=True, slots=True)
class Alignment:
    """What to subtract from the clock of each rank."""

    offset_s: dict[int, float]
    """Seconds by rank; a timestamp less its offset is the time since the first start of any rank."""
    hosts: Hosts
    """Ranks that are taken to share a clock."""
    notes: tuple[Note, ...]


def align(run: Run, world: int, pp: int) -> Alignment:
    """Find the offsets that bring all ranks of a run on one clock.

    Parameters
    ----------
    run : Run
        Traces of a real run; some ranks may be missing.
    world : int
        World size of the run.
    pp : int
        Pipeline stages; a message goes to the rank ``world / pp`` away.

    Returns
    -------
    Alignment
        Ranks without any time get the offset of the first host. `notes` names hosts that were
        aligned by less than messages in both directions.
    """
    first_s = {rank: start for rank, trace in run.traces.items() if (start := trace.first_start_s) is not None}
    hosts = _hosts(first_s)
    host_of = {rank: host for host, ranks in enumerate(hosts) for rank in ranks}
    clocks_s, notes = _host_clocks(run.key, hosts, first_s, _end_differences(run, host_of, world // max(pp, 1)))
    zero_s = min((start - clocks_s[host_of[rank]] for rank, start in first_s.items()), default=0.0)
    offset_s = {rank: zero_s + (clocks_s[host_of[rank]] if rank in host_of else 0.0) for rank in run.traces}
    return Alignment(offset_s, hosts, tuple(notes))


def fused_pairs(ops: Sequence[TraceOp]) -> list[tuple[int, int]]:
    """Find sends and receives that were one exchange.

    Parameters
    ----------
    ops : sequence of TraceOp
        Operations of one rank in the order of its file.

    Returns
    -------
    list of (int, int)
        Indices of the two consecutive lines of each exchange, which have one duration and one
        timestamp; both times are those of the exchange, so they count once.
    """
    pairs: list[tuple[int, int]] = []
    for index, (first, second) in enumerate(pairwise(ops)):
        taken = bool(pairs) and pairs[-1][1] == index
        if not taken and _is_exchange(first, second):
            pairs.append((index, index + 1))
    return pairs


def _is_exchange(first: TraceOp, second: TraceOp) -> bool:
    return (
        first.op in MESSAGES
        and second.op in MESSAGES
        and first.op.startswith("send") != second.op.startswith("send")
        and not first.is_placeholder
        and first.duration_s == second.duration_s
        and first.timestamp_s == second.timestamp_s
    )


def _hosts(first_s: dict[int, float]) -> Hosts:
    """Group ranks by clock: a jump of more than an hour is another boot, and so is another eight ranks."""
    boots: list[list[int]] = []
    last_s = -_OTHER_BOOT_S
    for rank, start_s in sorted(first_s.items(), key=lambda item: item[1]):
        if not boots or start_s - last_s > _OTHER_BOOT_S:
            boots.append([])
        boots[-1].append(rank)
        last_s = start_s
    hosts: dict[tuple[int, int], list[int]] = defaultdict(list)
    for boot, ranks in enumerate(boots):
        for rank in sorted(ranks):
            # hosts booted within one hour look alike; should they be one, the messages give about zero
            hosts[boot, rank // RANKS_PER_HOST].append(rank)
    return tuple(sorted(tuple(ranks) for ranks in hosts.values()))


def _end_differences(run: Run, host_of: dict[int, int], stride: int) -> Edges:
    """End at the receiver less end at the sender in seconds, of each message between two hosts."""
    sent_s: dict[Message, list[float]] = defaultdict(list)
    received_s: dict[Message, list[float]] = defaultdict(list)
    for rank, trace in run.traces.items():
        for op in trace.ops:
            if op.op in MESSAGES and op.end_s is not None:
                side_s = sent_s if op.op.startswith("send") else received_s
                side_s[_message(op, rank, stride)].append(op.end_s)
    found: Edges = defaultdict(list)
    for message, ends_s in sent_s.items():
        for sent, received in zip(ends_s, received_s.get(message, ()), strict=False):
            sender, receiver = host_of[message[1]], host_of[message[2]]
            if sender != receiver:
                found[sender, receiver].append(received - sent)
    return found


def _message(op: TraceOp, rank: int, stride: int) -> Message:
    """Return direction, source, target and microbatch of the message that an operation sends or receives."""
    side, direction = op.op.split("_")
    if direction == "forward":
        source = rank if side == "send" else rank - stride
        return direction, source, source + stride, op.batch_id
    source = rank if side == "send" else rank + stride
    return direction, source, source - stride, op.batch_id


def _host_clocks(
    key: str, hosts: Hosts, first_s: dict[int, float], edges: Edges
) -> tuple[dict[int, float], list[Note]]:
    """Return how far each host's clock is ahead of the first one's, in seconds, with remarks."""
    clocks_s: dict[int, float] = {}
    notes: list[Note] = []
    start_s = [min(first_s[rank] for rank in ranks) for ranks in hosts]
    for host, ranks in enumerate(hosts):
        if host not in clocks_s:
            clocks_s[host] = 0.0
            if host:
                clocks_s[host], note = _without_messages(key, ranks, start_s[host] - start_s[0])
                notes.append(note)
            notes += _follow_messages(key, hosts, edges, host, clocks_s)
    return clocks_s, notes


def _follow_messages(key: str, hosts: Hosts, edges: Edges, root: int, clocks_s: dict[int, float]) -> list[Note]:
    """Set the clock of every host that messages join to the root, the nearest ones first."""
    notes = []
    queue = deque([root])
    while queue:
        host = queue.popleft()
        for other in range(len(hosts)):
            there, back = edges.get((host, other)), edges.get((other, host))
            ahead_s = _ahead_s(there, back)
            if other in clocks_s or ahead_s is None:
                continue
            clocks_s[other] = clocks_s[host] + ahead_s
            queue.append(other)
            if not (there and back):
                notes.append(_one_way(key, hosts[host], hosts[other]))
    return notes


def _ahead_s(there: list[float] | None, back: list[float] | None) -> float | None:
    """Return how far the clock at the other end of the messages is ahead, in seconds."""
    if there and back:
        return (median(there) - median(back)) / 2
    if there:
        return median(there)
    return -median(back) if back else None


def _one_way(key: str, here: tuple[int, ...], there: tuple[int, ...]) -> Note:
    text = (
        f"the hosts of ranks {_span(here)} and {_span(there)} have messages in one direction only; their clocks "
        "agree to about the time of one message"
    )
    return Note("clock-one-way", text, key)


def _without_messages(key: str, ranks: tuple[int, ...], ahead_s: float) -> tuple[float, Note]:
    """Return the clock of a host that no message reaches, with the remark on it."""
    if abs(ahead_s) <= _SAME_CLOCK_S:
        text = f"no message reaches the host of ranks {_span(ranks)}; its clock reads alike and is taken as the same"
        return 0.0, Note("clock-taken-as-same", text, key)
    text = f"no message reaches the host of ranks {_span(ranks)}; its clock is aligned by its first start"
    return ahead_s, Note("clock-by-first-start", text, key)


def _span(ranks: tuple[int, ...]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
