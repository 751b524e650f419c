"""A planned layout as a file of torchtitan's settings, and as a job file.

What torchtitan cannot be told is a comment. Source: pytorch/torchtitan, torchtitan/config/job_config.py.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from traincast.dialects.torchtitan_pipeline import schedule_name
from traincast.hardware.clusters import load_cluster
from traincast.job.job import JOB_FIELDS, Job
from traincast.job.job_file import SECTIONS
from traincast.job.resolve import resolve_job
from traincast.planning.answer import Choice, Plan
from traincast.schedules.schedule import SCHEDULES, Pairing

_CONVERTERS = {"fp8": "float8", "mxfp8": "mx"}


def decided(plan: Plan, choice: Choice) -> Job:
    """Return the job of a planned layout with everything decided."""
    return resolve_job(replace(plan.asked.request, **choice.layout.request()), load_cluster(plan.asked.cluster))


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
            **_types(decided(plan, choice)),
        },
        "activation_checkpoint": {"mode": mode},
    }
    if layout.precision in _CONVERTERS:
        tables["model"] = {"converters": [_CONVERTERS[layout.precision]]}
    if shard > 1:
        tables["parallelism"]["fsdp_reshard_after_forward"] = "always" if layout.reshard_after_forward else "never"
    lost = []
    if layout.pp > 1:
        known = schedule_name(layout.schedule)
        if known:
            tables["parallelism"]["pipeline_parallel_schedule"] = known
        else:
            lost.append(f"# schedule {layout.schedule}: torchtitan has none of that kind")
        tables["parallelism"]["pipeline_parallel_microbatch_size"] = layout.micro_batch
        layers = decided(plan, choice).layers_Q
        if len(set(layers)) == 1:
            # It takes embedding and head for layers, of which even stages have none less.
            tables["parallelism"] |= {"pipeline_parallel_first_stage_less_layers": 0}
            tables["parallelism"] |= {"pipeline_parallel_last_stage_less_layers": 0}
            tables["parallelism"]["pipeline_parallel_layers_per_stage"] = layers[0]
        else:
            tables["parallelism"]["module_fqns_per_model_part"] = _parts(layers)
        if known and SCHEDULES.get(layout.schedule).pairing is Pairing.ALWAYS:
            tables["parallelism"]["pipeline_parallel_expert_parallel_overlap"] = layout.moe_a2a_overlap
    if layout.moe_dispatcher is not None:
        tables["parallelism"] |= {"expert_parallel_degree": layout.ep, "expert_tensor_parallel_degree": layout.etp}
    if layout.zero in (1, 2):
        lost.append(f"# ZeRO-{layout.zero}: torchtitan shards parameters or nothing; this replicates them")
    if layout.offload_optimizer or layout.offload_activations:
        lost.append("# offloading: torchtitan offloads all state (training.enable_cpu_offload), and no activations")
    if layout.recompute == "selective":
        lost.append("# recomputed modules: torchtitan chooses what selective recomputes by itself")
    return "".join(f"{line}\n" for line in lost) + _toml(tables)


def _types(job: Job) -> dict[str, str]:
    """Return the type in which gradients are reduced, where it is not torchtitan's own."""
    return {"mixed_precision_reduce": "bfloat16"} if job.framework.grad_reduce_bytes == 2 else {}


def _parts(layers_Q: Sequence[int]) -> list[list[str]]:
    """Return the modules of every virtual stage by their names in torchtitan's models."""
    ends = list(accumulate(layers_Q))
    parts = [[f"layers.{index}" for index in range(end - held, end)] for held, end in zip(layers_Q, ends, strict=True)]
    return [["tok_embeddings", *parts[0]], *parts[1:-1], [*parts[-1], "norm", "output"]]


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
