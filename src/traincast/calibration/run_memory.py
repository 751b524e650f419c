"""The memory of measured runs: what one prints, what is forecast, and whether its host was ahead of its GPUs."""

from msgspec import Struct
from msgspec.structs import replace

from traincast.calibration.runs import MeasuredRun, job_of_run
from traincast.errors import InfeasibleError
from traincast.estimate.collective_table import members_on
from traincast.estimate.collectives import estimate_collective
from traincast.estimate.memory import JobMemory, StageMemory, fits
from traincast.hardware.cluster import Cluster
from traincast.job.job import Job
from traincast.model.counts import model_flops_per_token
from traincast.schedules.schedule import planned
from traincast.workload.words import Operation

HOST_AHEAD = "host_ahead"
"""Column of what is known of a run's launches: ``false`` where the GPUs mostly waited for the host or the network."""

STALLED_S = 0.5
"""Time of a microbatch beyond its work on the GPUs from which on these waited for something: a host that asks every
0.1 s whether its four or more messages are through has them wait for as long (nanotron at 67c5ebb6, p2p.py)."""

_OF_PEAK = 0.5
"""Share of a GPU's peak that GEMMs and attention reach: rough, as times beyond it are several times as long."""

_EXCHANGES = 10
"""Of a layer with tensor parallelism and split sequences, in both passes: each of its two blocks gathers its input and
scatters its output, and in the backward pass does the reverse and gathers its input again."""


class RunMemory(Struct, frozen=True):
    """What is predicted of one run."""

    stage: StageMemory | None
    """Memory of the stage that is printed; None where the layout cannot be run at all."""
    meaning: str
    """``allocated``, ``reserved`` or ``device``."""
    fits: bool
    """Whether every stage fits, taking the memory model at its word."""
    refused: bool
    """Whether a forecast would refuse it: it cannot be run, or fitting is very unlikely."""
    reason: str = ""
    """Why it cannot be run, or what it lacks."""

    @property
    def peak_bytes(self) -> float:
        """The peak in the source's meaning."""
        return float("nan") if self.stage is None else meant(self.stage, self.meaning)


def meant(stage: StageMemory, meaning: str) -> float:
    """Return the peak of a stage in a source's meaning."""
    return {"allocated": stage.allocated, "reserved": stage.reserved}.get(meaning, stage.peak)


def memory_of_run(run: MeasuredRun) -> RunMemory:
    """Return the memory of a measured run; a `TraincastError` if the run cannot be described."""
    try:
        job = job_of_run(run)
    except InfeasibleError as error:
        return RunMemory(None, run.memory_kind, False, True, str(error))
    job = as_run(run, job)
    parallel = job.parallel
    memory = JobMemory(job, planned(job.pipeline.schedule, parallel.pp, parallel.vpp, parallel.microbatches))
    stages = memory.stages
    printed = stages[0] if run.first_stage_memory else max(stages, key=lambda stage: stage.peak)
    verdict = fits(memory, run.cluster.gpu.memory_bytes, run.cluster.gpus_per_node)
    return RunMemory(printed, run.memory_kind, verdict.fits, verdict.refused, "" if verdict.fits else verdict.text)


def as_run(run: MeasuredRun, job: Job) -> Job:
    """Return the job of a run with nothing that waits for the GPUs where these waited for the host."""
    return job if host_was_ahead(run, job) else without_waiting(job)


def host_was_ahead(run: MeasuredRun, job: Job) -> bool:
    """Say whether the host of a run was ahead of its GPUs: as its row says, or by the time that its microbatches took.

    A run that does not say how long its step was, or did not run, had a host as it should be.
    """
    said = run.cells.get(HOST_AHEAD)
    if said or run.measured_s is None or not job.framework.memory.waiting_tensors:
        return said != "false"
    parallel = job.parallel
    slots = parallel.microbatches + parallel.pp - 1
    return run.measured_s / slots - _work_s(job, run.cluster) < STALLED_S


def _work_s(job: Job, cluster: Cluster) -> float:
    """Return roughly how long a stage's GPUs work on a microbatch."""
    parallel, batch = job.parallel, job.batch
    tokens = batch.micro_batch * batch.seq_length / parallel.cp
    flops = model_flops_per_token(job.model, batch.seq_length) * tokens / (parallel.tp * parallel.pp)
    computing_s = flops / (_OF_PEAK * cluster.gpu.peak_flops_per_s("bf16"))
    if parallel.tp == 1:
        return computing_s
    gathered = int(2 * tokens * job.model.hidden)
    placement = members_on(parallel.tp, None, cluster.ranks_per_node)
    once_s = estimate_collective(Operation.ALL_GATHER, gathered, placement, cluster).time_s
    return computing_s + _EXCHANGES * once_s * job.model.layers / parallel.pp


def without_waiting(job: Job) -> Job:
    """Return a job whose host is not ahead of its GPUs, so that nothing waits for them."""
    policy = replace(job.framework.memory, waiting_tensors=0)
    return replace(job, framework=replace(job.framework, memory=policy))
