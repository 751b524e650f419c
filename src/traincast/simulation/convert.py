"""What a writer asks for: a run as it was read or built, and where it needs the step, every rank of it simulated."""

from msgspec.structs import replace

from traincast.formats.writer import Run, Writer
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.job.request import JobRequest
from traincast.simulation.job_step import estimated_work, factors_of, operator_seconds, placed, run_job
from traincast.simulation.reproducible import Chosen, decide
from traincast.simulation.simulate import timed, with_compute
from traincast.simulation.step import Step
from traincast.workload.workload import Workload


def run_of_job(job: Draft | JobRequest | Job, chosen: Chosen, writer: Writer) -> Run:
    """Return a job's run for a writer.

    Raises
    ------
    TraincastError
        If the job cannot be described or cannot run.
    """
    setting = replace(chosen.setting, unfold=True)
    draft, _, decided, _ = decide(job, setting.cluster)
    name = draft.inputs[0].path if draft.inputs else decided.model.name
    factors = factors_of(decided, setting)
    if writer.needs_step:
        run = _run_of(run_job(decided, setting, factors).step, name, decided)
    else:
        cluster, _ = placed(decided, setting)
        workload, _ = estimated_work(decided, cluster.gpu, factors, cluster.ranks_per_node)
        run = Run(name=name, workload=workload, cluster=cluster, job=decided)
    seconds = operator_seconds(decided, setting.cluster.gpu, factors)
    run = replace(run, call_s=seconds.call_s, alone_s=lambda call: seconds.alone(call).time.time_s)
    return replace(run, workload=replace(run.workload, warnings=(*draft.warnings, *run.workload.warnings)))


def run_of_workload(workload: Workload, chosen: Chosen, writer: Writer) -> Run:
    """Return a workload's run for a writer.

    Raises
    ------
    TraincastError
        If the workload cannot run.
    """
    setting = replace(chosen.setting, unfold=True)
    if not writer.needs_step:
        return Run(name=workload.name, workload=with_compute(workload, setting), cluster=setting.cluster)
    if workload.program is not None and workload.timeline is not None:
        # what was measured is written as it was
        program, timeline = workload.program, workload.timeline
        return Run(name=workload.name, workload=workload, cluster=setting.cluster, program=program, timeline=timeline)
    return _run_of(timed(workload, setting), workload.name)


def _run_of(step: Step, name: str, job: Job | None = None) -> Run:
    return Run(
        name=name,
        workload=step.workload,
        cluster=step.setting.cluster,
        job=job,
        program=step.program,
        timeline=step.timeline,
    )
