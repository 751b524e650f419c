"""Find what the ranks of a run did together: members of collectives, and sends with their receives.

A collective is known by its Comms Id, where the trace has one (a number that its members share and no other collective
has), else by its group and its Seq, else by its group and order in the step. What the members say of it must agree.
Messages are matched by the ranks at their ends, and order.

Letters: J ends of what ranks did together.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.diagnostics import Notebook
from traincast.formats.kineto.communication import Communication, GroupOfRanks, meaning, world_size
from traincast.formats.kineto.step import RankStep, Task
from traincast.units import counted
from traincast.workload.words import UNEQUAL, Group, Operation

END_TOGETHER = frozenset({Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL})
"""Collectives that no member leaves before all have come."""

End = tuple[int, int]
"""Rank, and the place of the work in its step."""


class Found(Struct, frozen=True):
    """The communication of one rank."""

    at: int
    """Place of the work in its step."""
    what: Communication
    sequence: int
    comms_id: str | None


class Together(Struct):
    """What ranks did together; a number for each rendezvous, and what is alone has none."""

    collectives: list[list[End]] = field(default_factory=list)
    """Each with its members; also messages whose other end nobody traced."""
    messages: list[tuple[End, End]] = field(default_factory=list)
    """Each the send and the receive."""


def communications(step: RankStep) -> list[Found]:
    """Return the communication of a rank's step, in the order in which it was launched."""
    trace, gpu, host = step.trace, step.trace.gpu, step.trace.host
    rows = [at for at, task in enumerate(step.task_G) if task is Task.COMMUNICATION]
    rows.sort(key=lambda at: (step.launch_us_G[at], at))
    known: dict[tuple[int, int], Communication] = {}
    found = []
    for at in rows:
        work, operator = int(step.at_G[at]), int(step.operator_G[at])
        if operator < 0:
            said, sequence, comms = (each[work] for each in (gpu.communicated_G, gpu.sequence_G, gpu.comms_G))
        else:
            said, sequence, comms = (each[operator] for each in (host.communicated_H, host.sequence_H, host.comms_H))
        key = int(said), int(gpu.name_G[work])
        if key not in known:
            arguments = trace.communicated[said] if said >= 0 else None
            known[key] = meaning(arguments, trace.names[key[1]], trace.document, step.rank)
        found.append(Found(at, known[key], int(sequence), trace.comms_ids[comms] if comms >= 0 else None))
    return found


def with_supposed_groups(
    found: Mapping[int, Sequence[Found]], steps: Mapping[int, RankStep], notes: Notebook
) -> dict[int, list[Found]]:
    """Take collectives whose groups no rank says, and which all ranks ran alike, for those of all ranks together."""
    silent = {rank: [each for each in own if each.what.group is None] for rank, own in found.items()}
    lacking = sum(map(len, silent.values()))
    result = {rank: list(own) for rank, own in found.items()}
    if not lacking:
        return result
    told = any(each.what.group is not None for own in found.values() for each in own)
    world = max(max(found) + 1, *(world_size(step.trace.document) for step in steps.values()))
    alike = {tuple(each.what.operation for each in own) for own in silent.values()}
    whole = len(found) == world > 1 and len(alike) == 1 and not told
    if whole and not alike & {(), (Operation.SEND_RECV,)} and Operation.SEND_RECV not in next(iter(alike)):
        everyone = GroupOfRanks("", "", tuple(range(world)))
        for rank, own in result.items():
            result[rank] = [replace(each, what=replace(each.what, group=everyone)) for each in own]
        text = f"no collective says its group; all ranks ran the same {lacking // world}, taken to be over all of them"
        notes.assume("groups-not-said", text, None)
    else:
        text = f"{counted(lacking, 'communication says', 'communications say')} no process group; each keeps its time"
        notes.assume("groups-not-said", f"{text} and waits for no other rank{_told_by_names(silent.values())}", None)
    return result


def _told_by_names(silent: Iterable[Sequence[Found]]) -> str:
    """Return for whom communications are whose kernels alone tell it: a clause; empty where none does."""
    kinds = Counter(each.what.kind for own in silent for each in own if each.what.kind is not Group.NONE)
    told = (f"{count:,} as {kind.name.lower()}" for kind, count in sorted(kinds.items()))
    return f"; by the names of their kernels they count {joined}" if (joined := " and ".join(told)) else ""


def together(found: Mapping[int, Sequence[Found]], notes: Notebook) -> Together:
    """Match the communications of all ranks."""
    result = Together()
    numbered: dict[object, list[tuple[int, Found]]] = defaultdict(list)
    sends: dict[tuple[int, int], list[End]] = defaultdict(list)
    receives: dict[tuple[int, int], list[End]] = defaultdict(list)
    for rank, own in sorted(found.items()):
        count: Counter[object] = Counter()
        for each in own:
            what = each.what
            if what.source is not None and what.target is not None:
                side = sends if what.source == rank else receives
                side[what.source, what.target].append((rank, each.at))
            elif what.group is not None and what.operation is not Operation.SEND_RECV and rank in what.group.members:
                key = _key(each)
                numbered[key, count[key]].append((rank, each))
                count[key] += 1
    apart = 0
    for members in numbered.values():
        if _agree(members):
            result.collectives.append([(rank, each.at) for rank, each in members])
        else:
            apart += len(members)
    for pair in dict.fromkeys((*sends, *receives)):
        if set(pair) <= set(found):
            result.messages += zip(sends[pair], receives[pair], strict=False)
        else:
            # Nobody traced the other end.
            result.collectives += [[end] for end in (*sends[pair], *receives[pair])]
    odd = sum(abs(len(sends[pair]) - len(receives[pair])) for pair in {*sends, *receives} if set(pair) <= set(found))
    if apart:
        text = f"{counted(apart, 'collective differs', 'collectives differ')} between ranks that should rendezvous"
        notes.warn("collectives-differ", f"{text}; each keeps its time and waits for no other rank", None)
    if odd:
        text = f"{counted(odd, 'message has', 'messages have')} no other end in the step of the other rank"
        notes.warn("messages-unmatched", f"{text}; each keeps its time and waits for no other rank", None)
    return result


def _key(each: Found) -> object:
    if each.comms_id is not None:
        return each.comms_id
    group = each.what.group
    return (group, each.sequence) if each.sequence >= 0 else group


def _agree(members: Sequence[tuple[int, Found]]) -> bool:
    """Tell whether members of a collective say the same of it."""
    first = members[0][1].what
    for _, each in members[1:]:
        what = each.what
        same_size = what.size_bytes == first.size_bytes or first.operation in UNEQUAL
        if what.operation is not first.operation or what.group != first.group or not same_size:
            return False
    return True
