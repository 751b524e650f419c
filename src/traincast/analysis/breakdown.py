"""Where a rank's step went: who owns every instant of it.

Every instant has exactly one owner, in this order: the compute stream is busy -> ``compute``; else a transfer runs ->
``exposed_tp``, ``_cp``, ``_ep``, ``_pp``, ``_dp``; else a message from a peer is awaited -> ``bubble``; else members of
a collective are awaited -> that ``exposed_*``; else ``other``. The first and the last stage, which reduce the gradient
of tied embeddings, end their pipeline at different times: that reduction is of the pipeline (``_pp``), and waiting for
the other stage is draining it (``bubble``).

Letters: N operations of a rank, B borders between instants, O owners.
"""

import numpy as np
from msgspec import Struct

from traincast.analysis.timed_program import MOST_KEPT, RankOwners, TimedProgram
from traincast.workload.ops import BoolArray, FloatArray, IntArray, distinct
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Group, Kind

_EXPOSED_OF_GROUP = {
    Group.TP: "exposed_tp",
    Group.ETP: "exposed_tp",
    Group.CP: "exposed_cp",
    Group.EP: "exposed_ep",
    Group.PP: "exposed_pp",
    Group.DP: "exposed_dp",
    Group.EDP: "exposed_dp",
    Group.SHARD: "exposed_dp",
    Group.REPLICA: "exposed_dp",
    Group.COPY: "exposed_dp",
    Group.EMB: "exposed_pp",
    Group.WORLD: "exposed_dp",
    Group.MP: "other",
}
EXPOSED = ("exposed_tp", "exposed_cp", "exposed_ep", "exposed_pp", "exposed_dp")
"""The owners of transfers, in the order in which they count."""
_TRANSFER = {name: 1 + place for place, name in enumerate(EXPOSED)}
_BUBBLE = 1 + len(EXPOSED)
_WAIT = {name: _BUBBLE + 1 + place for place, name in enumerate(EXPOSED)}
_NOBODY = 2 * _BUBBLE
_NAME_OF_OWNER = ("compute", *EXPOSED, "bubble", *EXPOSED, "other")


def groups_of_part(part: str) -> tuple[Group, ...]:
    """Return the kinds of groups whose transfers a part of the breakdown has; none for a part of no communication."""
    return tuple(group for group, name in _EXPOSED_OF_GROUP.items() if name == part and name in EXPOSED)


class RankBreakdown(Struct, frozen=True):
    """Where one rank's step went, in seconds."""

    breakdown_s: dict[str, float]
    """Sums to the step."""
    compute_s: float
    """Time the compute stream was busy."""
    wait_s: float
    """Exposed waiting for members of a collective."""


def rank_breakdown(step: TimedProgram, index: int) -> RankBreakdown:
    """Break down the step of one simulated rank, by its index in `Program.rank_R`.

    What follows the rank's own end until the end of the whole step is ``other``.
    """
    _, border_B, owner_B = rank_owners(step, index)
    seconds_O = np.bincount(owner_B, np.diff(border_B), len(_NAME_OF_OWNER))
    breakdown = dict.fromkeys(_NAME_OF_OWNER, 0.0)
    for owner, name in enumerate(_NAME_OF_OWNER):
        breakdown[name] += float(seconds_O[owner])
    return RankBreakdown(breakdown, float(seconds_O[0]), float(seconds_O[_BUBBLE + 1 : _NOBODY].sum()))


def exposed_seconds(step: TimedProgram, index: int) -> FloatArray:
    """Return how long each operation of one simulated rank is exposed, waiting for members included, [N].

    That is the time for which its kind of group owns what it takes: two of one kind at the same time have it both.
    """
    claims, border_B, owner_B = rank_owners(step, index)
    exposed_N = np.zeros(len(claims[0][0]))
    for owner_N, begin_N, end_N in claims:
        for owner in distinct(owner_N[(owner_N > 0) & (owner_N < _NOBODY) & (owner_N != _BUBBLE)]):
            mine_N = owner_N == owner
            owned_s_B = np.concatenate([[0.0], np.cumsum(np.diff(border_B) * (owner_B == owner))])
            ends, begins = (np.searchsorted(border_B, at_N[mine_N]) for at_N in (end_N, begin_N))
            exposed_N[mine_N] += owned_s_B[ends] - owned_s_B[begins]
    return exposed_N


def rank_owners(step: TimedProgram, index: int) -> RankOwners:
    """Return what a rank's operations claim, transferring and waiting, and who owns the instants between borders."""
    if index in step.owners:
        return step.owners[index]
    found = _owned_of_rank(step.program, step.timeline, index)
    if len(step.program) <= MOST_KEPT:
        step.owners[index] = found
    return found


def _owned_of_rank(program: Program, timeline: Timeline, index: int) -> RankOwners:
    mine = program.rank_slice(index)
    ready_N, start_N, end_N = timeline.ready_s_N[mine], timeline.start_s_N[mine], timeline.end_s_N[mine]
    transfer_N, wait_N = _owners(program, program.row_N[mine])
    claims = (transfer_N, start_N, end_N), (wait_N, ready_N, start_N)
    times = np.concatenate([ready_N, start_N, end_N, [0.0, timeline.step_s]])
    # Times of a stream rise, which a stable sort makes use of and that of `np.unique` does not.
    order = np.argsort(times, kind="stable")
    rising = times[order]
    new = np.concatenate([[True], rising[1:] != rising[:-1]])
    border_B, place = rising[new], np.empty(len(times), dtype=np.int64)
    place[order] = np.cumsum(new) - 1
    ready_at_N, start_at_N, end_at_N = place[:-2].reshape(3, -1)
    owner_N = np.concatenate([transfer_N, wait_N])
    begin_N, until_N = np.concatenate([start_at_N, ready_at_N]), np.concatenate([end_at_N, start_at_N])
    return RankOwners(claims, border_B, _first_owners(len(border_B), owner_N, begin_N, until_N))


def is_waiting(owner_B: IntArray) -> BoolArray:
    """Tell in which instants a rank waits for a message or for members of a collective, by the numbers of owners."""
    waits_B: BoolArray = (owner_B >= _BUBBLE) & (owner_B < _NOBODY)
    return waits_B


def last_rank(program: Program, timeline: Timeline) -> int:
    """Return the index of the lowest simulated rank among those that end last."""
    ends = [float(timeline.end_s_N[program.rank_slice(index)].max(initial=0.0)) for index in range(len(program.rank_R))]
    return ends.index(timeline.step_s)


def last_of_stages(program: Program, timeline: Timeline) -> dict[int, int]:
    """Return by stage the index of the simulated rank that ends last, the lowest of equals; stages ascending."""
    ends = [float(timeline.end_s_N[program.rank_slice(index)].max(initial=0.0)) for index in range(len(program.rank_R))]
    order = sorted(range(len(ends)), key=lambda index: (ends[index], -index))
    last = {int(program.stage_R[index]): index for index in order}
    return {stage: last[stage] for stage in sorted(last)}


def transfer_owners(program: Program) -> IntArray:
    """Return who owns each operation's transfer, [N]: 0 is computation, then `EXPOSED` in its order."""
    return _owners(program, program.row_N)[0]


def _owners(program: Program, row_N: IntArray) -> tuple[IntArray, IntArray]:
    """Return who owns each operation's transfer and its waiting; `_NOBODY` for none."""
    at_T = program.ops.kind_T, program.ops.group_T
    return _OWNER_KG[0][at_T][row_N], _OWNER_KG[1][at_T][row_N]


def _owners_by_kind() -> tuple[IntArray, IntArray]:
    """Return who owns the transfer and the waiting of each kind of operation over each kind of group.

    The last column, which -1 counts to, is of operations without a group.
    """
    transfer_KG = np.full((len(Kind), len(Group)), _NOBODY, dtype=np.int64)
    wait_KG = transfer_KG.copy()
    transfer_KG[Kind.COMPUTE] = 0
    for kind in (Kind.SEND, Kind.RECV, Kind.COLLECTIVE):
        for group, name in _EXPOSED_OF_GROUP.items():
            if name in _TRANSFER:
                transfer_KG[kind, group], wait_KG[kind, group] = _TRANSFER[name], _WAIT[name]
    wait_KG[[Kind.SEND, Kind.RECV]] = _BUBBLE
    wait_KG[Kind.COLLECTIVE, Group.EMB] = _BUBBLE
    return transfer_KG, wait_KG


_OWNER_KG = _owners_by_kind()


def _first_owners(borders: int, owner_N: IntArray, begin_N: IntArray, end_N: IntArray) -> IntArray:
    """Give each instant between so many borders to the first owner (lowest number) that claims it, [B].

    Claims are from border to border, by number.
    """
    claimed = np.flatnonzero(owner_N < _NOBODY)
    first = owner_N[claimed] * borders
    size = _NOBODY * borders
    change = np.bincount(first + begin_N[claimed], minlength=size) - np.bincount(first + end_N[claimed], minlength=size)
    covered_OB = np.cumsum(change.reshape(_NOBODY, borders), axis=1)[:, :-1] > 0
    owner_B: IntArray = np.where(covered_OB.any(axis=0), covered_OB.argmax(axis=0), _NOBODY)
    return owner_B


def covered(border_B: FloatArray, begin_N: FloatArray, end_N: FloatArray) -> BoolArray:
    """Tell which of the instants between borders, in rising order, lie in one of some spans, whose ends are borders."""
    change_B = np.zeros(max(len(border_B), 1), dtype=np.int64)
    np.add.at(change_B, np.searchsorted(border_B, begin_N), 1)
    np.add.at(change_B, np.searchsorted(border_B, end_N), -1)
    covered_B: BoolArray = np.cumsum(change_B)[:-1] > 0
    return covered_B
