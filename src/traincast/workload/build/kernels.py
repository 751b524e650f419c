"""The operator calls of the parts of a model, forward and backward.

The backward pass of a GEMM is two GEMMs of its own: dgrad turns the gradient of the output into that of the input,
wgrad into that of the weight, which it adds to the gradient buffer.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from traincast.model.blocks.part import Exchange as PartExchange
from traincast.model.blocks.part import Gemm, Kernel, Part
from traincast.workload.calls import OperatorCall
from traincast.workload.words import Group, Operation

Counted = tuple[OperatorCall, float]
"""A call and how often it runs."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A communication that is done so many times in a pass."""

    group: Group
    operation: Operation
    size_bytes: int
    count: float = 1


@dataclass(frozen=True, slots=True)
class ForwardWork:
    """What a module of a layer runs and exchanges in the forward pass."""

    calls: list[Counted] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)


@dataclass(slots=True)
class Work:
    """What some parts run and exchange in each pass; the backward pass meets their exchanges from the last part on."""

    forward: list[Counted] = field(default_factory=list)
    backward: list[Counted] = field(default_factory=list)
    weight: list[Counted] = field(default_factory=list)
    """Weight gradients."""
    forward_exchanges: list[Exchange] = field(default_factory=list)
    backward_exchanges: list[Exchange] = field(default_factory=list)
    modules: dict[str, ForwardWork] = field(default_factory=dict)
    """The share of the forward pass of each module that can be recomputed by itself; one may hold another."""

    def add(self, part: Part, *, trained: bool) -> None:
        """Add a part; `trained` says whether its weights are."""
        calls = [*map(_gemm, part.gemms), *map(_kernel, part.kernels)]
        runs = [(call, count) for call, count in calls if min(call.shape) > 0]
        exchanges = _exchanges(part.forward)
        self.forward += runs
        self.forward_exchanges += exchanges
        self.backward_exchanges = _exchanges(part.backward) + self.backward_exchanges
        for name in part.modules:
            module = self.modules.setdefault(name, ForwardWork())
            module.calls.extend(runs)
            module.exchanges.extend(exchanges)
        products = [(call, count) for call, count in map(_gemm, part.gemms) if min(call.shape) > 0]
        self.backward += [(replace(call, direction="dgrad"), count) for call, count in products]
        self.weight += [(replace(call, direction="wgrad"), count) for call, count in products if trained]
        for kernel in part.kernels:
            call, count = _kernel(kernel)
            if kernel.has_backward and min(call.shape) > 0:
                again = call if kernel.backward_alike else replace(call, direction="backward")
                self.backward.append((again, count))


def work_of(parts: Iterable[Part], *, trains_weights: bool) -> Work:
    """Return the work of some parts.

    Parameters
    ----------
    parts : iterable of Part
        The parts, of numbers.
    trains_weights : bool
        Whether all weights are trained, not adapters alone.
    """
    work = Work()
    for part in parts:
        work.add(part, trained=trains_weights or part.adapter)
    return work


def _gemm(gemm: Gemm) -> Counted:
    """Return the forward call of a GEMM; one expert alone is a plain one."""
    shape = (gemm.m, gemm.n, gemm.k)
    if gemm.groups > 1:
        return OperatorCall(family="grouped_gemm", shape=(*shape, gemm.groups), dtype=gemm.dtype), 1
    return OperatorCall(family="gemm", shape=shape, dtype=gemm.dtype), 1


def _kernel(kernel: Kernel) -> Counted:
    call = OperatorCall(
        family=kernel.family,
        shape=kernel.shape,
        dtype=kernel.dtype,
        causal=kernel.causal,
        window=kernel.window,
        options=kernel.options,
    )
    return call, kernel.count


def _exchanges(exchanges: Iterable[PartExchange]) -> list[Exchange]:
    return [
        Exchange(Group[each.group.upper()], Operation[each.operation.upper()], each.size_bytes, each.count)
        for each in exchanges
        if each.size_bytes > 0
    ]
