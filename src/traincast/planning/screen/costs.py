"""What blocks of a model cost on many shares of the work at once: the parts, operators and factors of forecasts.

The parts of a block are evaluated with arrays of degrees and sizes; of the operators that come out only the distinct
ones are estimated, by the very function that a forecast of one job calls.

Letters: K shares.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.estimate.contention import OVERLAP_SLOWDOWN
from traincast.estimate.program import OperatorSeconds
from traincast.lowering.work import call_of, runs_of
from traincast.model.blocks.part import Elements, Exchange, Gemm, Kernel, Part
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number
from traincast.model.structure import Blocks, RankParts
from traincast.workload.ops import FloatArray, IntArray, OperatorCall
from traincast.workload.words import Group, Operation, Phase

_SLOWDOWN = {
    "compute": OVERLAP_SLOWDOWN["compute"],
    "memory": OVERLAP_SLOWDOWN["memory"],
    "latency": OVERLAP_SLOWDOWN["small"],
}
"""Slowdown of a kernel at full overlap, by what it is bound by."""


class Transfer(Struct, frozen=True):
    """A communication of a pass, on every share; one of 0 bytes does not take place."""

    group: Group
    operation: Operation
    size_bytes_K: IntArray
    count: float
    goes: str = ""
    """Whether it takes tokens ``out`` to their experts or brings them ``back``."""


class PassCosts(Struct):
    """One pass of some blocks: seconds of its computation alone, what an overlap adds at most, and its transfers."""

    compute_s_K: FloatArray
    slowed_s_K: FloatArray
    """Seconds by which the computation is longer where all of it is overlapped with communication."""
    launches_K: FloatArray
    transfers: list[Transfer] = field(default_factory=list)

    @classmethod
    def nothing(cls, shares: int) -> "PassCosts":
        """Return a pass in which nothing runs."""
        return cls(np.zeros(shares), np.zeros(shares), np.zeros(shares))

    def add(self, other: "PassCosts", count: float = 1.0) -> None:
        """Add another pass so many times."""
        self.compute_s_K = self.compute_s_K + other.compute_s_K * count
        self.slowed_s_K = self.slowed_s_K + other.slowed_s_K * count
        self.launches_K = self.launches_K + other.launches_K * count
        for each in other.transfers:
            self.exchange(each, count)

    def exchange(self, transfer: Transfer, count: float = 1.0) -> None:
        """Add a transfer so many times; equal ones are one."""
        added = transfer.count * count
        for place, known in enumerate(self.transfers):
            alike = (known.group, known.operation, known.goes) == (transfer.group, transfer.operation, transfer.goes)
            if alike and np.array_equal(known.size_bytes_K, transfer.size_bytes_K):
                self.transfers[place] = replace(known, count=known.count + added)
                return
        self.transfers.append(replace(transfer, count=added))


class BlockCosts(Struct):
    """Every pass of some blocks, and the share of the forward pass of each module that can be recomputed alone."""

    passes: dict[Phase, PassCosts]
    places: dict[tuple[str, Phase], PassCosts]
    """What of them runs at each place beside the exchanges of tokens with their experts."""
    modules: dict[str, PassCosts]

    def at(self, place: str) -> dict[Phase, PassCosts]:
        """Return what runs at a place in each pass."""
        nothing = PassCosts.nothing(len(self.passes[Phase.FORWARD].compute_s_K))
        return {phase: self.places.get((place, phase), nothing) for phase in self.passes}


class Operators(Struct):
    """The time of operator calls on arrays; every distinct call is estimated once."""

    seconds: OperatorSeconds
    _known: dict[OperatorCall, tuple[float, float]] = field(default_factory=dict)

    def of(self, what: Gemm | Kernel, direction: str, shares: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return seconds, the seconds that a full overlap adds, and whether it runs at all, each [K]."""
        numbers = (what.m, what.n, what.k, what.groups) if isinstance(what, Gemm) else (*what.shape, what.causal)
        rows_DK = np.stack([np.broadcast_to(np.asarray(each, dtype=np.int64), shares) for each in numbers])
        distinct_DU, which_K = _distinct_columns(rows_DK)
        found = np.array([self._one(what, direction, tuple(row)) for row in distinct_DU.T.tolist()])
        time_s_K, slowed_s_K, runs_K = found[which_K].T
        return time_s_K, slowed_s_K, runs_K

    def _one(self, what: Gemm | Kernel, direction: str, row: tuple[int, ...]) -> tuple[float, float, float]:
        if min(row[: len(row) - isinstance(what, Kernel)]) < 1:
            return 0.0, 0.0, 0.0
        if isinstance(what, Gemm):
            m, n, k, groups = row
            call = call_of(replace(what, m=m, n=n, k=k, groups=groups), direction)
        else:
            call = call_of(replace(what, shape=row[:-1], causal=bool(row[-1])), direction)
        if call not in self._known:
            time_s = self.seconds.of(call)
            self._known[call] = time_s, time_s * _SLOWDOWN[self.seconds.alone(call)[0].bound]
        return (*self._known[call], 1.0)


def _distinct_columns(rows_DK: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct columns of a table of whole numbers, and which of them each column is."""
    key_K = np.zeros(rows_DK.shape[1], dtype=np.int64)
    for row_K in rows_DK:
        values, which_K = np.unique(row_K, return_inverse=True)
        if len(values) > 1:
            key_K = np.unique(key_K * len(values) + which_K, return_inverse=True)[1]
    _, first, which_K = np.unique(key_K, return_index=True, return_inverse=True)
    return rows_DK[:, first], which_K


@dataclasses.dataclass(slots=True)
class CostTable:
    """Costs, parts and parameters of blocks on shares [K] of one execution."""

    share: Share
    """Its degrees and sizes are arrays [K], or numbers."""
    shares: int
    operators: Operators
    parts: RankParts = dataclasses.field(init=False)
    _costs: dict[Blocks, BlockCosts] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the place of the parts."""
        self.parts = RankParts(self.share)

    def elements(self, blocks: Blocks) -> Elements:
        """Return the parameters of some blocks, of numbers and arrays [K]."""
        return self.parts.elements(blocks)

    def of(self, blocks: Blocks) -> BlockCosts:
        """Return what some blocks cost."""
        if blocks not in self._costs:
            self._costs[blocks] = self._work(self.parts.of(blocks))
        return self._costs[blocks]

    def _work(self, parts: list[Part]) -> BlockCosts:
        phases = (Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT)
        found = BlockCosts({phase: PassCosts.nothing(self.shares) for phase in phases}, {}, {})
        trains = self.share.trains_weights
        for part in parts:
            modules = [found.modules.setdefault(name, PassCosts.nothing(self.shares)) for name in part.modules]
            for phase, what, direction, count in runs_of(part, self.share, trained=trains or part.adapter):
                time_s_K, slowed_s_K, runs_K = self.operators.of(what, direction, self.shares)
                one = PassCosts(time_s_K, slowed_s_K, runs_K)
                among = [found.passes[phase], *(modules if phase is Phase.FORWARD else ())]
                if part.place:
                    among.append(found.places.setdefault((part.place, phase), PassCosts.nothing(self.shares)))
                for each in among:
                    each.add(one, count)
            for each in (found.passes[Phase.FORWARD], *modules):
                self._exchange(each, part.forward)
        for part in reversed(parts):
            self._exchange(found.passes[Phase.BACKWARD], part.backward)
        return found

    def _exchange(self, costs: PassCosts, exchanges: tuple[Exchange, ...]) -> None:
        for each in exchanges:
            size_K = np.broadcast_to(np.asarray(each.size_bytes, dtype=np.int64), self.shares)
            if size_K.any():
                group, operation = Group[each.group.upper()], Operation[each.operation.upper()]
                costs.exchange(Transfer(group, operation, size_K, float(each.count), each.goes))


def at(value: Number, rows: IntArray, shares: int) -> FloatArray:
    """Return a number or array [K] at some of its places."""
    found: FloatArray = np.broadcast_to(np.asarray(value, dtype=np.float64), shares)[rows]
    return found


def passes_together(each: Mapping[Phase, PassCosts], *phases: Phase) -> PassCosts:
    """Return some passes as one."""
    first, *others = (each[phase] for phase in phases)
    total = PassCosts(first.compute_s_K, first.slowed_s_K, first.launches_K, list(first.transfers))
    for other in others:
        total.add(other)
    return total
