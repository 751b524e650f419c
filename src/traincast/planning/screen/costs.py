"""What blocks of a model cost on many shares of the work at once: the parts, operators and factors of forecasts.

The parts of a block are evaluated with arrays of degrees and sizes; of the operators that come out only the distinct
ones are estimated, by the very function that a forecast of one job calls.

Letters: K shares.
"""

import dataclasses
import math
from collections.abc import Iterable
from itertools import repeat
from typing import Self

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.estimate.contention import OVERLAP_SLOWDOWN
from traincast.estimate.program import OperatorSeconds
from traincast.lowering.work import Exchange, Pass, Work, call_of, exchanged_alongside, runs_of
from traincast.model.blocks.part import Elements, Gemm, Kernel, Part
from traincast.model.blocks.part import Exchange as PartExchange
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number, anywhere
from traincast.model.structure import Blocks, RankParts
from traincast.workload.ops import FloatArray, IntArray, OperatorCall
from traincast.workload.words import Group, Operation, Phase

_SLOWDOWN = {
    "compute": OVERLAP_SLOWDOWN["compute"],
    "memory": OVERLAP_SLOWDOWN["memory"],
    "latency": OVERLAP_SLOWDOWN["small"],
}
"""Slowdown of a kernel at full overlap, by what it is bound by."""


class ArrayExchange(Exchange):
    """A communication whose bytes are an array [K]; where they are 0 it does not take place. Each is itself alone."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same one."""
        return self is other

    def __ne__(self, other: object) -> bool:
        """Return whether it is another one."""
        return self is not other


class PassCosts(Pass):
    """One pass of some blocks on shares [K]: its calls are seconds, and its exchanges have arrays of bytes."""

    runs: bool = False
    """Whether anything is computed on any share."""
    compute_s_K: FloatArray | float = 0.0
    slowed_s_K: FloatArray | float = 0.0
    """Seconds by which the computation is longer where all of it is overlapped with communication."""

    def add(self, other: Self, count: float = 1.0) -> None:
        """Add another pass so many times."""
        if other.runs and (count.any() if isinstance(count, np.ndarray) else count):
            self.runs = True
            self.compute_s_K = self.compute_s_K + other.compute_s_K * count
            self.slowed_s_K = self.slowed_s_K + other.slowed_s_K * count
        for each, often in other.exchanges.items():
            self.meet(each, often * count)

    def meet(self, exchange: Exchange, often: float) -> None:
        """Add an exchange so many times; equal ones are one."""
        for known in self.exchanges:
            alike = (known.group, known.operation, known.goes) == (exchange.group, exchange.operation, exchange.goes)
            if alike and (known is exchange or np.array_equal(known.size_bytes, exchange.size_bytes)):
                self.exchanges[known] += often
                return
        self.exchanges[exchange] = often

    def exchange(self, exchanges: Iterable[PartExchange]) -> None:
        """Add the exchanges of a part that take place for any share."""
        for each in exchanges:
            if anywhere(each.size_bytes):
                group, operation = Group[each.group.upper()], Operation[each.operation.upper()]
                self.meet(ArrayExchange(group, operation, each.size_bytes, each.goes), each.count)

    def without(self, *some: Self) -> "PassCosts":
        """Return its computation without that of some others."""
        compute_s_K, slowed_s_K = self.compute_s_K, self.slowed_s_K
        for each in some:
            compute_s_K, slowed_s_K = compute_s_K - each.compute_s_K, slowed_s_K - each.slowed_s_K
        return PassCosts(
            runs=self.runs, compute_s_K=np.maximum(compute_s_K, 0.0), slowed_s_K=np.maximum(slowed_s_K, 0.0)
        )


Timed = tuple[FloatArray, FloatArray, FloatArray]
"""Seconds, the seconds that a full overlap adds, and whether it runs at all, each [K]."""


class Operators(Struct):
    """The time of operator calls on arrays; every distinct call is estimated once."""

    seconds: OperatorSeconds
    _known: dict[OperatorCall, tuple[float, float]] = field(default_factory=dict)
    _found: dict[tuple[object, ...], Timed] = field(default_factory=dict)

    def estimated(self, what: Gemm | Kernel, direction: str, shares: int) -> Timed:
        """Return what a GEMM or kernel takes on shares, with sizes that are numbers or arrays [K]."""
        one: Gemm | Kernel
        if isinstance(what, Gemm):
            numbers, one = (what.m, what.n, what.k, what.groups), replace(what, m=1, n=1, k=1, groups=1)
        else:
            numbers, one = (*what.shape, what.causal), replace(what, shape=(), causal=True, count=1)
        sizes = [np.asarray(each, dtype=np.int64).reshape(-1) for each in numbers]
        key = (one, direction, shares, *(each.tobytes() for each in sizes))
        if key not in self._found:
            columns = (repeat(each.item(), shares) if each.size == 1 else each.tolist() for each in sizes)
            rows_K = list(zip(*columns, strict=True))
            calls = {row: _call(what, direction, row) for row in dict.fromkeys(rows_K)}
            self.seconds.prepare(call for call in calls.values() if call is not None)
            found = {row: self._one(call) for row, call in calls.items()}
            time_s_K, slowed_s_K, runs_K = np.array([found[row] for row in rows_K]).T
            self._found[key] = time_s_K, slowed_s_K, runs_K
        return self._found[key]

    def on_layouts(self, what: Gemm | Kernel) -> FloatArray:
        """Return the seconds of a GEMM or kernel whose sizes are numbers or arrays of layouts, forward."""
        sizes = (what.m, what.n, what.k, what.groups) if isinstance(what, Gemm) else what.shape
        shape = np.broadcast_shapes(*map(np.shape, sizes))
        flat = [np.broadcast_to(each, shape).reshape(-1) for each in sizes]
        if isinstance(what, Gemm):
            alike: Gemm | Kernel = replace(what, **dict(zip(("m", "n", "k", "groups"), flat, strict=True)))
        else:
            alike = replace(what, shape=tuple(flat))
        return self.estimated(alike, "forward", math.prod(shape))[0].reshape(shape)

    def _one(self, call: OperatorCall | None) -> tuple[float, float, float]:
        if call is None:
            return 0.0, 0.0, 0.0
        if call not in self._known:
            time_s = self.seconds.call_s(call)
            self._known[call] = time_s, time_s * _SLOWDOWN[self.seconds.alone(call)[0].bound]
        return (*self._known[call], 1.0)


def _call(what: Gemm | Kernel, direction: str, row: tuple[int, ...]) -> OperatorCall | None:
    """Return the call of a GEMM or kernel of some sizes; None where it does not run."""
    if min(row[: len(row) - isinstance(what, Kernel)]) < 1:
        return None
    if isinstance(what, Gemm):
        m, n, k, groups = row
        return call_of(replace(what, m=m, n=n, k=k, groups=groups), direction)
    return call_of(replace(what, shape=row[:-1], causal=bool(row[-1])), direction)


@dataclasses.dataclass(slots=True)
class CostTable:
    """Costs, parts and parameters of blocks on shares [K] of one execution."""

    share: Share
    """Its degrees and sizes are arrays [K], or numbers."""
    shares: int
    operators: Operators
    parts: RankParts = dataclasses.field(init=False)
    _costs: dict[Blocks, Work] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the place of the parts."""
        self.parts = RankParts(self.share)

    def elements(self, blocks: Blocks) -> Elements:
        """Return the parameters of some blocks, of numbers and arrays [K]."""
        return self.parts.elements(blocks)

    def work(self, blocks: Blocks) -> Work:
        """Return what some blocks cost."""
        if blocks not in self._costs:
            self._costs[blocks] = self._work(self.parts.of_blocks(blocks))
        return self._costs[blocks]

    def _work(self, parts: list[Part]) -> Work:
        work = Work({phase: PassCosts() for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT)})
        trains = self.share.trains_weights
        for part in parts:
            modules = [work.modules.setdefault(name, PassCosts()) for name in part.modules]
            alongside = exchanged_alongside(work, part, PassCosts)
            for phase, what, direction, count in runs_of(part, self.share, trained=trains or part.adapter):
                time_s_K, slowed_s_K, runs_K = self.operators.estimated(what, direction, self.shares)
                one = PassCosts(runs=bool(runs_K.any()), compute_s_K=time_s_K, slowed_s_K=slowed_s_K)
                among = [work.passes[phase], *(modules if phase is Phase.FORWARD else ())]
                if part.place:
                    among.append(work.places.setdefault((part.place, phase), PassCosts()))
                if direction in alongside:
                    among.append(alongside[direction])
                for each in among:
                    each.add(one, count)
            for each in (work.passes[Phase.FORWARD], *modules):
                each.exchange(part.forward)
        for part in reversed(parts):
            work.passes[Phase.BACKWARD].exchange(part.backward)
        return work


def at(value: Number, rows: IntArray, shares: int) -> FloatArray:
    """Return a number or array [K] at some of its places."""
    every = np.asarray(value, dtype=np.float64)
    found: FloatArray = every[rows] if every.shape == (shares,) else np.full(len(rows), every)
    return found
