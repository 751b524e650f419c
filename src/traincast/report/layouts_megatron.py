"""A planned layout as flags of Megatron-LM and as overrides of Megatron-Bridge.

What they cannot be told is a comment. Sources: NVIDIA/Megatron-LM, megatron/training/arguments.py;
NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/config.py and models/gpt_provider.py.
"""

import json
from collections.abc import Iterator
from typing import Any

from traincast.job.job import Job
from traincast.planning.answer import Choice, Plan
from traincast.planning.layout import Layout
from traincast.report.layouts_toml import decided
from traincast.schedules.schedule import USUAL

_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
_CP = {"ring": "p2p", "all_gather": "all_gather", "all_to_all": "a2a"}
_FLEX = ("deepep", "hybridep")
_FP8_RECIPE = {"fp8": "delayed", "fp8_block": "blockwise", "mxfp8": "mxfp8"}
_MIXED = {
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8_block": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
_AS_LAYER = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
_FIRST_AND_LAST = {
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
}
"""Names of Megatron-LM to those of Megatron-Bridge."""


def megatron_flags(plan: Plan, choice: Choice) -> str:
    """Return the flags of Megatron-LM, one a line."""
    layout = choice.layout
    software = _software(decided(plan, choice))
    said = [*_megatron(plan, layout), *((name.replace("_", "-"), value) for name, value in software.items())]
    said += [(name.replace("_", "-"), value) for name, value in _uneven(decided(plan, choice)).items()]
    said += [("grad-reduce-in-bf16", "")] if _reduces_narrow(decided(plan, choice)) else []
    lines = [f"--{name} {_words(value)}".rstrip() for name, value in said]
    lost = [*_lost(layout, "Megatron-LM")]
    if _gathers_once(layout) and not _torch_fsdp(layout):
        lost.append("# parameters gathered once: Megatron-LM has that with pp 1 and ep 1 alone (--use-torch-fsdp2)")
    return "".join(f"{line}\n" for line in (*lines, *lost))


def _megatron(plan: Plan, layout: Layout) -> Iterator[tuple[str, object]]:
    yield "tensor-model-parallel-size", layout.tp
    yield "pipeline-model-parallel-size", layout.pp
    if layout.vpp > 1:
        yield "num-virtual-stages-per-pipeline-rank", layout.vpp
    yield "context-parallel-size", layout.cp
    if layout.cp > 1:
        yield "cp-comm-type", _CP[layout.cp_kind]
    yield "micro-batch-size", layout.micro_batch
    yield "global-batch-size", plan.global_batch
    yield "seq-length", plan.seq_length
    yield from ((name, "") for name, on in _switches(layout) if on)
    if layout.zero > 1 and not _torch_fsdp(layout):
        yield "data-parallel-sharding-strategy", _SHARDING[layout.zero]
    if _copies(layout) > 1:
        yield "num-distributed-optimizer-instances", _copies(layout)
    for name, value in _offload(layout).items():
        yield name.replace("_", "-"), value
    for name, value in _recompute(layout).items():
        yield name.replace("_", "-"), value
    if layout.moe_dispatcher is not None:
        yield "expert-model-parallel-size", layout.ep
        yield "expert-tensor-parallel-size", layout.etp
        yield from ((name.replace("_", "-"), value) for name, value in _dispatcher(layout).items())
    if layout.precision in _FP8_RECIPE:
        yield "fp8-format", "hybrid"
        yield "fp8-recipe", _FP8_RECIPE[layout.precision]
    if layout.precision == "nvfp4":
        yield "fp4-format", "e2m1"


def _uneven(job: Job) -> dict[str, int | str]:
    """Return how uneven stages are said: with embedding and LM head as a layer each, or by the first and the last."""
    layers = job.layers_Q
    if len(set(layers)) == 1:
        return {}
    less_Q = [max(layers) - each for each in layers]
    if max(less_Q) == 1 and not any(less_Q[1:-1]):
        return {name: "" for name, less in zip(_AS_LAYER, (less_Q[0], less_Q[-1]), strict=True) if less}
    if job.parallel.vpp > 1 or len(layers) < 3 or len(set(layers[1:-1])) > 1:
        return {}
    return {"decoder_first_pipeline_num_layers": layers[0], "decoder_last_pipeline_num_layers": layers[-1]}


def _reduces_narrow(job: Job) -> bool:
    """Say whether gradients are kept and reduced in the 16 bits of bf16, which frameworks do not do by themselves."""
    return job.framework.grad_reduce_bytes == 2 and job.precision not in ("fp16", "fp32", "tf32")


def _software(job: Job) -> dict[str, Any]:
    """Return what else a job runs with, as settings of a transformer of Megatron Core; a switch that is on is empty."""
    found: dict[str, Any] = {}
    if job.cuda_graphs:
        found["cuda_graph_impl"] = "transformer_engine"
        if job.cuda_graph_scope:
            found["cuda_graph_scope"] = list(job.cuda_graph_scope)
    if job.model.experts is not None:
        switches = {"moe_grouped_gemm": True, "moe_router_fusion": job.fused_router}
        found |= {name: "" for name, on in (switches | {"moe_permute_fusion": job.fused_permute}).items() if on}
    return found


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _copies(layout: Layout) -> int:
    """Return the copies of the sharded state (HSDP)."""
    return layout.dp * layout.cp // layout.shard if layout.zero > 0 else 1


def _gathers_once(layout: Layout) -> bool:
    """Return whether sharded parameters stay whole from the forward to the backward pass."""
    return layout.zero == 3 and not layout.reshard_after_forward


def _torch_fsdp(layout: Layout) -> bool:
    """Return whether Megatron-LM has a layout with PyTorch's FSDP: its own gathers parameters for each pass."""
    return _gathers_once(layout) and layout.pp == 1 and layout.ep == 1


def _switches(layout: Layout) -> Iterator[tuple[str, bool]]:
    theirs = _torch_fsdp(layout)
    yield "bf16", layout.precision != "fp16"
    yield "fp16", layout.precision == "fp16"
    yield "sequence-parallel", layout.sequence_parallel and layout.tp > 1
    # Its optimizer on the host needs the distributed one, be it over one replica (validate_args).
    alone = layout.offload_optimizer > 0 and layout.dp * layout.cp == 1
    yield "use-distributed-optimizer", alone or (layout.zero > 0 and not theirs)
    yield "use-megatron-fsdp", layout.zero > 1 and not theirs
    yield "use-torch-fsdp2", theirs
    yield "torch-fsdp2-no-reshard-after-forward", theirs
    yield "overlap-grad-reduce", layout.overlap_grad_reduce and layout.dp * layout.cp > 1
    yield "overlap-param-gather", layout.overlap_param_gather and layout.zero > 0 and not theirs
    yield "tp-comm-overlap", layout.overlap_tp and layout.tp > 1


def _recompute(layout: Layout) -> dict[str, Any]:
    if layout.recompute == "none":
        return {}
    found: dict[str, Any] = {"recompute_granularity": layout.recompute}
    if layout.recompute == "selective":
        return found | {"recompute_modules": list(layout.recompute_modules or ("core_attn",))}
    if layout.recompute_layers is None:
        return found | {"recompute_method": "uniform", "recompute_num_layers": 1}
    return found | {
        "recompute_method": layout.recompute_method or "block",
        "recompute_num_layers": layout.recompute_layers,
    }


def _offload(layout: Layout) -> dict[str, Any]:
    """Return what the host keeps; the number of layers turns offloading of activations on."""
    found: dict[str, Any] = {}
    if layout.offload_optimizer:
        found |= {"optimizer_cpu_offload": "", "optimizer_offload_fraction": layout.offload_optimizer}
        found |= {"overlap_cpu_optimizer_d2h_h2d": "", "use_precision_aware_optimizer": ""}
    if layout.offload_activations:
        found["cpu_offloading_num_layers"] = layout.offload_activations
    return found


def _dispatcher(layout: Layout) -> dict[str, str]:
    if layout.moe_dispatcher in _FLEX:
        return {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": str(layout.moe_dispatcher)}
    return {"moe_token_dispatcher_type": str(layout.moe_dispatcher)}


def _lost(layout: Layout, framework: str) -> Iterator[str]:
    if layout.pp > 1 and layout.schedule not in USUAL:
        yield f"# schedule {layout.schedule}: {framework} has none of that kind"
    if layout.offload_activations and (layout.pp > 1 or layout.recompute != "none"):
        yield f"# activations offloaded: {framework} refuses that with pipeline stages or recomputation"
    if layout.offload_optimizer and layout.zero == 0 and layout.dp * layout.cp > 1:
        yield f"# optimizer offloaded: {framework} refuses that without the distributed optimizer (ZeRO-1)"


def bridge_overrides(plan: Plan, choice: Choice) -> str:
    """Return the overrides of a recipe of Megatron-Bridge, one a line."""
    layout = choice.layout
    model: dict[str, Any] = {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        "context_parallel_size": layout.cp,
        "sequence_parallel": layout.sequence_parallel and layout.tp > 1,
        "seq_length": plan.seq_length,
        **({"cp_comm_type": _CP[layout.cp_kind]} if layout.cp > 1 else {}),
        **({"recompute_granularity": None} | _recompute(layout)),
    }
    if layout.moe_dispatcher is not None:
        model |= {"expert_model_parallel_size": layout.ep, "expert_tensor_parallel_size": layout.etp}
        model |= _dispatcher(layout)
    tables: dict[str, dict[str, Any]] = {
        "model": model,
        "train": {"micro_batch_size": layout.micro_batch, "global_batch_size": plan.global_batch},
        "ddp": {
            "use_distributed_optimizer": layout.zero > 0 or layout.offload_optimizer > 0,
            "overlap_grad_reduce": layout.overlap_grad_reduce and layout.dp * layout.cp > 1,
            "overlap_param_gather": layout.overlap_param_gather and layout.zero > 0,
            **({"data_parallel_sharding_strategy": _SHARDING[layout.zero]} if layout.zero > 1 else {}),
            **({"num_distributed_optimizer_instances": copies} if (copies := _copies(layout)) > 1 else {}),
        },
        "comm_overlap": {"tp_comm_overlap": layout.overlap_tp and layout.tp > 1},
    }
    job = decided(plan, choice)
    model |= {name: True if value == "" else value for name, value in _software(job).items()}
    model |= {_FIRST_AND_LAST.get(name, name): value or True for name, value in _uneven(job).items()}
    tables["ddp"]["grad_reduce_in_fp32"] = not _reduces_narrow(job)
    offload = {name: True if value == "" else value for name, value in _offload(layout).items()}
    if (layers := offload.pop("cpu_offloading_num_layers", 0)) > 0:
        model |= {"cpu_offloading": True, "cpu_offloading_num_layers": layers}
    if offload:
        tables = {**tables, "optimizer": offload}
    lines = [f"{table}.{name}={_plain(value)}" for table, found in tables.items() for name, value in found.items()]
    lost = [*_lost(layout, "Megatron-Bridge")]
    if _gathers_once(layout):
        lost.append("# parameters gathered once: Megatron-Bridge gathers them again for the backward pass")
    lines.append(f"mixed_precision={_MIXED.get(layout.precision, f'{layout.precision}_mixed')}")
    return "".join(f"{line}\n" for line in (*lines, *lost))


def _plain(value: object) -> str:
    """Write a value as Hydra reads it."""
    if value is None:
        return "null"
    return json.dumps(value).replace(" ", "").replace('"', "") if isinstance(value, (bool, list)) else str(value)
