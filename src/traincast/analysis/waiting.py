"""Who waits for whom: the idle time of every rank, by the rank that arrived last where it waited.

A rank waits where `traincast.analysis.breakdown` says so: nothing of it computes or transfers, and a message or members
of a collective are awaited. Of several that are awaited at once the one that begins first counts, for it ends the
pause. So what a rank waits for all others together is its bubble and its exposed waiting, and no instant counts twice.

The rank that is waited for may itself be waiting at that instant. Whoever stands at the end of such a chain, and works
or is held up by its host, keeps all of them waiting: that is told too, instant by instant.

Letters: N operations, R simulated ranks, B borders between instants, I stretches of time, K pairs of ranks.
"""

import numpy as np
from msgspec import Struct

from traincast.analysis.breakdown import is_waiting, rank_owners
from traincast.analysis.timed_program import TimedProgram
from traincast.workload.ops import FloatArray, IntArray, distinct
from traincast.workload.program import Program, Timeline


class WaitingPairs(Struct, frozen=True):
    """Pairs of ranks of which one waited because of the other, the longest first."""

    rank_K: IntArray
    """Who waited."""
    other_K: IntArray
    """Because of whom."""
    time_s_K: FloatArray

    def matrix(self, rank_R: IntArray) -> FloatArray:
        """Return the seconds that each of some ranks (rows) waited because of each of them (columns), [R, R]."""
        place = {int(rank): index for index, rank in enumerate(rank_R)}
        seconds_RR = np.zeros((len(rank_R), len(rank_R)))
        for rank, other, time_s in zip(self.rank_K.tolist(), self.other_K.tolist(), self.time_s_K, strict=True):
            if rank in place and other in place:
                seconds_RR[place[rank], place[other]] += time_s
        return seconds_RR


class Waiting(Struct, frozen=True):
    """Who waited for whom in a step.

    Of ranks that stand for others (symmetry reduction) one speaks for all, as the one that waits and as the one that
    is waited for.
    """

    direct: WaitingPairs
    """By the rank that arrived last where it waited."""
    root: WaitingPairs
    """By the rank that was not itself waiting at that instant."""


def waiting(step: TimedProgram) -> Waiting:
    """Return who waited for whom in a step that ran."""
    program, timeline = step.program, step.timeline
    last_N = _last_members(program, timeline)
    index_N = np.repeat(np.arange(len(program.rank_R)), np.diff(program.op_ptr_R1))
    awaited_R = [_awaited(step, index, index_N[last_N]) for index in range(len(program.rank_R))]
    stretches = [_Stretches.from_borders(index, *awaited) for index, awaited in enumerate(awaited_R)]
    direct = _Stretches.joined(stretches) if stretches else _Stretches.none()
    return Waiting(direct.pairs(program.rank_R), _followed(direct, awaited_R).pairs(program.rank_R))


class _Stretches(Struct, frozen=True):
    """Stretches of time in which a rank waits because of another one; ranks by their index."""

    index_I: IntArray
    other_I: IntArray
    begin_s_I: FloatArray
    end_s_I: FloatArray

    @classmethod
    def none(cls) -> "_Stretches":
        return cls(*(np.zeros(0, dtype=np.int64),) * 2, *(np.zeros(0),) * 2)

    @classmethod
    def from_borders(cls, index: int, border_B: FloatArray, other_B: IntArray) -> "_Stretches":
        """Return those of one rank."""
        at = np.flatnonzero(other_B >= 0)
        return cls(np.full(len(at), index), other_B[at], border_B[at], border_B[at + 1])

    @classmethod
    def joined(cls, parts: "list[_Stretches]") -> "_Stretches":
        names = ("index_I", "other_I", "begin_s_I", "end_s_I")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def chosen(self, at: IntArray) -> "_Stretches":
        return _Stretches(self.index_I[at], self.other_I[at], self.begin_s_I[at], self.end_s_I[at])

    def pairs(self, rank_R: IntArray) -> WaitingPairs:
        """Return the sums over pairs."""
        keys, which = np.unique(self.index_I * len(rank_R) + self.other_I, return_inverse=True)
        time_s = np.bincount(which, self.end_s_I - self.begin_s_I, len(keys)).astype(np.float64)
        order = np.lexsort((keys, -time_s))
        keys = keys[order].astype(np.int64)
        return WaitingPairs(
            rank_R[keys // len(rank_R)].astype(np.int64), rank_R[keys % len(rank_R)].astype(np.int64), time_s[order]
        )


def _followed(stretches: _Stretches, awaited_R: list[tuple[FloatArray, IntArray]]) -> _Stretches:
    """Return the same time by whoever stands at the end of the chain of those who wait.

    Who is waited for arrives later, so chains end: after as many links as there are ranks at the latest.
    """
    done = [_Stretches.none()]
    for _ in range(len(awaited_R)):
        if not len(stretches.index_I):
            break
        parts = [_split(stretches, other, *awaited_R[other]) for other in distinct(stretches.other_I).tolist()]
        split = _Stretches.joined([part for part, _ in parts])
        next_I = np.concatenate([following for _, following in parts])
        ended = np.flatnonzero((next_I < 0) | (next_I == split.index_I))
        done.append(split.chosen(ended))
        open_ = np.flatnonzero((next_I >= 0) & (next_I != split.index_I))
        rest = split.chosen(open_)
        stretches = _Stretches(rest.index_I, next_I[open_], rest.begin_s_I, rest.end_s_I)
    return _Stretches.joined([*done, stretches])


def _split(stretches: _Stretches, other: int, border_B: FloatArray, next_B: IntArray) -> tuple[_Stretches, IntArray]:
    """Split the stretches that are because of one rank at its own borders, and tell for whom it waits in each."""
    mine = stretches.chosen(np.flatnonzero(stretches.other_I == other))
    first_I = np.searchsorted(border_B, mine.begin_s_I, side="right") - 1
    last_I = np.searchsorted(border_B, mine.end_s_I, side="left")
    count_I = np.maximum(last_I - first_I, 1)
    which = np.repeat(np.arange(len(count_I)), count_I)
    at = np.arange(len(which)) + np.repeat(first_I - np.cumsum(count_I) + count_I, count_I)
    at = np.minimum(at, len(next_B) - 1)
    begin, end = np.maximum(mine.begin_s_I[which], border_B[at]), np.minimum(mine.end_s_I[which], border_B[at + 1])
    return _Stretches(mine.index_I[which], mine.other_I[which], begin, end), next_B[at]


def _last_members(program: Program, timeline: Timeline) -> IntArray:
    """Return for each operation the member of its rendezvous that was ready last, the lowest of equals, [N]."""
    last_N = np.arange(len(program))
    joined = np.flatnonzero(program.rendezvous_N >= 0)
    if len(joined):
        rendezvous_J = program.rendezvous_N[joined]
        order = np.lexsort((-joined, timeline.ready_s_N[joined], rendezvous_J))
        final = np.flatnonzero(np.append(np.diff(rendezvous_J[order]) != 0, True))
        last_of = np.zeros(int(rendezvous_J.max()) + 1, dtype=np.int64)
        last_of[rendezvous_J[order][final]] = joined[order][final]
        last_N[joined] = last_of[rendezvous_J]
    return last_N


def _awaited(step: TimedProgram, index: int, late_N: IntArray) -> tuple[FloatArray, IntArray]:
    """Return the borders between the instants of a rank, and the index of the rank that each waits for, -1 for none."""
    program, timeline = step.program, step.timeline
    mine = program.rank_slice(index)
    ready_N, start_N = timeline.ready_s_N[mine], timeline.start_s_N[mine]
    _, border_B, owner_B = rank_owners(step, index)
    other_B = np.full(len(owner_B), -1, dtype=np.int64)
    late = np.flatnonzero((start_N > ready_N) & (program.rendezvous_N[mine] >= 0))
    late = late[np.lexsort((-late, -start_N[late]))]
    begins, ends = (np.searchsorted(border_B, at[late]).tolist() for at in (ready_N, start_N))
    # What begins first is painted last, over all others.
    for other, begin, end in zip(late_N[mine][late].tolist(), begins, ends, strict=True):
        other_B[begin:end] = other
    other_B[~is_waiting(owner_B)] = -1
    return border_B, other_B
