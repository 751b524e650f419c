"""A job as flags of Megatron-LM, by the table that reads them; what they cannot be told is a comment.

Source: NVIDIA/Megatron-LM, megatron/training/arguments.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from traincast.dialects.flags import flag_table
from traincast.dialects.megatron_checks import dispatcher_flags, gradient_flags, precision_flags, recompute_flags
from traincast.dialects.megatron_flags import LOSS_KERNELS
from traincast.dialects.writing import flag_line, flags_of_fields, in_order, lost_schedule
from traincast.job.frameworks import FULL_ITERATION
from traincast.job.job import Job
from traincast.job.kernels import Kernels
from traincast.schedules.schedule import USUAL


def megatron_text(job: Job) -> str:
    """Return the flags of Megatron-LM, one a line."""
    lines = [flag_line("--", *each) for each in written_flags(job).items()]
    lost = [*lost_by_megatron(job, "Megatron-LM"), *_lost_by_flags(job)]
    if gathers_once(job) and not _fits_torch_fsdp(job):
        lost.append("# parameters gathered once: Megatron-LM has that with pp 1 and ep 1 alone (--use-torch-fsdp2)")
    return "".join(f"{line}\n" for line in (*lines, *lost))


def written_flags(job: Job) -> dict[str, Any]:
    """Return the flags that are written of a job, in their order, with their values; then what these demand."""
    names = flag_table("megatron").further["writes"]["flags"].split()
    said = in_order(names, megatron_said(job, torch_fsdp=_fits_torch_fsdp(job)))
    return {name: value for name, value in said if name != _EIGHT_BIT_ATTENTION} | _demanded(job)


_EIGHT_BIT_ATTENTION = "fp8-dot-product-attention"


def _demanded(job: Job) -> dict[str, Any]:
    """Return the flags that Megatron-LM demands because of others, and that no field of a job says."""
    also = ("fused_loss",) if _lacks_fused_loss(job) else ()
    return demanded_by(job, flag_table("megatron").further["demanded"], *also)


def demanded_by(job: Job, table: Mapping[str, Mapping[str, Any]], *also: str) -> dict[str, Any]:
    """Return what a table says is demanded with what a job has, and with what holds `also`."""
    whole, sharding = FULL_ITERATION in job.kernels.cuda_graph_scope, job.sharding
    holds = {
        "paged_stash": job.experts.paged_stash and job.model.experts is not None,
        "full_iteration": whole,
        "offload_in_iteration": whole and bool(job.offload.modules),
        "megatron_fsdp": sharding.zero > 1 and not _fits_torch_fsdp(job),
    }
    names = [*(name for name, held in holds.items() if held), *also]
    return {flag: value for name in names for flag, value in table.get(name, {}).items()}


def _lacks_fused_loss(job: Job) -> bool:
    """Say whether Megatron-LM refuses Transformer Engine's loss, as it does since August 2026."""
    return job.kernels.loss_kernel == "fused" and job.framework.year > 2025


def _lost_by_flags(job: Job) -> Iterator[str]:
    """Yield a comment for what Megatron-LM has no flag for, though Megatron Core and Megatron-Bridge have it."""
    if _lacks_fused_loss(job):
        yield "# loss in one kernel: Megatron-LM refuses it since August 2026, native keeps 10 bytes of a logit, not 4"
    if job.precision.fp8_attention and job.precision.in_eight_bits:
        yield "# attention in 8 bits: Megatron-Bridge alone has that (fp8_dot_product_attention)"


def megatron_said(job: Job, *, torch_fsdp: bool = False) -> dict[str, Any]:
    """Return the flags of Megatron-LM that say a job, with PyTorch's FSDP or its own."""
    return {
        **flags_of_fields(flag_table("megatron"), _fields(job, torch_fsdp=torch_fsdp)),
        **precision_flags(job.precision.dtype),
        **_sharding(job, torch_fsdp=torch_fsdp),
        **_offload(job),
        **recompute_flags(job.recompute),
        **({} if job.model.experts is None else dispatcher_flags(job.experts.dispatcher)),
        "moe-grouped-gemm": job.model.experts is not None and "experts" not in job.kernels.unfused,
        **_graphs(job.kernels),
        **_kernels(job),
        **_loss(job.kernels),
        **gradient_flags(job.precision.dtype, job.framework.grad_reduce_bytes),
        "fp8-param-gather": job.sharding.zero > 0 and job.sharding.param_gather_bytes == 1,
        **_optimizer(job),
    }


def _graphs(kernels: Kernels) -> dict[str, Any]:
    """Return what captures CUDA graphs, and of which modules: a whole iteration has a way of its own."""
    if not kernels.cuda_graphs:
        return {}
    if kernels.cuda_graph_scope == (FULL_ITERATION,):
        return {"cuda-graph-impl": FULL_ITERATION}
    return {"cuda-graph-impl": "transformer_engine", "cuda-graph-scope": [*kernels.cuda_graph_scope] or None}


def _kernels(job: Job) -> dict[str, Any]:
    """Return what layers run otherwise than the framework does by itself, and what is computed to be logged."""
    kernels, own = job.kernels, job.kernels.attention != job.framework.attention_kernel
    # Of FlashAttention both the backend and its version are said.
    attention = flags_of_fields(flag_table("megatron"), {"attention_kernel": kernels.attention}) if own else {}
    backend = {"attention-backend": "flash"} if "flash-attention-version" in attention else {}
    return {
        **attention,
        **backend,
        "no-rope-fusion": "rope" in kernels.unfused,
        "no-gradient-accumulation-fusion": "gradient_sums" in kernels.unfused,
        "log-params-norm": "params_norm" in kernels.step_checks,
        "log-num-zeros-in-grad": "zeros_in_grad" in kernels.step_checks,
    }


def _loss(kernels: Kernels) -> dict[str, Any]:
    """Return what computes the loss in few kernels; what reads the flags takes those for it, too."""
    impl = {means: name for name, means in LOSS_KERNELS.items()}.get(kernels.loss_kernel)
    return {} if impl is None else {"cross-entropy-loss-fusion": True, "cross-entropy-fusion-impl": impl}


def _optimizer(job: Job) -> dict[str, Any]:
    """Return the types of Adam's state, where they are not all fp32; the host needs the kernel that takes them."""
    types, away = job.optimizer, job.offload.optimizer > 0
    names = {
        "main-params-dtype": types.main_params,
        "exp-avg-dtype": types.exp_avg,
        "exp-avg-sq-dtype": types.exp_avg_sq,
    }
    aware = types.precision_aware
    return {
        "use-precision-aware-optimizer": aware or away,
        **({name: dtype for name, dtype in names.items() if dtype != "fp32"} if aware else {}),
    }


def _fields(job: Job, *, torch_fsdp: bool) -> dict[str, Any]:
    """Return the fields of a job that flags set as they stand, as far as they have an effect on it."""
    parallel, sharding, shards = job.parallel, job.sharding, job.sharding.zero > 0 and not torch_fsdp
    said = ["tp", "pp", "cp", "micro_batch", "global_batch", "seq_length"]
    said += ["vpp"] if parallel.vpp > 1 else []
    said += ["cp_kind"] if parallel.cp > 1 else []
    said += ["zero"] if sharding.zero > 1 and not torch_fsdp else []
    said += ["ep", "etp", "fused_router", "fused_permute", "moe_paged_stash"] if job.model.experts is not None else []
    said += ["moe_a2a_overlap", "delay_wgrad", "moe_shared_expert_overlap"] if parallel.ep > 1 else []
    said += ["moe_dispatch_dtype"] if parallel.ep > 1 and job.experts.dispatch_dtype != "bf16" else []
    said += ["bf16_first_last", "fp8_attention"] if job.precision.in_eight_bits else []
    said += ["fp8_lm_head"] if job.precision.fp8_lm_head else []
    return {name: job.decided(name) for name in said} | {
        "sequence_parallel": job.communication.sequence_parallel and parallel.tp > 1,
        "overlap_grad_reduce": sharding.overlap_grad_reduce and parallel.replicas > 1,
        "overlap_param_gather": sharding.overlap_param_gather and shards,
        "overlap_tp": job.communication.overlap_tp and parallel.tp > 1,
        "te_op_fuser": job.kernels.te_op_fuser,
        **_uneven(job),
    }


def _uneven(job: Job) -> dict[str, Any]:
    """Return how uneven stages are said: with embedding and LM head as a layer each, or by the first and the last."""
    layers_Q = job.pipeline.layers_Q
    if len(set(layers_Q)) == 1:
        return {}
    less_Q = [max(layers_Q) - each for each in layers_Q]
    if max(less_Q) == 1 and not any(less_Q[1:-1]):
        return {"embedding_as_layer": less_Q[0] > 0, "head_as_layer": less_Q[-1] > 0}
    if job.parallel.vpp > 1 or len(layers_Q) < 3 or len(set(layers_Q[1:-1])) > 1:
        return {}
    return {"first_stage_layers": layers_Q[0], "last_stage_layers": layers_Q[-1]}


def _sharding(job: Job, *, torch_fsdp: bool) -> dict[str, Any]:
    zero, replicas = job.sharding.zero, job.parallel.replicas
    # Its optimizer on the host needs the distributed one, be it over one replica (validate_args).
    alone = job.offload.optimizer > 0 and replicas == 1
    copies = replicas // job.sharing if zero > 0 else 1
    return {
        "use-distributed-optimizer": alone or (zero > 0 and not torch_fsdp),
        "use-megatron-fsdp": zero > 1 and not torch_fsdp,
        "use-torch-fsdp2": torch_fsdp,
        "torch-fsdp2-no-reshard-after-forward": torch_fsdp,
        "num-distributed-optimizer-instances": copies if copies > 1 else None,
        "use-sharp": job.communication.sharp is not None,
        "sharp-enabled-group": job.communication.sharp,
    }


def _offload(job: Job) -> dict[str, Any]:
    """Return what the host keeps; the number of layers turns offloading of activations on."""
    share, layers = job.offload.optimizer, job.offload.activations
    away = share > 0
    return {
        "optimizer-cpu-offload": away,
        "optimizer-offload-fraction": share or None,
        "overlap-cpu-optimizer-d2h-h2d": away and job.offload.overlap,
        "cpu-offloading": layers > 0,
        "cpu-offloading-num-layers": layers or None,
        "fine-grained-activation-offloading": bool(job.offload.modules),
        "offload-modules": [*job.offload.modules] or None,
    }


def gathers_once(job: Job) -> bool:
    """Return whether sharded parameters stay whole from the forward to the backward pass."""
    return job.sharding.zero == 3 and not job.sharding.reshard_after_forward


def _fits_torch_fsdp(job: Job) -> bool:
    """Return whether Megatron-LM has a job with PyTorch's FSDP: its own gathers parameters for each pass."""
    return gathers_once(job) and job.parallel.pp == 1 and job.parallel.ep == 1


def lost_by_megatron(job: Job, says: str) -> Iterator[str]:
    """Yield a comment for what Megatron-LM, and what is built on it, cannot be told."""
    yield from lost_schedule(job, says, USUAL)
    if job.offload.activations and (job.parallel.pp > 1 or job.recompute.granularity != "none"):
        yield f"# activations offloaded: {says} refuses that with pipeline stages or recomputation"
    if job.offload.optimizer and job.sharding.zero == 0 and job.parallel.replicas > 1:
        yield f"# optimizer offloaded: {says} refuses that without the distributed optimizer (ZeRO-1)"
