"""The pipeline plan of a job."""

from traincast.job.job import Job
from traincast.schedules.check import checked_plan
from traincast.schedules.plan import SchedulePlan


def plan_of_job(job: Job) -> SchedulePlan:
    """Return the checked pipeline plan of a job.

    Raises
    ------
    TraincastError
        If the schedule is not known, or cannot run so many stages, virtual stages and microbatches.
    """
    degrees = job.parallel
    pairs = job.experts.pairs_passes
    return checked_plan(job.pipeline.schedule, degrees.pp, degrees.vpp, degrees.microbatches, pairs)
