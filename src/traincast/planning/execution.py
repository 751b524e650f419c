"""The ways to execute a plan's layouts: types, exchanges of context and experts, switches, settings of software."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from traincast.errors import InfeasibleError
from traincast.job.condition_facts import layout_facts, precision_facts
from traincast.job.fields import ways
from traincast.job.frameworks import CP_KINDS
from traincast.job.parallel import expert_stride
from traincast.job.precision import check_gpu, precision_on
from traincast.planning.axes import Axes
from traincast.planning.degrees import Degrees, dispatchers_of
from traincast.planning.layout import Settings
from traincast.planning.sharding import offloaded_shares_of, only_zero_of
from traincast.planning.software import is_of_way, routed
from traincast.planning.usual import UsualSettings

PRECISIONS = ("bf16", "fp8", "fp8_block", "mxfp8")
"""Types that training is planned in, as far as the GPU has them."""

_LEAST_DISPATCHER = "deepep"
"""Dispatcher with the fewest kernels of its own."""

_WAYS = ways()


class Variant(Struct, frozen=True):
    """How a layout is executed: the same code for all its degrees."""

    precision: str
    cp_kind: str
    moe_dispatcher: str | None
    """None where the model has no experts."""
    offload_optimizer: float
    """Share of the optimizer's states that the host keeps and updates."""
    ways: tuple[tuple[str, bool], ...]
    """Every switch of `traincast.job.fields.ways`, by name."""
    software: Settings = ()
    """What of the framework's software is set otherwise than it sets it by itself, axes of a layout aside."""
    ideal: bool = False
    """Whether tokens get to their experts in no time: no way of execution, but one that bounds all others."""

    def fields(self) -> dict[str, Any]:
        """Return it as fields of a job."""
        return {**asdict(self), **dict(self.ways), **dict(self.software)}

    @property
    def settings(self) -> Settings:
        """What it sets of software, with what of that is an axis of a layout."""
        return (*self.ways, *self.software, ("moe_dispatcher", self.moe_dispatcher))


class ExecutionAxes:
    """The ways to execute the layouts of a plan."""

    def __init__(self, axes: Axes) -> None:
        self.axes, self.usual = axes, UsualSettings(axes)
        self._known: dict[tuple[Any, ...], tuple[Variant, ...]] = {}

    def variants(self, degrees: Degrees) -> tuple[Variant, ...]:
        """Return the ways of execution of some degrees."""
        kinds = _context_kinds(self.axes, degrees)
        choices = tuple((each, self._choices(degrees, each)) for each in precisions_of(self.axes))
        matters = tuple(each.matters(degrees) for each in _WAYS)
        key = kinds, choices, matters, degrees.ep > 1, self.usual.decisive(degrees)
        if key not in self._known:
            self._known[key] = tuple(
                dict.fromkeys(
                    Variant(precision, kind, dispatch, share, on, software)
                    for share in offloaded_shares_of(self.axes)
                    for precision, of_software in choices
                    for kind in kinds
                    for own, software in self._settings(degrees, precision, of_software)
                    for dispatch in dispatchers_of(self.axes, degrees.ep, own.get("moe_dispatcher"))
                    for on in self._ways(degrees, own)
                )
            )
        return self._known[key]

    def _choices(self, degrees: Degrees, precision: str) -> tuple[Settings, ...]:
        """Return the choices of software that are tried with some degrees."""
        if self.axes.held is not None:
            return ()
        domain = self.axes.cluster.gpus_per_node
        of = asdict(degrees)
        tp, cp, dp, ep, folded = degrees.tp, degrees.cp, degrees.dp, degrees.ep, self.axes.framework.folded_experts
        stride = expert_stride(tp=tp, cp=cp, dp=dp, ep=ep, etp=degrees.etp, folded=folded)
        known = of | layout_facts(cp=cp, dp=dp, ep=ep, stride=stride, domain=domain)
        known |= precision_facts(precision)
        return self.axes.software.choices(known | only_zero_of(self.axes, degrees.replicas))

    def _settings(
        self, degrees: Degrees, precision: str, choices: Iterable[Settings]
    ) -> Iterator[tuple[dict[str, Any], Settings]]:
        """Yield the settings of software with some choices, axes of a layout apart from the others."""
        if self.axes.held is not None:
            yield {}, self.axes.held
            return
        usual = {name: value for name, value in self.usual.settings(degrees, precision).items() if is_of_way(name)}
        for each in choices:
            yield routed(tuple(sorted({**usual, **dict(each)}.items())))

    def _ways(self, degrees: Degrees, own: Mapping[str, Any]) -> Iterator[tuple[tuple[str, bool], ...]]:
        """Yield every choice of switches that are axes of a layout: as some settings say, else as `switches` does."""
        choices = [
            self.axes.among(each.name, (own[each.name],))
            if each.name in own and each.matters(degrees)
            else self.switches(each.name, able=each.matters(degrees), degrees=degrees)
            for each in _WAYS
        ]
        names = [each.name for each in _WAYS]
        yield from (tuple(zip(names, on, strict=True)) for on in product(*choices))

    def switches(self, name: str, *, able: bool, degrees: Degrees | None = None) -> tuple[bool, ...]:
        """Return whether something is on, where it can be: both in the full space, else as the framework has it."""
        if not able:
            return (False,)
        axes = self.axes
        tried = (True, False) if axes.full else axes.software.overlaps.get(name)
        if tried is None:
            tried = (bool(self.usual.settings(degrees).get(name, getattr(axes.framework, name, False))),)
        return axes.among(name, tried)

    def is_usual(self, variant: Variant) -> bool:
        """Say whether tokens get to their experts as recipes have it, where there are several ranks for them."""
        usual = self.usual.of_recipes(variant.precision)
        said = {**dict(variant.ways), "moe_dispatcher": variant.moe_dispatcher}
        return all(said[name] == value for name, value in usual.items() if name in said)

    def ideal(self, variant: Variant) -> tuple[Variant, ...]:
        """Return the ways of execution of which one is never slower than any choice of software.

        Switched off, ways take nothing of the GPU and the host; two passes at once hide what the host does.
        """
        off = tuple((name, False) for name, _ in variant.ways)
        dispatcher = None if variant.moe_dispatcher is None else _LEAST_DISPATCHER
        software = self.axes.software.ideal(precision_facts(variant.precision))
        best = replace(variant, ways=off, moe_dispatcher=dispatcher, software=software, ideal=True)
        return tuple(dict.fromkeys((best, replace(best, ways=variant.ways))))


def precisions_of(axes: Axes) -> tuple[str, ...]:
    """Return the types of the GEMMs."""
    gpu = axes.cluster.gpu
    default = "bf16" if gpu.generation.bf16 else "fp16"
    found = []
    for name in axes.among("precision", PRECISIONS if axes.full else (default,)):
        try:
            known = precision_on(name, gpu)
            check_gpu(known, gpu)
        except InfeasibleError:
            continue
        found.append(known)
    return tuple(found)


def _context_kinds(axes: Axes, degrees: Degrees) -> tuple[str, ...]:
    """Return how ranks may exchange what attention needs of other parts of a sequence."""
    request, cp, tp = axes.request, degrees.cp, degrees.tp
    if cp == 1:
        return (request.cp_kind or axes.framework.cp_kind,)
    usual = CP_KINDS if axes.full else (axes.framework.cp_kind,)
    heads, causal = request.model.attention.heads, request.model.attention.causal
    able = {
        "all_to_all": heads % (cp * tp) == 0 and request.seq_length % cp == 0,
        "ring": request.seq_length % (2 * cp if causal else cp) == 0,
    }
    able["all_gather"] = able["ring"]
    return tuple(kind for kind in axes.among("cp_kind", usual) if able[kind])
