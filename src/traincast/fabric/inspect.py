"""What ``traincast inspect`` says of a cluster file: its fabric, as it is understood.

A fabric of leaves and spines grows with the job, so that its counts are those of some number of GPUs.
"""

from collections.abc import Sequence
from pathlib import Path

from traincast.errors import FormatError
from traincast.fabric.graph import FabricGraph, build_fabric
from traincast.files import read_toml
from traincast.formats.contract import Inspection
from traincast.formats.open import identify
from traincast.formats.recognise import Teller, described
from traincast.formats.topology import network_layout
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import cluster_names, load_cluster
from traincast.hardware.fabric import TOPOLOGIES, FabricSpec
from traincast.hardware.network import bisection_bytes_per_s
from traincast.units import format_rate

COUNTED_GPUS = 1024
"""GPUs for which switches and links are counted, where two full pods are no more than that."""
_KEYS = frozenset({"fabric", "gpu", "inter", "intra"})
"""Tables that no other file of traincast has."""


def inspect_file(path: Path, given: Sequence[Path] = (), further: Sequence[Teller] = ()) -> Inspection:
    """Say what a file is: a cluster file, one of a format, or what else is known.

    Parameters
    ----------
    given : sequence of Path
        Folders that the user gave, for the message about a file in one of them that nobody knows.
    further : sequence of Teller
        Tellers of other rooms, for files that no format reads.

    Raises
    ------
    TraincastError
        If the file is of no known kind, or wrong.
    """
    if _is_cluster_file(path):
        return inspect_cluster(path)
    try:
        return identify(path, given).inspect(path)
    except FormatError:
        found = described(path, further)
        if found is None:
            raise
        return found


def _is_cluster_file(path: Path) -> bool:
    """Tell whether a file is TOML with a table of a cluster in it, or with a preset as its base."""
    if path.suffix != ".toml":
        return False
    try:
        document = read_toml(path)
    except FormatError:
        return False
    return bool(_KEYS & set(document)) or document.get("base") in cluster_names()


def inspect_cluster(path: Path) -> Inspection:
    """Describe the fabric of a cluster file: kind, counts of switches and links, bisection, oversubscription.

    Raises
    ------
    TraincastError
        If the file, or the topology file that it names, is wrong.
    """
    cluster = load_cluster(str(path))
    spec = cluster.fabric
    layout: dict[str, int | str | None] = {
        "gpu": cluster.gpu.name,
        "gpus_per_node": cluster.gpus_per_node,
        "inter": format_rate(cluster.inter.bandwidth_bytes_per_s),
    }
    if cluster.gpus_used_per_node is not None:
        layout["gpus_used_per_node"] = cluster.gpus_used_per_node
    if spec is None:
        return _inspection(path, "none: only NICs and nodes are shared", {}, {**layout, "fabric": None})
    graph, said = _counted(cluster, spec)
    layout |= {
        "fabric": graph.description,
        "nic": format_rate(graph.port_bytes_per_s or graph.nic_bytes_per_s),
        **_shape(graph),
        "gpus": f"{graph.network.gpus:,} ({said})",
    }
    counts = {what: count for what, count in graph.network.counts.items() if count}
    return _inspection(path, spec.kind, counts, layout)


def _counted(cluster: Cluster, spec: FabricSpec) -> tuple[FabricGraph, str]:
    """Return the fabric and what it is of: all GPUs of a fixed one, else two full pods and `COUNTED_GPUS` at least."""
    kind = TOPOLOGIES.get(spec.kind)
    if kind.fixed:
        graph = build_fabric(cluster, 1)
        if len(graph.network.cut_off_gpus):
            # Refused where they are used, and so if all are.
            graph = build_fabric(cluster, graph.network.gpus)
        return graph, "all there are"
    rails = (spec.rails or cluster.gpus_per_node) if "rails" in kind.reads else 1
    pods = 2 * ((spec.leaves_per_pod or 0) // rails) * (spec.nodes_per_leaf or 0) * cluster.gpus_per_node
    graph = build_fabric(cluster, max(COUNTED_GPUS, pods))
    return graph, "as many as are counted here; it grows with the job"


def _shape(graph: FabricGraph) -> dict[str, int | str | None]:
    """Return bisection and oversubscription."""
    if not graph.dimensions:
        return {key: value for key, value in network_layout(graph.network).items() if key != "gpus_per_node"}
    return {"bisection": format_rate(bisection_bytes_per_s(graph.dimensions)), "oversubscription": None}


def _inspection(path: Path, kind: str, counts: dict[str, int], layout: dict[str, int | str | None]) -> Inspection:
    return Inspection(
        path=str(path),
        format="cluster",
        generation=f"cluster file, fabric {kind}",
        confidence=0.95,
        evidence=("a table of a cluster",),
        counts=counts,
        layout=layout,
        totals=(),
        oddities=(),
        taken_by="simulate, predict, collective and others take it as --cluster FILE",
    )
