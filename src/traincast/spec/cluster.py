"""The cluster: GPUs, nodes, links, and what a message costs on each level."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator, by its datasheet."""

    name: str
    bf16_dense_flops_per_s: float | None = None
    """Dense bf16 peak, FLOP per second."""
    hbm_bytes: int | None = None
    hbm_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one rank gets from one level of the network (inside a node, or between nodes).

    The constants are effective ones, fitted to measured collectives where there are
    any; each cluster file says which.
    """

    bandwidth_bytes_per_s: float
    """Large-message rate per rank and direction."""
    base_latency_s: float
    """Cost of starting a communication on this level."""
    hop_latency_s: float
    """Cost of each further step of the algorithm (a ring's neighbour, a tree's level)."""


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
