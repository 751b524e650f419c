"""What is left to change of the layout that a plan chose: what it did not try, or does not decide."""

from msgspec.structs import replace

from traincast.analysis.summary import Advice
from traincast.errors import TraincastError
from traincast.hardware.clusters import load_cluster
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.planning.answer import Plan
from traincast.planning.finalists import Finalist
from traincast.planning.layout import Layout
from traincast.simulation.advice import Advising
from traincast.simulation.advised import advice_for, advising_for
from traincast.simulation.forecast import forecast_step
from traincast.simulation.step import Setting
from traincast.simulation.study import Study


def advice_of_plan(plan: Plan) -> tuple[Advice, ...]:
    """Return what to change of the layout to run, in order; nothing where its cluster cannot be loaded again."""
    if plan.advice is not None:
        return plan.advice
    try:
        setting = Setting(cluster=load_cluster(plan.asked.cluster))
    except TraincastError:
        return ()
    return _advice_of_layout(plan.asked.request, plan.best[0].layout, setting, Study())


def _advice_of_layout(request: JobRequest, layout: Layout, setting: Setting, study: Study) -> tuple[Advice, ...]:
    """Return what to change of a request with a layout, in order; nothing where it cannot be run."""
    laid_out = replace(request, **layout.request())
    # Some ten steps are simulated.
    setting = replace(setting, engine="fast") if setting.engine == "auto" else setting
    try:
        job = resolve_job(laid_out, setting.cluster)
        result, done = forecast_step(job, setting, allow_oom=True, study=study)
    except TraincastError:
        return ()
    return advice_for(laid_out, job, result, done, study)


def advising_of(request: JobRequest, chosen: Finalist, study: Study) -> Advising | None:
    """Return what might be changed of a request with a layout that was simulated."""
    laid_out = replace(request, **chosen.layout.request())
    return advising_for(laid_out, chosen.done.job, chosen.result, chosen.done, study)
