"""A cluster for a GPU by its name: the preset of that part, or one built from its datasheet."""

from dataclasses import replace

from traincast.errors import ConfigError
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import load_cluster, preset_of
from traincast.hardware.from_datasheet import NIC_SHARE, NODE_SHARE
from traincast.hardware.gpus import load_gpu


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
    gpu = load_gpu(gpu_name)
    cluster = _with_domain(load_cluster(preset_of(gpu) or gpu.name), gpu.domain or 1, gpus_per_node, gpus)
    return cluster if nic_bytes_per_s is None else _with_nic(cluster, nic_bytes_per_s)


def _with_domain(cluster: Cluster, domain: int, gpus_per_node: int | None, gpus: int | None) -> Cluster:
    # Racks of 72 are handed out in segments of 64, so that degrees divide.
    # Source: NVIDIA-NeMo/Megatron-Bridge and mlcommons submissions on NVL72: multiples of 64 GPUs.
    if domain == 72 and gpus is not None and gpus > 72 and gpus % 64 == 0:
        return replace(cluster, gpus_used_per_node=64)
    if gpus_per_node is None or domain > 8 or gpus_per_node == cluster.gpus_per_node:
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
    node = nic_bytes_per_s * cluster.gpus_per_node * NODE_SHARE
    inter = replace(cluster.inter, bandwidth_bytes_per_s=rate, node_bandwidth_bytes_per_s=node)
    source = f"{NIC_SHARE:g} of the network card's line rate, {nic_bytes_per_s:g} bytes/s"
    sources = {**dict(cluster.sources), "inter.bandwidth_bytes_per_s": source}
    return replace(
        cluster, name=f"{cluster.name} {nic_bytes_per_s * 8e-9:g}Gb/s", inter=inter, sources=tuple(sources.items())
    )
