"""A job as arguments of Transformers' Trainer, alone or over a configuration of DeepSpeed; read by their tables.

Sources: huggingface/transformers, src/transformers/training_args.py; deepspeedai/DeepSpeed, deepspeed/runtime/config.py
and zero/config.py.
"""

from typing import Any

from traincast.dialects.flags import flag_table
from traincast.dialects.writing import flags_of_fields
from traincast.job.job import Job

_HALF = ("bf16", "fp16")
_ZERO = "zero_optimization"


def trainer_said(job: Job) -> dict[str, Any]:
    """Return the arguments of the Trainer that say a job, by name."""
    batch, dtype = job.batch, job.precision.dtype
    found: dict[str, Any] = {
        "per_device_train_batch_size": batch.micro_batch,
        "gradient_accumulation_steps": job.parallel.microbatches,
    }
    found |= {name: True for name in _HALF if name == dtype}
    return found | _script(job)


def deepspeed_said(job: Job) -> dict[str, Any]:
    """Return the settings of DeepSpeed that say a job, by their path in its JSON, and arguments of its script."""
    sharding, offload, replicas = job.sharding, job.offload, job.parallel.replicas
    found: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": job.batch.micro_batch,
        "gradient_accumulation_steps": job.parallel.microbatches,
        f"{_ZERO}.stage": sharding.zero,
    }
    found |= {f"{name}.enabled": True for name in _HALF if name == job.precision.dtype}
    if sharding.zero > 0:
        found[f"{_ZERO}.overlap_comm"] = sharding.overlap_grad_reduce
        if job.sharing < replicas:
            found[f"{_ZERO}.mics_shard_size"] = job.sharing
    if offload.optimizer > 0:
        found[f"{_ZERO}.offload_optimizer.device"] = "cpu"
        found |= {f"{_ZERO}.offload_optimizer.ratio": offload.optimizer} if offload.optimizer < 1 else {}
    if offload.parameters:
        found[f"{_ZERO}.offload_param.device"] = "cpu"
    return found | _script(job)


def _script(job: Job) -> dict[str, Any]:
    """Return what the script alone is told: whether layers are recomputed, and the attention kernel."""
    kernel = flags_of_fields(flag_table("deepspeed"), {"attention_kernel": job.kernels.attention})
    return {"gradient_checkpointing": job.recompute.whole_layers, **kernel}
