"""The result of a forecast: the simulated step, with rates, memory and an interval."""

from dataclasses import fields, replace
from typing import Any

from traincast.diagnostics import Note
from traincast.errors import InfeasibleError
from traincast.estimate.factors import FactorTable, shipped_factors
from traincast.estimate.memory import StageMemory, chance_of_oom, fits, stage_memory, usable_bytes
from traincast.hardware.cluster import Cluster
from traincast.hardware.gpu import Gpu
from traincast.job.job import Job
from traincast.job.options import SimulateOptions
from traincast.progress import advanced
from traincast.schedules.check import plan_of
from traincast.schedules.plan import SchedulePlan
from traincast.simulation.interval import interval
from traincast.simulation.predict import run_job
from traincast.simulation.rates import above_peak, rates_of
from traincast.simulation.result import JobFacts, Peak, Result
from traincast.simulation.simulate import account


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
    gpu, plan = cluster.gpu, plan_of(job)
    warnings = _warnings(job, plan, gpu, cluster.gpus_per_node, allow_oom=allow_oom)
    done = run_job(job, cluster, options, table.for_job(gpu, job.framework.name), engine)
    result = account(done.run, done.workload, done.plan, done.cluster, options, engine)
    advanced(0.85)
    rates = rates_of(done)
    return replace(
        result,
        interval=interval(done, table),
        memory_bytes=tuple(_memory(each, usable_bytes(gpu.memory_bytes)) for each in stage_memory(job, plan)),
        warnings=result.warnings + warnings + above_peak(rates),
        tokens_per_s_per_gpu=rates.tokens_per_s,
        tflops_per_gpu=rates.flops_per_s / 1e12,
        mfu=rates.mfu,
        hfu=rates.hfu,
        mfu_peak=Peak(dtype=rates.peak_dtype, flops_per_s=rates.peak_flops_per_s),
        mfu_16_bit=rates.mfu_16_bit,
        hfu_16_bit=rates.hfu_16_bit,
        job=_facts(job),
    )


def _warnings(job: Job, plan: SchedulePlan, gpu: Gpu, gpus_per_node: int, *, allow_oom: bool) -> tuple[Note, ...]:
    """Return what looks wrong with a job before it runs; refuse one that is very unlikely to fit into memory."""
    found = []
    verdict = fits(job, plan, gpu.memory_bytes, gpus_per_node)
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


def _facts(job: Job) -> JobFacts:
    """Return what the job is, for readers of the result."""
    same: dict[str, Any] = {
        each.name: getattr(job, each.name)
        for each in fields(JobFacts)
        if each.name not in ("model", "framework", "stage_layers")
    }
    return JobFacts(model=job.model.name, framework=job.framework.name, stage_layers=job.layers_Q, **same)
