"""Whether a job fits into the memory of its GPUs, and what would free memory where it does not."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from traincast.errors import InfeasibleError, TraincastError
from traincast.estimate.memory.stage import stage_memory
from traincast.schedules.plan import SCHEDULES, SchedulePlan
from traincast.spec.job import Job
from traincast.spec.layers import Split, split_layers
from traincast.units import format_size

VISIBLE = 0.989
"""Memory that programs can use over the size that is sold, in powers of two: an "80 GB" A100 or H100 shows 79.1 of
80 GiB (recalled; other GPUs show more, up to 99.7 % of an H200, so that for them it is on the safe side)."""

_GIB_PER_GB = 2**30 / 1e9
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a job fits.

    Parameters
    ----------
    fits : bool
        Whether every stage does.
    stage : int
        The stage that needs most.
    peak_bytes, usable_bytes : float
        What it needs, and what programs can use of a GPU.
    shortfall_bytes : float
        What is missing on that stage; 0 where the job fits.
    largest : tuple of (str, float)
        Its largest terms, the largest first.
    remedies : tuple of (str, float)
        Changes, with the bytes that each saves on the worst stage, the best first; empty where the job fits.
    """

    fits: bool
    stage: int
    peak_bytes: float
    usable_bytes: float
    shortfall_bytes: float
    largest: tuple[tuple[str, float], ...]
    remedies: tuple[tuple[str, float], ...]

    @property
    def text(self) -> str:
        """The verdict in a sentence, with what would free memory."""
        need = (
            f"stage {self.stage} needs {format_size(self.peak_bytes)} of the {format_size(self.usable_bytes)} "
            "that programs can use of a GPU"
        )
        if self.fits:
            return f"the job fits: {need}"
        parts = ", ".join(f"{name} {format_size(size)}" for name, size in self.largest)
        text = f"the job does not fit: {need}, {format_size(self.shortfall_bytes)} too much ({parts})"
        enough = [(name, size) for name, size in self.remedies if size >= self.shortfall_bytes]
        shown = (enough or list(self.remedies))[:_SHOWN]
        if not shown:
            return f"{text}; use more GPUs"
        listed = ", ".join(f"{name} frees {format_size(size)}" for name, size in shown)
        return f"{text}; {listed}{'' if enough else ', none of them alone enough'}"


def usable_bytes(hbm_bytes: float) -> float:
    """Return the bytes that programs can use of a GPU sold with that many.

    Parameters
    ----------
    hbm_bytes : float
        Of the datasheet, in decimal bytes: 80e9 for "80 GB", which are 80 GiB.
    """
    return VISIBLE * _GIB_PER_GB * hbm_bytes


def fits(job: Job, plan: SchedulePlan, hbm_bytes: float) -> Verdict:
    """Say whether a job fits, and if not, what would free memory.

    Parameters
    ----------
    job : Job
        The job.
    plan : SchedulePlan
        In which order its stages run.
    hbm_bytes : float
        Memory of a GPU as its datasheet gives it.

    Returns
    -------
    Verdict
        Its remedies are found by computing the memory of the changed job, on as many GPUs.
    """
    stages = stage_memory(job, plan)
    worst = max(range(len(stages)), key=lambda stage: stages[stage].peak)
    peak, usable = stages[worst].peak, usable_bytes(hbm_bytes)
    shortfall = max(0.0, peak - usable)
    return Verdict(
        fits=shortfall == 0,
        stage=worst,
        peak_bytes=peak,
        usable_bytes=usable,
        shortfall_bytes=shortfall,
        largest=tuple(sorted(stages[worst].terms, key=lambda term: -term[1])[:3]),
        remedies=() if shortfall == 0 else _remedies(job, peak),
    )


def _remedies(job: Job, peak: float) -> tuple[tuple[str, float], ...]:
    found = []
    for name, changed in _changes(job):
        try:
            parallel = changed.parallel
            plan = SCHEDULES.get(changed.schedule)(parallel.pp, parallel.vpp, parallel.microbatches)
        except TraincastError:
            continue
        saved = peak - max(stage.peak for stage in stage_memory(changed, plan))
        if saved > 0:
            found.append((name, saved))
    return tuple(sorted(found, key=lambda remedy: -remedy[1]))


def _changes(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield the changes that are worth a try, each on as many GPUs and with the same global batch."""
    parallel = job.parallel
    if job.recompute == "none" and job.attention_kernel == "unfused":
        yield "recompute selective", replace(job, recompute="selective")
    if job.recompute != "full" or job.recompute_layers is not None:
        yield "recompute full", replace(job, recompute="full", recompute_layers=None)
    replicas = parallel.dp * parallel.cp
    for zero in range(job.zero + 1, 4):
        if replicas > 1 and (zero < 2 or parallel.pp == 1):
            yield f"zero {zero}", replace(job, zero=zero, shard=job.shard if job.zero else replicas)
    if job.micro_batch > 1:
        more = replace(parallel, microbatches=parallel.microbatches * job.micro_batch)
        yield "micro batch 1", replace(job, micro_batch=1, parallel=more)
    yield from _wider(job)


def _wider(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield twice the tensor, pipeline or expert parallelism; the first two for half as many replicas."""
    parallel, model = job.parallel, job.model
    if model.attention.heads % (2 * parallel.tp) == 0:
        sequence = job.sequence_parallel or (parallel.tp == 1 and job.stack.sequence_parallel)
        with suppress(TraincastError):
            yield f"tp {2 * parallel.tp}", replace(_half(job, tp=2 * parallel.tp), sequence_parallel=sequence)
    if model.layers >= 2 * parallel.pp * parallel.vpp:
        split = Split(layers=model.layers, pp=2 * parallel.pp, vpp=parallel.vpp, uneven=job.stack.uneven_split)
        schedule = "1f1b" if parallel.pp == 1 else job.schedule
        with suppress(TraincastError):
            deeper = replace(_half(job, pp=2 * parallel.pp), layers_Q=split_layers(split)[0], schedule=schedule)
            yield f"pp {2 * parallel.pp}", deeper
    if model.experts is not None and model.experts.experts % (2 * parallel.ep) == 0:
        with suppress(TraincastError):
            yield f"ep {2 * parallel.ep}", replace(job, parallel=replace(parallel, ep=2 * parallel.ep))


def _half(job: Job, **degrees: int) -> Job:
    """Return the job with half the replicas, each with twice the microbatches, and other degrees.

    Raises
    ------
    InfeasibleError
        If the replicas cannot be halved or the degrees do not divide.
    """
    parallel = job.parallel
    if parallel.dp % 2:
        raise InfeasibleError(f"dp {parallel.dp} cannot be halved; change it")
    changed = replace(
        parallel,
        tp=degrees.get("tp", parallel.tp),
        pp=degrees.get("pp", parallel.pp),
        dp=parallel.dp // 2,
        microbatches=2 * parallel.microbatches,
        shard=None if parallel.shard is None else max(1, parallel.shard // 2),
    )
    return replace(job, parallel=changed, shard=max(1, job.shard // 2))
