"""Which constants of a cluster's links measured collectives can tell from each other.

Between nodes two rates are hard to tell apart: that of a NIC, and that of all NICs of a node
together. What a node of m ranks gets is ``min(m * NIC, limit of the node)``: groups of one rank
per node and messages show the NIC, full nodes the lesser of both, and only runs of both kinds
show both.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from traincast.calibration.collectives import CollectiveMeasurements
from traincast.hardware.cluster import Cluster
from traincast.units import format_rate

INTRA = (
    "intra.base_latency_s",
    "intra.hop_latency_s",
    "intra.fill_latency_s",
    "intra.fill_bytes",
    "intra.bandwidth_bytes_per_s",
    "intra.pair_bandwidth_bytes_per_s",
    "intra.halves_bandwidth_bytes_per_s",
    "intra.crowding",
    "gpu.copy_bytes_per_s",
)
"""Constants inside a node. A cluster has those of NVLink (fill and copy rate) or those of PCIe: six at most."""
FILL = ("intra.fill_latency_s", "intra.fill_bytes")
START, NIC, NODE = "inter.base_latency_s", "inter.bandwidth_bytes_per_s", "inter.node_bandwidth_bytes_per_s"
INTER = ("inter.hop_latency_s", "inter.fill_latency_s", "inter.fill_bytes", START, NIC, NODE)
"""Constants between nodes. All-reduces of one operation cannot tell the start from the steps."""
_SAME = 0.95
"""Full nodes that reach so much of what the cluster says speak for its NICs as they are."""

Constants = dict[str, float | None]
"""Values by field path; None where a cluster has none."""


class Rates(Struct, frozen=True):
    """The rates between nodes that measurements show: `NIC`, `NODE`, both or neither."""

    fields: tuple[str, ...]
    nics: int
    """Most NICs of a node at work; 0 where no rows are between nodes."""


def identifiable(measured: CollectiveMeasurements, cluster: Cluster) -> list[str]:
    """Return the constants that measurements, with known numbers of nodes, can tell from each other, by field path.

    What the cluster has no value of is not fitted; but for the limit of a node, which starts as that of its NICs.
    """
    across, inside = measured.nodes > 1, measured.nodes == 1
    fields = [*INTRA] * bool(inside.any()) + [*INTER] * bool(across.any())
    hidden = set(FILL) if cluster.intra.kind == "pcie" else set()
    hidden |= {NIC, NODE} - set(rates_shown(measured, cluster).fields)
    if len(set(measured.op)) == 1:  # what a rank keeps shows only next to another operation that keeps less of it
        hidden.add("gpu.copy_bytes_per_s")
    if len({op for op, far in zip(measured.op, across, strict=True) if far}) == 1:
        hidden.add(START)
    if "all_to_all" not in measured.op:  # rings cross the middle of a group once
        hidden.add("intra.halves_bandwidth_bytes_per_s")
    ranks = set(measured.ranks[inside].tolist())
    if 2 not in ranks:
        hidden.add("intra.pair_bandwidth_bytes_per_s")
    if len(ranks) < 2:
        hidden.add("intra.crowding")
    return [
        field for field in fields if field not in hidden and (field == NODE or value_of(cluster, field) is not None)
    ]


def rates_shown(measured: CollectiveMeasurements, cluster: Cluster) -> Rates:
    """Return the rates between nodes that show: one where as many NICs of a node work in all rows, else both."""
    across = measured.nodes > 1
    one = np.array([op == "send_recv" for op in measured.op], dtype=bool)
    nics_N = np.where(one, 1, measured.ranks // np.maximum(measured.nodes, 1))[across]
    if not nics_N.size:
        return Rates((), 0)
    most = int(nics_N.max())
    if nics_N.min() < most:
        return Rates((NIC, NODE), most)
    limit, nic = cluster.inter.node_bandwidth_bytes_per_s, cluster.inter.bandwidth_bytes_per_s
    return Rates((NIC,) if limit is None or limit >= most * nic else (NODE,), most)


def start_of(fields: Sequence[str], cluster: Cluster, nics: int) -> Constants:
    """Return where a search starts; a node without a limit starts at that of its NICs."""
    start = {field: value_of(cluster, field) for field in fields}
    if NODE in start and start[NODE] is None:
        start[NODE] = nics * cluster.inter.bandwidth_bytes_per_s
    return start


def hold_together(constants: Constants, cluster: Cluster, rates: Rates) -> Constants:
    """Return constants with the one rate between nodes that is not fitted made to fit the other.

    A rate that does not show stays as it is in the cluster, as long as it does not stop what is
    measured. Where full nodes are slower than the cluster would make them, its NIC is taken to be
    slower by the same factor: it keeps its share of the node.
    """
    found: Constants = {**constants}
    limit, nic, nics = cluster.inter.node_bandwidth_bytes_per_s, cluster.inter.bandwidth_bytes_per_s, rates.nics
    own, reached = constants.get(NIC), constants.get(NODE)
    if rates.fields == (NIC,) and own is not None and limit is not None:
        found[NODE] = max(limit, nics * own)
    elif rates.fields == (NODE,) and reached is not None and limit is not None:
        slower = reached / limit if reached < _SAME * limit else 1.0
        found[NIC] = max(reached / nics, nic * slower)
    return found


def not_told_apart(fitted: Cluster, base: Cluster, rates: Rates) -> list[str]:
    """Return what to tell the user of a rate between nodes that the measurements do not show."""
    node, nic = fitted.inter.node_bandwidth_bytes_per_s, fitted.inter.bandwidth_bytes_per_s
    kept = f"in {base.name}"
    if rates.fields == (NIC,) and rates.nics == 1:
        limit = "has no limit" if node is None else f"stays at {format_rate(node)}"
        return [
            f"one NIC per node is at work in all rows between nodes: what all NICs of a node reach together {limit}, "
            f"as {kept}; runs on full nodes would show it"
        ]
    if rates.fields == (NIC,):
        taken = f"the NIC ({format_rate(nic)}), as {kept}"
    elif rates.fields == (NODE,) and node is not None:
        before = base.inter.bandwidth_bytes_per_s
        said = "kept" if nic == before else f"taken from {format_rate(before)} to {format_rate(nic)}"
        taken = f"the node ({format_rate(node)}), as {kept}, and the NIC is {said}"
    else:
        return []
    return [
        f"{rates.nics} NICs per node are at work in all rows between nodes: a limit of the NIC and one of the node "
        f"look the same; it is taken to be that of {taken}; runs of one rank per node, or sendrecv, would tell"
    ]


def value_of(cluster: Cluster, path: str) -> float | None:
    """Return a number of a cluster by its field path: ``"intra.hop_latency_s"``."""
    section, _, field = path.partition(".")
    value = getattr(getattr(cluster, section), field)
    return None if value is None else float(value)
