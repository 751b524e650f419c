"""From what one has: which single change of a layout saves most, and which faster hardware would."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from traincast.errors import TraincastError
from traincast.hardware.cluster import Cluster
from traincast.job.job import Job, JobRequest
from traincast.job.resolve import resolve_job
from traincast.plan.finalists import Finalist, simulated
from traincast.plan.layout import Layout
from traincast.plan.options import AXES
from traincast.plan.screen import Screen
from traincast.simulation.forecast import forecast
from traincast.simulation.job_step import JobStep
from traincast.simulation.result import Result
from traincast.simulation.step import Setting

Simulate = Callable[[Layout], tuple[Result, JobStep]]

_TOGETHER = {
    "recompute": ("recompute", "recompute_layers", "recompute_modules"),
    "pipeline": ("pp", "vpp", "schedule"),
    "experts": ("ep", "etp"),
    "sharding": ("zero", "shard"),
}
"""Fields that are one change."""

_BETTER = 1.1
"""How much better hardware is for the sensitivities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a layout."""

    change: str
    """What changes, with both values."""
    layout: Layout
    step_s: float
    saving_s: float
    peak_bytes: float
    """Memory afterwards: what the change risks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """What a better piece of hardware would do."""

    better: str
    step_s: float
    saving_s: float


def open_request(job: Job, request: JobRequest) -> JobRequest:
    """Return a request that leaves open all that a plan decides, and keeps what is not a matter of layout."""
    free: dict[str, Any] = dict.fromkeys((*AXES, "recompute_method", "stage_layers", "deduplicated_dispatch"))
    free |= {"first_stage_layers": None, "last_stage_layers": None, "pipeline_layout": None}
    return replace(request, **{**free, "precision": job.precision})


def layout_of(job: Job) -> dict[str, object]:
    """Return what a job has of the fields that a plan decides."""
    parallel = job.parallel
    return {
        "tp": parallel.tp,
        "pp": parallel.pp,
        "vpp": parallel.vpp,
        "cp": parallel.cp,
        "ep": parallel.ep,
        "etp": parallel.expert_tp,
        "micro_batch": job.micro_batch,
        "schedule": job.schedule,
        "sequence_parallel": job.sequence_parallel,
        "zero": job.zero,
        "shard": job.shard,
        "recompute": job.recompute,
        "recompute_layers": job.recompute_layers,
        "recompute_modules": job.recomputed_modules or None,
        "overlap_grad_reduce": job.overlap_grad_reduce,
        "overlap_param_gather": job.overlap_param_gather,
        "overlap_tp": job.overlap_tp,
        "cp_kind": job.cp_kind,
        "moe_dispatcher": job.moe_dispatcher if job.model.experts else None,
    }


def single_changes(screen: Screen, job: Job, step_s: float, simulate: Simulate) -> tuple[Change, ...]:
    """Return the best single change of each part of a job's layout, the most saving first."""
    found = [each for each in _changes(screen, job, step_s, simulate) if each.saving_s > 0]
    return tuple(sorted(found, key=lambda each: -each.saving_s))


def _changes(screen: Screen, job: Job, step_s: float, simulate: Simulate) -> Iterator[Change]:
    has = layout_of(job)
    grouped = {field for fields in _TOGETHER.values() for field in fields}
    parts = {**_TOGETHER, **{field: (field,) for field in has if field not in grouped}}
    for name, fields in parts.items():
        follows = {"shard"} if name in ("tp", "pipeline", "cp", "micro_batch") else set()
        held = {key: value for key, value in has.items() if key not in (*fields, *follows) and value is not None}
        fixed = {**{key: (value,) for key, value in held.items()}, **dict(screen.space.fixed)}
        try:
            found = replace(screen, space=replace(screen.space, full=True, fixed=fixed)).run(keep=20)
            best: Finalist = simulated(found, simulate, 2)[0]
        except (TraincastError, IndexError):
            continue
        changed = [field for field in fields if getattr(best.layout, field) != has[field]]
        if changed:
            text = ", ".join(
                f"{field} {_said(has[field])} -> {_said(getattr(best.layout, field))}" for field in changed
            )
            yield Change(
                change=text,
                layout=best.layout,
                step_s=best.step_s,
                saving_s=step_s - best.step_s,
                peak_bytes=best.peak_bytes,
            )


def _said(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if value is None:
        return "open"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def sensitivities(request: JobRequest, layout: Layout, setting: Setting, step_s: float) -> tuple[Sensitivity, ...]:
    """Return what a step would be with links, memory or computation of the hardware 10 % faster."""
    found = []
    for name, cluster in _better(setting.cluster):
        job = resolve_job(replace(request, **layout.request()), cluster)
        again_s = forecast(job, replace(setting, cluster=cluster), allow_oom=True).iteration_time_s
        found.append(Sensitivity(better=name, step_s=again_s, saving_s=step_s - again_s))
    return tuple(sorted(found, key=lambda each: -each.saving_s))


def _better(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    gpu, inter, intra = cluster.gpu, cluster.inter, cluster.intra
    peaks = [each for each in type(gpu).__dataclass_fields__ if each.endswith("_flops_per_s")]
    faster = {name: value * _BETTER for name in peaks if (value := getattr(gpu, name)) is not None}
    yield "computation (FLOP/s) 10 % faster", replace(cluster, gpu=replace(gpu, **faster))
    memory = gpu.memory_bytes_per_s * _BETTER
    yield "memory (HBM) 10 % faster", replace(cluster, gpu=replace(gpu, hbm_bytes_per_s=memory))
    inside = intra.bandwidth_bytes_per_s * _BETTER
    yield "links inside a node 10 % faster", replace(cluster, intra=replace(intra, bandwidth_bytes_per_s=inside))
    limit = inter.node_bandwidth_bytes_per_s
    between = replace(
        inter,
        bandwidth_bytes_per_s=inter.bandwidth_bytes_per_s * _BETTER,
        node_bandwidth_bytes_per_s=None if limit is None else limit * _BETTER,
    )
    yield "links between nodes 10 % faster", replace(cluster, inter=between)
