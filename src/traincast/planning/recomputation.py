"""What the backward pass of a plan's layouts may recompute, or fetch back from the memory of the host."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from traincast.job.condition_facts import job_facts
from traincast.job.fields import fields
from traincast.job.job import Job
from traincast.model.recompute import DEFAULT_MODULES, DISCARDING_MODULES, available_modules
from traincast.planning.axes import Axes, divisors
from traincast.planning.execution import Variant
from traincast.planning.layout import Settings
from traincast.planning.sharding import only_zero_of
from traincast.planning.software import Held


class Recompute(Struct, frozen=True):
    """What the backward pass recomputes, as a job says it."""

    recompute: str = "none"
    """One of `traincast.model.recompute.RECOMPUTE`."""
    recompute_layers: int | None = None
    """Layers of each virtual stage, with ``full``; of each group with ``uniform``. None: all."""
    recompute_method: str | None = None
    """``uniform``: in groups."""
    recompute_modules: tuple[str, ...] | None = None
    """With ``selective``; None: the attention core."""
    offload_activations: int = 0
    """Layers of each virtual stage whose activations wait for the backward pass in the memory of the host."""

    @property
    def whole_layers(self) -> bool:
        """Whether whole layers are recomputed."""
        return self.recompute == "full"

    @property
    def group(self) -> int:
        """Layers that are recomputed together."""
        return self.recompute_layers or 1 if self.recompute_method else 1

    @property
    def recomputed_modules(self) -> tuple[str, ...]:
        """Modules that every layer recomputes by themselves."""
        return (self.recompute_modules or DEFAULT_MODULES) if self.recompute == "selective" else ()


_DECIDED_LATER = {*Recompute.__struct_fields__, *(each.name for each in fields(group="sharding") if each.is_axis)}
"""Facts that each layout of a pipeline decides."""


class RecomputationAxes:
    """What the layouts of a pipeline may recompute, as far as the framework lets a way of execution run with it."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self._every: dict[tuple[int, int, tuple[str, ...]], tuple[Recompute, ...]] = {}
        self._allowed: dict[tuple[Settings, Held, tuple[Recompute, ...]], tuple[Recompute, ...]] = {}

    def allows(self, job: Job, variant: Variant) -> bool:
        """Say whether the framework lets a pipeline run with the settings of a way of execution."""
        return variant.ideal or self.axes.software.allows(variant.settings, self._known(job))

    def choices(self, job: Job, variant: Variant) -> tuple[Recompute, ...]:
        """Return what the backward pass of jobs with this pipeline may recompute with a way of execution."""
        software, settings, known, every = self.axes.software, variant.settings, self._known(job), self._of(job)
        key = settings, software.held(known), every
        if key not in self._allowed:
            facts = ((each, {**asdict(each), "recompute_modules": each.recomputed_modules}) for each in every)
            allowed = (each for each, own in facts if software.allows(settings, {**known, **own}))
            self._allowed[key] = tuple(allowed)
        return self._allowed[key]

    def _known(self, job: Job) -> Mapping[str, Any]:
        """Return the facts of a pipeline that its layouts share."""
        facts = job_facts(job, self.axes.cluster)
        known = {name: value for name, value in facts.items() if name not in _DECIDED_LATER}
        return known | only_zero_of(self.axes, job.parallel.replicas)

    def _of(self, job: Job) -> tuple[Recompute, ...]:
        """Return what the backward pass of jobs with this pipeline may recompute."""
        key = job.pipeline.most_layers, job.parallel.pp, _refused(job)
        if key not in self._every:
            self._every[key] = _choices_of(self.axes, *key)
        return self._every[key]


def _choices_of(axes: Axes, most_layers: int, pp: int, refused: tuple[str, ...]) -> tuple[Recompute, ...]:
    kinds = axes.among("recompute", ("none", "selective", "full"))
    found = [Recompute()] if "none" in kinds else []
    if "selective" in kinds:
        found += [Recompute("selective", recompute_modules=each) for each in _module_sets(axes, refused)]
    if "full" in kinds:
        found += _of_whole_layers(axes, most_layers)
    usual = _offloaded_counts(axes, most_layers, pp)
    offloaded = [
        replace(each, offload_activations=min(count, most_layers))
        for each in found
        for count in axes.among("offload_activations", usual if axes.full or each.recompute == "none" else [0])
    ]
    return tuple(dict.fromkeys(offloaded))


def _offloaded_counts(axes: Axes, most: int, pp: int) -> list[int]:
    """Return of how many layers of a virtual stage activations may be offloaded.

    Megatron-LM refuses it in a pipeline, and together with recomputation:
    megatron/core/transformer/transformer_config.py.
    """
    able = axes.offloads("activations") and (axes.full or pp == 1)
    return sorted({0, most // 2, most}) if able else [0]


def _of_whole_layers(axes: Axes, most: int) -> list[Recompute]:
    """Return how many layers may be recomputed whole, each by itself or in groups; None stands for all."""
    held, limit, method = (
        axes.among("recompute_layers", ()),
        axes.most.get("recompute_layers"),
        axes.request.recompute_method,
    )
    whole = () if limit is not None and limit < most else (None,)
    counts = held or (*axes.among("recompute_layers", _layer_counts(axes, most)), *whole)
    found = []
    if method != "uniform":
        found = [Recompute("full", None if each is None or each >= most else each) for each in counts]
    if method == "uniform" or (axes.full and method is None):
        groups = held or [each for each in divisors(most) if each > 1]
        found += [Recompute("full", each, "uniform") for each in groups if each is not None]
    return found


def _layer_counts(axes: Axes, most: int) -> list[int]:
    if not (axes.full or axes.framework.recomputes_some_layers):
        return []
    if axes.full or most <= 4:
        return list(range(1, most))
    return sorted({max(1, round(most * share)) for share in (0.25, 0.5, 0.75)})


def _module_sets(axes: Axes, refused: tuple[str, ...]) -> list[tuple[str, ...]]:
    if "recompute_modules" in axes.fixed or axes.request.recompute_modules is not None:
        return [*axes.among("recompute_modules", ())]
    known = [each for each in available_modules(axes.request.model) if axes.full or each not in refused]
    if axes.framework.selective_share > 0:
        return []
    if axes.full:
        sizes = range(1, len(known) + 1)
        return [each for size in sizes for each in combinations(known, size) if not {"moe", "moe_act"} <= set(each)]
    if not axes.framework.recomputes_modules:
        return [("core_attn",)]
    cheap = tuple(name for name in known if name in DISCARDING_MODULES)
    alone = [(name,) for name in known if name != "core_attn"]
    return [each for each in dict.fromkeys([*alone, cheap]) if each]


def _refused(job: Job) -> tuple[str, ...]:
    """Return the modules that Megatron-LM refuses to recompute (megatron/core/transformer/transformer_config.py)."""
    delayed = ("moe_act", "layernorm") if job.precision.fp8_recipe == "delayed" else ()
    return (*delayed, *(("shared_experts",) if job.experts.shared_expert_overlap else ()))
