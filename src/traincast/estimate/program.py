"""Put a time on every operation of a program.

Computations bring theirs from the input, or say which operators they run. Communications that bring none get what the
links between the members of their group make of them, each distinct one once.

Letters: N operations, T template operations, U distinct communications.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.errors import ProgramError
from traincast.estimate.clocks import power_limited
from traincast.estimate.collectives.cost import CollectiveCost, KnownCosts, estimate_collective
from traincast.estimate.factors import CostFactors, is_throttled
from traincast.estimate.measured import cost_class, measured_class
from traincast.estimate.operators.cost import OperatorTime, estimate_operators
from traincast.fabric.placement import Placement, ends_of, placement_of
from traincast.hardware.cluster import Cluster
from traincast.hardware.gpu import Gpu
from traincast.workload.ops import FloatArray, IntArray, OperatorCall, OpTable, numbered
from traincast.workload.program import Program
from traincast.workload.words import Group, Kind, Operation, OverlapClass, Provenance

Loads = tuple[float, ...]
"""What each member of a group moves, over the size of the communication."""


class ComputeCost(Struct, frozen=True):
    """Computations with durations, and what each consists of."""

    ops: OpTable
    shares_T: tuple[Mapping[str, float], ...]
    """Seconds by class of work of each template operation; empty where it was not worked out here."""
    seconds: "OperatorSeconds"
    """What tells the time of single operator calls in the same step."""


class _InStep(NamedTuple):
    """One operator call in a step."""

    time: OperatorTime
    """By itself."""
    cost_class: str
    factor: float
    """Of its class of work, its pass and the power limit together."""


_KEPT = 65536
"""Calls that are remembered, at most: those of some thousand jobs."""


class OperatorSeconds(Struct, dict=True):
    """What an operator call takes in a step: alone, at the clock of a step, by factors of its class and framework.

    Each call is worked out once.
    """

    gpu: Gpu
    factors: CostFactors
    compute_factor: float = 1.0
    """That of the framework."""
    _known: dict[OperatorCall, "_InStep"] = field(default_factory=dict)

    @cached_property
    def _limited(self) -> Gpu:
        """The GPU with what power leaves of its peaks."""
        return power_limited(self.gpu)

    def alone(self, call: OperatorCall) -> "_InStep":
        """Return its time by itself, its class of work, and what makes it longer in a step."""
        known = self._known.get(call)
        if known is None:
            self.prepare((call,))
            known = self._known[call]
        return known

    def prepare(self, calls: Iterable[OperatorCall]) -> None:
        """Work several out together, which takes less than one by one."""
        new, factors = {call: cost_class(call) for call in calls if call not in self._known}, self.factors
        if len(self._known) + len(new) > _KEPT:
            self._known.clear()
        for throttled in set(map(is_throttled, new.values())):
            gpu = self._limited if throttled else self.gpu
            some = [call for call, name in new.items() if is_throttled(name) is throttled]
            for call, time in zip(some, estimate_operators(some, gpu, factors.constants), strict=True):
                name = new[call]
                factor = factors.factor(name) * factors.factor(measured_class(call)) * factors.throttling(name)
                self._known[call] = _InStep(time, name, factor)

    def call_s(self, call: OperatorCall, count: float = 1.0) -> float:
        """Return the seconds of so many of it in a step."""
        known = self.alone(call)
        return count * known.time.time_s * known.factor * self.compute_factor


def estimate_compute(ops: OpTable, seconds: OperatorSeconds) -> ComputeCost:
    """Put a time on the computations of a table that carry operator calls.

    One takes as long as its operators take one after the other, each scaled by the factor of its class of work, and all
    by that of the framework; what the host needs to launch them is an operation of its own.
    """
    duration_T, provenance_T = ops.duration_s_T.copy(), ops.provenance_T.copy()
    flops_T, bytes_T, overlap_T = ops.flops_T.copy(), ops.bytes_moved_T.copy(), list(ops.overlap_shares_T)
    shares: list[Mapping[str, float]] = [{}] * len(ops)
    known: dict[int, _OperatorSum] = {}
    # What has a time of its own, such as a measured kernel, keeps it.
    for row in np.flatnonzero(np.isnan(duration_T)).tolist():
        calls = ops.calls_T[row]
        if calls is None:
            continue
        # Stages that are alike have the very same calls.
        found = known.get(id(calls))
        if found is None:
            found = known[id(calls)] = _sum_of(calls, seconds)
        duration_T[row], flops_T[row], bytes_T[row] = found.time_s, found.flops, found.bytes_moved
        provenance_T[row] = Provenance.PRICED
        overlap_T[row], shares[row] = found.overlap, found.of_class
    estimated = replace(
        ops,
        duration_s_T=duration_T,
        provenance_T=provenance_T,
        flops_T=flops_T,
        bytes_moved_T=bytes_T,
        overlap_shares_T=tuple(overlap_T),
    )
    return ComputeCost(estimated, tuple(shares), seconds)


class _OperatorSum(NamedTuple):
    """What the operators of a computation take one after the other."""

    time_s: float
    flops: float
    bytes_moved: float
    overlap: tuple[float, ...] | None
    of_class: Mapping[str, float]


def _sum_of(calls: Sequence[tuple[OperatorCall, float]], cost: OperatorSeconds) -> _OperatorSum:
    of_class: dict[str, float] = {}
    bound: dict[str, float] = {}
    flops = moved = 0.0
    for call, count in calls:
        time, name, _ = cost.alone(call)
        time_s = cost.call_s(call, count)
        of_class[name] = of_class.get(name, 0.0) + time_s
        bound[time.bound] = bound.get(time.bound, 0.0) + time_s
        flops += count * time.flops
        moved += count * time.bytes_moved
    return _OperatorSum(sum(of_class.values()), flops, moved, _overlap_shares(bound), of_class)


def distinct_calls(ops: OpTable) -> tuple[OperatorCall, ...]:
    """Return the operators that the computations of a table run, each once."""
    once = {id(calls): calls for calls in ops.calls_T if calls is not None}
    return tuple(dict.fromkeys(call for calls in once.values() for call, _ in calls))


_CLASS_OF_BOUND = {
    "compute": OverlapClass.COMPUTE_BOUND,
    "memory": OverlapClass.MEMORY_BOUND,
    "latency": OverlapClass.SMALL,
}


def _overlap_shares(time_s_by_bound: Mapping[str, float]) -> tuple[float, ...] | None:
    """Return the share of the time that kernels of each class take, in the order of `OverlapClass`.

    Not the class of most of it: that would jump where kernels change sides, and a faster GPU could take longer.
    """
    total_s = sum(time_s_by_bound.values())
    if not total_s:
        return None
    shares = dict.fromkeys(OverlapClass, 0.0)
    for bound, time_s in time_s_by_bound.items():
        shares[_CLASS_OF_BOUND[bound]] = time_s / total_s
    return tuple(shares.values())


class CommunicationCost(Struct, frozen=True):
    """One distinct communication with its cost."""

    group: Group
    operation: Operation
    size_bytes: int
    """Where members move unequal amounts, what the busiest sends or receives."""
    placement: Placement
    cost: CollectiveCost
    count: int
    """Times that the rank that runs it most often runs it."""
    loads: Loads | None = None
    """What each member moves over `size_bytes`, where that is not equal."""


class ProgramCosts(Struct, frozen=True):
    """A duration for every operation, and what was estimated."""

    duration_s_N: FloatArray
    provenance_T: IntArray
    """Where the duration of each template operation comes from."""
    communications: tuple[CommunicationCost, ...]


class _Communication(NamedTuple):
    """One distinct communication whose time is to be estimated."""

    group: Group
    operation: Operation
    size_bytes: int
    placement: Placement
    loads: Loads | None
    process_s: float
    """Local work that follows each."""
    runs: int
    """Times that the rank that runs it most often runs it."""


class Uncosted(Struct, frozen=True, dict=True):
    """A program with what it communicates told apart, to be costed over one or several kinds of links."""

    program: Program
    known_s_N: FloatArray
    """Seconds of each operation; NaN for communications that are to be estimated."""
    at: IntArray
    """These."""
    distinct: tuple[_Communication, ...]
    which_at: IntArray
    """Which of the distinct ones each is."""
    measured: tuple[CommunicationCost, ...]
    """Distinct communications whose times the input gives."""

    @classmethod
    def from_program(cls, program: Program, location_LW: IntArray) -> "Uncosted":
        """Tell the communications of a program apart; `location_LW` says where every rank sits.

        Raises
        ------
        ProgramError
            If a computation has no known duration.
        """
        ops, row_N = program.ops, program.row_N
        duration_N = program.known_s_N
        if program.compute_factor_N is not None:
            compute_N = ops.kind_T[row_N] == Kind.COMPUTE
            duration_N = np.where(compute_N, duration_N * program.compute_factor_N, duration_N)
        unknown_N = np.isnan(duration_N)
        communicates_N = program.group_N >= 0
        lacking = np.flatnonzero(unknown_N & ~communicates_N)
        if len(lacking):
            raise ProgramError(
                f"the duration of {ops.name_T[row_N[lacking[0]]]!r}{program.place_of(int(lacking[0]))} is unknown"
            )
        at = np.flatnonzero(unknown_N & communicates_N)
        distinct, which_at = _to_estimate(program, at, location_LW)
        known = np.flatnonzero(~unknown_N & communicates_N)
        measured = _measured_distinct(program, known, duration_N[known], location_LW)
        return cls(program, duration_N, at, distinct, which_at, measured)

    def costs(
        self,
        cluster: Cluster,
        busbw_bytes_per_s: Mapping[str, float] | None = None,
        contended: Mapping[Group, Cluster] | None = None,
        factor: Mapping[Group, float] | None = None,
        kinds: Container[Group] | None = None,
        known: KnownCosts | None = None,
    ) -> ProgramCosts:
        """Put a time on every operation on a cluster.

        Parameters
        ----------
        cluster : Cluster
            The links.
        busbw_bytes_per_s : mapping, optional
            Bus bandwidth that overrides the model, by group name in lower case (``tp``), or for one of its
            operations alone (``tp.all_reduce``).
        contended : mapping, optional
            The cluster as groups of a kind see it that share its links; others see `cluster`.
        factor : mapping, optional
            What the times of a kind of group are multiplied with, but for rates that override the model; else 1.
        kinds : container of Group, optional
            Kinds of groups to estimate, by default all; times of others stay NaN where the input gives none.
        known : dict, optional
            Costs of communications that were estimated before, to which others are added.
        """
        links = _Links(cluster, contended or {}, busbw_bytes_per_s or {}, factor or {}, {} if known is None else known)
        duration_N, ops = self.known_s_N.copy(), self.program.ops
        communications, time_s_U = _estimated(self.distinct, links, kinds)
        duration_N[self.at] = time_s_U[self.which_at] * self._repeats_at
        estimated_T = np.isnan(ops.duration_s_T) & (ops.group_T != Group.NONE)
        provenance_T = np.where(estimated_T, Provenance.PRICED, ops.provenance_T)
        return ProgramCosts(duration_N, provenance_T, communications + self.measured)

    @cached_property
    def _repeats_at(self) -> FloatArray:
        """How often each of those that are to be estimated runs."""
        repeats_at: FloatArray = self.program.ops.repeats_T[self.program.row_N[self.at]]
        return repeats_at


class _Distinct(NamedTuple):
    """The distinct communications among some operations."""

    placements: list[Placement]
    placement_at: IntArray
    size_at: IntArray
    """What the busiest member sends or receives, where members move unequal amounts."""
    first_U: IntArray
    """An operation of each, by its place."""
    which_at: IntArray
    count_U: IntArray
    """Times that the rank that runs it most often runs it."""


def _distinct(program: Program, at: IntArray, location_LW: IntArray, *more_T: IntArray) -> _Distinct:
    """Tell operations apart by placement, group, operation, size and further columns of their templates."""
    ops, row_at = program.ops, program.row_N[at]
    placements, placement_at = _placements(program, at, location_LW)
    size_at = _busiest_bytes(program, at)
    kind_T, kinds = _pair_number(ops.group_T, ops.operation_T)
    more_number_T, more = _pair_number(*more_T)
    sizes, number_at = _size_numbers(program, at, size_at)
    key_at = ((placement_at * kinds + kind_T[row_at]) * sizes + number_at) * more
    key_at += more_number_T[row_at] if more_T else 0
    first_U, which_at = numbered(key_at)
    # How often the rank runs it that runs it most.
    shape = len(program.rank_R), len(first_U)
    rank_at = np.repeat(np.arange(shape[0]), np.diff(program.op_ptr_R1))[at]
    run_at = rank_at * shape[1] + which_at
    runs_RU = np.bincount(run_at, ops.repeats_T[row_at], shape[0] * shape[1]).reshape(shape)
    count_U = np.rint(runs_RU.max(axis=0, initial=0.0)).astype(np.int64)
    return _Distinct(placements, placement_at, size_at, first_U, which_at, count_U)


def _size_numbers(program: Program, at: IntArray, size_at: IntArray) -> tuple[int, IntArray]:
    """Return how many sizes there are, and the number of each operation's, in rising order."""
    size_T = program.ops.size_bytes_T
    if np.array_equal(size_T[program.row_N[at]], size_at):
        # The sizes of templates are fewer to sort.
        sizes, number_T = np.unique(size_T, return_inverse=True)
        return len(sizes), number_T[program.row_N[at]]
    sizes, number_at = np.unique(size_at, return_inverse=True)
    return len(sizes), number_at


def _pair_number(*columns_T: IntArray) -> tuple[IntArray, int]:
    """Return a number for each combination of some columns, in their order, and how many there may be."""
    number_T, count = np.zeros(1, dtype=np.int64), 1
    for column_T in columns_T:
        # -1 stands for what is not communication, and is not asked for.
        known_T, values = np.maximum(column_T.astype(np.int64), 0), int(column_T.max(initial=0)) + 1
        number_T, count = number_T * values + known_T, count * values
    return number_T, count


def _to_estimate(program: Program, at: IntArray, location_LW: IntArray) -> tuple[tuple[_Communication, ...], IntArray]:
    """Return the distinct ones of some communications, and which one each is."""
    if not len(at):
        return (), np.zeros(0, dtype=np.int64)
    ops, row_at = program.ops, program.row_N[at]
    processes, process_T = np.unique(ops.process_s_T, return_inverse=True)
    numbers = {loads: number for number, loads in enumerate(dict.fromkeys(ops.loads_T))}
    loads_T = np.array([numbers[loads] for loads in ops.loads_T], dtype=np.int64)
    distinct = _distinct(program, at, location_LW, process_T, loads_T)
    found = tuple(
        _Communication(
            Group(int(ops.group_T[row])),
            Operation(int(ops.operation_T[row])),
            int(distinct.size_at[place]),
            distinct.placements[int(distinct.placement_at[place])],
            ops.loads_T[row],
            float(processes[process_T[row]]),
            int(count),
        )
        for place, row, count in zip(distinct.first_U, row_at[distinct.first_U], distinct.count_U, strict=True)
    )
    return found, distinct.which_at


def _estimated(
    asked: Sequence[_Communication], links: "_Links", kinds: Container[Group] | None
) -> tuple[tuple[CommunicationCost, ...], FloatArray]:
    """Return distinct communications of some kinds over the links, the most time first, and the seconds of each."""
    time_s_U = np.full(len(asked), np.nan)
    found: dict[tuple[object, ...], CommunicationCost] = {}
    for index, (group, operation, size, placement, load, after_s, count) in enumerate(asked):
        if kinds is not None and group not in kinds:
            continue
        cost = links.cost(group, operation, size, placement, load)
        process_s = 0.0 if links.cluster.ideal or placement.ranks == 1 else after_s
        time_s_U[index] = cost.time_s + process_s
        key = (group, operation, size, placement, load)
        if placement.ranks > 1:
            before = found[key].count if key in found else 0
            found[key] = CommunicationCost(group, operation, size, placement, cost, before + count, load)
    order = sorted(found.values(), key=lambda each: (-each.count * each.cost.time_s, each.group, each.size_bytes))
    return tuple(order), time_s_U


def _busiest_bytes(program: Program, at: IntArray) -> IntArray:
    """Return the sizes of communications; where members move unequal amounts, that of the busiest."""
    ops, row_at = program.ops, program.row_N[at]
    size_at = ops.size_bytes_T[row_at]
    free_at = ops.may_differ_T[row_at]
    size_at[free_at] = np.maximum(size_at, ops.received_bytes_T[row_at])[free_at]
    rendezvous_at = program.rendezvous_N[at]
    joined = np.flatnonzero(free_at & (rendezvous_at >= 0))
    if len(joined):
        _, which = np.unique(rendezvous_at[joined], return_inverse=True)
        most = np.full(int(which.max()) + 1, -1, dtype=size_at.dtype)
        np.maximum.at(most, which, size_at[joined])
        size_at[joined] = most[which]
    return size_at


def _measured_distinct(
    program: Program, at: IntArray, duration_s_at: FloatArray, location_LW: IntArray
) -> tuple[CommunicationCost, ...]:
    """Return the distinct communications whose times the input gives, with the mean of these times."""
    if not len(at):
        return ()
    ops, row_at = program.ops, program.row_N[at]
    distinct = _distinct(program, at, location_LW)
    represented_at = np.repeat(program.represents_R, np.diff(program.op_ptr_R1))[at]
    means = _means(duration_s_at, distinct.which_at, represented_at, len(distinct.first_U))
    found = []
    for place, time_s, count in zip(distinct.first_U, means, distinct.count_U.tolist(), strict=True):
        group, operation = Group(int(ops.group_T[row_at[place]])), Operation(int(ops.operation_T[row_at[place]]))
        placement, size = distinct.placements[int(distinct.placement_at[place])], int(distinct.size_at[place])
        if placement.ranks > 1 and size >= 0:
            found.append(
                CommunicationCost(group, operation, size, placement, CollectiveCost(time_s, "measured"), count)
            )
    return tuple(found)


def _means(value_at: FloatArray, which_at: IntArray, weight_at: IntArray, count: int) -> list[float]:
    """Return the weighted mean of the values of each kind, [U], to the last bit whatever their order and grouping.

    Equal values count together, so that a value of weight 2 is the same as two of weight 1.
    """
    order = np.lexsort((value_at, which_at))
    value, which = value_at[order], which_at[order]
    first = np.flatnonzero(np.concatenate([[True], (which[1:] != which[:-1]) | (value[1:] != value[:-1])]))
    weight = np.add.reduceat(weight_at[order].astype(np.int64), first)
    first_of_kind = np.searchsorted(which[first], np.arange(count + 1)).tolist()
    means = []
    for begin, end in pairwise(first_of_kind):
        values, weights = value[first[begin:end]].tolist(), weight[begin:end].tolist()
        above = math.fsum(w * (v - values[0]) for v, w in zip(values, weights, strict=True))
        means.append(values[0] + above / sum(weights))
    return means


class _Links(Struct, frozen=True):
    """What lies between the members of a group."""

    cluster: Cluster
    contended: Mapping[Group, Cluster]
    busbw: Mapping[str, float]
    factor: Mapping[Group, float]
    known: KnownCosts

    def cost(
        self, group: Group, operation: Operation, size_bytes: int, placement: Placement, loads: Loads | None = None
    ) -> CollectiveCost:
        """Return the cost of a communication over them; of unequal loads what each member moves is given."""
        cluster, name = self.contended.get(group, self.cluster), group.name.lower()
        rate = self.busbw.get(f"{name}.{operation.name.lower()}", self.busbw.get(name))
        if operation is Operation.SEND_RECV:
            placement, loads = Placement((2,) if placement.nodes == 1 else (1, 1)), None
        if loads is not None:
            # Tokens go to the busiest expert rank or come back from it: its load is what it receives or sends.
            moved = [load * size_bytes for load in loads]
            cost = estimate_collective(operation, size_bytes, placement, cluster, rate, loads=moved)
        else:
            key = operation, size_bytes, placement, cluster, rate
            cost = self.known.get(key) or estimate_collective(*key)
            self.known[key] = cost
        factor = self.factor.get(group, 1.0) if rate is None else 1.0
        return cost if factor == 1.0 else replace(cost, time_s=cost.time_s * factor)


def _placements(program: Program, at: IntArray, location_LW: IntArray) -> tuple[list[Placement], IntArray]:
    """Return the distinct placements, and which one each operation at `at` has; a message's are its two ends."""
    peer_at = program.peer_stage_N[at].astype(np.int64)
    stage_at = np.where(peer_at < 0, -1, program.stage_N[at])
    stages = int(program.stage_R.max()) + 2
    key_at = (program.group_N[at].astype(np.int64) * stages + stage_at + 1) * stages + peer_at + 1
    numbers: dict[Placement, int] = {}
    first_K, inverse_at = numbered(key_at)
    of_key = []
    for key in key_at[first_K].tolist():
        group, stage, peer = key // stages**2, key // stages % stages - 1, key % stages - 1
        members = program.groups[group].members
        if peer < 0:
            placement = placement_of(members, location_LW)
        else:
            placement = ends_of(int(members[stage]), int(members[peer]), location_LW)
        of_key.append(numbers.setdefault(placement, len(numbers)))
    return list(numbers), np.array(of_key, dtype=np.int64)[inverse_at]
