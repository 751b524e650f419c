"""The pipeline plan of a job."""

from traincast.job.job import Job
from traincast.schedules.check import checked_plan, counts_of
from traincast.schedules.plan import SchedulePlan


def plan_of_job(job: Job) -> SchedulePlan:
    """Return the checked pipeline plan of a job.

    Raises
    ------
    TraincastError
        If the schedule is not known, or cannot run so many stages, virtual stages and microbatches.
    """
    return checked_plan(*counts_of(job.pipeline.schedule, job.parallel, pairs=job.experts.pairs_passes))
