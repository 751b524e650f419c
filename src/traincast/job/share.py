"""What one rank works on in a microbatch, and what its framework keeps of it until the backward pass."""

from typing import Literal

from msgspec.structs import replace

from traincast.hardware.dtypes import EIGHT_BIT
from traincast.job.frameworks import MemoryPolicy
from traincast.job.job import Job
from traincast.model.blocks.share import Execution, Share
from traincast.model.structure import Blocks, in_sixteen_bits


def blocks_of_layer(job: Job, layer: int) -> Blocks:
    """Return the blocks of the layer of a job at that index, from 0: in 16 bits where the job keeps the ends there."""
    blocks = job.blocks_L[layer]
    return in_sixteen_bits(blocks) if job.precision.keeps_sixteen_bits(layer, job.model.layers) else blocks


def blocks_of_layers(job: Job, layers: range) -> tuple[Blocks, ...]:
    """Return the same of some consecutive layers."""
    if not job.precision.bf16_first_last:
        return job.blocks_L[layers.start : layers.stop]
    return tuple(blocks_of_layer(job, layer) for layer in layers)


def rank_share(job: Job, ranks_per_node: int = 8) -> Share:
    """Return what one rank works on in a microbatch.

    `ranks_per_node` reach each other without the network (64 where a job uses so many of an NVL72 rack).
    """
    return Share(
        model=job.model,
        sequences=job.batch.sequences,
        tp=job.parallel.tp,
        cp=job.parallel.cp,
        ep=job.parallel.ep,
        etp=job.parallel.expert_tp,
        sequence_parallel=job.communication.sequence_parallel,
        vocab=job.kernels.padded_vocab,
        execution=_execution(job, ranks_per_node),
    )


def _execution(job: Job, ranks_per_node: int) -> Execution:
    precision, experts, kernels, framework = job.precision, job.experts, job.kernels, job.framework
    return Execution(
        precision=precision.dtype,
        recipe="" if precision.fp8_recipe == "none" else precision.fp8_recipe,
        eight_bit_attention=precision.fp8_attention,
        eight_bit_head=precision.fp8_lm_head,
        fused_expert_casts=kernels.te_op_fuser,
        fused_experts=kernels.te_op_fuser and precision.dtype == "mxfp8",
        grouped_experts=framework.grouped_experts and "experts" not in kernels.unfused,
        padded_experts=framework.pads_experts and precision.dtype in EIGHT_BIT and not experts.dispatch.kind.pads,
        fused_operations=kernels.te_op_fuser,
        transposes=precision.fp8_transposes,
        gathered_weight_bytes=job.sharding.gathered_weight_bytes,
        attention_kernel=kernels.attention,
        score_passes=_score_passes(job),
        dropout=kernels.dropout,
        cp_kind=job.communication.cp_kind,
        adapters=job.finetuning.adapters,
        dispatch=replace(
            experts.dispatch, router_weights=framework.sends_router_weights, permutation=_permutation(job)
        ),
        ranks_per_node=ranks_per_node,
        folded_experts=job.parallel.folded_experts,
        fused_elementwise=framework.fused_elementwise,
        eager_layers=framework.eager_layers and precision.dtype not in ("fp32", "tf32"),
        loss_kernel="eager" if kernels.loss_kernel == "unfused" else kernels.loss_kernel,
        loss_code=framework.loss_code,
        autocast=job.autocasts,
        fused_expert_bias=kernels.te_op_fuser,
        gradient_sum=_gradient_sum(job),
        fused_rope=_fuses_rope(job),
        fuses_pointwise=framework.fuses_pointwise,
        recasts_norms=framework.recasts_norms,
        sequence_first=framework.sequence_first,
        one_hot_embedding=kernels.one_hot_embedding,
    )


def _score_passes(job: Job) -> int:
    """Return how often the scores of unfused attention cross memory forward, by whether there is dropout."""
    if job.framework.eager_layers:
        return 4  # of its own: scale, mask, and a softmax in fp32
    if not job.kernels.dropout:
        return 2
    # A kernel that does both reads them once, and writes what the softmax and what dropout makes of them.
    return 3 if job.framework.fused_softmax_dropout else 4


def _permutation(job: Job) -> Literal["fused", "single", "weighted"]:
    """Return what permutes tokens: where the router's weights do not go with them, they multiply what comes back."""
    if job.experts.fused_permute:
        return "fused"
    return "single" if job.framework.sends_router_weights else "weighted"


def _fuses_rope(job: Job) -> bool:
    """Say whether one kernel rotates queries and keys; latent attention has a kernel of its own."""
    attention = job.model.attention
    scaled = attention.scaled_rotary and attention.latent is None
    return "rope" not in job.kernels.unfused and (job.framework.fused_scaled_rotary or not scaled)


def _gradient_sum(job: Job) -> str:
    """Return what adds weight gradients to those of the step: a kernel where the job says that GEMMs do not."""
    usual = job.framework.gradient_sum
    return "kernel" if usual == "gemm" and "gradient_sums" in job.kernels.unfused else usual


def kept_share(share: Share, policy: MemoryPolicy) -> Share:
    """Return a rank's share, with what its framework keeps."""
    return replace(
        share,
        execution=replace(
            share.execution,
            activation_copy=policy.activation_copy,
            core_output_copy=policy.core_output_copy,
            expert_output_copy=policy.expert_output_copy,
            eight_bit_inputs=policy.weight_copies,
            saved_logit_bytes=policy.saved_logit_bytes / policy.loss_tiles,
        ),
    )
