"""A planned layout in the words of what runs it: flags of Megatron-LM, overrides of Megatron-Bridge, torchtitan, a job.

What a framework cannot be told is a comment. Sources: NVIDIA/Megatron-LM, megatron/training/arguments.py;
NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/config.py and models/gpt_provider.py; pytorch/torchtitan,
torchtitan/config/job_config.py.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from traincast.hardware.clusters import load_cluster
from traincast.job.job import JOB_FIELDS, Job
from traincast.job.job_file import SECTIONS
from traincast.job.resolve import resolve_job
from traincast.plan.answer import Choice, Plan
from traincast.plan.layout import Layout

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
_TITAN_SCHEDULE = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "interleaved_zb": "InterleavedZeroBubble",
    "zb_v": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
}
_MEGATRON_SCHEDULES = ("1f1b", "interleaved")


def megatron_flags(plan: Plan, choice: Choice) -> str:
    """Return the flags of Megatron-LM, one a line."""
    layout = choice.layout
    software = _software(decided(plan, choice))
    said = [*_megatron(plan, layout), *((name.replace("_", "-"), value) for name, value in software.items())]
    said += [(name.replace("_", "-"), value) for name, value in _uneven(decided(plan, choice)).items()]
    said += [("grad-reduce-in-bf16", "")] if _reduces_narrow(decided(plan, choice)) else []
    lines = [f"--{name} {_words(value)}".rstrip() for name, value in said]
    lost = [*_lost(layout, _MEGATRON_SCHEDULES, "Megatron-LM")]
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


def decided(plan: Plan, choice: Choice) -> Job:
    """Return the job of a planned layout with everything decided."""
    return resolve_job(replace(plan.asked.request, **choice.layout.request()), load_cluster(plan.asked.cluster))


def _uneven(job: Job) -> dict[str, int]:
    """Return the layers of the first and the last stage where they are not as many as those between them."""
    layers = job.layers_Q
    if job.parallel.vpp > 1 or len(layers) < 3 or len(set(layers)) == 1 or len(set(layers[1:-1])) > 1:
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


def _lost(layout: Layout, schedules: tuple[str, ...], framework: str) -> Iterator[str]:
    if layout.pp > 1 and layout.schedule not in schedules:
        yield f"# schedule {layout.schedule}: {framework} has none of that kind"
    if schedules is not _MEGATRON_SCHEDULES:
        return
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
            "use_distributed_optimizer": layout.zero > 0,
            "overlap_grad_reduce": layout.overlap_grad_reduce and layout.dp * layout.cp > 1,
            "overlap_param_gather": layout.overlap_param_gather and layout.zero > 0,
            **({"data_parallel_sharding_strategy": _SHARDING[layout.zero]} if layout.zero > 1 else {}),
            **({"num_distributed_optimizer_instances": copies} if (copies := _copies(layout)) > 1 else {}),
        },
        "comm_overlap": {"tp_comm_overlap": layout.overlap_tp and layout.tp > 1},
    }
    job = decided(plan, choice)
    model |= {name: True if value == "" else value for name, value in _software(job).items()}
    uneven = {name.split("_")[1]: value for name, value in _uneven(job).items()}
    model |= {f"num_layers_in_{which}_pipeline_stage": value for which, value in uneven.items()}
    tables["ddp"]["grad_reduce_in_fp32"] = not _reduces_narrow(job)
    offload = {name: True if value == "" else value for name, value in _offload(layout).items()}
    if (layers := offload.pop("cpu_offloading_num_layers", 0)) > 0:
        model |= {"cpu_offloading": True, "cpu_offloading_num_layers": layers}
    if offload:
        tables = {**tables, "optimizer": offload}
    lines = [f"{table}.{name}={_plain(value)}" for table, found in tables.items() for name, value in found.items()]
    lost = [*_lost(layout, _MEGATRON_SCHEDULES, "Megatron-Bridge")]
    if _gathers_once(layout):
        lost.append("# parameters gathered once: Megatron-Bridge gathers them again for the backward pass")
    lines.append(f"mixed_precision={_MIXED.get(layout.precision, f'{layout.precision}_mixed')}")
    return "".join(f"{line}\n" for line in (*lines, *lost))


def _plain(value: object) -> str:
    """Write a value as Hydra reads it."""
    if value is None:
        return "null"
    return json.dumps(value).replace(" ", "").replace('"', "") if isinstance(value, (bool, list)) else str(value)


def torchtitan_toml(plan: Plan, choice: Choice) -> str:
    """Return the tables of a configuration file of torchtitan that say the layout."""
    layout = choice.layout
    shard = layout.shard if layout.zero == 3 else 1
    replicas = layout.dp * layout.cp
    mode = {"none": "none", "full": "full"}.get(layout.recompute, "selective")
    tables: dict[str, dict[str, Any]] = {
        "parallelism": {
            "data_parallel_replicate_degree": replicas // shard if shard > 1 else layout.dp,
            "data_parallel_shard_degree": max(1, shard // layout.cp),
            "tensor_parallel_degree": layout.tp,
            "context_parallel_degree": layout.cp,
            "pipeline_parallel_degree": layout.pp,
        },
        "training": {
            "local_batch_size": plan.global_batch // layout.dp if layout.pp > 1 else layout.micro_batch,
            "global_batch_size": plan.global_batch,
            "seq_len": plan.seq_length,
        },
        "activation_checkpoint": {"mode": mode},
    }
    if shard > 1:
        tables["parallelism"]["fsdp_reshard_after_forward"] = "always" if layout.reshard_after_forward else "never"
    lost = []
    if layout.pp > 1:
        known = _TITAN_SCHEDULE.get(layout.schedule)
        if known:
            tables["parallelism"]["pipeline_parallel_schedule"] = known
        tables["parallelism"]["pipeline_parallel_microbatch_size"] = layout.micro_batch
        layers = decided(plan, choice).layers_Q
        if len(set(layers)) == 1:
            # It takes embedding and head for layers, of which even stages have none less.
            tables["parallelism"] |= {"pipeline_parallel_first_stage_less_layers": 0}
            tables["parallelism"] |= {"pipeline_parallel_last_stage_less_layers": 0}
            tables["parallelism"]["pipeline_parallel_layers_per_stage"] = layers[0]
        lost += list(_lost(layout, tuple(_TITAN_SCHEDULE), "torchtitan"))
    if layout.moe_dispatcher is not None:
        tables["parallelism"] |= {"expert_parallel_degree": layout.ep, "expert_tensor_parallel_degree": layout.etp}
    if layout.zero in (1, 2):
        lost.append(f"# ZeRO-{layout.zero}: torchtitan shards parameters or nothing; this replicates them")
    if layout.offload_optimizer or layout.offload_activations:
        lost.append("# offloading: torchtitan offloads all state (training.enable_cpu_offload), and no activations")
    if layout.recompute == "selective":
        lost.append("# recomputed modules: torchtitan chooses what selective recomputes by itself")
    return "".join(f"{line}\n" for line in lost) + _toml(tables)


def job_toml(plan: Plan, choice: Choice) -> str:
    """Return a job file of the layout, for ``traincast predict``: all that was asked for, and what was decided.

    Files that it names are written with their whole path.
    """
    asked, request = plan.asked, replace(plan.asked.request, **choice.layout.request())
    framework = request.framework if isinstance(request.framework, str) else plan.framework
    said = {each: getattr(request, each) for each in JOB_FIELDS}
    said |= {"name": _whole_path(asked.cluster), "framework": _whole_path(framework)}
    unsaid = {name: each.default for name, each in JOB_FIELDS.items()}
    tables = {
        section: {key: said[key] for key in keys if key == "name" or said[key] != unsaid.get(key)}
        for section, keys in SECTIONS.items()
    }
    return _toml({"model": {"name": _whole_path(asked.model)}, **tables})


def _whole_path(name: str) -> str:
    """Return the whole path of a file, so that it is found from anywhere; a name as it is."""
    return str(Path(name).resolve()) if name.endswith((".toml", ".json")) and Path(name).is_file() else name


def _toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    written = []
    for name, table in tables.items():
        lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None]
        written.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(written) + "\n"


LAYOUT_FILES: Mapping[str, Callable[[Plan, Choice], str]] = {
    "megatron.txt": megatron_flags,
    "bridge.txt": bridge_overrides,
    "torchtitan.toml": torchtitan_toml,
    "job.toml": job_toml,
}
"""End of the name of a file of a layout to what writes it."""
