"""The engine by chains (pure Python): the same times as the reference, from an order of visits that is found once.

Most operations wait for one other operation alone, or for two of which one waits for the other. Such operations form
chains whose times are running sums, and only where a chain begins, or operations meet in a rendezvous, anything is
compared. Bit-equal to `traincast.engine.reference`, which says what the times mean: an end never is before the start,
so leaving out what an awaited operation has itself awaited changes no maximum, and sums are made in the same order.

Letters: N operations, C chains, A ends that chains wait for, U units of chains that begin together, S slots (one for
the start of each chain, then one for the end of each of its operations).
"""

from collections.abc import MutableSequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np

from traincast.engine.graph import Graph, IntArray, pointers
from traincast.engine.reference import FloatArray, Times, run_reference

_LINKS_BACK = 8
"""How far back an operation is looked for among what another one has awaited."""

_LONG = 16
"""Slots of a chain from which on its running sums are made at once."""

_NONE: tuple[int, ...] = ()

_Chain = tuple[int, int, int, int, tuple[int, ...]]
"""First slot, the slot after the last, and the slots of two ends that its first operation waits for, and of others."""


@dataclass(frozen=True, slots=True)
class Visits:
    """An order in which a graph can run: chains, those that begin with a rendezvous together."""

    end_slot_N: IntArray
    """Slot of the end of each operation; that of its start is the one before."""
    slots: int
    """Their number; one more stands for what has ended before anything begins."""
    units: list[tuple[_Chain, ...]]
    first_C: IntArray
    """First operations of chains, in the order of visits."""


def run_chains(graph: Graph, duration_s_N: FloatArray) -> Times:
    """Return ready, start and end times, and how many operations ran, as `run_reference` does."""
    if "visits" not in graph.kept:
        # Threads may find it at the same time: each finds the same.
        graph.kept["visits"] = _find_visits(graph)
    visits = graph.kept["visits"]
    if not isinstance(visits, Visits):
        return run_reference(graph, duration_s_N)
    step_S, time_S = np.zeros(visits.slots + 1), np.zeros(visits.slots + 1)
    step_S[visits.end_slot_N] = duration_s_N
    # Single numbers are read and written as those of Python, long chains summed as arrays.
    steps, times = _numbers(step_S), _numbers(time_S)
    readies: list[float] = []
    for unit in visits.units:
        begin = longest = 0.0
        for first, _, one, other, others in unit:
            ready, later = times[one], times[other]
            if later > ready:
                ready = later
            for each in others:
                ready = max(ready, times[each])
            readies.append(ready)
            if ready > begin:
                begin = ready
            if steps[first + 1] > longest:
                longest = steps[first + 1]
        for first, last, _, _, _ in unit:
            steps[first], steps[first + 1] = begin, longest
            if last - first > _LONG:
                np.add.accumulate(step_S[first:last], out=time_S[first:last])
                continue
            times[first] = time = begin
            for slot in range(first + 1, last):
                times[slot] = time = time + steps[slot]
    start_N, end_N = time_S[visits.end_slot_N - 1], time_S[visits.end_slot_N]
    ready_N = start_N.copy()
    ready_N[visits.first_C] = readies
    return ready_N, start_N, end_N, len(graph)


def _numbers(array_S: FloatArray) -> MutableSequence[float]:
    """Return a view of an array whose elements are numbers of Python."""
    return cast(MutableSequence[float], array_S.data)


def chains_of(graph: Graph) -> int:
    """Return how many chains a graph has, which is what a run takes its time for."""
    if "chains" not in graph.kept:
        graph.kept["chains"] = len(_linked(graph, _sole_predecessors(*_predecessors(graph)))[1])
    return cast(int, graph.kept["chains"])


def _find_visits(graph: Graph) -> Visits | None:
    """Return the order of visits of a graph; None where it cannot run to its end."""
    previous_N, source_N, edges_N = _predecessors(graph)
    sole_N = _sole_predecessors(previous_N, source_N, edges_N)
    follower_N, head_C = _linked(graph, sole_N)
    chain_N, slot_N, last = _numbered(follower_N, head_C)
    if chain_N.min(initial=0) < 0:
        return None
    chain_A, source_A = _awaited_by_heads(graph, head_C, previous_N, sole_N, edges_N)
    unit_C, count = _together(graph.rendezvous_N[head_C])
    order = _order(unit_C[chain_A], unit_C[chain_N[source_A]], count)
    if len(order) < count:
        return None
    chains = _chains(last, chain_A, slot_N[source_A])
    of_unit = np.argsort(unit_C, kind="stable").tolist()
    spans_U = list(pairwise(pointers(np.bincount(unit_C, minlength=count)).tolist()))
    visited = [of_unit[slice(*spans_U[unit])] for unit in order]
    return Visits(
        end_slot_N=slot_N,
        slots=last[-1] if last else 0,
        units=[tuple([chains[chain] for chain in unit]) for unit in visited],
        first_C=head_C[np.array([chain for unit in visited for chain in unit], dtype=np.int64)],
    )


def _chains(last: list[int], chain_A: IntArray, slot_A: IntArray) -> list[_Chain]:
    """Return the chains: by the slot after the last of each, and the ends that chains wait for, chain by chain."""
    nothing = last[-1] if last else 0
    begin_C1 = pointers(np.bincount(chain_A, minlength=len(last)))
    count_C, padded_A = np.diff(begin_C1), np.append(slot_A, [nothing, nothing])
    one_C = np.where(count_C > 0, padded_A[begin_C1[:-1]], nothing).tolist()
    other_C = np.where(count_C > 1, padded_A[begin_C1[:-1] + 1], nothing).tolist()
    awaited, others = slot_A.tolist(), [_NONE] * len(last)
    for chain in np.flatnonzero(count_C > 2).tolist():
        others[chain] = tuple(awaited[begin_C1[chain] + 2 : begin_C1[chain + 1]])
    return list(zip([0, *last], last, one_C, other_C, others, strict=False))


def _numbered(follower_N: IntArray, head_C: IntArray) -> tuple[IntArray, IntArray, list[int]]:
    """Return the chain and slot of each operation, chain by chain, and the slot after the last of each chain.

    Most operations are followed by the next one in order, so that chains are walked by whole stretches of such. The
    chain is -1 where none of the first operations leads to an operation.
    """
    lasts = np.flatnonzero(follower_N != np.arange(1, len(follower_N) + 1))
    length_R = np.diff(lasts, prepend=-1)
    stretch_N = np.repeat(np.arange(len(lasts)), length_R)
    stretch_of = dict(zip((lasts - length_R + 1).tolist(), range(len(lasts)), strict=True))
    next_op, length = follower_N[lasts].tolist(), length_R.tolist()
    chain_of, slot_of = [-1] * len(lasts), [0] * len(lasts)
    last_slots: list[int] = []
    slot = 0
    for chain, head in enumerate(head_C.tolist()):
        slot, op = slot + 1, head
        while op >= 0:
            stretch = stretch_of[op]
            chain_of[stretch], slot_of[stretch] = chain, slot
            slot, op = slot + length[stretch], next_op[stretch]
        last_slots.append(slot)
    first_N = np.repeat(lasts - length_R + 1, length_R)
    slot_N = np.array(slot_of, dtype=np.int64)[stretch_N] + np.arange(len(follower_N)) - first_N
    return np.array(chain_of, dtype=np.int64)[stretch_N], slot_N, last_slots


def _together(rendezvous_C: IntArray) -> tuple[IntArray, int]:
    """Return what each chain is visited with, and how many there are: a rendezvous that they begin with, or itself."""
    own_C = rendezvous_C.max(initial=-1) + 1 + np.arange(len(rendezvous_C))
    found, unit_C = np.unique(np.where(rendezvous_C < 0, own_C, rendezvous_C), return_inverse=True)
    return unit_C, len(found)


def _order(unit_A: IntArray, awaited_A: IntArray, count: int) -> list[int]:
    """Return the units that can run, in an order in which they can; each pair waits and is awaited."""
    by_awaited = np.argsort(awaited_A, kind="stable")
    released, first_U = unit_A[by_awaited].tolist(), pointers(np.bincount(awaited_A, minlength=count)).tolist()
    waits = np.bincount(unit_A, minlength=count).tolist()
    order = [unit for unit, left in enumerate(waits) if not left]
    for unit in order:
        for other in released[first_U[unit] : first_U[unit + 1]]:
            waits[other] -= 1
            if not waits[other]:
                order.append(other)
    return order


def _predecessors(graph: Graph) -> tuple[IntArray, IntArray, IntArray]:
    """Return of each operation the one before it on its stream, the source of an edge to it, and the number of edges.

    -1 stands for none.
    """
    followed = np.flatnonzero(graph.next_N >= 0)
    previous_N, source_N = np.full(len(graph), -1), np.full(len(graph), -1)
    previous_N[graph.next_N[followed]] = followed
    source_N[graph.edge_dst_E] = np.repeat(np.arange(len(graph)), np.diff(graph.edge_ptr_N1))
    return previous_N, source_N, np.bincount(graph.edge_dst_E, minlength=len(graph))


def _sole_predecessors(previous_N: IntArray, source_N: IntArray, edges_N: IntArray) -> IntArray:
    """Return the one operation that each waits for, without others that this one has itself awaited; -1 for several."""

    def awaits(op_I: IntArray, other_I: IntArray) -> IntArray:
        found: IntArray = (previous_N[op_I] == other_I) | (source_N[op_I] == other_I)
        return found

    sole_N = np.where(edges_N == 0, previous_N, -1)
    alone = np.flatnonzero((edges_N == 1) & (previous_N < 0))
    sole_N[alone] = source_N[alone]
    both = np.flatnonzero((edges_N == 1) & (previous_N >= 0))
    before, source = previous_N[both], source_N[both]
    sole_N[both] = np.where(source == before, source, np.where(awaits(before, source), before, -1))
    earlier = source
    for _ in range(_LINKS_BACK):
        found = awaits(earlier, before)
        sole_N[both[found]] = source[found]
        further = ~found & (sole_N[earlier] >= 0)
        both, before, source, earlier = (each[further] for each in (both, before, source, sole_N[earlier]))
    return sole_N


def _linked(graph: Graph, sole_N: IntArray) -> tuple[IntArray, IntArray]:
    """Return the operation that goes on the chain of each one, -1 for none, and the first operations of chains."""
    follower_N = np.full(len(graph), -1)
    linked = np.flatnonzero((sole_N >= 0) & (graph.rendezvous_N < 0))
    follower_N[sole_N[linked]] = linked
    first_N = np.ones(len(graph), dtype=bool)
    first_N[follower_N[follower_N >= 0]] = False
    return follower_N, np.flatnonzero(first_N)


def _awaited_by_heads(
    graph: Graph, head_C: IntArray, previous_N: IntArray, sole_N: IntArray, edges_N: IntArray
) -> tuple[IntArray, IntArray]:
    """Return what the first operations of chains wait for: chains in their order, and operations before them."""
    before_C = np.where(sole_N[head_C] >= 0, sole_N[head_C], previous_N[head_C])
    waiting = np.flatnonzero(before_C >= 0)
    chain_N = np.full(len(graph), -1)
    several = (sole_N[head_C] < 0) & (edges_N[head_C] > 0)
    chain_N[head_C[several]] = np.flatnonzero(several)
    chosen = np.flatnonzero(chain_N[graph.edge_dst_E] >= 0)
    source_E = np.repeat(np.arange(len(graph)), np.diff(graph.edge_ptr_N1))
    chain_A = np.concatenate([waiting, chain_N[graph.edge_dst_E[chosen]]])
    source_A = np.concatenate([before_C[waiting], source_E[chosen]])
    by_chain = np.argsort(chain_A, kind="stable")
    return chain_A[by_chain], source_A[by_chain]
