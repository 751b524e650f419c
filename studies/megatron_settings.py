"""What Megatron Core is told of a job: the settings of its configurations, by their names there.

Source: Megatron-LM, megatron/core/transformer/transformer_config.py, model_parallel_config.py,
optimizer/optimizer_config.py and distributed/distributed_data_parallel_config.py (0.12 to 0.20).
"""

from typing import Any

import torch

from traincast.dialects.megatron_checks import recompute_flags
from traincast.job.frameworks import FULL_ITERATION
from traincast.job.job import Job

_DISPATCHERS = {"allgather": "allgather", "alltoall": "alltoall", "deepep": "flex", "hybridep": "flex"}
_FP8 = {"fp8": "hybrid", "fp8_block": "hybrid", "mxfp8": "e4m3"}
_RECIPES = {"delayed": "delayed", "current": "tensorwise", "rowwise": "tensorwise"}
_CP_KINDS = {"ring": "p2p", "all_gather": "all_gather", "all_to_all": "a2a"}
_ROOM = 1.5
"""Tokens of an expert rank over the mean that --moe-expert-rank-capacity-factor makes room for in recipes with paged
stashes (NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/perf_recipes/qwen/common.py)."""


def transformer_settings(job: Job, *, by_modules: bool) -> dict[str, Any]:
    """Return the settings of `TransformerConfig`; `by_modules` says that those of CUDA graphs are as since 0.18."""
    graphs = _graphs(job, by_modules=by_modules)
    return {**_model(job), **_parallel(job), **_types(job), **_experts(job), **_memory(job), **graphs}


def _model(job: Job) -> dict[str, Any]:
    """Return the shape of the model, as far as anything is asked about it."""
    model, attention = job.model, job.model.attention
    latent = attention.latent
    said: dict[str, Any] = {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": attention.heads,
        "num_query_groups": attention.kv_heads,
        "kv_channels": attention.head_dim,
        "ffn_hidden_size": model.ffn_hidden,
        "gated_linear_unit": model.gated,
        "activation_func": torch.nn.functional.silu if model.gated else torch.nn.functional.gelu,
        "add_bias_linear": model.linear_bias,
        "add_qkv_bias": attention.qkv_bias,
        "mtp_num_layers": model.mtp_layers or None,
        "hidden_dropout": 0.1 if job.kernels.dropout else 0.0,
        "attention_dropout": 0.1 if job.kernels.dropout else 0.0,
        "gradient_accumulation_fusion": "gradient_sums" not in job.kernels.unfused,
    }
    if latent is not None:
        widths = {"kv_lora_rank": latent.kv_rank, "qk_head_dim": latent.nope_head_dim, "v_head_dim": latent.v_head_dim}
        said |= widths | {"q_lora_rank": latent.q_rank, "qk_pos_emb_head_dim": latent.rope_head_dim}
    return said


def _parallel(job: Job) -> dict[str, Any]:
    parallel = job.parallel
    said = {
        "tensor_model_parallel_size": parallel.tp,
        "pipeline_model_parallel_size": parallel.pp,
        "virtual_pipeline_model_parallel_size": parallel.vpp if parallel.vpp > 1 else None,
        "context_parallel_size": parallel.cp,
        "cp_comm_type": _CP_KINDS[job.communication.cp_kind] if parallel.cp > 1 else None,
        "expert_model_parallel_size": parallel.ep,
        "expert_tensor_parallel_size": parallel.expert_tp,
        "sequence_parallel": job.communication.sequence_parallel,
        "tp_comm_overlap": job.communication.overlap_tp and parallel.tp > 1,
        "overlap_p2p_comm": job.pipeline.overlap_p2p,
        "pipeline_dtype": torch.bfloat16,
    }
    if len(set(job.pipeline.layers_Q)) > 1 and not job.model.blocks:
        said["pipeline_model_parallel_layout"] = str(job.layout)
    return said


def _types(job: Job) -> dict[str, Any]:
    precision = job.precision
    half = precision.dtype == "fp16"
    full = precision.dtype in ("fp32", "tf32")
    fp8, fp4 = _FP8.get(precision.dtype), precision.dtype == "nvfp4"
    said: dict[str, Any] = {
        "bf16": not (half or full),
        "fp16": half,
        "params_dtype": torch.float32 if full else torch.float16 if half else torch.bfloat16,
        "fp8": fp8,
        "fp4": "e2m1" if fp4 else None,
        "fp8_dot_product_attention": precision.fp8_attention and precision.in_eight_bits,
        "first_last_layers_bf16": precision.bf16_first_last and precision.in_eight_bits,
    }
    if fp8:
        by_block = {"fp8_block": "blockwise", "mxfp8": "mxfp8"}
        said["fp8_recipe"] = by_block.get(precision.dtype) or _RECIPES[precision.fp8_recipe]
        said["fp8_param"] = job.sharding.param_gather_bytes == 1
    return said


def _experts(job: Job) -> dict[str, Any]:
    experts, exchange = job.model.experts, job.experts
    if experts is None:
        return {"use_transformer_engine_op_fuser": job.kernels.te_op_fuser}
    flex = _DISPATCHERS[exchange.dispatcher] == "flex"
    return {
        "num_moe_experts": experts.experts,
        "moe_router_topk": experts.topk,
        "moe_ffn_hidden_size": experts.ffn_hidden,
        "moe_shared_expert_intermediate_size": experts.shared_ffn_hidden or None,
        "moe_layer_freq": [int(job.model.has_experts(layer)) for layer in range(job.model.layers)],
        "moe_router_pre_softmax": experts.topk == 1,
        "moe_expert_capacity_factor": experts.capacity_factor,
        "moe_grouped_gemm": "experts" not in job.kernels.unfused,
        "moe_token_dispatcher_type": _DISPATCHERS[exchange.dispatcher],
        "moe_flex_dispatcher_backend": exchange.dispatcher if flex else "deepep",
        "moe_shared_expert_overlap": exchange.shared_expert_overlap,
        "overlap_moe_expert_parallel_comm": exchange.a2a_overlap,
        "delay_wgrad_compute": exchange.delay_wgrad,
        "moe_router_fusion": exchange.fused_router,
        "moe_permute_fusion": exchange.fused_permute,
        "moe_paged_stash": exchange.paged_stash,
        "moe_expert_rank_capacity_factor": _ROOM if exchange.paged_stash else None,
        "use_transformer_engine_op_fuser": job.kernels.te_op_fuser,
    }


def _memory(job: Job) -> dict[str, Any]:
    """Return what is recomputed or kept by the host."""
    offload = job.offload
    recomputed = {name.replace("-", "_"): value for name, value in recompute_flags(job.recompute).items() if value}
    return recomputed | {
        "cpu_offloading": offload.activations > 0,
        "cpu_offloading_num_layers": offload.activations,
        "fine_grained_activation_offloading": bool(offload.modules),
        "offload_modules": [*offload.modules],
        "fine_grained_offloading_max_inflight_offloads": 1 if offload.modules else None,
    }


def _graphs(job: Job, *, by_modules: bool) -> dict[str, Any]:
    """Return what CUDA graphs hold; until 0.17 whole iterations were a scope, and modules are called so since 0.18."""
    kernels = job.kernels
    if not kernels.cuda_graphs:
        return {"cuda_graph_impl": "none"}
    whole = FULL_ITERATION in kernels.cuda_graph_scope
    impl = ("full_iteration" if by_modules else "local") if whole else "transformer_engine"
    scope = [] if whole and by_modules else [*kernels.cuda_graph_scope]
    return {"cuda_graph_impl": impl, "cuda_graph_modules" if by_modules else "cuda_graph_scope": scope}


def optimizer_settings(job: Job) -> dict[str, Any]:
    """Return the settings of `OptimizerConfig`."""
    kinds = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.uint8}
    state, away = job.optimizer, job.offload.optimizer > 0
    # Its optimizer on the host needs the distributed one, be it over one replica (validate_args).
    shards = job.sharding.zero > 0 or (away and job.parallel.replicas == 1)
    return {
        "optimizer": "adam" if state.muon is None else "muon",
        "bf16": _types(job)["bf16"],
        "fp16": _types(job)["fp16"],
        "fp8_recipe": _types(job).get("fp8_recipe"),
        "use_distributed_optimizer": shards,
        "overlap_param_gather": job.sharding.overlap_param_gather and job.sharding.zero > 0,
        "use_precision_aware_optimizer": state.precision_aware or away,
        "main_params_dtype": kinds[state.main_params],
        "exp_avg_dtype": kinds[state.exp_avg],
        "exp_avg_sq_dtype": kinds[state.exp_avg_sq],
        "optimizer_cpu_offload": away,
        "optimizer_offload_fraction": job.offload.optimizer,
    }


def replica_settings(job: Job) -> dict[str, Any]:
    """Return the settings of `DistributedDataParallelConfig`."""
    sharding, replicas = job.sharding, job.parallel.replicas
    narrow = sharding.param_gather_bytes == 1
    return {
        "grad_reduce_in_fp32": job.framework.grad_reduce_bytes == 4,
        "overlap_grad_reduce": sharding.overlap_grad_reduce and replicas > 1,
        "overlap_param_gather": sharding.overlap_param_gather and sharding.zero > 0,
        "use_distributed_optimizer": sharding.zero > 0,
        "num_distributed_optimizer_instances": replicas // job.sharing if sharding.zero else 1,
        "fp8_param_gather": narrow,
        "reuse_grad_buf_for_mxfp8_param_ag": narrow and job.precision.dtype == "mxfp8" and sharding.zero < 2,
        "use_megatron_fsdp": sharding.zero > 1,
        "delay_wgrad_compute": job.experts.delay_wgrad,
    }
