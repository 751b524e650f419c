"""Forecast a job: its step, with the rates and memory that it means, and how sure that is.

MFU counts the model's FLOPs, causal attention half, and nothing twice; HFU adds what is recomputed (PaLM, arXiv
2204.02311, appendix B; Megatron-LM, arXiv 2205.05198, section 6.3). A share means little without its peak: `mfu` and
`hfu` are of the dense peak of the type that the job's GEMMs run in, `mfu_16_bit` and `hfu_16_bit` of the dense
16-bit one, which most published figures are of.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.errors import InfeasibleError
from traincast.estimate.factors import FactorTable, factors_on
from traincast.estimate.memory import JobMemory, StageMemory, chance_of_oom, fits, usable_bytes
from traincast.estimate.memory.states import held_by
from traincast.estimate.offload import ranks_of_host
from traincast.hardware.cluster import Cluster
from traincast.hardware.dtypes import PEAK_OF_DTYPE
from traincast.hardware.gpu import Gpu
from traincast.hardware.host import Host, host_of
from traincast.job.facts import facts_of
from traincast.job.job import Job
from traincast.job.optimizer import GRADIENT_TYPE, STATE_TYPES
from traincast.job.pipeline_layout import PipelineLayout
from traincast.later import later
from traincast.model.counts import flops_per_token
from traincast.progress import advanced
from traincast.schedules.plan import SchedulePlan
from traincast.simulation.account import account
from traincast.simulation.block_times import block_times
from traincast.simulation.confidence import interval
from traincast.simulation.doubts import doubts_of
from traincast.simulation.job_step import JobStep, factors_of, placed, plan_in, run_job
from traincast.simulation.result import Result
from traincast.simulation.result_records import MemoryResult, Peak
from traincast.simulation.step import Setting
from traincast.simulation.study import Study
from traincast.units import format_share, format_size


def forecast(
    job: Job,
    setting: Setting,
    *,
    allow_oom: bool = False,
    factors: FactorTable | None = None,
    study: Study | None = None,
) -> Result:
    """Forecast one step of a job with everything decided.

    With `allow_oom` even where it surely does not fit into memory; a warning says so. `factors` is what whole runs
    taught, by default as shipped; what a study has prepared is taken from there.

    Raises
    ------
    InfeasibleError
        If the job is very unlikely to fit into memory, with the shortfall and what would free it.
    TraincastError
        If the job cannot run.
    """
    return forecast_step(job, setting, allow_oom=allow_oom, factors=factors, study=study)[0]


def forecast_step(
    job: Job,
    setting: Setting,
    *,
    allow_oom: bool = False,
    factors: FactorTable | None = None,
    study: Study | None = None,
) -> tuple[Result, JobStep]:
    """Return the forecast of a job (`forecast`) with the step as it was simulated."""
    table, gpu, study = factors or factors_on(setting.cluster), setting.cluster.gpu, study or Study()
    plan = plan_in(study, job)
    memory = study.memory(job, lambda job: JobMemory(job, plan))
    warned = partial(_warnings, memory, plan, setting.cluster, allow_oom=allow_oom)
    # Where nothing is refused, what would free memory is worked out for those who look.
    known = None if allow_oom else warned()
    done = run_job(job, setting, factors_of(job, setting, table), study)
    result = account(done.step)
    advanced(0.85)
    rates = rates_of(done)
    found = replace(
        result,
        interval=later(lambda: interval(done, table)),
        doubts=later(lambda: doubts_of(done, table)),
        memory_bytes=tuple(_memory(each, usable_bytes(gpu.memory_bytes), job.framework.name) for each in memory.stages),
        assumptions=later(lambda: (*_in_bytes(result.assumptions, memory), *_own_factors(job, setting.cluster))),
        warnings=later(lambda: result.warnings + (warned() if known is None else known) + above_peak(rates)),
        tokens_per_s_per_gpu=rates.tokens_per_s,
        tflops_per_gpu=rates.flops_per_s / 1e12,
        mfu=rates.mfu,
        hfu=rates.hfu,
        mfu_peak=Peak(dtype=rates.peak_dtype, flops_per_s=rates.peak_flops_per_s),
        mfu_16_bit=rates.mfu_16_bit,
        hfu_16_bit=rates.hfu_16_bit,
        job=later(lambda: facts_of(job, _stages(job, plan))),
        blocks=later(lambda: block_times(done, plan)),
    )
    return found, done


def _in_bytes(notes: Sequence[Note], memory: JobMemory) -> Iterator[Note]:
    """Yield assumptions, those on types of gradients and of the optimizer's state with the bytes that they take."""
    job, fullest = memory.job, memory.stages[memory.worst]
    for note in notes:
        if note.code == GRADIENT_TYPE and job.precision.dtype not in ("fp32", "tf32"):
            now = job.framework.grad_reduce_bytes
            other = 6 - now
            changed = replace(job, framework=replace(job.framework, grad_reduce_bytes=other))
            wider = JobMemory(changed, memory.plan, like=memory)
            peak = format_size(wider.peak)
            took = f"{format_size(fullest.gradients)} of the {format_size(fullest.peak)} of its fullest GPU"
            text = f"{note.text}: {took}, which would be {peak} with {other} bytes"
            yield replace(note, text=text, brief=f"gradients are reduced in {now} bytes; with {other} it needs {peak}")
        elif note.code == STATE_TYPES:
            took = format_size(fullest.optimizer)
            text = f"{note.text}: {took} of the fullest GPU"
            yield replace(note, text=text, brief=f"main parameters and moments are fp32: {took} of the fullest GPU")
        else:
            yield note


def _warnings(memory: JobMemory, plan: SchedulePlan, cluster: Cluster, *, allow_oom: bool) -> tuple[Note, ...]:
    """Return what looks wrong with a job before it runs; refuse one that is very unlikely to fit into memory."""
    job, found = memory.job, list[Note]()
    host = host_of(cluster.gpu, ranks_of_host(job, placed(job, Setting(cluster=cluster))[0].ranks_per_node))
    verdict = fits(memory, cluster.gpu.memory_bytes, cluster.gpus_per_node, host.memory_bytes)
    if verdict.refused and not allow_oom:
        raise InfeasibleError(
            f"{verdict.text}; allow_oom=True simulates all the same",
            needed_bytes=verdict.peak_bytes,
            limit_bytes=verdict.usable_bytes,
            stage=verdict.stage,
        ).typed(allow_oom="--allow-oom")
    found += _host_memory(job, host, memory.stages, allow_oom=allow_oom)
    if verdict.doubtful:
        found.append(Note("out-of-memory" if verdict.refused else "may-run-out-of-memory", verdict.text))
    if plan.overlapped_p2p and not job.pipeline.overlap_p2p and job.parallel.pp > 1:
        text = f"P2P of the schedule {plan.name} is overlapped with computation here; overlap_p2p off changes nothing"
        found.append(Note("overlap-p2p-unused", text))
    return tuple(found)


def _host_memory(job: Job, host: Host, memory: Sequence[StageMemory], *, allow_oom: bool) -> Iterator[Note]:
    """Refuse a job that offloads more than the memory of its hosts holds, or with `allow_oom` warn of it."""
    needed = max(each.host for each in memory)
    if not job.offload.any or needed <= host.memory_bytes:
        return
    text = (
        f"the job does not fit: a rank offloads {format_size(needed)} to the memory of its host, of which it has "
        f"{format_size(host.memory_bytes)}, over by {format_size(needed - host.memory_bytes)}; offload less, shard "
        "more, or give gpu.host_memory_bytes of your hosts in a cluster file"
    )
    if not allow_oom:
        raise InfeasibleError(
            f"{text}; allow_oom=True simulates all the same", needed_bytes=needed, limit_bytes=host.memory_bytes
        ).typed(allow_oom="--allow-oom")
    yield Note("host-out-of-memory", text)


def _own_factors(job: Job, cluster: Cluster) -> Iterator[Note]:
    """Say whether what runs on the cluster taught is of use for a job."""
    name = job.framework.name
    mine = [f"{each.cost_class} x {each.factor:g}" for each in cluster.run_factors if each.framework == name]
    others = sorted({each.framework for each in cluster.run_factors} - {name})
    if mine:
        yield Note("run-factors", f"as learned from runs of {name} on {cluster.name}: {', '.join(mine)}")
    elif others:
        text = f"runs on {cluster.name} used {', '.join(others)}, and say nothing about a job of {name}"
        yield Note("run-factors-unused", text)


def _memory(stage: StageMemory, usable: float, framework: str) -> MemoryResult:
    return MemoryResult(
        parameters=stage.parameters,
        gradients=stage.gradients,
        optimizer=stage.optimizer,
        activations=stage.activations,
        other=stage.other,
        peak=stage.peak,
        host=stage.host or None,
        usable=usable,
        chance_of_oom=chance_of_oom(stage.peak, usable, framework),
    )


def _stages(job: Job, plan: SchedulePlan) -> tuple[str, ...]:
    """Return what each pipeline stage holds, of every copy of the model, in the letters of a layout."""
    letters = job.layout.stages
    return tuple(
        str(PipelineLayout(tuple(letters[virtual_stage] for _, virtual_stage in held_by(plan, stage))))
        for stage in range(len(plan.slots))
    )


class StepRates(Struct, frozen=True, kw_only=True):
    """Rates of one step per GPU."""

    tokens_per_s: float
    """Tokens that it trains on."""
    flops_per_s: float
    """Of the model, whatever is recomputed."""
    hardware_flops_per_s: float
    """With what is recomputed."""
    precision: str
    """Type of the job's GEMMs."""
    peak_dtype: str
    """Type of the peak that `mfu` and `hfu` are of."""
    peak_flops_per_s: float
    """That dense peak."""
    peak_16_bit_flops_per_s: float
    """The dense peak of bf16, or of fp16 where the GPU has no bf16."""

    @property
    def mfu(self) -> float:
        """Model FLOP/s over the peak of the job's precision."""
        return self.flops_per_s / self.peak_flops_per_s

    @property
    def hfu(self) -> float:
        """FLOP/s with what is recomputed over the peak of the job's precision."""
        return self.hardware_flops_per_s / self.peak_flops_per_s

    @property
    def mfu_16_bit(self) -> float:
        """Model FLOP/s over the 16-bit peak."""
        return self.flops_per_s / self.peak_16_bit_flops_per_s

    @property
    def hfu_16_bit(self) -> float:
        """FLOP/s with what is recomputed over the 16-bit peak."""
        return self.hardware_flops_per_s / self.peak_16_bit_flops_per_s


def rates_of(done: JobStep) -> StepRates:
    """Return the rates of a simulated job.

    Raises
    ------
    ConfigError
        If the GPU has no known 16-bit peak.
    """
    job, world, attended = done.job, done.job.parallel.world_size, done.job.batch.attended_length
    recompute, share = _recomputed(job)
    tokens = job.batch.tokens_per_step / done.step_s / world
    needed, done_in_all = flops_per_token(
        job.model, attended, recompute, job.finetuning.task, share, job.recompute.modules, job.recompute.keeps
    )
    dtype, half = _peak_dtype(job.precision.dtype, done.gpu), _half(done.gpu)
    return StepRates(
        tokens_per_s=tokens,
        flops_per_s=tokens * needed,
        hardware_flops_per_s=tokens * done_in_all,
        precision=job.precision.dtype,
        peak_dtype=dtype,
        peak_flops_per_s=done.gpu.peak_flops_per_s(dtype),
        peak_16_bit_flops_per_s=done.gpu.peak_flops_per_s(half),
    )


def above_peak(rates: StepRates) -> tuple[Note, ...]:
    """Return a warning for each peak that a rate is above, so that no share beyond 100 % is shown in silence."""
    found = []
    if max(rates.mfu, rates.hfu) > 1:
        found.append(
            f"{_shares(rates.mfu, rates.hfu)} of the dense {rates.peak_dtype} peak: no GPU does that, so something is "
            "estimated too fast or the peak of the cluster's GPU is too low"
        )
    if max(rates.mfu_16_bit, rates.hfu_16_bit) > 1 and rates.peak_flops_per_s > rates.peak_16_bit_flops_per_s:
        found.append(
            f"{_shares(rates.mfu_16_bit, rates.hfu_16_bit)} of the dense 16-bit peak: the GEMMs run in "
            f"{rates.precision}, whose peak is {rates.peak_flops_per_s / rates.peak_16_bit_flops_per_s:.3g} x as high"
        )
    return tuple(Note("above-peak", text) for text in found)


def _shares(mfu: float, hfu: float) -> str:
    return f"MFU {format_share(mfu)} and HFU {format_share(hfu)}"


def _half(gpu: Gpu) -> str:
    return "bf16" if gpu.has_peak("bf16") else "fp16"


def _peak_dtype(precision: str, gpu: Gpu) -> str:
    """Return the name of the peak that limits GEMMs of a precision; the 16-bit one where none is known for it."""
    return PEAK_OF_DTYPE[precision] if gpu.has_peak(precision) else _half(gpu)


def _recomputed(job: Job) -> tuple[str, float]:
    """Return what is recomputed, and in which share of the layers."""
    if job.recompute.granularity != "full" or job.recompute.layers is None:
        return job.recompute.granularity, 1.0
    again = sum(min(job.recompute.layers, layers) for layers in job.pipeline.layers_Q)
    return "full", again / job.model.layers
