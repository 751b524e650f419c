"""What conditions on a job may ask about: fields of a job and of its layout, and a few facts of model and machine.

Conditions are written in tables of facts (`traincast.job.conditions`), such as that of switches of software. Whoever
asks hands over what is known so far; what is not is not held against a job.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from traincast.hardware.cluster import Cluster
from traincast.hardware.dtypes import EIGHT_BIT, FOUR_BIT, PEAK_OF_DTYPE
from traincast.job.frameworks import FULL_ITERATION
from traincast.job.job import DECIDED, Job
from traincast.model.model import Model

FACTS: Mapping[str, str] = MappingProxyType(
    {
        "experts": "a model with experts",
        "shared_experts": "a model with shared experts",
        "capacity": "experts that drop the tokens beyond their capacity",
        "state_space": "a model with state-space layers",
        "attention_bias": "attention whose projections have biases",
        "latent_attention": "multi-head latent attention",
        "sinks": "attention with sinks",
        "wide_ends": "a model that is trained with its last layers in 16 bits where others are in 4",
        "eight_bit": "GEMMs in 8 bits or less",
        "four_bit": "GEMMs in 4 bits",
        "capability": "the compute capability of the GPU",
        "domain": "GPUs that one NVLink domain connects",
        "gpu": "the GPU",
        "vendor": "the maker of the GPU",
        "network": "the network between nodes",
        "replicas": "ranks with equal dense parameters",
        "ep_crosses_domains": "expert ranks in several NVLink domains",
    }
)
"""Facts that are not fields of a job, and what they are."""


def model_facts(model: Model) -> dict[str, Any]:
    """Return what conditions may ask about a model."""
    experts = model.experts
    return {
        "experts": experts is not None,
        "shared_experts": experts is not None and experts.shared_ffn_hidden > 0,
        "capacity": experts is not None and experts.capacity_factor is not None,
        "state_space": any(name.startswith("mamba") for layer in model.blocks for name in layer),
        "attention_bias": model.attention.qkv_bias or model.linear_bias,
        "latent_attention": model.attention.latent is not None,
        "sinks": model.attention.sinks,
        "wide_ends": model.last_wide_layers > 0,
        "mtp_layers": model.mtp_layers,
    }


def machine_facts(cluster: Cluster) -> dict[str, Any]:
    """Return what conditions may ask about a cluster; a GPU by the name of its chip, in lower case: ``gb200``."""
    gpu = cluster.gpu
    return {
        "capability": gpu.generation.capability,
        "domain": cluster.gpus_per_node,
        "gpu": gpu.name.partition("-")[0].lower(),
        "vendor": gpu.vendor.lower(),
        "network": cluster.inter.kind,
    }


def precision_facts(precision: str) -> dict[str, Any]:
    """Return what conditions may ask about the type of GEMMs."""
    return {
        "precision": precision,
        "eight_bit": precision in EIGHT_BIT,
        "four_bit": PEAK_OF_DTYPE.get(precision) == FOUR_BIT,
    }


def layout_facts(*, cp: int, dp: int, ep: int, stride: int, domain: int) -> dict[str, Any]:
    """Return what conditions may ask about the degrees of a layout in addition to what they are.

    Members of an `ep` group are `stride` ranks apart; `domain` GPUs reach each other without the network.
    """
    return {"replicas": cp * dp, "ep_crosses_domains": ep * stride > domain}


def job_facts(job: Job, cluster: Cluster | None) -> dict[str, Any]:
    """Return all that conditions may ask about a job with everything decided, on its cluster where that is known."""
    parallel, kernels = job.parallel, job.kernels
    graphs = "none" if not kernels.cuda_graphs else "transformer_engine"
    found = {name: job.decided(name) for name in DECIDED}
    found |= model_facts(job.model) | precision_facts(job.precision.dtype) | {"replicas": parallel.replicas}
    if cluster is not None:
        cp, dp, ep, stride = parallel.cp, parallel.dp, parallel.ep, parallel.expert_stride
        found |= machine_facts(cluster) | layout_facts(cp=cp, dp=dp, ep=ep, stride=stride, domain=cluster.gpus_per_node)
    found |= {
        "gpus": parallel.world_size,
        "framework": job.framework.name,
        "cuda_graph_impl": FULL_ITERATION if FULL_ITERATION in kernels.cuda_graph_scope else graphs,
        "grad_reduce_bytes": job.framework.grad_reduce_bytes,
        "optimizer": "adam" if job.optimizer.muon is None else "muon",
        "precision_aware_optimizer": job.optimizer.precision_aware,
        "main_params_dtype": job.optimizer.main_params,
        "exp_avg_dtype": job.optimizer.exp_avg,
        "exp_avg_sq_dtype": job.optimizer.exp_avg_sq,
        "recompute_modules": job.recompute.recomputed_modules,
        "etp": parallel.expert_tp,
    }
    return found
