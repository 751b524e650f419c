"""SimAI's machines: how groups lie on their nodes, the bandwidth it takes from that, the share that a size reaches."""

import csv
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from traincast.errors import ConfigError, InfeasibleError
from traincast.shipped import constant, shipped_text
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


class SimaiMachine(Struct, frozen=True, kw_only=True):
    """SimAI's constants of a cluster: NVLink of one GPU (its option ``-nv``) and one NIC (``-nic``)."""

    name: str
    nvlink_bytes_per_s: float
    nic_bytes_per_s: float
    nics_per_server: int = 8
    """Its option ``-n_p_s``."""
    gpus_per_server: int = 8
    """Its option ``-g_p_s``."""


_MACHINES = {
    "a100": SimaiMachine(name="A100+CX6", nvlink_bytes_per_s=240e9, nic_bytes_per_s=23.5e9),
    "a800": SimaiMachine(name="A800+CX6", nvlink_bytes_per_s=160e9, nic_bytes_per_s=23.5e9),
    "h100": SimaiMachine(name="H100+CX7", nvlink_bytes_per_s=370.8e9, nic_bytes_per_s=48.5e9),
    "h800": SimaiMachine(name="H800+CX7", nvlink_bytes_per_s=164.8e9, nic_bytes_per_s=48.5e9),
}
"""By preset. Source: SimAI, ``calbusbw.h``: lanes x 20.0 (A100, A800) or 20.6 GB/s; NICs CX6 and CX7."""


def simai_machine(cluster: str) -> SimaiMachine:
    """Return SimAI's constants for a cluster preset; a `ConfigError` if it has none."""
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


_MULTI = 9
"""Number of nodes by which SimAI asks for its column ``multi``; a group on nine nodes gets it, too."""
_FALLBACK = 16
"""Number of nodes whose column stands for every number that has none."""


def efficiency(
    operation: Operation,
    group: SimaiGroup,
    ranks: int,
    tp: int,
    size_bytes: int,
    by_nvlink: bool,
    machine: SimaiMachine,
) -> float:
    """Return the share of the bus bandwidth that a size reaches, 1 for all but a few communications.

    Only all-gather, reduce-scatter and all-to-all over TP and all-to-all over EP have a table. `ranks` and `tp` decide
    on the number of nodes. `by_nvlink` says whether NVLink limits a group on several nodes; on one node it is False, so
    that a group there gets its share from the NIC's table. Above 16 GiB the tables end, and SimAI without a result: an
    `InfeasibleError`.
    """
    gpus, name, nodes = machine.gpus_per_server, "all_to_all", max(1, tp // machine.gpus_per_server)
    if group is SimaiGroup.TP and operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER):
        name = "nvlink" if by_nvlink else "nic"
    elif group is SimaiGroup.EP and operation is Operation.ALL_TO_ALL:
        nodes = 1 if tp * ranks <= gpus else _MULTI if tp >= gpus else tp * ranks // gpus
    elif group is not SimaiGroup.TP or operation is not Operation.ALL_TO_ALL:
        return 1.0
    table = constant(_table, name)
    column = "multi" if nodes == _MULTI else nodes if str(nodes) in constant(_table, "nic") else _FALLBACK
    sizes, values = table["size_bytes"], table[str(column)]
    if size_bytes == 0:
        return 1.0
    if size_bytes > sizes[-1]:
        raise InfeasibleError(
            f"SimAI's efficiency tables end at 16 GiB; with a communication of {size_bytes} bytes it has no result"
        )
    # A table's value over its last one; sizes below the first have the first value.
    return single(float(np.interp(size_bytes, sizes, values)) / values[-1])


def _table(name: str) -> Mapping[str, list[float]]:
    """Return the columns of a table by their headings."""
    lines = shipped_text(f"simai/{name}.csv").splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    # SimAI reads an empty cell as 1.
    return {heading: [float(row[heading] or 1) for row in rows] for heading in rows[0]}
