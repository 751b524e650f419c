"""The memory of measured runs: what one prints, what is forecast, and whether its host was ahead of its GPUs."""

from msgspec import Struct
from msgspec.structs import replace

from traincast.calibration.runs import MeasuredRun, job_of_run
from traincast.errors import InfeasibleError
from traincast.estimate.memory import JobMemory, StageMemory, chance_of_oom, usable_bytes
from traincast.estimate.memory.fits import REFUSED_ABOVE
from traincast.estimate.memory.waiting import gpu_layer_s
from traincast.job.job import Job
from traincast.mechanisms.activations import LayerModel
from traincast.schedules.schedule import planned

HOST_AHEAD = "host_ahead"
"""Column of what is known of a run's launches: ``false`` where the GPUs mostly waited for the host or the network."""

STALLED_S = 0.5
"""Time of a microbatch beyond its work on the GPUs from which on these waited for something: a host that asks every
0.1 s whether its four or more messages are through has them wait for as long (nanotron at 67c5ebb6, p2p.py)."""


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
    """Why it cannot be run."""

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
    memory = JobMemory(job, planned(job.pipeline.schedule, parallel.pp, parallel.vpp, parallel.in_pipeline))
    stages = memory.stages
    printed = stages[0] if run.first_stage_memory else max(stages, key=lambda stage: stage.peak)
    # What would free memory nobody asks of a run that was: only whether it fits, as `fits` says it.
    usable = usable_bytes(run.cluster.gpu.memory_bytes)
    refused = chance_of_oom(memory.peak, usable, job.framework.name) > REFUSED_ABOVE
    return RunMemory(printed, run.memory_kind, memory.peak <= usable, refused)


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
    parallel, layers = job.parallel, LayerModel(job)
    working_s: float = gpu_layer_s(layers, 0) * job.model.layers / parallel.pp
    return run.measured_s / (parallel.microbatches + parallel.pp - 1) - working_s < STALLED_S


def without_waiting(job: Job) -> Job:
    """Return a job whose host is not ahead of its GPUs, so that nothing waits for them."""
    policy = replace(job.framework.memory, waiting_tensors=0)
    return replace(job, framework=replace(job.framework, memory=policy))
