"""A job as it should run, forecast, and the same forecast again with one thing otherwise."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from traincast.estimate.factors import FactorTable, factors_on
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.simulation.advised import changed_request
from traincast.simulation.forecast import forecast_step
from traincast.simulation.job_step import JobStep
from traincast.simulation.reproducible import decide
from traincast.simulation.result import Result
from traincast.simulation.step import Setting
from traincast.simulation.study import Study


class BaseForecast(Struct, frozen=True, kw_only=True):
    """A job with its forecast, and what forecasts of its variations share with it."""

    request: JobRequest | Job
    job: Job
    setting: Setting
    result: Result
    done: JobStep
    table: FactorTable
    study: Study

    @property
    def step_s(self) -> float:
        """The step that is forecast."""
        return self.result.iteration_time_s

    def again(self, fields: Mapping[str, Any], setting: Setting) -> "BaseForecast":
        """Return the forecast with other values of some fields, in another setting.

        Raises
        ------
        TraincastError
            If that job cannot be, or be described.
        """
        if not fields or not isinstance(self.request, JobRequest):
            return _forecast(self.request, self.job, setting, self.table, self.study)
        request = changed_request(self.request, fields)
        return _forecast(request, resolve_job(request, setting.cluster), setting, self.table, self.study)


def base_of(job: Draft | JobRequest | Job, setting: Setting, study: Study | None = None) -> BaseForecast:
    """Forecast a job; one that may not fit into memory, too, as it is known to have run.

    Raises
    ------
    TraincastError
        If the job cannot be described or cannot run.
    """
    draft, request, decided, _ = decide(job, setting.cluster)
    plain = replace(setting, what_if=(), jitter=0.0, failures=None, suggest=False)
    found = _forecast(request, decided, plain, factors_on(setting.cluster), study or Study())
    warnings = (*found.result.warnings, *draft.warnings)
    return replace(found, result=replace(found.result, warnings=warnings))


def _forecast(request: JobRequest | Job, job: Job, setting: Setting, table: FactorTable, study: Study) -> BaseForecast:
    result, done = forecast_step(job, setting, allow_oom=True, factors=table, study=study)
    return BaseForecast(request=request, job=job, setting=setting, result=result, done=done, table=table, study=study)
