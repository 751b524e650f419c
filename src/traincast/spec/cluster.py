"""The cluster: GPUs, nodes, links, and what a message costs on each level.

The unit of every number is in its name, and a cluster file uses the same names
(`traincast.spec.clusters`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator, by its datasheet."""

    name: str
    bf16_dense_flops_per_s: float | None = None
    """Dense bf16 peak, FLOP per second."""
    hbm_bytes: int | None = None
    """Size of the GPU's memory."""
    hbm_bytes_per_s: float | None = None
    """Peak rate of the GPU's memory."""
    copy_bytes_per_s: float | None = None
    """Rate at which a collective puts a rank's own share in its place; None: at no cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
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
    """Size at which half of the fill latency is paid; small messages go in small chunks."""
    node_bandwidth_bytes_per_s: float | None = None
    """What all ranks of one node get of this level together and per direction; None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A homogeneous cluster: nodes of equal GPUs, one network inside and one between them."""

    name: str
    description: str
    gpu: Gpu
    gpus_per_node: int
    intra: Link
    """Links inside a node (NVLink)."""
    inter: Link
    """Links between nodes, per GPU's own NIC."""
    ideal: bool = False
    """Communication takes no time."""
    sources: tuple[tuple[str, str], ...] = ()
    """(number, where it comes from), for every number above."""
