"""A layout: everything of a job that is not what is trained, on what, and how much of it."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from traincast.job.fields import FIELDS, GROUPS, JOB, PARALLEL, PLAN, Field, shown_in
from traincast.units import format_share

Settings = tuple[tuple[str, Any], ...]
"""Fields of a job with their values, in order."""


class Layout(Struct, frozen=True, kw_only=True):
    """How a job is laid out and executed; the fields are those of `traincast.job.request.JobRequest`, all decided."""

    gpus: int
    tp: int
    pp: int
    vpp: int
    cp: int
    dp: int
    ep: int
    etp: int
    micro_batch: int
    microbatches: int
    schedule: str
    sequence_parallel: bool
    zero: int
    shard: int
    recompute: str
    recompute_layers: int | None = None
    recompute_method: str | None = None
    recompute_modules: tuple[str, ...] | None = None
    reshard_after_forward: bool = True
    """Without meaning where parameters are not sharded (below ZeRO-3)."""
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    overlap_tp: bool = False
    precision: str = "bf16"
    cp_kind: str = "ring"
    moe_dispatcher: str | None = None
    """None where the model has no experts."""
    moe_a2a_overlap: bool = False
    offload_optimizer: float = 0.0
    offload_activations: int = 0
    software: Settings = ()
    """What of the framework's software is set otherwise than it sets it by itself."""

    @property
    def replicas(self) -> int:
        """Ranks with equal dense parameters."""
        return self.dp * self.cp

    @property
    def experts(self) -> bool:
        """Whether the model has experts."""
        return self.moe_dispatcher is not None

    def request(self) -> dict[str, Any]:
        """Return it as fields of a `JobRequest`; what has no effect on this layout, and what stays, is left out."""
        found: dict[str, Any] = {}
        for field in _FIELDS:
            value = getattr(self, field.name)
            found[field.name] = value if field.matters(self) and (value or field.group != "offload") else None
        return found | dict(self.software)

    @property
    def text(self) -> str:
        """The layout in a line, degrees first, what is usual left out."""
        # Of sharding it says always whether there is any.
        matters = [field for field in _LINE if field.matters(self) or field.name == "zero"]
        told = [field for field in matters if self._value(field) != field.usual]
        words = [(field in _DEGREES, field.line.replace("{}", self._value(field))) for field in told]
        degrees = " ".join(word for is_degree, word in words if is_degree)
        return ", ".join([degrees, *(word for is_degree, word in words if not is_degree)])

    def _value(self, field: Field) -> str:
        """Return the value of a field as the line has it."""
        value = getattr(self, field.name)
        if field.name == "recompute" and value != "none":
            return self.recomputed
        if field.name == "zero" and value > 0 and self.shard < self.replicas:
            return f"{value} over {self.shard}"
        return format_share(value, None) if isinstance(value, float) and value else said(value)

    @property
    def recomputed(self) -> str:
        """What is recomputed, in words."""
        if self.recompute == "selective":
            return f"recompute {' '.join(self.recompute_modules or ('core_attn',))}"
        if self.recompute == "none":
            return "no recompute"
        if self.recompute_method == "uniform":
            return f"recompute full, groups of {self.recompute_layers}"
        return "recompute full" + (f", {self.recompute_layers} layers" if self.recompute_layers else "")


class Estimate(Struct, frozen=True, kw_only=True):
    """A layout by the closed forms of the screen alone."""

    layout: Layout
    step_s: float
    peak_bytes: float


Estimated = Callable[[tuple[Estimate, ...]], None]
"""Who is handed layouts as they are estimated."""


def software_text(layout: Layout) -> str:
    """Return the settings of software of a layout as a table has them: ``te_op_fuser=on cuda_graph_impl=local``."""
    return settings_text(layout.software)


def settings_text(settings: Settings) -> str:
    """Return settings in words: ``cuda_graph_impl=full_iteration te_op_fuser=on``."""
    return " ".join(f"{name}={said(value).replace(' ', '+')}" for name, value in settings)


def said(value: object) -> str:
    """Return a value of a field in words."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "all" if value is None else ("on" if value else "off") if isinstance(value, bool) else str(value)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return fields in the order in which a layout has them, others last."""
    order = {name: at for at, name in enumerate(Layout.__struct_fields__)}
    return tuple(sorted(names, key=lambda name: order.get(name, len(order))))


COLUMNS = in_order(shown_in(PLAN))
"""Fields of a layout that tables of plans and sweeps have."""

_FIELDS = tuple(FIELDS[name] for name in COLUMNS if JOB in FIELDS[name].of)
_TOLD = [FIELDS[name] for name in shown_in(PLAN) if FIELDS[name].line]
_DEGREES = tuple(field for field in _TOLD if PARALLEL in field.shown and field.takes == "count")
_OTHERS = sorted((each for each in _TOLD if each not in _DEGREES), key=lambda each: GROUPS.index(each.group))
_LINE = (*_DEGREES, *_OTHERS)
