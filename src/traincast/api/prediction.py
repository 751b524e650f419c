"""Forecast one step of a training job."""

from typing import Any

from msgspec.structs import replace

from traincast.api.files import JobLike, StrPath
from traincast.api.given import loaded, record_and_options, refuse_both
from traincast.api.named import job_under
from traincast.errors import ConfigError
from traincast.hardware.cluster import Cluster
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.job.options import LayoutOptions, SimulateOptions, StepOptions
from traincast.job.request import JobRequest
from traincast.job.words import JOB_WORDS, STEP_WORDS, said_of_job, sorted_out, takes
from traincast.simulation.memory_risk import checked_oom_risk
from traincast.simulation.reproducible import Chosen, choose, reproducible_forecast
from traincast.simulation.result import Result
from traincast.simulation.study import Study


@takes(STEP_WORDS, JOB_WORDS)
def predict(
    job: JobLike | Result | None = None,
    cluster: StrPath | Cluster | None = None,
    *,
    options: StepOptions | None = None,
    like: str | None = None,
    strict: bool = False,
    recipe: str | None = None,
    allow_oom: bool = False,
    fail_on_oom_risk: float | None = None,
    engine: str = "fast",
    study: Study | None = None,
    **words: Any,  # noqa: ANN401
) -> Result:
    """Forecast one step of a training job.

    Parameters
    ----------
    job : path, Draft, JobRequest, Job, or Result, optional
        What is trained and how it is laid out; its framework decides what is left open, as assumptions of the result.
        A path is a job file's, a training log's, or a result's, which is run again as it was. Keywords win over them.
    cluster : str, path or Cluster, optional
        Cluster; by default what the job says, else ``h100``, an assumption.
    options : StepOptions, optional
        Bus bandwidths, stragglers, what shares links, all at once; or as keywords. A layout of files is refused.
    like : str, optional
        The framework whose flags or settings `job` is, as they are pasted after ``--like``.
    strict : bool
        Refuse pasted flags that are unknown, and another world size than the launcher's.
    recipe : str, optional
        A published recipe (``traincast recipes``), which says what neither `job` nor keywords do.
    allow_oom : bool
        Simulate even a job that is very unlikely to fit into memory; a warning says so.
    fail_on_oom_risk : float, optional
        Refuse a job whose chance of running out of memory is above this, from 0 to 1.
    study : Study, optional
        What earlier forecasts prepared, as on other clusters; this one leaves there what it prepares.
    **words
        The words of the flags, such as ``tp=8`` or ``slow={7: 1.3}``: the fields of `JobRequest` and `StepOptions`.

    Raises
    ------
    InfeasibleError
        If the job is very unlikely to fit into memory, or its layout does not fit onto the GPUs.

    Examples
    --------
    >>> import traincast
    >>> job = traincast.predict(model="llama3-8b", cluster="h100", gpus=8, tp=2, global_batch=64, seq_length="8k")
    >>> more = traincast.predict(job, gpus=16)
    >>> more.iteration_time_s < job.iteration_time_s
    True
    """
    of_step, of_job = sorted_out(words, STEP_WORDS, JOB_WORDS)
    refuse_both(options, of_step)
    source, base = loaded(job), StepOptions()
    if isinstance(source, Result):
        record, base = record_and_options(source, job)
        source, allow_oom = record.draft(), allow_oom or record.allow_oom
    found = job_under(source, said_of_job(of_job), like, strict=strict, recipe=recipe)
    setting = chosen_setting(found, cluster, options or replace(base, **of_step), engine)
    result = reproducible_forecast(found, setting, allow_oom=allow_oom, study=study)
    return checked_oom_risk(result, fail_on_oom_risk)


def chosen_setting(
    job: Draft | JobRequest | Job, cluster: StrPath | Cluster | None, options: StepOptions, engine: str
) -> Chosen:
    """Return how a job is forecast, on the cluster that is named first: by the caller, by the job, by the options."""
    if isinstance(options, SimulateOptions) and options.layout != LayoutOptions():
        raise ConfigError("applies to files; a job says its degrees and its schedule itself", "layout")
    said = job.cluster if isinstance(job, Draft) else None
    by_options = options.cluster if isinstance(options, SimulateOptions) else None
    named = next((each for each in (cluster, said, by_options) if each is not None), None)
    assumed = isinstance(job, Draft) and job.cluster_assumed and named is said
    return choose(options, named, engine, cluster_assumed=assumed)
