"""What all clusters that run NCCL share: the form of its protocols in our price, fitted once.

These are no constants of a GPU: they say how much longer a step becomes once a message
leaves the low-latency protocol, and from which size on. `Link` has the rest.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from traincast.hardware.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The form of the protocols; the defaults are one protocol for everything."""

    intra_step_share: float = 0.0
    """A step of a ring or tree inside a node grows by this share outside the low-latency protocol."""
    intra_step_bytes: float = 1.0
    """Half of that is paid where a rank works on so much."""
    network_step_share: float = 0.0
    """The same for a step between nodes."""
    network_step_bytes: float = 1.0
    """Half of that is paid where a node works on so much."""
    tree_step_share: float = 1.0
    """A step inside a node on the way of a tree over nodes, over that of a ring."""
    message_step_share: float = 0.0
    """A direct message pays this share of its start outside the low-latency protocol."""
    message_step_bytes: float = 1.0
    """Half of that is paid where one peer gets so much."""
    message_latency_s: float = 0.0
    """What each message of many to other nodes costs the one process that serves the NIC."""
    message_fill_share: float = 1.0
    """Pipeline fill of direct messages over that of a ring."""
    switch_fill_share: float = 1.0
    """Pipeline fill of a reduction in the switch over that of a ring."""
    switch_share: float = 1.0
    """What a reduction in the switch reaches of the limit in NCCL's tables."""
    pcie_step_latency_s: float = 0.0
    """Over PCIe: what a step takes longer with Simple than with LL, which sends twice the bytes instead."""
    pcie_copy_share: float = 0.0
    """Over PCIe: a rank's own share takes its buffers this part of the time of one that is sent."""


PLAIN = Shape()
"""For a cluster that names no NCCL."""


def shape_of(cluster: Cluster) -> Shape:
    """Return the form of the protocols of a cluster.

    Parameters
    ----------
    cluster : Cluster
        Only whether it runs NCCL.

    Returns
    -------
    Shape
        The fitted one, or `PLAIN`.
    """
    return PLAIN if cluster.nccl is None else fitted()


@cache
def fitted() -> Shape:
    """Return the form fitted to measured collectives (`data/nccl/fitted.toml`)."""
    file = resources.files("traincast") / "data" / "nccl" / "fitted.toml"
    return Shape(**tomllib.loads(file.read_text(encoding="utf-8")))
