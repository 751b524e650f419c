"""What settings of MaxText say of how a job is computed, by the tables that read them; its axes are not written.

Source: AI-Hypercomputer/maxtext, src/maxtext/configs/base.yml and layers/decoders.py (get_remat_policy).
"""

from typing import Any

from traincast.dialects.flags import flag_table
from traincast.dialects.writing import flags_of_fields
from traincast.job.job import Job

_NAMED_BY_OTHERS = ("custom", "none")
"""Policies that are more than a list of tensors."""


def maxtext_said(job: Job) -> dict[str, Any]:
    """Return the settings of MaxText that say how a job is computed, by name."""
    table, kernels = flag_table("maxtext"), job.kernels
    dtype = "bf16" if job.precision.in_eight_bits else job.precision.dtype
    fields: dict[str, Any] = {"precision": dtype, "attention_kernel": kernels.attention}
    fields |= {"cp_kind": job.communication.cp_kind} if job.parallel.cp > 1 else {}
    fields |= {"overlap_tp": True} if job.parallel.tp > 1 and job.communication.overlap_tp else {}
    found = {
        "per_device_batch_size": job.batch.global_batch / job.parallel.world_size,
        **flags_of_fields(table, fields),
        "quantization": _quantization(job),
        "remat_policy": _policy(job),
    }
    return {name: value for name, value in found.items() if value is not None}


def _quantization(job: Job) -> str | None:
    """Return the recipe of narrower types: on TPUs that of all operands, on GPUs that of Transformer Engine."""
    known, recipes = (flag_table("maxtext").further[name] for name in ("quantizations", "recipes"))
    fits = [name for name, dtype in known.items() if dtype == job.precision.dtype]
    scaled = [name for name in fits if recipes.get(name) == job.precision.fp8_recipe]
    usual = "fp8_full" if job.framework.name == "maxtext-tpu-2025" else "te_fp8_delayedscaling"
    plain = [name for name in fits if name not in recipes]
    return next(iter([*scaled, *(name for name in plain if name == usual), *plain]), None)


def _policy(job: Job) -> str | None:
    """Return the policy that saves the same tensors of recomputed layers; None where no policy does."""
    if job.recompute.granularity == "none":
        return "none"
    further, usual = flag_table("maxtext").further, set(job.framework.recompute_keeps)
    for policy, tensors in further["remat"].items():
        kept = {each for name in tensors.split() for each in further["saved"][name].split()}
        # What the framework leaves out by itself is in no policy.
        alike = kept | usual == usual | set(job.recompute.keeps)
        if policy not in _NAMED_BY_OTHERS and job.recompute.all_layers and alike:
            return str(policy)
    return None
