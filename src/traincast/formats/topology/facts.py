"""What ``traincast inspect`` says of a network."""

import math
from collections.abc import Sequence
from pathlib import Path

from traincast.formats.contract import Inspection
from traincast.spec.dimensions import Dimension, bisection_bytes_per_s
from traincast.spec.network import Network
from traincast.units import format_rate


def inspect_network(path: Path, network: Network) -> Inspection:
    """Describe vertices and links: counts, bisection and oversubscription by tier."""
    ratios = network.oversubscription.items()
    return _inspection(
        path,
        "simai-topology",
        "SimAI topology file",
        "five counts and a GPU type, then ids of switches",
        network.counts,
        {
            "gpus_per_node": network.gpus_per_node,
            "bisection": format_rate(network.bisection_bytes_per_s),
            "oversubscription": ", ".join(f"{name} {ratio:.4g}:1" for name, ratio in ratios) or None,
        },
    )


def inspect_dimensions(path: Path, dimensions: Sequence[Dimension]) -> Inspection:
    """Describe dimensions: counts and bisection; nothing in them is oversubscribed by tier."""
    gpus = math.prod(each.size for each in dimensions)
    switches = sum(gpus // each.size for each in dimensions if each.shape == "Switch" and each.size > 1)
    links = sum(gpus // each.size * each.links for each in dimensions)
    shapes = " x ".join(f"{each.shape} {each.size} at {format_rate(each.link_bytes_per_s)}" for each in dimensions)
    return _inspection(
        path,
        "astra-network",
        "ASTRA-sim network file, analytical",
        "lists of topology, npus_count, bandwidth and latency",
        {"dimensions": len(dimensions), "GPUs": gpus, "switches": switches, "links": links},
        {"dimensions": shapes, "bisection": format_rate(bisection_bytes_per_s(dimensions)), "oversubscription": None},
    )


def _inspection(
    path: Path, name: str, generation: str, evidence: str, counts: dict[str, int], layout: dict[str, int | str | None]
) -> Inspection:
    return Inspection(
        path=str(path),
        format=name,
        generation=generation,
        confidence=0.95,
        evidence=(evidence,),
        counts=counts,
        layout=layout,
        totals=(),
        oddities=(),
    )
