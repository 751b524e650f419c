"""What end-to-end runs teach beyond single kernels: factors on classes of work.

A kernel measured alone runs with nothing alongside it; in a training step caches are shared and libraries pick other
kernels. A factor scales one class of work, and is the product of what is common to all GPUs or frameworks, and of what
an architecture or a framework adds: of a GPU that no run was measured on, what is known of its kind still holds. A
factor is 1 where nothing was measured. What chips of an architecture differ in is the clock that their power limit
allows (`traincast.estimate.clocks`); a factor of a chip is 1, and says that runs on it were fitted to.

File `data/training/factors.csv`: level (``all``, ``architecture``, ``chip``, ``framework``), name, cost class, factor,
deviation (of its logarithm after the fit), rows (runs behind it); classes are in `data/training/cost_classes.toml`.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.estimate.clocks import gemm_slowdown
from traincast.estimate.operators.constants import OperatorConstants
from traincast.hardware.cluster import Cluster
from traincast.hardware.dtypes import ELEMENT_TYPES
from traincast.hardware.gpu import Gpu
from traincast.job.job import Job
from traincast.model.dispatch import DISPATCHERS
from traincast.shipped import constant, shipped_text, shipped_toml
from traincast.tables import from_row
from traincast.workload.words import CostClass, Group

Key = tuple[str, str, str]
"""Level, name, class of work (``gemm bf16``: after a blank follows the type, kernel or group)."""

_LEVELS = ("all", "architecture", "chip", "framework")

_REPLICAS = (Group.DP, Group.SHARD, Group.REPLICA)
"""Groups that keep replicas of the same weights: what they send is sent alike, however many of them share a copy."""

TRANSFER_CLASS: dict[Group, str] = {
    group: f"transfer {(Group.DP if group in _REPLICAS else group).name.lower()}"
    for group in Group
    if group is not Group.NONE
}
"""Class of work of communication over each kind of group."""
SENT_ONCE = f"{TRANSFER_CLASS[Group.EP]} once"
"""That of tokens that kernels of a dispatcher send once, not NCCL a copy for each expert."""
WITHIN_NODES = f"{TRANSFER_CLASS[Group.EP]} inside"
"""That of tokens whose experts are all in the node, or in the NVLink domain, where NCCL sends a copy for each."""
SENT_ONCE_WITHIN = f"{SENT_ONCE} inside"
"""That of tokens that such kernels send once, within the node or the NVLink domain."""
EXPERT_CLASSES = (TRANSFER_CLASS[Group.EP], SENT_ONCE, WITHIN_NODES, SENT_ONCE_WITHIN)
"""Classes of work of tokens on their way to experts and back."""


class _Class(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A class of work: how far its factors may be from their means before a run is seen."""

    deviation: dict[str, float]
    """Standard deviation of a factor's logarithm, by level; a class has factors on these levels."""
    part_of: str = ""
    """Class that scales all of this one too."""
    whatever_type: bool = False
    """Whether its factors are those of all types together."""
    like: str = ""
    """Class whose factors scale this one too, on the levels on which it has none of its own."""
    own: float = 0.0
    """That of one cluster's own factor, beyond those (`own_deviation`)."""
    throttled: bool = False
    """Whether the power limit sets the clock that it runs at (`traincast.estimate.clocks`)."""
    mean: dict[str, float] = {}
    """Factor expected over all GPUs, by what follows the first word of the class, where that is not 1."""


def _classes() -> dict[str, _Class]:
    """Return the classes of work by their first word, or by their whole name where that is an exception."""
    return shipped_toml("training/cost_classes.toml", dict[str, _Class])


def _class_of(cost_class: str) -> _Class:
    return constant(_classes).get(cost_class) or constant(_classes)[cost_class.split(" ", maxsplit=1)[0]]


def prior_mean(key: Key) -> float:
    """Return the factor that is expected before a run is seen."""
    level, _, cost_class = key
    return _class_of(cost_class).mean.get(cost_class.partition(" ")[2], 1.0) if level == "all" else 1.0


def prior_deviation(key: Key) -> float:
    """Return the prior deviation of the logarithm of a factor."""
    return _class_of(key[2]).deviation[key[0]]


def own_deviation(cost_class: str) -> float:
    """Return how far one cluster's own time of a class of work may be from that of others, before a run is seen."""
    return _class_of(cost_class).own


def part_of(cost_class: str) -> str:
    """Return the class of work that a class is a part of: ``compute`` of kernels, an empty text of others."""
    return _class_of(cost_class).part_of


def is_throttled(cost_class: str) -> bool:
    """Say whether a class of work runs at the clock that the power limit allows."""
    known = constant(_classes).get(cost_class) or constant(_classes).get(cost_class.split(" ", maxsplit=1)[0])
    return known is not None and known.throttled


def own_key(framework: str, cost_class: str) -> Key:
    """Return the key of what a cluster's own runs say of a class of work under a framework."""
    return ("own", framework, cost_class)


def whole_deviation(cost_class: str) -> float:
    """Return the prior deviation of the logarithm of a class of work on one machine: of all its levels together."""
    own, alike = _class_of(cost_class), _alike(cost_class)
    return math.hypot(*((_class_of(alike).deviation if alike else {}) | own.deviation).values())


def transfer_classes(dispatcher: str, expert_ranks: int, ranks_per_node: int) -> Mapping[Group, str]:
    """Return the class of work of communication over each kind of group, by what sends tokens to experts.

    All experts of a layer are on `expert_ranks`; `ranks_per_node` reach each other without the network.
    """
    inside = expert_ranks <= ranks_per_node
    if DISPATCHERS[dispatcher].sends == "once":
        return {**TRANSFER_CLASS, Group.EP: SENT_ONCE_WITHIN if inside else SENT_ONCE}
    return {**TRANSFER_CLASS, Group.EP: WITHIN_NODES} if inside else TRANSFER_CLASS


def host_class(cost_class: CostClass) -> str:
    """Return the class of work of what the host does, as factors name it: ``host layers``, ``fixed``."""
    return cost_class.name.lower().replace("_", " ")


def chip_of(gpu: Gpu) -> str:
    """Return the name under which a GPU's chip has its factors."""
    return gpu.chip or gpu.name


def keys_of(cost_class: str, gpu: Gpu, framework: str) -> tuple[Key, ...]:
    """Return the keys of all factors that a fit finds for a class of work on a GPU under a framework."""
    return tuple(key for key in _keys_of(cost_class, gpu, framework) if is_found(key))


def is_found(key: Key) -> bool:
    """Say whether a fit finds a factor of that level for its class of work; an older table may have more."""
    return key[0] in _class_of(key[2]).deviation and _scaled_on(key[0], key[2]) == key[2]


def _keys_of(cost_class: str, gpu: Gpu, framework: str) -> tuple[Key, ...]:
    names = zip(_LEVELS, _names_on_levels(gpu, framework), strict=True)
    return tuple((level, name, _scaled_on(level, cost_class)) for level, name in names)


def _names_on_levels(gpu: Gpu, framework: str) -> tuple[str, ...]:
    """Return what has its factors on each of `_LEVELS` where a framework runs on a GPU."""
    return "*", gpu.architecture or "*", chip_of(gpu), framework


def _scaled_on(level: str, cost_class: str) -> str:
    """Return the class whose factors scale a class of work on a level: the class itself, or the one it is like."""
    own, alike = _class_of(cost_class), _alike(cost_class)
    if level in own.deviation:
        return cost_class.split(" ", maxsplit=1)[0] if own.whatever_type else cost_class
    return alike if alike and level in _class_of(alike).deviation else cost_class


def _alike(cost_class: str) -> str:
    """Return the class that a class of work is like, of the same type; empty: none."""
    like = _class_of(cost_class).like
    if not like or cost_class in constant(_classes):
        return like
    return " ".join((like, *cost_class.split(" ")[1:]))


def _also_scaled(cost_class: str) -> tuple[str, ...]:
    """Return a class of work and those that are like it: what its factors scale."""
    kind, *rest = cost_class.split(" ")
    known = constant(_classes).items()
    of_kind = (" ".join((name, *rest)) for name, each in known if each.like == kind)
    if not rest and _class_of(kind).whatever_type:
        of_kind = (f"{kind} {dtype}" for dtype in ELEMENT_TYPES)
    return cost_class, *of_kind, *(name for name, each in known if rest and each.like == cost_class)


class CostFactors(Struct, frozen=True):
    """Factors on the time of each class of work; a class without one has 1."""

    of_class: Mapping[str, float] = field(default_factory=dict)
    constants: OperatorConstants | None = None
    """What operators are estimated by before they are scaled; None: the shipped ones."""
    slowdown: float = 1.0
    """How much longer the power limit makes what it throttles (`traincast.estimate.clocks.gemm_slowdown`)."""
    waiting: float = 1.0
    """How much longer nodes that wait for one another make all computation (`Cluster.waiting`)."""

    def factor(self, name: str) -> float:
        """Return the factor of a class."""
        return self.of_class.get(name, 1.0)

    def throttling(self, cost_class: str) -> float:
        """Return how much longer the power limit makes a class of work."""
        return self.slowdown if is_throttled(cost_class) else 1.0


class Factor(Struct, frozen=True, kw_only=True):
    """One fitted factor."""

    level: str
    name: str
    cost_class: str
    factor: float
    deviation: float
    """Standard deviation of its logarithm that is left after the fit."""
    rows: int = 0
    """Runs behind it."""

    @property
    def key(self) -> Key:
        """What tells it apart."""
        return self.level, self.name, self.cost_class


class FactorTable(Struct, frozen=True, dict=True):
    """Factors of all GPUs and frameworks."""

    factors: Mapping[Key, Factor] = field(default_factory=dict)

    @cached_property
    def seen(self) -> frozenset[tuple[str, str]]:
        """The GPUs and frameworks of which a run was in the fit, each with its level."""
        return frozenset(key[:2] for key, each in self.factors.items() if each.rows > 0)

    @cached_property
    def _scaled(self) -> Mapping[str, tuple[tuple[str, str], ...]]:
        """By class of work that its factors scale: on each level the class whose factor counts."""
        classes = {each for key in self.factors for each in _also_scaled(key[2])}
        return {each: tuple((level, _scaled_on(level, each)) for level in _LEVELS) for each in classes}

    @classmethod
    def from_factors(cls, factors: Iterable[Factor]) -> "FactorTable":
        """Return a table; a later factor of a key counts."""
        return cls({each.key: each for each in factors})

    def found(self) -> "FactorTable":
        """Return those of its factors that a fit finds again (`is_found`)."""
        return FactorTable({key: each for key, each in self.factors.items() if is_found(key)})

    def for_job(self, gpu: Gpu, framework: str, fitted_as: str = "") -> CostFactors:
        """Return the factors of one GPU and one framework, whose published runs may be those of another."""
        chosen = {name: each.mean[""] for name, each in constant(_classes).items() if "" in each.mean}
        names = _names_on_levels(gpu, fitted_as or framework)
        for cost_class, scaled in self._scaled.items():
            keys = [(level, name, found) for name, (level, found) in zip(names, scaled, strict=True)]
            keys.append(own_key(framework, cost_class))
            chosen[cost_class] = math.prod(self.factors[key].factor for key in keys if key in self.factors)
        return CostFactors(chosen, slowdown=gemm_slowdown(gpu))


def with_factors(job: Job, factors: CostFactors) -> Job:
    """Return a job whose framework has the factors on its shares.

    Shares that cannot be hidden stay at most 1; times are scaled where they are estimated.
    """
    framework = job.framework
    shares = {
        f"unhidden_{group}": min(1.0, getattr(framework, f"unhidden_{group}") * factors.factor(f"unhidden {group}"))
        for group in ("tp", "cp", "fsdp")
    }
    return replace(job, framework=replace(framework, **shares))


def read_factors(text: str) -> FactorTable:
    """Return the factors of a CSV text."""
    return FactorTable.from_factors(from_row(row, Factor) for row in csv.DictReader(io.StringIO(text)))


def factors_on(cluster: Cluster) -> FactorTable:
    """Return the factors of a cluster: those that come with traincast, and what its own runs taught."""
    own = (
        Factor(
            level="own", name=each.framework, cost_class=each.cost_class, factor=each.factor, deviation=each.deviation
        )
        for each in cluster.run_factors
    )
    return (
        FactorTable.from_factors([*shipped_factors().factors.values(), *own])
        if cluster.run_factors
        else shipped_factors()
    )


def shipped_factors() -> FactorTable:
    """Return the factors that come with traincast."""
    return constant(_shipped_factors)


def _shipped_factors() -> FactorTable:
    return read_factors(shipped_text("training/factors.csv"))
