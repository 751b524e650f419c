"""What the backward pass recomputes: nothing, modules of each layer, or layers whole."""

from msgspec import Struct

from traincast.errors import ConfigError
from traincast.job.decisions import Decisions
from traincast.job.frameworks import Framework
from traincast.job.request import JobRequest
from traincast.model.blocks.common import MLP_AND_ATTENTION
from traincast.model.recompute import DEFAULT_MODULES, RECOMPUTE_KEEPS, modules_of


class Recomputation(
    Struct,
    frozen=True,
    kw_only=True,
    rename={
        "granularity": "recompute",
        "layers": "recompute_layers",
        "group": "recompute_group",
        "modules": "recompute_modules",
        "keeps": "recompute_keeps",
        "operators_as": "recompute_operators_as",
    },
):
    """What is recomputed."""

    granularity: str
    """``none``, ``selective`` or ``full`` (`traincast.model.recompute.RECOMPUTE`)."""
    layers: int | None
    """Layers per virtual stage that ``full`` recomputes whole; None: all."""
    group: int = 1
    """Layers that are recomputed together, with ``full``: of their inputs only the first is kept."""
    modules: tuple[str, ...] = DEFAULT_MODULES
    """What ``selective`` recomputes; without meaning with ``none`` and ``full``."""
    keeps: tuple[str, ...] = ()
    """Outputs that layers keep though they are recomputed whole: of `traincast.model.recompute.RECOMPUTE_KEEPS`; of no
    meaning with ``none`` and ``selective``."""

    operators_as: int | None = None
    """Layers that take as long to recompute whole as operators of every layer that are recomputed instead of them."""

    @property
    def by_operators(self) -> bool:
        """Whether every layer keeps the outputs of some operators, and recomputes the others."""
        return self.whole_layers and self.group == 1 and self.layers is not None and self.layers == self.operators_as

    @property
    def recomputed_modules(self) -> tuple[str, ...]:
        """Modules that the backward pass of every layer recomputes by themselves."""
        return self.modules if self.granularity == "selective" else ()

    @property
    def whole_layers(self) -> bool:
        """Whether layers are recomputed whole, all or some."""
        return self.granularity == "full"

    @property
    def all_layers(self) -> bool:
        """Whether every layer is recomputed whole."""
        return self.whole_layers and self.layers is None

    def layers_of(self, count: int) -> int:
        """Return how many of so many layers of a virtual stage are recomputed whole."""
        if not self.whole_layers:
            return 0
        return count if self.layers is None else min(count, self.layers)


def decide_recompute(request: JobRequest, decided: Decisions, most_layers: int) -> Recomputation:
    """Return what is recomputed: nothing, so many layers of a virtual stage, or modules of each layer.

    Refused are a number of layers with anything but ``full``, and modules with anything but ``selective``.
    """
    recompute = request.recompute
    fields = (("recompute_layers", "full"), ("recompute_method", "full"), ("recompute_modules", "selective"))
    if recompute is None and request.recompute_keeps is not None:
        recompute = "full"
        decided.note("assumed-recompute", "recompute is not given: full, as recompute_keeps is given")
    for name, needed in fields:
        if recompute is None and getattr(request, name) is not None:
            recompute = needed
            decided.note("assumed-recompute", f"recompute is not given: {needed}, as {name} is given")
    recompute = decided.by_framework("recompute", recompute, decided.framework.recompute)
    for name, needed in fields:
        said = getattr(request, name)
        if said is not None and recompute != needed:
            shown = " ".join(said) if isinstance(said, tuple) else said
            raise ConfigError(f"is {shown}, which has a meaning only with recompute {needed}, not {recompute}", name)
    layers, modules = request.recompute_layers, request.recompute_modules
    if recompute == "selective" and modules is None and decided.framework.selective_share > 0:
        share = decided.framework.selective_share
        layers = max(1, round(share * most_layers))
        decided.note(
            "selective-as-layers",
            f"selective of {decided.framework.name} recomputes {share:g} of each layer: taken as {layers} of "
            f"{most_layers} layers in full",
        )
        if decided.framework.selective_operators:
            return Recomputation(granularity="full", layers=layers, operators_as=layers)
        recompute = "full"
    if layers is not None and layers > most_layers:
        decided.note(
            "recompute-layers-capped",
            f"recompute_layers {layers}: a virtual stage has at most {most_layers}, all of which are recomputed",
        )
        layers = most_layers
    keeps = _keeps(request, decided)
    if request.recompute_method == "uniform":
        return Recomputation(granularity=recompute, layers=None, group=layers or 1, keeps=keeps)
    if recompute != "selective" or modules is None:
        return Recomputation(granularity=recompute, layers=layers, keeps=keeps)
    found = _modules(request, modules, decided)
    return Recomputation(granularity=recompute, layers=layers, modules=found, keeps=keeps)


def _keeps(request: JobRequest, decided: Decisions) -> tuple[str, ...]:
    """Return what recomputed layers keep: what is asked for, and what the framework leaves out as nothing needs it.

    Where the output of a block has a norm of its own, that needs what the last GEMM made.
    """
    unneeded = () if request.model.norms_per_layer > MLP_AND_ATTENTION else _unneeded(request, decided.framework)
    named = {*(request.recompute_keeps or ()), *unneeded}
    return tuple(name for name in RECOMPUTE_KEEPS if name in named)


def _unneeded(request: JobRequest, framework: Framework) -> tuple[str, ...]:
    """Return what a framework does not make again: what ends a checkpoint, of which attention may be one."""
    halves = framework.recomputes_halves and request.model.experts is None
    return (*framework.recompute_keeps, "linear_proj") if halves else framework.recompute_keeps


def _modules(request: JobRequest, modules: tuple[str, ...], decided: Decisions) -> tuple[str, ...]:
    """Return the modules that the model has; those that it has not are noted."""
    found = modules_of(request.model, modules)
    missing = [name for name in dict.fromkeys(modules) if name not in found]
    if missing:
        decided.note(
            "recompute-modules-unused",
            f"recompute_modules {' '.join(missing)}: {request.model.name} has no such module of its own",
        )
    return found
