"""Is a run as fast as it should be: its logs against the forecast of its job, or against a good run."""

from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from traincast.api.files import JobLike, StrPath
from traincast.api.given import loaded, record_and_options
from traincast.api.named import job_under
from traincast.api.prediction import chosen_setting
from traincast.calibration.log_runs import said_of_job
from traincast.checking.base import BaseForecast, base_of
from traincast.checking.check import Check, GoodRun, check_between, check_run
from traincast.checking.logged import logged
from traincast.errors import ConfigError, FormatError
from traincast.files import InputFile, input_of
from traincast.formats.training_log import TRAINING_LOG
from traincast.formats.training_log.job import draft_of_log
from traincast.formats.training_log.reader import read_log
from traincast.formats.training_log.record import TrainingLog
from traincast.hardware.cluster import Cluster
from traincast.job.draft import Draft
from traincast.job.options import StepOptions
from traincast.job.words import JOB_WORDS, sorted_out, takes
from traincast.job.words import said_of_job as draft_of_words
from traincast.simulation.result import Result
from traincast.simulation.study import Study
from traincast.units import checked_field, parse_share

Logs = StrPath | Sequence[StrPath]


@takes(JOB_WORDS)
def check(
    logs: Logs,
    job: JobLike | Result | None = None,
    cluster: StrPath | Cluster | None = None,
    *,
    baseline: Logs | None = None,
    baseline_job: JobLike | Result | None = None,
    fail_above: float | str | None = None,
    like: str | None = None,
    strict: bool = False,
    recipe: str | None = None,
    causes: bool = True,
    **words: Any,  # noqa: ANN401
) -> Check:
    """Say whether a run is as fast as its job should be, and if not what would explain it.

    Parameters
    ----------
    logs : path or sequence of paths
        What the run logged; several are of several nodes of one run.
    job : path, Draft, JobRequest, Job, or Result, optional
        What should have run, as `predict` takes it; keywords win over it. By default what they say alone, if they say a
        model, else what the arguments in the log say.
    cluster : str, path or Cluster, optional
        Where; by default what the job says, else ``h100``, an assumption.
    baseline : path or sequence of paths, optional
        Logs of a run that was good. What is expected is then its step times the ratio of two forecasts.
    baseline_job : as `job`, optional
        What ran there; by default what its log says, where the job of `logs` is told so, too, else the same job.
    fail_above : float or str, optional
        Share by which a step may be longer than expected: 0.05, or ``"5%"``.
    like, strict, recipe
        As of `predict`.
    causes : bool
        Whether to look for what would explain a step that is longer.
    **words
        The words of the flags of a job, such as ``tp=8``.

    Raises
    ------
    FormatError
        If a log cannot be read, tells no step, or lists no arguments where no job is given.

    Examples
    --------
    >>> import traincast
    >>> good, today = "examples/check/last_good.log", "examples/check/today.log"
    >>> traincast.check(good, cluster="h100").verdict.word.value
    'as expected'
    >>> found = traincast.check(today, cluster="h100", baseline=good, causes=False)
    >>> found.verdict.word.value, found.exit_code
    ('slower', 4)
    """
    (said,) = sorted_out(words, JOB_WORDS)
    if baseline_job is not None and baseline is None:
        raise ConfigError("is of a baseline; give its logs, too", "baseline_job")
    read, good_read = _read(logs), [] if baseline is None else _read(baseline)
    over, study = draft_of_words(said), Study()
    logs_say = job is None and over.model is None
    ran = _job_of(read[0].log) if logs_say else job
    base = forecast_of(ran, over, cluster, study, like=like, strict=strict, recipe=recipe)()
    if logs_say and baseline_job is None and good_read and not _same_job(read[0].log, good_read[0].log):
        baseline_job = _job_of(good_read[0].log)
    before = base if baseline_job is None else forecast_of(baseline_job, over, cluster, study)()
    good = _good(before, good_read) if good_read else None
    known = said_of_job(base.job)
    found = check_run(base, [logged(each.log, known) for each in read], good, _allowed(fail_above), causes=causes)
    inputs = (*(each.file for each in (*read, *good_read)), *base.result.inputs)
    return replace(found, inputs=inputs)


@takes(JOB_WORDS)
def check_change(
    before: JobLike | Result,
    after: JobLike | Result,
    cluster: StrPath | Cluster | None = None,
    *,
    fail_above: float | str | None = None,
    **words: Any,  # noqa: ANN401
) -> Check:
    """Say what a change of a job should make of its step, before anything runs.

    Parameters
    ----------
    before, after : path, Draft, JobRequest, Job, or Result
        The job as it is, and as it is to be; keywords win over both.
    cluster : str, path or Cluster, optional
        Where both run; by default what each says.
    fail_above : float or str, optional
        Share by which the step may become longer: 0.05, or ``"5%"``.
    **words
        The words of the flags of a job, of both.

    Examples
    --------
    >>> import traincast
    >>> job = traincast.Draft(
    ...     model="llama3-8b", cluster="h100", fields={"gpus": 8, "tp": 2, "global_batch": 64, "seq_length": 8192}
    ... )
    >>> recomputed = job.under(traincast.Draft(fields={"recompute": "full"}))
    >>> traincast.check_change(job, recomputed, fail_above="5%").verdict.word.value
    'slower'
    """
    (said,) = sorted_out(words, JOB_WORDS)
    over, study = draft_of_words(said), Study()
    one, other = (forecast_of(each, over, cluster, study)() for each in (before, after))
    found = check_between(one, other, _allowed(fail_above))
    return replace(found, inputs=(*one.result.inputs, *other.result.inputs))


def _allowed(share: float | str | None) -> float | None:
    if share is None:
        return None
    return parse_share(share, "fail_above") if isinstance(share, str) else checked_field("fail_above", share)


class _Read(NamedTuple):
    """A log, and the file that it is from."""

    log: TrainingLog
    file: InputFile


def _read(logs: Logs) -> list[_Read]:
    paths = [logs] if isinstance(logs, (str, PathLike)) else list(logs)
    if not paths:
        raise ConfigError("no log was given")
    return [_Read(read_log(Path(path)), input_of(Path(path), TRAINING_LOG.name)) for path in paths]


def _good(base: BaseForecast, read: Sequence[_Read]) -> GoodRun:
    known = said_of_job(base.job)
    return GoodRun(logs=tuple(logged(each.log, known) for each in read), base=base)


def _same_job(one: TrainingLog, other: TrainingLog) -> bool:
    """Say whether two logs are of one job, as far as they list its arguments."""
    drafts = draft_of_log(one), draft_of_log(other)
    return None in drafts or _said(drafts[0]) == _said(drafts[1])


def _said(draft: Draft | None) -> tuple[object, ...]:
    return () if draft is None else (draft.model, *sorted(draft.fields.items(), key=lambda each: each[0]))


def _job_of(log: TrainingLog) -> Draft:
    draft = draft_of_log(log)
    if draft is None:
        text = "is a training log that does not list the arguments of its job; give the job (--job FILE, or flags)"
        raise FormatError(text, log.path)
    return draft


def forecast_of(
    job: JobLike | Result | None,
    over: Draft,
    cluster: StrPath | Cluster | None,
    study: Study,
    *,
    like: str | None = None,
    strict: bool = False,
    recipe: str | None = None,
) -> Callable[[], BaseForecast]:
    """Read what a user gave as a job; return what forecasts it."""
    source, options = loaded(job), StepOptions()
    if isinstance(source, Result):
        record, options = record_and_options(source, job)
        source, cluster = record.draft(), cluster or record.cluster
    found = job_under(source, over, like, strict=strict, recipe=recipe)
    return partial(base_of, found, chosen_setting(found, cluster, options, "auto").setting, study)
