"""What ``traincast inspect`` says of a network."""

import math
from collections.abc import Sequence
from pathlib import Path

from traincast.diagnostics import Note
from traincast.formats.contract import Inspection
from traincast.hardware.network import Dimension, Network, bisection_bytes_per_s
from traincast.units import format_rate

_SHOWN = 8
"""GPUs that are named."""


def inspect_network(path: Path, network: Network) -> Inspection:
    """Describe vertices and links: counts, bisection and oversubscription by tier."""
    return _inspection(
        path,
        "simai-topology",
        "SimAI topology file",
        "five counts and a GPU type, then ids of switches",
        network.counts,
        network_layout(network),
        _cut_off(path, network),
    )


def network_layout(network: Network) -> dict[str, int | str | None]:
    """Return what is to be said of a network beside its counts: size of a node, bisection, oversubscription."""
    ratios = network.oversubscription.items()
    return {
        "gpus_per_node": network.gpus_per_node,
        "bisection": format_rate(network.bisection_bytes_per_s),
        "oversubscription": ", ".join(f"{name} {ratio:.4g}:1" for name, ratio in ratios) or None,
    }


def _cut_off(path: Path, network: Network) -> tuple[Note, ...]:
    """Say which GPUs cannot send out of their node."""
    gpus = network.cut_off_gpus.tolist()
    if not gpus:
        return ()
    shown = ", ".join(map(str, gpus[:_SHOWN])) + (f" and {len(gpus) - _SHOWN} more" if len(gpus) > _SHOWN else "")
    text = (
        f"no link leads out of its node from {'GPU' if len(gpus) == 1 else 'GPUs'} {shown}; a step that needs it fails"
    )
    return (Note("gpu-cut-off", text, str(path)),)


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
    path: Path,
    name: str,
    generation: str,
    evidence: str,
    counts: dict[str, int],
    layout: dict[str, int | str | None],
    oddities: tuple[Note, ...] = (),
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
        oddities=oddities,
    )
