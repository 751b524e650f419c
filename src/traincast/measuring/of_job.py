"""Time what a job runs: from its description to the file of its times, or to a script that makes it."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from traincast.errors import MeasurementError
from traincast.files import read_text
from traincast.hardware.cluster import Cluster
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.job.job_file import read_job_file
from traincast.job.options import StepOptions
from traincast.job.request import JobRequest
from traincast.measuring.run import run
from traincast.measuring.script import script
from traincast.measuring.tasks import Tasks, tasks_of
from traincast.measuring.timing import MeasureError, Summary
from traincast.simulation.job_step import run_job
from traincast.simulation.reproducible import choose, decide

JobLike = Job | JobRequest | Draft | str | PathLike[str]
ClusterLike = str | PathLike[str] | Cluster


def measure_job(
    job: JobLike,
    out: Path,
    cluster: ClusterLike | None = None,
    *,
    minutes: float = 10.0,
    spread: float = 0.01,
    tell: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Time on this machine's GPU, with its PyTorch, the operators that a job needs; under torchrun its collectives.

    Parameters
    ----------
    job : JobRequest, Job, Draft, or path
        What is to be trained, as of `traincast.predict`.
    out : Path
        The CSV file that is written, and continued where it is there; ``traincast calibrate`` reads it.
    cluster : str, path or Cluster, optional
        Cluster that the job is laid out on; by default what the job says, else ``h100``.
    minutes : float
        Time after which nothing further is begun.
    spread : float
        Half the 95 % interval of a median over it, at which its repetitions end.
    tell : callable, optional
        Told a line about each operator or collective.

    Raises
    ------
    MeasurementError
        If there is no PyTorch or GPU here, or the file is another's.
    """
    tasks = _tasks(job, cluster)
    try:
        return run(
            tasks.operators, tasks.collectives, out, minutes=minutes, spread=spread, tell=tell, read_text=read_text
        )
    except MeasureError as error:
        raise MeasurementError(str(error)) from None


def script_of_job(job: JobLike, cluster: ClusterLike | None = None) -> str:
    """Return the text of a Python script that does what `measure_job` does, and needs PyTorch alone."""
    tasks = _tasks(job, cluster)
    return script(tasks.name, tasks.operators, tasks.collectives)


def _tasks(job: JobLike, cluster: ClusterLike | None) -> Tasks:
    found = read_job_file(str(job)) if isinstance(job, str | PathLike) else job
    said = found.cluster if isinstance(found, Draft) else None
    setting = choose(StepOptions(), cluster or said, "auto").setting
    _, _, decided, _ = decide(found, setting.cluster)
    return tasks_of(run_job(decided, setting))
