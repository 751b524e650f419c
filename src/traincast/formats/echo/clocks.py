"""Bring the ranks of a run on one clock.

A timestamp counts from the boot of its host, so ranks of one host compare and ranks of two do
not. A message between pipeline stages ends on both of its ranks at nearly the same time: over
messages in both directions the delays cancel, and half the difference of the medians is the
difference of the two clocks. Which ranks share a clock is found in the same way (`hosts`).
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from traincast.diagnostics import Note
from traincast.formats.echo.files import Run
from traincast.formats.echo.hosts import Ends, Hosts, clock_ahead_s, find_hosts, matched_ends
from traincast.formats.echo.lines import TraceOp
from traincast.formats.echo.vocabulary import MESSAGES

_SAME_CLOCK_S = 60.0
_WORTH_SAYING_S = 0.001
_SHOWN_HOSTS = 4


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
        Ranks without any time get the offset of the first host. `notes` names the hosts that were
        aligned and by how much, and those aligned by less than messages in both directions.
    """
    first_s = {rank: start for rank, trace in run.traces.items() if (start := trace.first_start_s) is not None}
    ends = matched_ends(run, world // max(pp, 1))
    hosts = find_hosts(first_s, ends)
    host_of = {rank: host for host, ranks in enumerate(hosts) for rank in ranks}
    clocks_s, notes = _host_clocks(run.key, hosts, first_s, _between_hosts(ends, host_of))
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


def _between_hosts(ends: Ends, host_of: dict[int, int]) -> Ends:
    """Pool what the ranks of two hosts ended together, by the numbers of the hosts."""
    found: Ends = defaultdict(list)
    for (rank, other), apart_s in ends.items():
        here, there = host_of[rank], host_of[other]
        if here != there:
            found[here, there] += apart_s
    return found


def _host_clocks(key: str, hosts: Hosts, first_s: dict[int, float], edges: Ends) -> tuple[dict[int, float], list[Note]]:
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


def _follow_messages(key: str, hosts: Hosts, edges: Ends, root: int, clocks_s: dict[int, float]) -> list[Note]:
    """Set the clock of every host that messages join to the root, the nearest ones first."""
    notes = []
    joined = []
    queue = deque([root])
    while queue:
        host = queue.popleft()
        for other in range(len(hosts)):
            there, back = edges.get((host, other)), edges.get((other, host))
            apart_s = clock_ahead_s(there, back)
            if other in clocks_s or apart_s is None:
                continue
            clocks_s[other] = clocks_s[host] + apart_s
            queue.append(other)
            joined.append(other)
            if not (there and back):
                notes.append(_one_way(key, hosts[host], hosts[other]))
    aligned_s = {hosts[other]: clocks_s[other] - clocks_s[root] for other in sorted(joined)}
    worth_s = {ranks: ahead_s for ranks, ahead_s in aligned_s.items() if abs(ahead_s) >= _WORTH_SAYING_S}
    return [_aligned(key, hosts[root], worth_s), *notes] if worth_s else notes


def _aligned(key: str, root: tuple[int, ...], apart_s: dict[tuple[int, ...], float]) -> Note:
    shown = [
        f"that of ranks {_span(ranks)} is {abs(ahead_s):.4f} s {'ahead of' if ahead_s > 0 else 'behind'} it"
        for ranks, ahead_s in list(apart_s.items())[:_SHOWN_HOSTS]
    ]
    more = [f"{len(apart_s) - _SHOWN_HOSTS} more"] if len(apart_s) > _SHOWN_HOSTS else []
    text = (
        f"hosts have clocks of their own, which are brought to that of ranks {_span(root)} by what both ended "
        f"together: {', '.join(shown + more)}"
    )
    return Note("clocks-aligned", text, key)


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
    """Write ranks as their unbroken stretches: ``0 to 1 and 4 to 7``."""
    stretches: list[list[int]] = []
    for rank in ranks:
        if not stretches or rank != stretches[-1][-1] + 1:
            stretches.append([])
        stretches[-1].append(rank)
    return " and ".join(str(each[0]) if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in stretches)
