"""Advice for a job: its changes are decided as a request is, and forecast on what the study of the job has prepared."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from traincast.analysis.summary import Advice
from traincast.errors import TraincastError
from traincast.estimate.factors import factors_on
from traincast.estimate.memory import JobMemory, usable_bytes
from traincast.job.condition_facts import job_facts
from traincast.job.fields import fields as fields_of
from traincast.job.job import Job
from traincast.job.request import JOB_FIELDS, JobRequest
from traincast.job.resolve import resolve_job
from traincast.simulation.advice import Advising
from traincast.simulation.advised_changes import changes_of
from traincast.simulation.alternatives import Bench, Outcome, Tried, on_path
from traincast.simulation.forecast import forecast_step
from traincast.simulation.job_step import JobStep, plan_in
from traincast.simulation.result import Result
from traincast.simulation.step import Setting
from traincast.simulation.study import Study
from traincast.simulation.suggestions import MOST_OPS
from traincast.tables import decoded

_SAID_BY: Mapping[str, tuple[str, ...]] = {
    "cuda_graph_impl": ("cuda_graphs", "cuda_graph_scope"),
    "moe_dispatcher": ("deduplicated_dispatch",),
    "recompute": tuple(each.name for each in fields_of(group="recompute") if each.name != "recompute"),
    "framework": ("year",),
    "precision": ("fp8_recipe",),
}
"""Field to others that say the same or a part of it, which go where it is said anew."""


def advice_for(request: JobRequest, job: Job, result: Result, done: JobStep, study: Study) -> tuple[Advice, ...]:
    """Return what to change of a job that was forecast, in order; nothing of a step that is too long to try it."""
    advising = advising_for(request, job, result, done, study)
    if advising is None:
        return ()
    jobs = advising.jobs
    return advising.advice(jobs, list(map(advising.search.bench.forecast, jobs)))


def advising_for(request: JobRequest, job: Job, result: Result, done: JobStep, study: Study) -> Advising | None:
    """Return what might be changed of a job that was forecast; None of a step that is too long to try it."""
    if len(done.step.program) > MOST_OPS:
        return None
    setting = replace(done.step.setting, what_if=(), jitter=0.0, failures=None, suggest=False)
    path_s = {**on_path(done), "bubble": result.breakdown_s["bubble"]}
    start = Tried(job=job, outcome=Outcome.from_forecast(result, done))
    return Advising.from_changes(start, path_s, changes_of(job, setting.cluster.gpu), _bench(request, setting, study))


def outcome_of(job: Job, setting: Setting, study: Study) -> Outcome | None:
    """Return the forecast of a job with a change; None where it cannot run."""
    try:
        return Outcome.from_forecast(*forecast_step(job, setting, allow_oom=True, study=study))
    except TraincastError:
        return None


def _bench(request: JobRequest, setting: Setting, study: Study) -> Bench:
    cluster = setting.cluster
    return Bench(
        facts=lambda job: job_facts(job, cluster),
        resolve=lambda fields: resolve_job(changed_request(request, fields), cluster),
        peak_bytes=lambda job: study.memory(job, lambda job: JobMemory(job, plan_in(study, job))).peak,
        forecast=partial(outcome_of, setting=setting, study=study),
        usable_bytes=usable_bytes(cluster.gpu.memory_bytes),
        gpu=cluster.gpu,
        table=factors_on(cluster),
    )


def changed_request(request: JobRequest, fields: Mapping[str, Any]) -> JobRequest:
    """Return a request with other values of some fields, without what says otherwise under another name."""
    return replace(request, **said_anew(fields))


def said_anew(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with their new values, and with None what says otherwise under another name."""
    gone = {other: None for name in fields for other in _SAID_BY.get(name, ()) if other not in fields}
    return {**gone, **fields}


def advised_request(request: JobRequest, advice: Iterable[Advice], *, numbers: bool = False) -> JobRequest:
    """Return a request with advice, as a result has it or its document; what changes numbers only where asked for."""
    taken = (each for each in advice if each.taken and (numbers or each.same_numbers))
    fields = {name: value for each in taken for name, value in each.fields.items()}
    plain = {name: list(each) if isinstance(each, tuple) else each for name, each in fields.items()}
    return changed_request(request, {name: decoded(name, JOB_FIELDS[name].type, each) for name, each in plain.items()})
