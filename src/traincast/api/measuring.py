"""Measuring on a GPU of one's own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from traincast.api.files import JobLike, StrPath
from traincast.api.named import job_under
from traincast.errors import ConfigError
from traincast.hardware.cluster import Cluster
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.job.request import JobRequest
from traincast.job.words import JOB_WORDS, said_of_job, sorted_out, takes
from traincast.measuring.of_job import measure_job, script_of_job
from traincast.measuring.timing import Summary


@takes(JOB_WORDS)
def measure(
    job: JobLike | None = None,
    out: StrPath | None = None,
    cluster: StrPath | Cluster | None = None,
    *,
    like: str | None = None,
    strict: bool = False,
    minutes: float = 10.0,
    spread: float = 0.01,
    tell: Callable[[str], None] | None = None,
    **words: Any,  # noqa: ANN401
) -> Summary:
    """Time what a job runs on this machine's GPU, with its PyTorch; under torchrun its collectives.

    Parameters
    ----------
    job, cluster, like, strict, **words
        The job, as of `traincast.predict`.
    out : path
        The CSV file that is written, and continued where it is there; `calibrate` reads it.
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

    Examples
    --------
    >>> import traincast
    >>> try:
    ...     traincast.measure("examples/llama3_70b_512gpu.toml", "operators.csv")
    ... except traincast.MeasurementError:
    ...     print("no GPU here, or no PyTorch")
    no GPU here, or no PyTorch
    """
    if out is None:
        raise ConfigError("is missing; name the CSV file for the times", "out")
    found = _job(job, like, words, strict=strict)
    return measure_job(found, Path(out), cluster, minutes=minutes, spread=spread, tell=tell or (lambda _: None))


@takes(JOB_WORDS)
def measuring_script(
    job: JobLike | None = None,
    cluster: StrPath | Cluster | None = None,
    *,
    like: str | None = None,
    strict: bool = False,
    **words: Any,  # noqa: ANN401
) -> str:
    """Return a Python script that does what `measure` does where traincast is not installed, for this job alone.

    Examples
    --------
    >>> from traincast import api
    >>> text = api.measuring_script("examples/llama3_70b_512gpu.toml")
    >>> "needs PyTorch alone" in text
    True
    """
    return script_of_job(_job(job, like, words, strict=strict), cluster)


def _job(job: JobLike | None, like: str | None, words: Mapping[str, Any], *, strict: bool) -> Job | JobRequest | Draft:
    """Return a job with what keywords say instead."""
    (said,) = sorted_out(words, JOB_WORDS)
    return job_under(job, said_of_job(said), like, strict=strict)
