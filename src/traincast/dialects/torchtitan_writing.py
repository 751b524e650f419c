"""A job as a file of torchtitan's settings, by the table that reads them; what it cannot be told is a comment.

Source: pytorch/torchtitan, torchtitan/config/job_config.py.
"""

from collections.abc import Iterator
from typing import Any

from traincast.dialects.flags import flag_table
from traincast.dialects.torchtitan_flags import COMPILED, REFUSE_COMPILED
from traincast.dialects.torchtitan_pipeline import pipeline_settings
from traincast.dialects.writing import flags_of_fields, lost_schedule, toml_of
from traincast.job.job import Job

_QUANTIZED = "quantize.linear."
"""What precedes the names of converters and of their settings since 0.2 (components/quantization/float8.py)."""


def torchtitan_text(job: Job) -> str:
    """Return the tables of a configuration file that say a job."""
    tables: dict[str, dict[str, Any]] = {}
    for name, value in torchtitan_said(job).items():
        section, _, key = (f"{_QUANTIZED}{name}" if name.startswith("float8.") else name).partition(".")
        is_named = name == "model.converters"
        tables.setdefault(section, {})[key] = [f"{_QUANTIZED}{each}" for each in value] if is_named else value
    return "".join(f"{line}\n" for line in _lost(job)) + toml_of(tables)


def _compiled(job: Job) -> bool:
    """Return whether layers are compiled, which PyTorch refuses with some schedules."""
    return job.framework.name == COMPILED and job.pipeline.schedule not in REFUSE_COMPILED


def torchtitan_said(job: Job) -> dict[str, Any]:
    """Return the settings that say a job, by section and name, in their order."""
    said, names = _settings(job), flag_table("torchtitan").further["writes"]["settings"].split()
    return {name: said[name] for name in names if said.get(name) is not None}


def _settings(job: Job) -> dict[str, Any]:
    parallel, batch, table = job.parallel, job.batch, flag_table("torchtitan")
    shard = job.sharing if job.sharding.zero == 3 else 1
    fields = ["tp", "pp", "cp", "seq_length", "recompute"]
    fields += ["ep", "etp"] if job.model.experts is not None else []
    fields += ["moe_dispatcher"] if parallel.ep > 1 and job.experts.dispatcher != "alltoall" else []
    fields += ["reshard_after_forward"] if shard > 1 else []
    fields += ["overlap_tp"] if parallel.tp > 1 and job.communication.overlap_tp else []
    # Its own type of reduction is fp32.
    narrow = {"grad_reduce_bytes": 2} if job.framework.grad_reduce_bytes == 2 else {}
    converters = [name for name, dtype in table.further["converters"].items() if dtype == job.precision.dtype]
    return {
        **flags_of_fields(table, {name: job.decided(name) for name in fields} | narrow),
        "parallelism.data_parallel_replicate_degree": parallel.replicas // shard if shard > 1 else parallel.dp,
        "parallelism.data_parallel_shard_degree": max(1, shard // parallel.cp),
        "training.local_batch_size": parallel.in_pipeline * batch.micro_batch if parallel.pp > 1 else batch.micro_batch,
        "training.global_batch_size": batch.global_batch,
        "model.converters": converters or None,
        "training.enable_cpu_offload": True if job.offload.parameters else None,
        "float8.enable_fsdp_float8_all_gather": True if job.sharding.param_gather_bytes == 1 else None,
        "compile.enable": True if _compiled(job) else None,
        **pipeline_settings(job),
    }


def _lost(job: Job) -> Iterator[str]:
    schedules = flag_table("torchtitan").further["schedules"]
    yield from lost_schedule(job, "torchtitan", [each["schedule"] for each in schedules.values()])
    if job.sharding.zero in (1, 2):
        yield f"# ZeRO-{job.sharding.zero}: torchtitan shards parameters or nothing; this replicates them"
    if job.offload.optimizer or job.offload.activations:
        yield "# offloading: torchtitan offloads all state (training.enable_cpu_offload), and no activations"
    if job.recompute.granularity == "selective":
        yield "# recomputed modules: torchtitan chooses what selective recomputes by itself"
