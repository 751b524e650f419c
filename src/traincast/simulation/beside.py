"""What runs beside what on a rank, as its times say: computation and transfers, transfers of two kinds.

Waiting for members or for a message is no transfer. Letters: N operations, T template operations,
I, D operations of a selection, R ranks, W ranks of the world.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from traincast.fabric.placement import NODE
from traincast.simulation.spans import Spans, most_of_a_rank, overlaps, shares, union
from traincast.workload.ops import BoolArray, FloatArray, IntArray
from traincast.workload.program import Program
from traincast.workload.words import Group, Kind

_TRANSFERS = (Kind.COLLECTIVE, Kind.SEND, Kind.RECV)


@dataclass(frozen=True, slots=True)
class Selection:
    """Some operations of a program, rank by rank."""

    at_I: IntArray
    """Their numbers, ascending."""
    ptr_R1: IntArray

    @classmethod
    def of(cls, program: Program, rows_T: BoolArray) -> "Selection":
        """Select the runs of some template operations."""
        at_I = np.flatnonzero(rows_T[program.row_N]) if rows_T.any() else np.zeros(0, dtype=np.int64)
        return cls(at_I, np.searchsorted(at_I, program.op_ptr_R1))

    def where(self, chosen_I: BoolArray) -> "Selection":
        """Return those of them that are chosen."""
        before_I1 = np.concatenate([[0], np.cumsum(chosen_I)])
        return Selection(self.at_I[chosen_I], before_I1[self.ptr_R1])

    def spans(self, start_s_N: FloatArray, end_s_N: FloatArray) -> Spans:
        """Return when they ran."""
        return Spans(start_s_N[self.at_I], end_s_N[self.at_I], self.ptr_R1)


@dataclass(frozen=True, slots=True)
class ComputeBesideTransfers:
    """Computations, and the transfers that may run beside one."""

    compute: Selection
    transfers: Selection

    @classmethod
    def of(cls, program: Program) -> "ComputeBesideTransfers":
        """Find them in a program: of two operations that hold back what follows them none runs beside the other."""
        ops = program.ops
        compute_T, transfer_T = ops.kind_T == Kind.COMPUTE, np.isin(ops.kind_T, _TRANSFERS)
        if ops.blocking_T[compute_T].all():
            transfer_T = transfer_T & ~ops.blocking_T
        if not transfer_T.any():
            compute_T = np.zeros_like(compute_T)
        return cls(Selection.of(program, compute_T), Selection.of(program, transfer_T))

    def shares(self, start_s_N: FloatArray, end_s_N: FloatArray) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yield computations, then transfers, with the share of its own time that the other kind of work runs too."""
        if not len(self.transfers.at_I):
            return
        compute, transfers = (each.spans(start_s_N, end_s_N) for each in (self.compute, self.transfers))
        yield self.compute.at_I, shares(overlaps(union(transfers), compute).per_disjoint(compute), compute)
        yield self.transfers.at_I, shares(overlaps(transfers, compute).per_span(transfers), transfers)


@dataclass(frozen=True, slots=True)
class KindsBesideEachOther:
    """Transfers between nodes, by the kind of their group."""

    of_kind: dict[Group, Selection]
    asynchronous: frozenset[Group]
    """Kinds with transfers that hold nothing back."""

    @classmethod
    def of(cls, program: Program, location_LW: IntArray) -> "KindsBesideEachOther":
        """Find them in a program."""
        ops = program.ops
        transfer_T = np.isin(ops.kind_T, _TRANSFERS)
        found = {}
        for kind in sorted({Group(int(each)) for each in np.unique(ops.group_T[transfer_T])} - {Group.NONE}):
            of_kind = Selection.of(program, transfer_T & (ops.group_T == kind))
            leaving = of_kind.where(_leaves_node(program, of_kind, location_LW[NODE]))
            if len(leaving.at_I):
                found[kind] = leaving
        launched_T = transfer_T & ~ops.blocking_T
        return cls(found, frozenset(kind for kind in found if np.any(launched_T & (ops.group_T == kind))))

    def shares(self, start_s_N: FloatArray, end_s_N: FloatArray) -> Iterator[tuple[Group, Group, FloatArray, float]]:
        """Yield a kind, another one, which share of its time each transfer of the first runs beside the second's.

        And that share of the rank on which it is largest. Only pairs that meet at all.
        """
        spans = {kind: each.spans(start_s_N, end_s_N) for kind, each in self.of_kind.items()}
        covered = {kind: union(each) for kind, each in spans.items()} if len(spans) > 1 and self.asynchronous else {}
        for one, two in permutations(covered, 2):
            if not self.asynchronous & {one, two}:
                continue
            beside_s_I = overlaps(spans[one], covered[two]).per_span(spans[one])
            if beside_s_I.any():
                yield one, two, shares(beside_s_I, spans[one]), most_of_a_rank(beside_s_I, spans[one])


def _leaves_node(program: Program, selection: Selection, node_W: IntArray) -> BoolArray:
    """Return whether each transfer has its members, or its two ends, on several nodes, [I]."""
    group_I = program.group_N[selection.at_I]
    spread_G = np.array([np.ptp(node_W[group.members]) > 0 for group in program.groups], dtype=np.bool_)
    leaves_I: BoolArray = spread_G[group_I]
    peer_I = program.peer_stage_N[selection.at_I]
    message = np.flatnonzero((peer_I >= 0) & leaves_I)
    stage_I = program.stage_R[np.repeat(np.arange(len(program.rank_R)), np.diff(selection.ptr_R1))]
    for group in np.unique(group_I[message]):
        mine = message[group_I[message] == group]
        node_K = node_W[program.groups[int(group)].members]
        leaves_I[mine] = node_K[stage_I[mine]] != node_K[peer_I[mine]]
    return leaves_I
