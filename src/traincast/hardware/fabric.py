"""The network between the nodes, as a short table of a cluster file.

::

    [fabric]
    kind = "fat-tree"
    nodes_per_leaf = 4
    oversubscription = 2.0

or ``file = "topology.txt"`` for a network that a SimAI or ASTRA-sim file describes.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, force_setattr

from traincast.errors import ConfigError
from traincast.names import find_name, known_names
from traincast.registry import Registry
from traincast.tables import Value, built, read_table
from traincast.units import RANGES, check_given, quoted

_ROUTINGS = ("spray", "ecmp")
_ALWAYS = frozenset({"kind", "file", "routing", "queue_pairs", "seed"})


class FabricKind(Struct, frozen=True):
    """A topology: which fields of `FabricSpec` have a meaning for it besides those of routing, and what builds it."""

    reads: frozenset[str]
    needs: tuple[str, ...]
    """Fields that a file has to give."""
    build: Callable[..., Any]
    """`traincast.fabric.graph.Build`."""
    fixed: bool = False
    """Whether it holds so many GPUs and no more; others grow with the job."""


TOPOLOGIES: Registry[FabricKind] = Registry("fabric", "traincast.fabric.topologies")

_NUMBERS = (
    *("nodes_per_leaf", "leaves_per_pod", "spines", "rails", "planes", "queue_pairs", "seed", "link_bytes_per_s"),
    *("dims", "oversubscription"),
)


class FabricSpec(Struct, frozen=True, kw_only=True):
    """One network between nodes; None is "not specified", and the kind has a default for it."""

    kind: str
    """A name in `TOPOLOGIES`."""
    file: str | None = None
    """Path of a topology file, for the kind ``file``."""
    link_bytes_per_s: float | None = None
    """Rate of a NIC, all its ports together; of a torus link. None: that of the cluster's `inter`."""
    nodes_per_leaf: int | None = None
    """Nodes that share a leaf (of each rail, where there are rails)."""
    leaves_per_pod: int | None = None
    """Leaves below one set of spines, or in a group of a dragonfly+; None: all, in two tiers."""
    spines: int | None = None
    """Spines of a pod; None: one for every NIC that a leaf could feed upwards at full rate."""
    oversubscription: tuple[float, ...] = (1.0,)
    """What comes from below over what goes up: at the leaves, then at the spines of a pod."""
    rails: int | None = None
    """Leaves that the NICs of a node are spread over, by local rank; None: one for each GPU."""
    pxn: bool = False
    """Traffic to another rail first crosses NVLink to the GPU of that rail."""
    planes: int | None = None
    """Separate networks, with one port of every NIC in each; None: two for dual-plane."""
    dims: tuple[int, ...] = ()
    """Ring sizes of a torus, the first one along consecutive ranks."""
    routing: str = "spray"
    """``spray``: every flow evenly over all equal paths (adaptive routing); ``ecmp``: one path by hash."""
    queue_pairs: int = 1
    """Parts of a connection that are hashed on their own."""
    seed: int = 0
    """Of the hash."""

    def __post_init__(self) -> None:
        """Refuse numbers that are wrong or contradict each other."""
        for name, known in (("kind", TOPOLOGIES.names()), ("routing", _ROUTINGS)):
            said = getattr(self, name)
            found = find_name(said, known)
            if found is None:
                raise _wrong(name, f"is {quoted(said)}; {known_names(said, known)}")
            force_setattr(self, name, found)
        self._check_fields()
        self._check_numbers()
        if self.routing == "spray":
            for name in ("queue_pairs", "seed"):
                if getattr(self, name) != _DEFAULTS[name]:
                    raise _wrong(name, 'means nothing when every path is used; it needs routing = "ecmp"')

    def _check_fields(self) -> None:
        kind = TOPOLOGIES.get(self.kind)
        for name, default in _DEFAULTS.items():
            if getattr(self, name) != default and name not in kind.reads | _ALWAYS:
                raise _wrong(name, f"means nothing to the kind {self.kind!r}")
        if self.file is not None and self.kind != "file":
            raise _wrong("file", f"contradicts the kind {self.kind!r}; give one of them")
        for name in kind.needs:
            if getattr(self, name) in (None, ()):
                raise _wrong(name, f"is missing; the kind {self.kind!r} needs it")

    def _check_numbers(self) -> None:
        check_given(self, _NUMBERS, "fabric.")
        most = int(RANGES["parts"].highest)
        if math.prod(self.dims) > most:
            raise _wrong("dims", f"are {list(self.dims)}; all are at most {most:,} GPUs")
        if not self.oversubscription:
            raise _wrong("oversubscription", "is an empty list; it needs a number")
        tiers = 1 if self.leaves_per_pod is None else 2
        if len(self.oversubscription) > tiers:
            raise _wrong("oversubscription", f"has {len(self.oversubscription)} numbers for {tiers} tiers that go up")


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(FabricSpec) if field.name != "kind"}


def fabric_values(table: object, shown: str, folder: Path) -> dict[str, Value]:
    """Return the checked values of a table ``[fabric]`` by field path; a topology file is looked up in the folder.

    Raises
    ------
    ConfigError
        With the path of the field that is unknown, of the wrong type or out of range.
    """
    values = read_table(FabricSpec, table, shown, "fabric.")
    file = values.get("fabric.file")
    if file is not None:
        values["fabric.file"] = file._replace(value=str(folder / file.value))
        values.setdefault("fabric.kind", Value("file"))
    return values


def fabric_of(values: Mapping[str, Value], shown: str) -> FabricSpec:
    """Return the fabric that checked values make up; refuse what is missing or contradictory."""
    return built(FabricSpec, values, shown, "fabric.", f"known: {', '.join(TOPOLOGIES.names())}")


def _wrong(name: str, what: str) -> ConfigError:
    return ConfigError(what, f"fabric.{name}")
