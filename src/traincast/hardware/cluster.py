"""The cluster: GPUs, nodes, links, and what a message costs on each level.

The unit of every number is in its name, and a cluster file uses the same names
(`traincast.hardware.clusters`).
"""

import math

from msgspec import Struct
from msgspec.structs import force_setattr

from traincast.errors import ConfigError
from traincast.hardware.fabric import FabricSpec
from traincast.hardware.gpu import Gpu, filled

INTRA_KINDS = ("mesh", "nvswitch", "pcie", "torus", "torus_2d")
"""What the links inside a node can be said to be made of; an estimate differs by it."""

INTER_KINDS = ("ethernet", "infiniband")
"""What the network between nodes can be said to be; only the switches of InfiniBand reduce (SHARP)."""

OPERATIONS = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    *("broadcast", "reduce", "send_recv", "gather", "scatter"),
)
"""Collectives whose times can be measured, as `traincast.workload.words.Operation` names it."""


SKEW = 0.003
"""By how much longer steps are with each doubling of the nodes than is simulated: what 87 systems of GPUs that ran at
several sizes have, whichever source is left out (``studies/skew.py``; docs/published-runs.md, nodes that wait)."""


class Link(Struct, frozen=True, kw_only=True):
    """What one rank gets from one level of the network (inside a node, or between nodes).

    The constants are effective ones, fitted to measured collectives where there are
    any; each cluster file says which.
    """

    bandwidth_bytes_per_s: float
    """Large-message rate per rank and direction."""
    base_latency_s: float
    """Cost of starting a communication that reaches this level."""
    hop_latency_s: float
    """Cost of each further step of the algorithm (a ring's neighbour, a tree's level)."""
    fill_latency_s: float = 0.0
    """Extra cost of a large message: filling and draining the pipeline of big chunks."""
    fill_bytes: float = 1.0
    """Half of the fill latency is paid where an end of this level works on so much of the data:
    inside a node an end is a rank, between nodes it is a node. Small messages go in small chunks."""
    node_bandwidth_bytes_per_s: float | None = None
    """What all ranks of one node get of this level together and per direction; None: no limit."""
    pair_bandwidth_bytes_per_s: float | None = None
    """Rate of a group of two alone, where larger groups share something (PCIe) or have more links
    (mesh, torus: it is the rate of one link); None: no other rate, in a mesh or torus a link's part."""
    halves_bandwidth_bytes_per_s: float | None = None
    """What one half of a group can send to the other half (host bridges, the link between two
    sockets); None: no limit."""
    crowding: float | None = None
    """The rate per rank falls as (2 / members of the node) to this power; None: it does not fall."""
    skew: float | None = None
    """By how much longer computations take with each doubling of the nodes, which wait for one another all along a
    step; None: `SKEW`."""
    kind: str | None = None
    """What the level is made of, inside a node one of `INTRA_KINDS` or None: a switch that reduces nothing.
    Only ``"nvswitch"`` can reduce in the switch, over ``"pcie"`` NCCL has no LL128 protocol, and in a
    ``"mesh"`` (a link per pair), a ``"torus"`` (three dimensions) or a ``"torus_2d"`` a group has only the links
    between its ranks."""


class MeasuredTable(Struct, frozen=True, kw_only=True):
    """Times of one operation over sizes, for one number of ranks spread evenly over nodes."""

    op: str
    """Name of the `Operation` in lower case."""
    ranks: int
    nodes: int
    """Members of the group, and the nodes they sit on."""
    size_bytes: tuple[int, ...]
    """Rising sizes, as `Operation` defines them."""
    time_s: tuple[float, ...]
    """Seconds at each of them; never falling."""
    source: str


class Measured(Struct, frozen=True, kw_only=True):
    """Measured times of collectives, and the links that they were measured on."""

    tables: tuple[MeasuredTable, ...]
    """One per operation and group."""
    intra: Link
    inter: Link


class RunFactor(Struct, frozen=True, kw_only=True):
    """What measured runs on a cluster say of one class of work, beyond what forecasts take without them."""

    framework: str
    """Name of the framework of the runs; it says nothing of jobs of others."""
    cost_class: str
    """Class of work (`traincast.estimate.factors`): ``compute``, ``transfer dp``, ..."""
    factor: float
    """On its time."""
    deviation: float
    """Standard deviation of the logarithm of the time of that class that is left."""
    source: str
    operators: tuple[str, ...] = ()
    """Of a class of operators in one pass, ``gemm bf16 backward``: those that were measured, ``gemm 4096x7680x5120``
    (``traincast calibrate TRACE --job JOB``); none: of whole runs."""


class Cluster(Struct, frozen=True, kw_only=True):
    """A homogeneous cluster: nodes of equal GPUs, one network inside and one between them."""

    name: str
    description: str
    gpu: Gpu
    """What it is given, filled with the datasheet of that name."""
    gpus_per_node: int
    intra: Link
    """Links inside a node (NVLink)."""
    inter: Link
    """Links between nodes, per GPU's own NIC."""
    nccl: str | None = None
    """Version of NCCL whose tuning tables say which algorithms and protocols run; None: the bare
    formula with one protocol, and every algorithm that NCCL has without its switches."""
    algorithms: tuple[str, ...] = ()
    """Algorithms of collectives to try in addition to those that its library chooses by itself."""
    ideal: bool = False
    """Communication takes no time."""
    fabric: FabricSpec | None = None
    """What the network between the nodes looks like; None: nothing in it is ever shared."""
    measured: Measured | None = None
    """Times that replace the formula for the groups they were measured on; None: there are none."""
    run_factors: tuple[RunFactor, ...] = ()
    """What runs on it taught (``traincast calibrate LOG --job JOB``, or the traces of one)."""
    islands: tuple[str, ...] = ()
    """Names of the islands of which this cluster is one: others like it, each behind a link to the rest. A job has the
    GPUs of one of them (`local_steps` of a job)."""
    island_gpus: int | None = None
    """GPUs of an island; None: as many as a job asks for."""
    island_bandwidth_bytes_per_s: float | None = None
    """What all GPUs of an island together send to the other islands, and get from them."""
    island_latency_s: float = 0.0
    """What a message from one island to the next takes on its way."""
    in_network_reduction: bool = False
    """Whether the switches between nodes reduce for every group (NCCL_COLLNET_ENABLE=1 on InfiniBand with SHARP)."""
    gpus_used_per_node: int | None = None
    """GPUs of each node that a job uses; None: as its groups need it (`traincast.fabric.placement`)."""
    assumed: tuple[str, ...] = ()
    """What nobody said of it and was taken instead, in sentences; results repeat it among their assumptions."""
    sources: tuple[tuple[str, str], ...] = ()
    """(number, where it comes from), for every number above."""

    def __post_init__(self) -> None:
        """Fill in the datasheet of the GPU; refuse to use more GPUs of a node than it has."""
        force_setattr(self, "gpu", filled(self.gpu))
        if self.gpus_used_per_node is not None and not 1 <= self.gpus_used_per_node <= self.gpus_per_node:
            raise ConfigError(
                f"is {self.gpus_used_per_node}; a node of {self.name} has {self.gpus_per_node} GPUs",
                "gpus_used_per_node",
            )
        if self.islands and (
            len(set(self.islands)) < max(2, len(self.islands)) or not self.island_bandwidth_bytes_per_s
        ):
            raise ConfigError(
                f"are {', '.join(self.islands)}; name two or more, each once, and give island_bandwidth_bytes_per_s: "
                "what an island sends to the others",
                "islands",
            )
        if self.in_network_reduction and self.inter.kind != "infiniband":
            raise ConfigError(
                'needs kind = "infiniband" in [inter]; other switches do not reduce', "in_network_reduction"
            )

    @property
    def ranks_per_node(self) -> int:
        """Ranks that a full node holds."""
        return self.gpus_used_per_node or self.gpus_per_node

    def waiting(self, ranks: int) -> float:
        """Return how much longer so many ranks compute for the skew between their nodes: 1 inside one node."""
        skew = SKEW if self.inter.skew is None else self.inter.skew
        return 1.0 + skew * math.log2(max(1.0, ranks / self.ranks_per_node))
