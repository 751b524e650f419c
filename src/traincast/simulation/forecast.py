"""The result of a forecast: the simulated step, with rates, memory and an interval."""

from dataclasses import replace
from typing import NamedTuple

from traincast.errors import InfeasibleError
from traincast.estimate.factors import FactorTable, shipped_factors
from traincast.estimate.memory import StageMemory, chance_of_oom, fits, stage_memory, usable_bytes
from traincast.schedules.plan import SchedulePlan
from traincast.simulation.interval import interval
from traincast.simulation.predict import JobRun, plan_of_job, run_job
from traincast.simulation.result import Result
from traincast.simulation.simulate import account
from traincast.spec.cluster import Cluster
from traincast.spec.counts import hardware_flops_per_token, model_flops_per_step
from traincast.spec.gpus import GpuSpec, gpu_of_cluster
from traincast.spec.job import Job
from traincast.spec.notes import Note
from traincast.spec.options import SimulateOptions


def forecast(
    job: Job,
    cluster: Cluster,
    options: SimulateOptions | None = None,
    *,
    allow_oom: bool = False,
    factors: FactorTable | None = None,
    engine: str = "auto",
) -> Result:
    """Forecast one step of a job.

    Parameters
    ----------
    job : Job
        With everything decided.
    cluster : Cluster
        What it runs on.
    options : SimulateOptions, optional
        Pricing overrides, stragglers, unfolding.
    allow_oom : bool
        Simulate even where the job surely does not fit into memory; a warning says so.
    factors : FactorTable, optional
        What end-to-end runs taught; the shipped ones by default.
    engine : {"auto", "reference", "kernel"}
        Implementation of the engine.

    Returns
    -------
    Result

    Raises
    ------
    InfeasibleError
        If the job is very unlikely to fit into memory, with the shortfall and what would free it.
    TraincastError
        If the job cannot run.
    """
    table = factors or shipped_factors()
    options = options or SimulateOptions()
    gpu, plan = gpu_of_cluster(cluster.gpu), plan_of_job(job)
    warnings = _warnings(job, plan, gpu, cluster.gpus_per_node, allow_oom=allow_oom)
    done = run_job(job, cluster, options, table.for_job(gpu, job.stack.name), engine)
    result = account(done.run, done.workload, done.plan, done.cluster, options, engine)
    rates = _rates(done)
    return replace(
        result,
        interval=interval(done, table),
        memory_bytes=tuple(_memory(each, usable_bytes(gpu.hbm_bytes)) for each in stage_memory(job, plan)),
        warnings=result.warnings + warnings,
        tokens_per_s_per_gpu=rates.tokens_per_s_per_gpu,
        tflops_per_gpu=rates.flops_per_s / 1e12,
        mfu=rates.flops_per_s / rates.peak_flops_per_s,
        hfu=rates.hardware_flops_per_s / rates.peak_flops_per_s,
    )


def _warnings(job: Job, plan: SchedulePlan, gpu: GpuSpec, gpus_per_node: int, *, allow_oom: bool) -> tuple[Note, ...]:
    """Return what looks wrong with a job before it runs; refuse one that is very unlikely to fit into memory."""
    found = []
    verdict = fits(job, plan, gpu.hbm_bytes, gpus_per_node)
    if verdict.refused and not allow_oom:
        raise InfeasibleError(f"{verdict.text}; --allow-oom simulates all the same")
    if verdict.doubtful:
        found.append(Note("out-of-memory" if verdict.refused else "may-run-out-of-memory", verdict.text))
    if plan.overlapped_p2p and not job.overlap_p2p and job.parallel.pp > 1:
        text = f"messages of the schedule {plan.name} travel beside computation here; overlap_p2p off changes nothing"
        found.append(Note("overlap-p2p-unused", text))
    return tuple(found)


def _memory(stage: StageMemory, usable: float) -> dict[str, int | float]:
    names = ("parameters", "gradients", "optimizer", "activations", "other", "peak")
    found = {name: getattr(stage, name) for name in names}
    return {**found, "usable": usable, "chance_of_oom": chance_of_oom(stage.peak, usable)}


class _Rates(NamedTuple):
    """What a step amounts to per GPU."""

    tokens_per_s_per_gpu: float
    flops_per_s: float
    """Of the model, whatever is computed again."""
    hardware_flops_per_s: float
    peak_flops_per_s: float
    """Dense bf16 peak, whatever type the products run in, so that precisions can be compared."""


def _rates(done: JobRun) -> _Rates:
    job, world = done.job, done.job.parallel.world_size
    recompute, share = _recomputed(job)
    tokens = job.tokens_per_step / done.step_s / world
    return _Rates(
        tokens_per_s_per_gpu=tokens,
        flops_per_s=model_flops_per_step(job.model, job.seq_length, job.global_batch, job.task) / done.step_s / world,
        hardware_flops_per_s=tokens * hardware_flops_per_token(job.model, job.seq_length, recompute, job.task, share),
        peak_flops_per_s=done.gpu.peak_flops_per_s("bf16" if done.gpu.has_peak("bf16") else "fp16"),
    )


def _recomputed(job: Job) -> tuple[str, float]:
    """Return what is computed again, and in which share of the layers."""
    if job.recompute == "selective" and job.stack.selective_share > 0:
        return "full", job.stack.selective_share
    if job.recompute != "full" or job.recompute_layers is None:
        return job.recompute, 1.0
    again = sum(min(job.recompute_layers, layers) for layers in job.layers_Q)
    return "full", again / job.model.layers
