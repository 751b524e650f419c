"""What limits the exchanges of a step, for changes of links that change nothing."""

from collections.abc import Sequence

from traincast.estimate.collectives.algorithms import ALGORITHMS
from traincast.estimate.collectives.cost import candidates
from traincast.estimate.collectives.links import slowest_level
from traincast.fabric.placement import Placement
from traincast.hardware.cluster import Cluster
from traincast.simulation.result_records import CollectiveResult
from traincast.units import format_rate
from traincast.workload.words import Operation

_BETWEEN = ("nic_bandwidth", "inter.", "gpu.nic")
_INSIDE = ("nvlink_bandwidth", "intra.", "gpu.link")


def what_limits(change: str, collectives: Sequence[CollectiveResult], cluster: Cluster) -> str:
    """Return what the exchanges that a change of the links is about are limited by; empty where it is about none.

    Parameters
    ----------
    change : str
        As it was asked for: ``nic_bandwidth=800Gb/s``.
    collectives : sequence of CollectiveResult
        Those of the step, the most time first.
    cluster : Cluster
        The links without the change.
    """
    between = change.replace("-", "_").startswith(_BETWEEN)
    if cluster.ideal or not (between or change.replace("-", "_").startswith(_INSIDE)):
        return ""
    across = [each for each in collectives if (each.nodes > 1) == between]
    if not across:
        return "nothing communicates between nodes" if between else "nothing communicates inside nodes alone"
    found: dict[str, str] = {}
    for each in across:
        limit = _limit(each, cluster)
        if limit:
            found.setdefault(each.group, limit)
    return ", ".join(f"{group} is limited by {limit}" for group, limit in found.items())


def _limit(each: CollectiveResult, cluster: Cluster) -> str:
    """Return what limits a collective of evenly placed members; empty where that is not known."""
    if each.algorithm not in ALGORITHMS.names() or each.ranks % each.nodes:
        return ""
    placement = Placement((each.ranks // each.nodes,) * each.nodes)
    traffics = [found for _, found in candidates(Operation[each.op.upper()], placement, cluster, each.algorithm)]
    if not traffics:
        return ""
    name, rate = slowest_level(traffics[0], cluster)
    return f"{name} ({format_rate(rate)})"
