"""Put a time on every operation of a program.

Computations bring theirs from the input; communications that bring none are priced by the
links between the members of their group. Distinct communications are priced once.

Letters: N operations, U distinct communications, G groups.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from traincast.errors import ProgramError
from traincast.estimate.collectives.cost import Price, price_collective
from traincast.fabric.placement import Placement, placement_of
from traincast.hardware.cluster import Cluster
from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.program import Program
from traincast.workload.words import Group, Kind, Operation, Provenance

Loads = tuple[float, ...]
"""What each member of a group moves, over the size of the communication."""


@dataclass(frozen=True, slots=True)
class PricedCommunication:
    """One distinct communication with its price."""

    group: Group
    operation: Operation
    size_bytes: int
    """Where members move unequal amounts, what the busiest sends or receives."""
    placement: Placement
    price: Price
    count: int
    """Times that the rank that runs it most often runs it."""
    loads: Loads | None = None
    """What each member moves over `size_bytes`, where that is not equal."""


@dataclass(frozen=True, slots=True)
class Prices:
    """A duration for every operation, and what was priced."""

    duration_s_N: FloatArray
    provenance_T: IntArray
    """Where the duration of each template operation comes from."""
    communications: tuple[PricedCommunication, ...]


def price_program(
    program: Program,
    cluster: Cluster,
    location_LW: IntArray,
    busbw_bytes_per_s: Mapping[str, float] | None = None,
    contended: Mapping[Group, Cluster] | None = None,
    factor: Mapping[Group, float] | None = None,
) -> Prices:
    """Price a program on a cluster.

    Parameters
    ----------
    program : Program
        What runs.
    cluster : Cluster
        Its links.
    location_LW : int array [L, W]
        Where every rank sits.
    busbw_bytes_per_s : mapping, optional
        Bus bandwidth that overrides the model, by group name in lower case (``tp``), or for one of its
        operations alone (``tp.all_reduce``).
    contended : mapping, optional
        The cluster as groups of a kind see it that share its links; others see `cluster`.
    factor : mapping, optional
        What the prices of a kind of group are multiplied with, but for rates that override the model; else 1.

    Returns
    -------
    Prices

    Raises
    ------
    ProgramError
        If a computation has no known duration.
    """
    ops, row_N = program.ops, program.row_N
    duration_N = ops.duration_s_T[row_N]
    if program.compute_factor_N is not None:
        compute_N = ops.kind_T[row_N] == Kind.COMPUTE
        duration_N = np.where(compute_N, duration_N * program.compute_factor_N, duration_N)
    unknown_N = np.isnan(duration_N)
    communicates_N = program.group_N >= 0
    lacking = np.flatnonzero(unknown_N & ~communicates_N)
    if len(lacking):
        raise ProgramError(f"the duration of {ops.name_T[row_N[lacking[0]]]!r} is unknown")
    at = np.flatnonzero(unknown_N & communicates_N)
    links = _Links(cluster, contended or {}, busbw_bytes_per_s or {}, factor or {})
    communications, price_s = _price_distinct(program, at, links, location_LW)
    duration_N[at] = price_s
    known = np.flatnonzero(~unknown_N & communicates_N)
    communications += _measured_distinct(program, known, duration_N[known], location_LW)
    priced_T = np.isnan(ops.duration_s_T) & (ops.group_T != Group.NONE)
    return Prices(duration_N, np.where(priced_T, Provenance.PRICED, ops.provenance_T), communications)


def _price_distinct(
    program: Program, at: IntArray, links: "_Links", location_LW: IntArray
) -> tuple[tuple[PricedCommunication, ...], FloatArray]:
    if not len(at):
        return (), np.zeros(0)
    ops = program.ops
    row_at = program.row_N[at]
    placements, placement_at = _placements(program, at, location_LW)
    sizes, size_at = np.unique(_busiest_bytes(program, at), return_inverse=True)
    processes, process_at = np.unique(ops.process_s_T[row_at], return_inverse=True)
    loads, loads_at = _distinct_loads(ops.loads_T, row_at)
    group_at = ops.group_T[row_at].astype(np.int64)
    fields = (placement_at, group_at, ops.operation_T[row_at], size_at, process_at, loads_at)
    key_at = np.ravel_multi_index(fields, [int(field.max()) + 1 for field in fields])
    _, first_U, inverse_at = np.unique(key_at, return_index=True, return_inverse=True)
    count_U = _most_per_rank(program.rank_N[at], inverse_at, len(first_U), ops.repeats_T[row_at])
    price_s_U = np.zeros(len(first_U))
    found: dict[tuple[object, ...], PricedCommunication] = {}
    for index, place in enumerate(first_U):
        group, operation = Group(int(ops.group_T[row_at[place]])), Operation(int(ops.operation_T[row_at[place]]))
        placement = placements[int(placement_at[place])]
        size = int(sizes[size_at[place]])
        load = loads[int(loads_at[place])]
        price = links.price(group, operation, size, placement, load)
        process_s = 0.0 if links.cluster.ideal or placement.ranks == 1 else float(processes[process_at[place]])
        price_s_U[index] = price.time_s + process_s
        key = (group, operation, size, placement, load)
        if placement.ranks > 1:
            before = found[key].count if key in found else 0
            count = before + int(count_U[index])
            found[key] = PricedCommunication(group, operation, size, placement, price, count, load)
    order = sorted(found.values(), key=lambda each: (-each.count * each.price.time_s, each.group, each.size_bytes))
    return tuple(order), price_s_U[inverse_at] * ops.repeats_T[row_at]


def _busiest_bytes(program: Program, at: IntArray) -> IntArray:
    """Return the sizes of communications; of members that move unequal amounts, what the busiest sends or receives."""
    ops, row_at = program.ops, program.row_N[at]
    size_at = ops.size_bytes_T[row_at]
    free_at = ops.may_differ_T[row_at]
    size_at[free_at] = np.maximum(size_at, ops.received_bytes_T[row_at])[free_at]
    joint_at = program.joint_N[at]
    joined = np.flatnonzero(free_at & (joint_at >= 0))
    if len(joined):
        _, which = np.unique(joint_at[joined], return_inverse=True)
        most = np.full(int(which.max()) + 1, -1, dtype=size_at.dtype)
        np.maximum.at(most, which, size_at[joined])
        size_at[joined] = most[which]
    return size_at


def _distinct_loads(loads_T: Sequence[Loads | None], row_at: IntArray) -> tuple[list[Loads | None], IntArray]:
    """Return the distinct loads of a table, and which of them the operations of some rows have."""
    numbers: dict[Loads | None, int] = {}
    number_T = np.array([numbers.setdefault(loads, len(numbers)) for loads in loads_T], dtype=np.int64)
    return list(numbers), number_T[row_at]


def _measured_distinct(
    program: Program, at: IntArray, duration_s_at: FloatArray, location_LW: IntArray
) -> tuple[PricedCommunication, ...]:
    """Return the distinct communications whose times the input gives, with the mean of these times."""
    if not len(at):
        return ()
    ops, row_at = program.ops, program.row_N[at]
    placements, placement_at = _placements(program, at, location_LW)
    columns = (placement_at, ops.group_T[row_at], ops.operation_T[row_at], _busiest_bytes(program, at))
    keys, inverse_at = np.unique(np.stack([column.astype(np.int64) for column in columns]), axis=1, return_inverse=True)
    inverse_at = inverse_at.reshape(-1)
    mean_s_U = _means(duration_s_at, inverse_at, _represented(program, at), keys.shape[1])
    count_U = _most_per_rank(program.rank_N[at], inverse_at, keys.shape[1], ops.repeats_T[row_at])
    return tuple(
        PricedCommunication(
            Group(group), Operation(operation), size, placements[placement], Price(time_s, "measured"), int(count)
        )
        for (placement, group, operation, size), time_s, count in zip(
            keys.T.tolist(), mean_s_U, count_U.tolist(), strict=True
        )
        if placements[placement].ranks > 1 and size >= 0
    )


def _represented(program: Program, at: IntArray) -> IntArray:
    """Return how many ranks each operation stands for."""
    return np.repeat(program.represents_R, np.diff(program.op_ptr_R1))[at]


def _means(value_at: FloatArray, which_at: IntArray, weight_at: IntArray, count: int) -> list[float]:
    """Return the weighted mean of the values of each kind, [U], to the last bit whatever their order and grouping.

    Equal values count together, so that a value of weight 2 is the same as two of weight 1.
    """
    order = np.lexsort((value_at, which_at))
    value, which = value_at[order], which_at[order]
    first = np.flatnonzero(np.concatenate([[True], (which[1:] != which[:-1]) | (value[1:] != value[:-1])]))
    weight = np.add.reduceat(weight_at[order].astype(np.int64), first)
    means = []
    for values, weights in _by_kind(value[first], weight, which[first], count):
        above = math.fsum(w * (v - values[0]) for v, w in zip(values, weights, strict=True))
        means.append(values[0] + above / sum(weights))
    return means


def _by_kind(
    value: FloatArray, weight: IntArray, which: IntArray, count: int
) -> Iterator[tuple[list[float], list[int]]]:
    borders = np.searchsorted(which, np.arange(count + 1))
    for begin, end in pairwise(borders.tolist()):
        yield value[begin:end].tolist(), weight[begin:end].tolist()


@dataclass(frozen=True, slots=True)
class _Links:
    """What lies between the members of a group."""

    cluster: Cluster
    contended: Mapping[Group, Cluster]
    busbw: Mapping[str, float]
    factor: Mapping[Group, float]

    def price(
        self, group: Group, operation: Operation, size_bytes: int, placement: Placement, loads: Loads | None = None
    ) -> Price:
        """Return the price of a communication over them; of unequal loads what each member moves is given."""
        cluster, name = self.contended.get(group, self.cluster), group.name.lower()
        rate = self.busbw.get(f"{name}.{operation.name.lower()}", self.busbw.get(name))
        if operation is Operation.SEND_RECV:
            ends = Placement((2,) if placement.nodes == 1 else (1, 1))
            price = price_collective(operation, size_bytes, ends, cluster, rate)
        else:
            # Tokens go to the busiest expert rank or come back from it: its load is what it receives or sends.
            moved = None if loads is None else [load * size_bytes for load in loads]
            price = price_collective(operation, size_bytes, placement, cluster, rate, loads=moved)
        factor = self.factor.get(group, 1.0) if rate is None else 1.0
        return price if factor == 1.0 else replace(price, time_s=price.time_s * factor)


def _placements(program: Program, at: IntArray, location_LW: IntArray) -> tuple[list[Placement], IntArray]:
    """Return the distinct placements, and which one each operation at `at` has; a message's are its two ends."""
    peer_at = program.peer_stage_N[at].astype(np.int64)
    stage_at = np.where(peer_at < 0, -1, program.stage_N[at])
    stages = int(program.stage_R.max()) + 2
    key_at = (program.group_N[at].astype(np.int64) * stages + stage_at + 1) * stages + peer_at + 1
    numbers: dict[Placement, int] = {}
    keys, inverse_at = np.unique(key_at, return_inverse=True)
    of_key = []
    for key in keys.tolist():
        group, stage, peer = key // stages**2, key // stages % stages - 1, key % stages - 1
        members = program.groups[group].members
        placement = placement_of(members if peer < 0 else members[[stage, peer]], location_LW)
        of_key.append(numbers.setdefault(placement, len(numbers)))
    return list(numbers), np.array(of_key, dtype=np.int64)[inverse_at]


def _most_per_rank(rank_at: IntArray, which_at: IntArray, distinct: int, repeats_at: FloatArray) -> IntArray:
    """Return for each distinct communication how often the rank runs it that runs it most, [U]."""
    keys, inverse_at = np.unique(rank_at.astype(np.int64) * distinct + which_at, return_inverse=True)
    counts = np.bincount(inverse_at, repeats_at)
    most_U = np.zeros(distinct)
    np.maximum.at(most_U, keys % distinct, counts)
    return np.rint(most_U).astype(np.int64)
