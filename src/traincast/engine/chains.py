"""The engine by chains (pure Python): the same times as the reference, from an order of visits that is found once.

Most operations wait for one other operation alone, or for two of which one waits for the other. Such operations form
chains whose times are running sums, and only where a chain begins, or operations meet in a rendezvous, anything is
compared. Bit-equal to `traincast.engine.reference`, which says what the times mean: an end never is before the start,
so leaving out what an awaited operation has itself awaited changes no maximum, and sums are made in the same order.

Letters: N operations, S slots (one for the start of each chain, then one for the end of each of its operations).
"""

from collections.abc import MutableSequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np

from traincast.engine.graph import Graph, IntArray
from traincast.engine.reference import FloatArray, Times, run_reference

_LINKS_BACK = 8
"""How far back an operation is looked for among what another one has awaited."""

_LEAST_OPS_OF_CHAIN = 4
"""Mean length of chains below which the reference is as fast."""

_SUMMED_AS_ARRAY = 16
"""Slots of a chain from which on a sum of arrays, which is made in the same order, is faster."""

_Chain = tuple[int, int, tuple[int, ...]]
"""First slot, the slot after the last, and the slots of the ends that its first operation waits for."""


@dataclass(frozen=True, slots=True)
class Visits:
    """An order in which a graph can run: chains, those that begin with a rendezvous together."""

    end_slot_N: IntArray
    """Slot of the end of each operation; that of its start is the one before."""
    slots: int
    units: list[tuple[_Chain, ...]]
    member_I: IntArray
    """Operations of rendezvous of several members, in the order of visits."""


def run_chains(graph: Graph, duration_s_N: FloatArray) -> Times:
    """Return ready, start and end times, and how many operations ran, as `run_reference` does."""
    if "visits" not in graph.kept:
        # Threads may find it at the same time: each finds the same.
        graph.kept["visits"] = _find_visits(graph)
    visits = graph.kept["visits"]
    if not isinstance(visits, Visits):
        return run_reference(graph, duration_s_N)
    step_S, time_S = np.zeros(visits.slots), np.zeros(visits.slots)
    step_S[visits.end_slot_N] = duration_s_N
    # Single numbers are read and written as those of Python, long chains summed as arrays.
    steps, times = _numbers(step_S), _numbers(time_S)
    readies: list[float] = []
    for unit in visits.units:
        if len(unit) == 1:
            ((first, last, awaited),) = unit
            begin = max([times[each] for each in awaited], default=0.0)
        else:
            ready = [max([times[each] for each in awaited], default=0.0) for _, _, awaited in unit]
            readies += ready
            begin, longest = max(ready), max([steps[first + 1] for first, _, _ in unit])
            for first, _, _ in unit:
                steps[first + 1] = longest
        for first, last, _ in unit:
            steps[first] = time = begin
            if last - first > _SUMMED_AS_ARRAY:
                np.add.accumulate(step_S[first:last], out=time_S[first:last])
                continue
            times[first] = time
            for slot in range(first + 1, last):
                times[slot] = time = time + steps[slot]
    start_N, end_N = time_S[visits.end_slot_N - 1], time_S[visits.end_slot_N]
    ready_N = start_N.copy()
    ready_N[visits.member_I] = readies
    return ready_N, start_N, end_N, len(graph)


def _numbers(array_S: FloatArray) -> MutableSequence[float]:
    """Return a view of an array whose elements are numbers of Python."""
    return cast(MutableSequence[float], array_S.data)


def _find_visits(graph: Graph) -> Visits | None:
    """Return the order of visits of a graph; None where it cannot run to its end, or its chains are short."""
    previous_N, source_N, edges_N = _predecessors(graph)
    sole_N = _sole_predecessors(previous_N, source_N, edges_N)
    follower_N, heads = _linked(graph, sole_N)
    if len(graph) < _LEAST_OPS_OF_CHAIN * len(heads):
        return None
    chain_N, slot_N, last_slots = _numbered(follower_N, heads)
    if chain_N.min(initial=0) < 0:
        return None
    chain_of, slot_of = chain_N.tolist(), slot_N.tolist()
    spans = pairwise([0, *last_slots])
    awaited = _awaited_by_heads(graph, heads, previous_N, sole_N, edges_N)
    units = _together(graph.rendezvous_N[heads].tolist())
    order = _order(units, [[chain_of[source] for source in sources] for sources in awaited])
    if len(order) < len(units):
        return None
    chains = [
        (*span, tuple([slot_of[source] for source in sources])) for span, sources in zip(spans, awaited, strict=True)
    ]
    member_I = [heads[chain] for unit in order if len(units[unit]) > 1 for chain in units[unit]]
    return Visits(
        end_slot_N=slot_N,
        slots=last_slots[-1] if last_slots else 0,
        units=[tuple([chains[chain] for chain in units[unit]]) for unit in order],
        member_I=np.array(member_I, dtype=np.int64),
    )


def _numbered(follower_N: IntArray, heads: list[int]) -> tuple[IntArray, IntArray, list[int]]:
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
    for chain, head in enumerate(heads):
        slot, op = slot + 1, head
        while op >= 0:
            stretch = stretch_of[op]
            chain_of[stretch], slot_of[stretch] = chain, slot
            slot, op = slot + length[stretch], next_op[stretch]
        last_slots.append(slot)
    first_N = np.repeat(lasts - length_R + 1, length_R)
    slot_N = np.array(slot_of, dtype=np.int64)[stretch_N] + np.arange(len(follower_N)) - first_N
    return np.array(chain_of, dtype=np.int64)[stretch_N], slot_N, last_slots


def _together(rendezvous_of_heads: list[int]) -> list[list[int]]:
    """Return chains by what is visited at once: those that begin with one rendezvous, each other one alone."""
    units: list[list[int]] = []
    chains_at: dict[int, list[int]] = {}
    for chain, rendezvous in enumerate(rendezvous_of_heads):
        if rendezvous in chains_at:
            chains_at[rendezvous].append(chain)
            continue
        units.append([chain])
        if rendezvous >= 0:
            chains_at[rendezvous] = units[-1]
    return units


def _order(units: list[list[int]], before: list[list[int]]) -> list[int]:
    """Return the units that can run, in an order in which they can; `before` are the chains that each chain awaits."""
    unit_of = {chain: unit for unit, chains in enumerate(units) for chain in chains}
    waits = [0] * len(units)
    released: list[list[int]] = [[] for _ in units]
    for chain, chains in enumerate(before):
        unit = unit_of[chain]
        waits[unit] += len(chains)
        for other in chains:
            released[unit_of[other]].append(unit)
    order = [unit for unit, left in enumerate(waits) if not left]
    for unit in order:
        for other in released[unit]:
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


def _linked(graph: Graph, sole_N: IntArray) -> tuple[IntArray, list[int]]:
    """Return the operation that goes on the chain of each one, -1 for none, and the first operations of chains."""
    follower_N = np.full(len(graph), -1)
    linked = np.flatnonzero((sole_N >= 0) & (graph.rendezvous_N < 0))
    follower_N[sole_N[linked]] = linked
    first_N = np.ones(len(graph), dtype=bool)
    first_N[follower_N[follower_N >= 0]] = False
    heads: list[int] = np.flatnonzero(first_N).tolist()
    return follower_N, heads


def _awaited_by_heads(
    graph: Graph, heads: list[int], previous_N: IntArray, sole_N: IntArray, edges_N: IntArray
) -> list[list[int]]:
    """Return what each first operation of a chain waits for."""
    sole, previous = sole_N[heads].tolist(), previous_N[heads].tolist()
    awaited = [
        [one] if one >= 0 else [before] if before >= 0 else [] for one, before in zip(sole, previous, strict=True)
    ]
    several_N = np.zeros(len(graph), dtype=bool)
    several_N[heads] = (sole_N[heads] < 0) & (edges_N[heads] > 0)
    chain_of = dict(zip(heads, range(len(heads)), strict=True))
    chosen = np.flatnonzero(several_N[graph.edge_dst_E])
    source_E = np.repeat(np.arange(len(graph)), np.diff(graph.edge_ptr_N1))
    for source, target in zip(source_E[chosen].tolist(), graph.edge_dst_E[chosen].tolist(), strict=True):
        awaited[chain_of[target]].append(source)
    return awaited
