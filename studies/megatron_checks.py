"""Ask Megatron Core itself whether it accepts a job: its own argument checks, which need no GPU.

`refusals(job)` builds what Megatron Core makes of a job, a `TransformerConfig`, an `OptimizerConfig` and a
`DistributedDataParallelConfig`, which refuse combinations as they are made, and returns what they say. What Megatron-LM
refuses elsewhere, in `validate_args` and where a step starts, is a table of rules with their sources
(`megatron_rules.csv`), which is asked whether Megatron Core is installed or not.

`pip install megatron-core==0.16.1 torch==2.13.0` is enough: Transformer Engine, which needs a GPU, is taken to be
there. A checkout of Megatron-LM before it on the path is asked instead (it needs Triton, too).
"""

import argparse
import csv
import sys
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec import Struct

from traincast.dialects.megatron_checks import recompute_flags
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import load_cluster
from traincast.job.condition_facts import job_facts
from traincast.job.conditions import Condition, broken, read_conditions
from traincast.job.frameworks import FULL_ITERATION
from traincast.job.job import Job
from traincast.job.job_file import read_job_file
from traincast.job.resolve import resolve_job

PINNED = "0.16.1"
"""Release of Megatron Core that CI asks: the newest of February 2026 that PyPI has."""
TRANSFORMER_ENGINE = "2.14.0"
"""Release of Transformer Engine that is taken to be installed."""
RULES = Path(__file__).parent / "megatron_rules.csv"

_DISPATCHERS = {"allgather": "allgather", "alltoall": "alltoall", "deepep": "flex", "hybridep": "flex"}
_FP8 = {"fp8": "hybrid", "fp8_block": "hybrid", "mxfp8": "e4m3"}
_RECIPES = {"delayed": "delayed", "current": "tensorwise", "rowwise": "tensorwise"}
_CP_KINDS = {"ring": "p2p", "all_gather": "all_gather", "all_to_all": "a2a"}
_ROOM = 1.5
"""Tokens of an expert rank over the mean that --moe-expert-rank-capacity-factor makes room for in recipes with paged
stashes (NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/perf_recipes/qwen/common.py)."""


class Rule(Struct, frozen=True):
    """What Megatron-LM refuses in other places than its configurations."""

    when: tuple[Condition, ...]
    """Conditions of the jobs that it is about."""
    must: tuple[Condition, ...]
    """What must hold of them."""
    says: str
    """Its message."""
    source: str


def read_rules(rows: Iterable[Mapping[str, str]]) -> tuple[Rule, ...]:
    """Return the rules of a table."""
    return tuple(
        Rule(read_conditions(row["when"], "when"), read_conditions(row["must"], "must"), row["says"], row["source"])
        for row in rows
    )


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules of `megatron_rules.csv`."""
    with RULES.open(newline="") as file:
        return read_rules(csv.DictReader(file))


@cache
def release() -> str | None:
    """Return the release of Megatron Core that is installed; None: none, and only the rules are asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import megatron.core
            import megatron.core.distributed
            import megatron.core.optimizer
            import megatron.core.transformer.moe.moe_utils
        except ImportError:
            return None
    return str(megatron.core.__version__)


def refusals(job: Job, cluster: Cluster | None = None) -> list[str]:
    """Return what Megatron-LM and Megatron Core say against a job, each with who says it; empty: they accept it."""
    found = [f"{rule.source}: {rule.says}" for rule in rules() if breaks(rule, rule_facts(job, cluster))]
    return found if release() is None else [*found, *_of_configurations(job)]


def breaks(rule: Rule, facts: Mapping[str, Any]) -> bool:
    """Say whether a job breaks a rule."""
    return broken(rule.when, facts) is None and broken(rule.must, facts) is not None


def rule_facts(job: Job, cluster: Cluster | None) -> dict[str, Any]:
    """Return what rules ask about: facts of conditions, and remainders that must be 0."""
    parallel = job.parallel
    return job_facts(job, cluster) | {
        "microbatches_left": parallel.microbatches % parallel.pp,
        "tokens_left": job.batch.seq_length % (2 * parallel.cp),
        "sends_with_layers": job.pipeline.overlap_p2p,
        "gathers_once": job.sharding.zero == 3 and not job.sharding.reshard_after_forward,
    }


def unknown(job: Job) -> list[str]:
    """Return the settings of a job that the installed Megatron Core does not have: it is older than they are."""
    if release() is None:
        return []
    kinds = _kinds(job)
    return sorted(name for kind, said in kinds for name, value in said.items() if value and name not in _names(kind))


def _of_configurations(job: Job) -> list[str]:
    """Return what the configurations of Megatron Core say as they are made."""
    found = []
    for kind, said in _kinds(job):
        known = {name: value for name, value in said.items() if name in _names(kind)}
        try:
            with _transformer_engine(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kind(**known)
        except (AssertionError, ValueError, RuntimeError, NotImplementedError, ImportError) as error:
            found.append(f"megatron-core {release()}, {kind.__name__}: {' '.join(str(error).split())}")
    return found


def _names(kind: type[Any]) -> set[str]:
    return {each.name for each in fields(kind)}


def _kinds(job: Job) -> list[tuple[type[Any], dict[str, Any]]]:
    """Return the configurations that Megatron Core makes of a job, and what each is told."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    transformer = TransformerConfig if job.model.attention.latent is None else MLATransformerConfig
    graphs = _graphs(job, by_modules="cuda_graph_modules" in _names(TransformerConfig))
    return [
        (transformer, {**_model(job), **_parallel(job), **_types(job), **_experts(job), **_memory(job), **graphs}),
        (OptimizerConfig, _optimizer(job)),
        (DistributedDataParallelConfig, _replicas(job)),
    ]


@contextmanager
def _transformer_engine() -> Iterator[None]:
    """Take Transformer Engine to be there, where Megatron Core asks for its release or for a kernel of it."""
    from megatron.core import utils
    from megatron.core.transformer.moe import moe_utils
    from packaging.version import Version

    class FusedAdam:
        """Has the parameters of Transformer Engine's."""

        def __init__(
            self,
            master_weight_dtype: object = None,
            exp_avg_dtype: object = None,
            exp_avg_sq_dtype: object = None,
            use_decoupled_grad: bool = False,
        ) -> None: ...

    optimizers = types.ModuleType("transformer_engine.pytorch.optimizers")
    optimizers.FusedAdam = FusedAdam  # type: ignore[attr-defined]
    names = ("transformer_engine", "transformer_engine.pytorch")
    stand_ins = {name: types.ModuleType(name) for name in names} | {optimizers.__name__: optimizers}
    what = ("permute", "permute_with_probs", "sort_chunks_by_index", "sort_chunks_by_index_with_probs", "unpermute")
    fused: dict[str, Any] = {f"fused_{name}": object() for name in what}
    with (
        patch.dict(sys.modules, stand_ins),
        patch.object(utils, "_te_version", Version(TRANSFORMER_ENGINE)),
        patch.multiple(moe_utils, create=True, **fused),
    ):
        yield


def _model(job: Job) -> dict[str, Any]:
    """Return the shape of the model, as far as anything is asked about it."""
    import torch

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
    import torch

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
    import torch

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
        "moe_layer_freq": [int(layer >= experts.first_dense_layers) for layer in range(job.model.layers)],
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


def _optimizer(job: Job) -> dict[str, Any]:
    import torch

    kinds = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.uint8}
    state, zero = job.optimizer, job.sharding.zero
    away = job.offload.optimizer > 0
    return {
        "optimizer": "adam" if state.muon is None else "muon",
        "bf16": _types(job)["bf16"],
        "fp16": _types(job)["fp16"],
        "fp8_recipe": _types(job).get("fp8_recipe"),
        "use_distributed_optimizer": zero > 0,
        "overlap_param_gather": job.sharding.overlap_param_gather and zero > 0,
        "use_precision_aware_optimizer": state.precision_aware or away,
        "main_params_dtype": kinds[state.main_params],
        "exp_avg_dtype": kinds[state.exp_avg],
        "exp_avg_sq_dtype": kinds[state.exp_avg_sq],
        "optimizer_cpu_offload": away,
        "optimizer_offload_fraction": job.offload.optimizer,
    }


def _replicas(job: Job) -> dict[str, Any]:
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


def main() -> int:
    """Print what is said against the jobs of some files; 1 where anything is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", metavar="JOB.toml")
    said = 0
    for path in parser.parse_args().jobs:
        draft = read_job_file(path)
        cluster = draft.cluster if isinstance(draft.cluster, Cluster) else load_cluster(draft.cluster or "h100")
        job = resolve_job(draft.request(), cluster)
        found, missing = refusals(job, cluster), unknown(job)
        said += len(found)
        print(f"{path}: {'; '.join(found) or 'accepted'}")
        if missing:
            print(f"  not known to megatron-core {release()}, so that it was not asked: {', '.join(missing)}")
    return int(said > 0)


if __name__ == "__main__":
    sys.exit(main())
