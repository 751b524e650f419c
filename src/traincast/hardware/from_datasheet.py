"""A cluster of a GPU that nobody measured collectives on: its datasheet at the shares that measured clusters reach.

A cluster with another node size or network card is made from one that is known by the same shares.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import fields, replace

from traincast.errors import ConfigError
from traincast.hardware.cluster import Cluster, Link
from traincast.hardware.gpu import Gpu
from traincast.units import format_rate, format_share

NIC_SHARE = 0.95
"""What a collective gets of a network card's line rate: 48.5 of 50 GB/s (ConnectX-7) and 23.5 of 25 GB/s
(ConnectX-6), the constants of the presets h100 and a100."""

NODE_SHARE = 0.875
"""What a node gets of all its cards together: 350 of 400 GB/s on 8 x 400 Gb/s (preset h100)."""

LIKE = {"mesh": "mi300x", "torus": "tpu-v5p", "torus_2d": "tpu-v6e", "pcie": "rtx-pro-6000"}
"""Kind of the links inside a node to the preset whose latencies, and share of the datasheet's rate, are taken."""

TORUS = ("torus", "torus_2d")
"""Kinds of links of pods, of which jobs get slices."""

_LIKE_OTHERS = "h100"
_PCIE_CARDS = 8
"""Cards of a usual node, which bridges may join in pairs."""
_USUAL_GPUS = 8
_USUAL_NIC_BYTES_PER_S = 50e9
"""400 Gb/s, where nothing says the network card."""


def cluster_from_datasheet(
    gpu: Gpu, source: str, preset: Callable[[str], Cluster], gpus_per_node: int | None = None
) -> Cluster:
    """Return the cluster that a GPU usually stands in, as far as its datasheet tells; what was assumed stands in it.

    `source` says where the values of the GPU are from, `preset` gives a preset by its name. Without `gpus_per_node` a
    node has the GPUs that its links usually connect, of PCIe cards eight.

    Raises
    ------
    ConfigError
        If nothing says the rate of its links.
    """
    if gpu.link_bytes_per_s is None:
        raise ConfigError("is missing; give it, or describe the links in [intra] and [inter]", "gpu.link_bytes_per_s")
    name = LIKE.get(gpu.link_kind, _LIKE_OTHERS)
    like, usual = preset(name), preset(_LIKE_OTHERS)
    least = _PCIE_CARDS if gpu.link_kind == "pcie" else 1
    node = gpus_per_node or max(gpu.domain or _USUAL_GPUS, least)
    nic = gpu.nic_bytes_per_s or _USUAL_NIC_BYTES_PER_S
    if gpu.copy_bytes_per_s is None:
        gpu = replace(gpu, copy_bytes_per_s=_scaled(like.gpu.copy_bytes_per_s, gpu.hbm_bytes_per_s, like))
    intra = _intra(gpu, like, usual)
    inter = replace(
        usual.inter,
        kind=None,
        bandwidth_bytes_per_s=nic * NIC_SHARE,
        node_bandwidth_bytes_per_s=nic * node * NODE_SHARE,
    )
    share = intra.bandwidth_bytes_per_s / _rate(gpu)
    text = (
        f"no collectives were measured on {gpu.name}, so its cluster is built from the {source}: nodes of {node}, "
        f"links of {format_rate(_rate(gpu))} inside a node of which collectives reach "
        f"{format_share(share, 0)} as on {name}, "
        f"{format_rate(nic)} of network card for each GPU, of which they reach "
        f"{format_share(NIC_SHARE, 0)}; latencies as on "
        + (name if name == _LIKE_OTHERS else f"{name} and {_LIKE_OTHERS}")
    )
    return Cluster(
        name=gpu.name.lower(),
        description=f"{gpu.name}, built from its datasheet",
        gpu=gpu,
        gpus_per_node=node,
        intra=intra,
        inter=inter,
        nccl=usual.nccl if gpu.nccl_row is not None else None,
        assumed=(text,),
        sources=tuple(_sources(gpu, intra, inter, source, name).items()),
    )


def with_domain(cluster: Cluster, domain: int, gpus_per_node: int | None, gpus: int | None) -> Cluster:
    """Return a cluster with nodes of another size, or of an NVL72 rack with so many GPUs of it as jobs get."""
    # Racks of 72 are handed out in segments of 64, so that degrees divide.
    # Source: NVIDIA-NeMo/Megatron-Bridge and mlcommons submissions on NVL72: multiples of 64 GPUs.
    if domain == 72 and gpus is not None and gpus > 72 and gpus % 64 == 0:
        return replace(cluster, gpus_used_per_node=64)
    # Of a pod jobs get a slice with links of its own, and between slices the data centre's network.
    sliced = cluster.intra.kind in TORUS
    if gpus_per_node is None or (domain > 8 and not sliced) or gpus_per_node == cluster.gpus_per_node:
        return cluster
    node = cluster.inter.node_bandwidth_bytes_per_s
    scaled = None if node is None else node * gpus_per_node / cluster.gpus_per_node
    return replace(
        cluster,
        name=f"{cluster.name} x{gpus_per_node}",
        gpus_per_node=gpus_per_node,
        inter=replace(cluster.inter, node_bandwidth_bytes_per_s=scaled),
        **_own_bridges(cluster, gpus_per_node),
    )


def _own_bridges(cluster: Cluster, gpus_per_node: int) -> dict[str, Any]:
    """Return what a node of another size has of the links of a measured one over PCIe: the rate of two GPUs.

    How much less larger groups get there is a matter of that machine's host bridges, not of its GPUs: four L40S get
    4.7 GB/s each in the one that was measured; in NVIDIA's nodes of four a published step (MLPerf 4.0, Llama 2 70B)
    leaves their exchanges so little time that each gets 17 at least.
    """
    if cluster.intra.kind != "pcie" or cluster.intra.crowding is None:
        return {}
    text = (
        f"nodes of {gpus_per_node} GPUs over PCIe have host bridges of their own: what larger groups lose in the "
        f"measured node of {cluster.gpus_per_node} is left out"
    )
    return {"intra": replace(cluster.intra, crowding=None), "assumed": (*cluster.assumed, text)}


def with_nic(cluster: Cluster, nic_bytes_per_s: float) -> Cluster:
    """Return a cluster whose GPUs have another network card."""
    if nic_bytes_per_s <= 0:
        raise ConfigError(f"is {nic_bytes_per_s} bytes/s; a network card has a positive rate", "nic_bytes_per_s")
    rate = nic_bytes_per_s * NIC_SHARE
    if abs(rate / cluster.inter.bandwidth_bytes_per_s - 1) < 0.03:
        return cluster
    node = nic_bytes_per_s * cluster.gpus_per_node * NODE_SHARE
    inter = replace(cluster.inter, bandwidth_bytes_per_s=rate, node_bandwidth_bytes_per_s=node)
    source = f"{NIC_SHARE:g} of the network card's line rate, {nic_bytes_per_s:g} bytes/s"
    sources = {**dict(cluster.sources), "inter.bandwidth_bytes_per_s": source}
    return replace(
        cluster, name=f"{cluster.name} {nic_bytes_per_s * 8e-9:g}Gb/s", inter=inter, sources=tuple(sources.items())
    )


def _rate(gpu: Gpu) -> float:
    """Return the datasheet's rate of the links that a group of more than two goes over."""
    rate = gpu.host_bytes_per_s if gpu.link_kind == "pcie" else None
    return rate or gpu.link_bytes_per_s or 0.0


def _intra(gpu: Gpu, like: Cluster, usual: Cluster) -> Link:
    """Return the links inside a node: those of a preset at this datasheet's rate."""
    ratio = _rate(gpu) / _rate(like.gpu)
    link = like.intra
    pair = link.pair_bandwidth_bytes_per_s
    if gpu.link_kind != "pcie":
        pair = None  # one link's part of them all
    elif gpu.link_bytes_per_s is not None and gpu.link_bytes_per_s > _rate(gpu):  # two cards with a bridge
        pair = gpu.link_bytes_per_s * usual.intra.bandwidth_bytes_per_s / _rate(usual.gpu)
    elif pair is not None:
        pair *= ratio
    halves = link.halves_bandwidth_bytes_per_s
    return replace(
        link,
        kind=gpu.link_kind or None,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * ratio,
        pair_bandwidth_bytes_per_s=pair,
        halves_bandwidth_bytes_per_s=None if halves is None else halves * ratio,
    )


def _scaled(rate: float | None, hbm_bytes_per_s: float | None, like: Cluster) -> float | None:
    """Return a rate of copies at the share of the memory's rate that a preset reaches."""
    of = like.gpu.hbm_bytes_per_s
    return None if rate is None or hbm_bytes_per_s is None or of is None else rate * hbm_bytes_per_s / of


def _sources(gpu: Gpu, intra: Link, inter: Link, source: str, like: str) -> dict[str, str]:
    """Return where each number of the links comes from."""
    found = {"gpus_per_node": source}
    if gpu.copy_bytes_per_s is not None:
        found["gpu.copy_bytes_per_s"] = f"no measured collectives: the share of the memory's rate that {like} reaches"
    for level, link, from_preset in (("intra", intra, like), ("inter", inter, _LIKE_OTHERS)):
        for field in fields(Link):
            value = getattr(link, field.name)
            if isinstance(value, int | float) and value != field.default:
                scaled = field.name.endswith("bandwidth_bytes_per_s")
                shown = f"the share that {from_preset} reaches of the {source}" if scaled else f"as in {from_preset}"
                found[f"{level}.{field.name}"] = f"no measured collectives: {shown}"
    return found
