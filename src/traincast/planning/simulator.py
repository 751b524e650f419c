"""The layouts of a plan simulated in full."""

from msgspec.structs import replace

from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.planning.layout import Layout
from traincast.simulation.forecast import forecast_step
from traincast.simulation.job_step import JobStep
from traincast.simulation.reproducible import with_run
from traincast.simulation.result import Result
from traincast.simulation.step import Setting
from traincast.simulation.study import Study


class Simulator:
    """Forecasts of layouts of one request: some dozens, so that the compiled engine pays however short they are."""

    def __init__(self, request: JobRequest, setting: Setting, study: Study) -> None:
        self.request, self.study = request, study
        self.setting = replace(setting, engine="fast") if setting.engine == "auto" else setting

    def __call__(self, layout: Layout) -> tuple[Result, JobStep]:
        """Return the forecast of a layout, and its step.

        Raises
        ------
        TraincastError
            If it cannot be run.
        """
        laid_out = replace(self.request, **layout.request())
        job = resolve_job(laid_out, self.setting.cluster)
        result, done = forecast_step(job, self.setting, allow_oom=True, study=self.study)
        return with_run(result, laid_out, self.setting, allow_oom=True), done
