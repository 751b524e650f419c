"""SimAI's machines, how its groups lie on their nodes, and the bandwidth it takes from that."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from traincast.errors import ConfigError
from traincast.units import GIGA
from traincast.workload.words import Operation


class SimaiGroup(StrEnum):
    """Communication groups that SimAI-Analytical tells apart."""

    TP = "TP"
    EP = "EP"
    DP = "DP"
    DP_EP = "DP_EP"
    NONE = "NONE"
    """Named by a suffix that it does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimaiMachine:
    """SimAI's constants of a cluster.

    Parameters
    ----------
    name : str
        GPU and NIC.
    nvlink_bytes_per_s, nic_bytes_per_s : float
        NVLink of one GPU (its option ``-nv``), and one NIC (``-nic``).
    nics_per_server, gpus_per_server : int
        Its options ``-n_p_s`` and ``-g_p_s``.
    """

    name: str
    nvlink_bytes_per_s: float
    nic_bytes_per_s: float
    nics_per_server: int = 8
    gpus_per_server: int = 8


_MACHINES = {
    "a100": SimaiMachine(name="A100+CX6", nvlink_bytes_per_s=240e9, nic_bytes_per_s=23.5e9),
    "a800": SimaiMachine(name="A800+CX6", nvlink_bytes_per_s=160e9, nic_bytes_per_s=23.5e9),
    "h100": SimaiMachine(name="H100+CX7", nvlink_bytes_per_s=370.8e9, nic_bytes_per_s=48.5e9),
    "h800": SimaiMachine(name="H800+CX7", nvlink_bytes_per_s=164.8e9, nic_bytes_per_s=48.5e9),
}
"""By preset. Source: SimAI, ``calbusbw.h``: lanes x 20.0 (A100, A800) or 20.6 GB/s; NICs CX6 and CX7."""


def simai_machine(cluster: str) -> SimaiMachine:
    """Return SimAI's constants for a cluster preset.

    Raises
    ------
    ConfigError
        If SimAI has none for it.
    """
    if cluster not in _MACHINES:
        raise ConfigError(f"SimAI-Analytical has no constants for {cluster!r}; it has for {', '.join(_MACHINES)}")
    return _MACHINES[cluster]


class Spread(NamedTuple):
    """How SimAI lays a group: its nodes, the members on each, the NICs they have there."""

    nodes: int
    gpus: int
    nics: int


def spread(group: SimaiGroup, ranks: int, tp: int, ep: int, machine: SimaiMachine) -> Spread:
    """Return how SimAI lays a group of `ranks`.

    NICs are shared out by whole numbers, so that fewer of them than TP leave none; DP and DP_EP
    lie on as many nodes as they have ranks, however few that are.
    """
    gpus, nics = machine.gpus_per_server, machine.nics_per_server
    if group is SimaiGroup.TP:
        return Spread(1, tp, nics) if tp <= gpus else Spread(tp // gpus, gpus, nics)
    if group is SimaiGroup.EP and tp * ranks <= gpus:
        return Spread(1, gpus // tp, nics)
    nodes = tp * ranks // gpus if group is SimaiGroup.EP else ranks
    share = tp * ep if group is SimaiGroup.DP_EP else tp
    return Spread(nodes, gpus // share, nics // share) if share <= gpus else Spread(nodes, 1, nics // gpus)


class BusBandwidth(NamedTuple):
    """Bus bandwidth in GB/s, 0 where SimAI finds none; and whether NVLink between nodes is its limit."""

    gb_per_s: float
    by_nvlink: bool


def bus_bandwidth(operation: Operation, lay: Spread, machine: SimaiMachine) -> BusBandwidth:
    """Return the bandwidth that SimAI divides a size by: always that of a ring, or of pairs."""
    nvlink = single(machine.nvlink_bytes_per_s / GIGA)
    outside = single(single(machine.nic_bytes_per_s / GIGA) * lay.nics)
    ranks = lay.nodes * lay.gpus
    if lay.nics < 1 or ranks <= 1:
        return BusBandwidth(0.0, False)
    if lay.nodes == 1:
        return BusBandwidth(nvlink, False)
    if operation is Operation.ALL_TO_ALL:
        return BusBandwidth(single(outside / lay.gpus * (ranks - 1) / (ranks - lay.gpus)), False)
    if lay.gpus == 1:
        return BusBandwidth(outside, False)
    # NICs faster than NVLink: several rings, of which each leaves a node through another GPU.
    inside = single(nvlink * lay.gpus / (lay.gpus - 1)) if outside > nvlink else nvlink
    return BusBandwidth(inside, True) if inside < outside else BusBandwidth(outside, False)


def single(value: float) -> float:
    """Round to single precision, in which SimAI keeps bandwidths and shares."""
    return float(np.float32(value))
