"""What is overlapped with what on a rank, as its times say: computation and transfers, transfers of two kinds.

Waiting for members or for a message is not a transfer. All ranks are handled in the same array operations, yet the
numbers of a rank depend on nothing but its own times, so that a rank has the same ones whichever others are
simulated. Letters: N operations, T template operations, I spans or operations of a selection, D disjoint spans,
P pairs, R ranks, W ranks of the world.
"""

from collections.abc import Callable, Iterator
from itertools import combinations, pairwise, permutations
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from traincast.engine import compiled
from traincast.engine.graph import Graph
from traincast.fabric.placement import NODE
from traincast.workload.ops import BoolArray, FloatArray, IntArray, distinct
from traincast.workload.program import Program
from traincast.workload.words import Group, Kind

_TRANSFERS = (Kind.COLLECTIVE, Kind.SEND, Kind.RECV)


class Spans(NamedTuple):
    """Stretches of time, rank by rank."""

    begin_s_I: FloatArray
    end_s_I: FloatArray
    ptr_R1: IntArray
    """Those of rank r are ptr_R1[r] .. ptr_R1[r+1]-1."""
    rank_I: IntArray
    """Rank of each."""


class Pairs(NamedTuple):
    """Spans that overlap."""

    span_P: IntArray
    disjoint_P: IntArray
    overlap_s_P: FloatArray

    def per_span(self, spans: Spans) -> FloatArray:
        """Return how much of each span is covered, [I]."""
        return _summed(self.span_P, self.overlap_s_P, len(spans.begin_s_I))

    def per_disjoint(self, disjoint: Spans) -> FloatArray:
        """Return how much of each disjoint span is covered, [D], counting twice what two spans cover."""
        return _summed(self.disjoint_P, self.overlap_s_P, len(disjoint.begin_s_I))


def union(spans: Spans) -> Spans:
    """Return the same time as disjoint spans, in order."""
    begin_I, reach_I, rank_I = spans.begin_s_I, spans.end_s_I, spans.rank_I
    count = len(begin_I)
    if not count:
        return spans
    other_I = rank_I[1:] != rank_I[:-1]
    # Those of one stream are in order, and end in order, too.
    if not np.all((begin_I[1:] >= begin_I[:-1]) & (reach_I[1:] >= reach_I[:-1]) | other_I):
        begin_I, reach_I = np.empty(count), np.empty(count)
        for first, last in pairwise(spans.ptr_R1.tolist()):
            order = np.argsort(spans.begin_s_I[first:last], kind="stable")
            begin_I[first:last] = spans.begin_s_I[first:last][order]
            np.maximum.accumulate(spans.end_s_I[first:last][order], out=reach_I[first:last])
    apart_I = (begin_I[1:] > reach_I[:-1]) | other_I
    first_D = np.flatnonzero(np.concatenate([[True], apart_I]))
    last_D = np.concatenate([first_D[1:], [count]]) - 1
    rank_D = rank_I[first_D]
    return Spans(begin_I[first_D], reach_I[last_D], np.searchsorted(rank_D, np.arange(len(spans.ptr_R1))), rank_D)


def meet(one: Spans, two: Spans) -> bool:
    """Tell whether disjoint spans, in order, overlap with others anywhere."""
    few, many = sorted((one, two), key=lambda each: len(each.begin_s_I))
    first_I, last_I = _overlapped(few, many)
    return bool((last_I > first_I).any())


def overlaps(spans: Spans, disjoint: Spans) -> Pairs:
    """Return which spans overlap with which of some disjoint ones of the same rank, and for how long.

    Those of a rank in `disjoint` are in order, none beginning before the one before it has ended. Pairs are in the
    order of `spans`, and for each in that of `disjoint`.
    """
    first_I, last_I = _overlapped(spans, disjoint)
    with_any = np.flatnonzero(last_I > first_I)
    first, count = first_I[with_any], (last_I - first_I)[with_any]
    span_P = np.repeat(with_any, count)
    disjoint_P = np.arange(len(span_P)) + np.repeat(first - np.cumsum(count) + count, count)
    until_P = np.minimum(spans.end_s_I[span_P], disjoint.end_s_I[disjoint_P])
    since_P = np.maximum(spans.begin_s_I[span_P], disjoint.begin_s_I[disjoint_P])
    return Pairs(span_P, disjoint_P, np.maximum(until_P - since_P, 0.0))


def covered(spans: Spans, disjoint: Spans) -> tuple[FloatArray, FloatArray]:
    """Return how much of each span is covered by disjoint ones, [I], and of each of these by the spans, [D] (`Pairs`).

    Both are as in `overlaps`.
    """
    pairs = overlaps(spans, disjoint)
    return pairs.per_span(spans), pairs.per_disjoint(disjoint)


class Finder(NamedTuple):
    """What finds out what is overlapped: functions that do as these."""

    covered: Callable[[Spans, Spans], tuple[FloatArray, FloatArray]] = covered
    union: Callable[[Spans], Spans] = union
    meet: Callable[[Spans, Spans], bool] = meet


PLAIN = Finder()


def finder_of(engine: str, graph: Graph) -> Finder:
    """Return what finds overlaps for steps of an engine: in numba where that runs a program, with equal results."""
    if not compiled(engine, graph):
        return PLAIN
    from traincast.simulation import overlap_kernel

    return Finder(overlap_kernel.covered, overlap_kernel.union, overlap_kernel.meet)


def _overlapped(spans: Spans, disjoint: Spans) -> tuple[IntArray, IntArray]:
    """Return which of some disjoint spans each span overlaps with: from the first of them to before the last, [I]."""
    first_I, last_I = (np.zeros(len(spans.begin_s_I), dtype=np.int64) for _ in range(2))
    pointers = zip(pairwise(spans.ptr_R1.tolist()), pairwise(disjoint.ptr_R1.tolist()), strict=True)
    for (begin, end), (low, high) in pointers:
        of_rank, mine = slice(begin, end), slice(low, high)
        if begin == end or low == high:
            continue
        first_I[of_rank] = low + disjoint.end_s_I[mine].searchsorted(spans.begin_s_I[of_rank], side="right")
        last_I[of_rank] = low + disjoint.begin_s_I[mine].searchsorted(spans.end_s_I[of_rank], side="left")
    return first_I, last_I


def most_of_a_rank(overlap_s_I: FloatArray, spans: Spans) -> float:
    """Return the share of all spans of a rank that overlaps are, on the rank where it is largest."""
    ranks, rank_I = len(spans.ptr_R1) - 1, spans.rank_I
    overlap_s_R = _summed(rank_I, overlap_s_I, ranks)
    whole_s_R = _summed(rank_I, spans.end_s_I - spans.begin_s_I, ranks)
    return float(np.divide(overlap_s_R, whole_s_R, out=np.zeros(ranks), where=whole_s_R > 0).max(initial=0.0))


def shares(overlap_s_I: FloatArray, spans: Spans) -> FloatArray:
    """Return which share of each span an overlap is; 0 for a span of no time, and never above 1."""
    length_s_I = spans.end_s_I - spans.begin_s_I
    share_I = np.divide(overlap_s_I, length_s_I, out=np.zeros(len(length_s_I)), where=length_s_I > 0)
    return np.minimum(share_I, 1.0)


def _summed(at_I: IntArray, value_I: FloatArray, count: int) -> FloatArray:
    """Add up values by number, each number's in their order."""
    sums: FloatArray = np.bincount(at_I, value_I, count).astype(np.float64, copy=False)
    return sums


class Selection(Struct, frozen=True):
    """Some operations of a program, rank by rank."""

    at_I: IntArray
    """Their numbers, ascending."""
    ptr_R1: IntArray
    rank_I: IntArray

    @classmethod
    def from_program(cls, program: Program, rows_T: BoolArray) -> "Selection":
        """Select the runs of some template operations."""
        at_I = np.flatnonzero(rows_T.take(program.row_N)) if rows_T.any() else np.zeros(0, dtype=np.int64)
        ptr_R1 = np.searchsorted(at_I, program.op_ptr_R1)
        return cls(at_I, ptr_R1, np.repeat(np.arange(len(ptr_R1) - 1), np.diff(ptr_R1)))

    def where(self, chosen_I: BoolArray) -> "Selection":
        """Return those of them that are chosen."""
        before_I1 = np.concatenate([[0], np.cumsum(chosen_I)])
        return Selection(self.at_I[chosen_I], before_I1[self.ptr_R1], self.rank_I[chosen_I])

    def spans(self, start_s_N: FloatArray, end_s_N: FloatArray) -> Spans:
        """Return when they ran."""
        return Spans(start_s_N[self.at_I], end_s_N[self.at_I], self.ptr_R1, self.rank_I)


class ComputeAndTransfers(Struct, frozen=True):
    """Computations, and the transfers that may be overlapped with one."""

    compute: Selection
    transfers: Selection

    @classmethod
    def from_program(cls, program: Program, group: Group | None = None) -> "ComputeAndTransfers":
        """Find them in a program, perhaps the transfers of one kind of group alone.

        Two operations that both hold back what follows them are never overlapped.
        """
        ops = program.ops
        compute_T, transfer_T = ops.kind_T == Kind.COMPUTE, np.isin(ops.kind_T, _TRANSFERS)
        if ops.blocking_T[compute_T].all():
            transfer_T = transfer_T & ~ops.blocking_T
        if group is not None:
            transfer_T = transfer_T & (ops.group_T == group)
        if not transfer_T.any():
            compute_T = np.zeros_like(compute_T)
        return cls(Selection.from_program(program, compute_T), Selection.from_program(program, transfer_T))

    def shares(
        self, start_s_N: FloatArray, end_s_N: FloatArray, find: Finder = PLAIN
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yield computations, then transfers, with the share of its own time that the other kind of work runs too."""
        if not len(self.transfers.at_I):
            return
        compute, transfers = (each.spans(start_s_N, end_s_N) for each in (self.compute, self.transfers))
        yield self.compute.at_I, shares(find.covered(find.union(transfers), compute)[1], compute)
        yield self.transfers.at_I, shares(find.covered(transfers, compute)[0], transfers)


class KindsOfTransfers(Struct, frozen=True):
    """Transfers between nodes, by the kind of their group."""

    of_kind: dict[Group, Selection]
    asynchronous: frozenset[Group]
    """Kinds with transfers that hold nothing back."""

    @classmethod
    def from_program(cls, program: Program, location_LW: IntArray) -> "KindsOfTransfers":
        """Find them in a program."""
        ops = program.ops
        transfer_T, node_W = np.isin(ops.kind_T, _TRANSFERS), location_LW[NODE]
        nodes_G = [node_W[group.members] for group in program.groups]
        spread_G = np.array([(node_K != node_K[0]).any() for node_K in nodes_G], dtype=np.bool_)
        found = {}
        for kind in sorted({Group(int(each)) for each in distinct(ops.group_T[transfer_T])} - {Group.NONE}):
            of_kind = Selection.from_program(program, transfer_T & (ops.group_T == kind))
            leaving = of_kind.where(_leaves_node(program, of_kind, node_W, spread_G))
            if len(leaving.at_I):
                found[kind] = leaving
        launched_T = transfer_T & ~ops.blocking_T
        return cls(found, frozenset(kind for kind in found if np.any(launched_T & (ops.group_T == kind))))

    def shares(
        self, start_s_N: FloatArray, end_s_N: FloatArray, find: Finder = PLAIN
    ) -> Iterator[tuple[Group, Group, FloatArray, float]]:
        """Yield a kind, another one, and of the first's time the share that is overlapped with the second's.

        Of each transfer, and of the rank on which it is largest. Only pairs that overlap at all.
        """
        spans = {kind: each.spans(start_s_N, end_s_N) for kind, each in self.of_kind.items()}
        unions = (
            {kind: find.union(each) for kind, each in spans.items()} if len(spans) > 1 and self.asynchronous else {}
        )
        pairs = [pair for pair in combinations(unions, 2) if not self.asynchronous.isdisjoint(pair)]
        overlapping = {pair for pair in pairs if find.meet(unions[pair[0]], unions[pair[1]])}
        for one, two in permutations(unions, 2):
            if (one, two) not in overlapping and (two, one) not in overlapping:
                continue
            overlap_s_I = find.covered(spans[one], unions[two])[0]
            if overlap_s_I.any():
                yield one, two, shares(overlap_s_I, spans[one]), most_of_a_rank(overlap_s_I, spans[one])


def _leaves_node(program: Program, selection: Selection, node_W: IntArray, spread_G: BoolArray) -> BoolArray:
    """Return whether each transfer has its members, or its two ends, on several nodes, [I]; groups may, [G]."""
    group_I = program.group_N[selection.at_I]
    leaves_I: BoolArray = spread_G[group_I]
    peer_I = program.peer_stage_N[selection.at_I]
    message = np.flatnonzero((peer_I >= 0) & leaves_I)
    stage_I = program.stage_R[selection.rank_I]
    for group in distinct(group_I[message]):
        mine = message[group_I[message] == group]
        node_K = node_W[program.groups[int(group)].members]
        leaves_I[mine] = node_K[stage_I[mine]] != node_K[peer_I[mine]]
    return leaves_I
