"""What the parts of a model run and exchange in each pass: operator calls and communications, and how often.

The backward pass of a GEMM is two GEMMs of its own: dgrad turns the gradient of the output into that of the input,
wgrad into that of the weight, which it adds to the gradient buffer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Self

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.lowering.casts import casts_of
from traincast.model.blocks.common import gradient_sums
from traincast.model.blocks.part import Exchange as PartExchange
from traincast.model.blocks.part import Gemm, Kernel, Part
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number, anywhere
from traincast.workload.ops import OperatorCall
from traincast.workload.words import Group, Operation, Phase

_POINTWISE = ("activation", "elementwise", "rotary")
"""Families of kernels that a compiler can make a part of what precedes or follows them; norms reduce first."""
_ROUNDING = 1e-9
"""Share of a number of calls that is none, but what adding up left."""


class Exchange(NamedTuple):
    """A communication."""

    group: Group
    operation: Operation
    size_bytes: Number
    goes: str = ""
    """``out`` with tokens to their experts, ``back`` with what these made of them; empty for all else."""
    messages: int = 1
    """In how many collectives, one after another, the bytes go."""


class Pass(Struct):
    """Calls and exchanges, each with how often it is done, in the order in which they come first."""

    calls: dict[OperatorCall, float] = field(default_factory=dict)
    exchanges: dict[Exchange, float] = field(default_factory=dict)

    def add(self, other: Self, count: float = 1.0) -> None:
        """Add another pass so many times."""
        if count == 0:
            return
        for call, often in other.calls.items():
            self.run(call, often * count)
        for each, often in other.exchanges.items():
            self.meet(each, often * count)

    def meet(self, exchange: Exchange, often: float) -> None:
        """Add an exchange so many times."""
        self.exchanges[exchange] = self.exchanges.get(exchange, 0.0) + often

    def run(self, call: OperatorCall, often: float = 1.0) -> None:
        """Add a call, unless it has nothing to do."""
        if min(call.shape) > 0:
            self.calls[call] = self.calls.get(call, 0.0) + often

    def exchange(self, exchanges: Iterable[PartExchange]) -> None:
        """Add the exchanges of a part; those of 0 bytes do not take place, and no operation is made of them."""
        for each in exchanges:
            group, operation = Group[each.group.upper()], Operation[each.operation.upper()]
            self.meet(Exchange(group, operation, each.size_bytes, each.goes), each.count)

    def less(self, other: Self) -> Self:
        """Return it without the calls and exchanges of a part of it."""
        found = type(self)()
        found.add(self)
        found.add(other, -1.0)
        found.calls = {call: often for call, often in found.calls.items() if often > _ROUNDING}
        found.exchanges = {each: often for each, often in found.exchanges.items() if anywhere(often > _ROUNDING)}
        return found

    def without(self, *some: Self) -> "Pass":
        """Return its calls without those of some others."""
        left = {call: often - sum(each.calls.get(call, 0.0) for each in some) for call, often in self.calls.items()}
        return Pass({call: often for call, often in left.items() if often > _ROUNDING * self.calls[call]})

    def with_experts(self) -> tuple[dict[Exchange, float], dict[Exchange, float], dict[Exchange, float]]:
        """Return the exchanges that take tokens to their experts, those that bring them back, and all others."""
        way: tuple[dict[Exchange, float], dict[Exchange, float], dict[Exchange, float]] = ({}, {}, {})
        for each, often in self.exchanges.items():
            if not each.goes or anywhere(each.size_bytes):
                way[("out", "back").index(each.goes) if each.goes else 2][each] = often
        return way

    @property
    def launches(self) -> float:
        """Calls that the host launches."""
        return sum(self.calls.values())


class Work(Struct):
    """What some parts run and exchange in each pass; the backward pass meets their exchanges from the last part on."""

    passes: dict[Phase, Pass] = field(
        default_factory=lambda: {phase: Pass() for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT)}
    )
    places: dict[tuple[str, Phase], Pass] = field(default_factory=dict)
    """What of them runs at each place alongside the exchanges of tokens with their experts
    (`traincast.model.blocks.part.Part`)."""
    alongside: dict[tuple[str, str, str], Pass] = field(default_factory=dict)
    """What each part exchanges in the backward pass alongside its GEMMs of a direction, with these: by the name of the
    part, the direction, and the part's place."""
    modules: dict[str, Pass] = field(default_factory=dict)
    """The share of the forward pass of each module that can be recomputed by itself; one may hold another."""


def work_of(parts: list[Part], share: Share) -> Work:
    """Return the work of some parts for a rank's share, of numbers."""
    work = Work()
    for part in parts:
        _add(work, part, share, trained=share.trains_weights or part.adapter)
    for part in reversed(parts):
        work.passes[Phase.BACKWARD].exchange(part.backward)
    return work


def exchanged_alongside(work: Work, part: Part, nothing: Callable[[], Pass]) -> Mapping[str, Pass]:
    """Return what a part exchanges alongside its GEMMs, by their direction, to which these are to be added."""
    found: dict[str, Pass] = {}
    for direction in dict.fromkeys(each.alongside for each in part.backward if each.alongside):
        found[direction] = work.alongside.setdefault((part.name, direction, part.place), nothing())
        found[direction].exchange(each for each in part.backward if each.alongside == direction)
    return found


def _add(work: Work, part: Part, share: Share, *, trained: bool) -> None:
    modules = [work.modules.setdefault(name, Pass()) for name in part.modules]
    alongside = exchanged_alongside(work, part, Pass)
    for phase, what, direction, count in runs_of(part, share, trained=trained):
        call = call_of(what, direction)
        among = [work.passes[phase], *(modules if phase is Phase.FORWARD else ())]
        if part.place:
            among.append(work.places.setdefault((part.place, phase), Pass()))
        if direction in alongside:
            among.append(alongside[direction])
        for found in among:
            found.run(call, count)
    for found in (work.passes[Phase.FORWARD], *modules):
        found.exchange(part.forward)


def runs_of(part: Part, share: Share, *, trained: bool) -> Iterator[tuple[Phase, Gemm | Kernel, str, Number]]:
    """Yield what a part runs: the pass, the GEMM or kernel, the direction of the call, and how often."""
    kernels = [each for each in part.kernels if not (share.execution.fuses_pointwise and each.family in _POINTWISE)]
    casts = [casts_of(gemm, share, trained=trained) for gemm in part.gemms]
    for gemm, cast in zip(part.gemms, casts, strict=True):
        yield from ((Phase.FORWARD, each, "forward", 1) for each in cast.forward)
        yield Phase.FORWARD, gemm, "forward", 1
    for kernel in kernels:
        if kernel.has_forward:
            yield Phase.FORWARD, kernel, "forward", kernel.count
    for gemm, cast in zip(part.gemms, casts, strict=True):
        added = gradient_sums(share, gemm.elements)
        yield from ((Phase.BACKWARD, each, "forward", 1) for each in cast.backward)
        yield Phase.BACKWARD, gemm, "dgrad", 1
        if trained:
            made = replace(gemm, dtype=cast.weight_gradients or gemm.dtype, sums_gradients=not added)
            yield Phase.WEIGHT_GRADIENT, made, "wgrad", 1
            yield from ((Phase.WEIGHT_GRADIENT, each, "forward", 1) for each in added)
    for kernel in kernels:
        if kernel.has_backward:
            yield Phase.BACKWARD, kernel, "forward" if kernel.backward_alike else "backward", kernel.count


def call_of(what: Gemm | Kernel, direction: str = "forward") -> OperatorCall:
    """Return the call of a GEMM or kernel of numbers; one expert alone is a plain GEMM."""
    if isinstance(what, Kernel):
        return OperatorCall(
            family=what.family,
            shape=what.shape,
            dtype=what.dtype,
            direction=direction,
            causal=what.causal,
            window=what.window,
            options=what.options,
        )
    options: tuple[tuple[str, str], ...] = () if what.sums_gradients else (("accumulate", "none"),)
    family, grouped = ("grouped_gemm", (what.groups,)) if what.groups > 1 else ("gemm", ())
    if grouped and not what.in_one_kernel:
        options += (("kernel", "each"),)
    elif grouped and what.equal_groups:
        options += (("sizes", "equal"),)
    shape = (what.m, what.n, what.k, *grouped)
    return OperatorCall(family=family, shape=shape, dtype=what.dtype, direction=direction, options=options)
