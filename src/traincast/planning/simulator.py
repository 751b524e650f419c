"""The layouts of a plan simulated in full, by the engine that pays for so many of their size."""

from msgspec.structs import replace

from traincast.engine import KERNEL_FROM_CHAINS, load_compiled
from traincast.engine.chains import chains_of
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.planning.layout import Layout
from traincast.simulation.forecast import forecast_step
from traincast.simulation.job_step import JobStep
from traincast.simulation.reproducible import with_run
from traincast.simulation.result import Result
from traincast.simulation.step import Setting
from traincast.simulation.study import Study

_CHAINS_OF_A_PASS = 30
"""Chains of a program for each pass of a microbatch through a virtual stage: 22 to 39 in pipelines of Llama 3 70B and
DeepSeek-V3, fewer without a pipeline."""


class Simulator:
    """Forecasts of layouts of one request.

    Which layouts will be simulated is not known before. Where single ones are long, or many have made up for it, what
    compiled code takes to load is less than what it saves.
    """

    def __init__(self, request: JobRequest, setting: Setting, study: Study) -> None:
        self.request, self.study = request, study
        self.setting = replace(setting, engine="several") if setting.engine == "auto" else setting
        self._chains = 0
        """Of all that were simulated."""

    def prepare(self, layout: Layout, count: int) -> None:
        """Load compiled code now, if simulating so many layouts like this one will pay for it."""
        chains = count * _CHAINS_OF_A_PASS * layout.microbatches * layout.pp * layout.vpp
        if self.setting.engine == "several" and chains > KERNEL_FROM_CHAINS:
            self.setting = replace(self.setting, engine="fast")
        if self.setting.engine in ("fast", "kernel"):
            load_compiled()

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
        if self.setting.engine == "several":
            self._chains += chains_of(done.step.timed.graph)
            if self._chains > KERNEL_FROM_CHAINS:
                self.setting = replace(self.setting, engine="fast")
        return with_run(result, laid_out, self.setting, allow_oom=True), done
