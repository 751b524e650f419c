"""A cluster for a GPU by its name: the preset of that part, or one built from its datasheet."""

from dataclasses import replace

from traincast.errors import ConfigError
from traincast.hardware.cluster import Cluster, Gpu, Link
from traincast.hardware.clusters import cluster_names, load_cluster
from traincast.hardware.gpus import GpuSpec, find_gpu, load_gpu

NVLINK_SHARE = 0.72
"""What a collective gets of a datasheet's scale-up rate: 326 of 450 GB/s on H100, 634 of 900 on GB200
(fitted all-reduce rates of those presets)."""

NIC_SHARE = 0.95
"""What a collective gets of a network card's line rate: 48.5 of 50 GB/s (ConnectX-7) and 23.5 of 25 GB/s
(ConnectX-6), the constants of the presets h100 and a100."""

_NODE_SHARE = 0.875
"""What a node gets of all its cards together: 350 of 400 GB/s on 8 x 400 Gb/s (preset h100)."""

_WITH_SWITCH = ("ampere", "hopper", "blackwell")
"""Architectures whose boards of eight have an NVSwitch."""


def cluster_for(
    gpu_name: str, gpus_per_node: int | None = None, nic_bytes_per_s: float | None = None, gpus: int | None = None
) -> Cluster:
    """Return the cluster that a GPU usually stands in, with another node size or network card.

    Parameters
    ----------
    gpu_name : str
        Any spelling that `traincast.hardware.gpus.load_gpu` knows.
    gpus_per_node : int, optional
        GPUs in one machine; where the part's scale-up domain spans machines (GB200 NVL72), the
        domain counts, not the machine.
    nic_bytes_per_s : float, optional
        Line rate of each GPU's share of the network cards, per direction; the preset's or the
        datasheet's by default.
    gpus : int, optional
        GPUs of the job: more than an NVL72 rack, in multiples of 64, are taken as 64 of each rack.

    Returns
    -------
    Cluster

    Raises
    ------
    UnknownNameError
        If nothing is known of the GPU.
    ConfigError
        If its datasheet does not say its link.
    """
    spec = load_gpu(gpu_name)
    preset = _preset_of(spec)
    cluster = _from_datasheet(spec) if preset is None else load_cluster(preset)
    cluster = _with_domain(cluster, spec, gpus_per_node, gpus)
    return cluster if nic_bytes_per_s is None else _with_nic(cluster, nic_bytes_per_s)


def _preset_of(spec: GpuSpec) -> str | None:
    """Return the preset whose GPU is this very part."""
    for name in cluster_names():
        found = find_gpu(load_cluster(name).gpu.name)
        if found is not None and found.name == spec.name:
            return name
    return None


def _with_domain(cluster: Cluster, spec: GpuSpec, gpus_per_node: int | None, gpus: int | None) -> Cluster:
    # Racks of 72 are handed out in segments of 64, so that degrees divide.
    # Source: NVIDIA-NeMo/Megatron-Bridge and mlcommons submissions on NVL72: multiples of 64 GPUs.
    if spec.domain == 72 and gpus is not None and gpus > 72 and gpus % 64 == 0:
        return replace(cluster, gpus_used_per_node=64)
    if gpus_per_node is None or spec.domain > 8 or gpus_per_node == cluster.gpus_per_node:
        return cluster
    node = cluster.inter.node_bandwidth_bytes_per_s
    scaled = None if node is None else node * gpus_per_node / cluster.gpus_per_node
    return replace(
        cluster,
        name=f"{cluster.name} x{gpus_per_node}",
        gpus_per_node=gpus_per_node,
        inter=replace(cluster.inter, node_bandwidth_bytes_per_s=scaled),
    )


def _with_nic(cluster: Cluster, nic_bytes_per_s: float) -> Cluster:
    """Return a cluster whose GPUs have another network card."""
    if nic_bytes_per_s <= 0:
        raise ConfigError(f"is {nic_bytes_per_s} bytes/s; a network card has a positive rate", "nic_bytes_per_s")
    rate = nic_bytes_per_s * NIC_SHARE
    if abs(rate / cluster.inter.bandwidth_bytes_per_s - 1) < 0.03:
        return cluster
    node = nic_bytes_per_s * cluster.gpus_per_node * _NODE_SHARE
    inter = replace(cluster.inter, bandwidth_bytes_per_s=rate, node_bandwidth_bytes_per_s=node)
    source = f"{NIC_SHARE:g} of the network card's line rate, {nic_bytes_per_s:g} bytes/s"
    sources = {**dict(cluster.sources), "inter.bandwidth_bytes_per_s": source}
    return replace(
        cluster, name=f"{cluster.name} {nic_bytes_per_s * 8e-9:g}Gb/s", inter=inter, sources=tuple(sources.items())
    )


def _from_datasheet(spec: GpuSpec) -> Cluster:
    """Build a cluster from a datasheet; its latencies are those of the preset h100."""
    if spec.link_bytes_per_s is None:
        raise ConfigError(f"the datasheet of {spec.name} does not say its link; describe it in a cluster file", "gpu")
    like = load_cluster("h100")
    nic = spec.nic_bytes_per_s or 6.25e9
    shown = f"datasheet of {spec.name}: {spec.source}"
    gpu = Gpu(
        name=spec.name,
        architecture=spec.architecture,
        bf16_dense_flops_per_s=dict(spec.peaks_flops_per_s).get("bf16"),
        hbm_bytes=round(spec.hbm_bytes),
        hbm_bytes_per_s=spec.hbm_bytes_per_s,
        link_bytes_per_s=spec.link_bytes_per_s,
    )
    intra = replace(
        like.intra,
        bandwidth_bytes_per_s=spec.link_bytes_per_s * NVLINK_SHARE,
        kind="nvswitch" if spec.architecture in _WITH_SWITCH and spec.domain >= 8 else None,
    )
    inter: Link = replace(
        like.inter,
        kind=None,
        bandwidth_bytes_per_s=nic * NIC_SHARE,
        node_bandwidth_bytes_per_s=nic * spec.domain * _NODE_SHARE,
    )
    sources = {
        "gpu": shown,
        "gpus_per_node": shown,
        "intra.bandwidth_bytes_per_s": f"no measured collectives: {NVLINK_SHARE:g} of the {shown}",
        "inter.bandwidth_bytes_per_s": f"no measured collectives: {NIC_SHARE:g} of the {shown}",
        "intra, inter": "no measured collectives: latencies as in h100",
    }
    return Cluster(
        name=spec.name.lower(),
        description=f"{spec.name}, built from its datasheet ({spec.confidence} confidence)",
        gpu=gpu,
        gpus_per_node=spec.domain,
        intra=intra,
        inter=inter,
        nccl=like.nccl if gpu.nccl_row is not None else None,
        sources=tuple(sources.items()),
    )
