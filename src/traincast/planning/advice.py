"""What is left to change of the layout that a plan chose: what it did not try, or does not decide."""

from msgspec.structs import replace

from traincast.analysis.summary import Advice
from traincast.errors import TraincastError
from traincast.hardware.clusters import load_cluster
from traincast.job.resolve import resolve_job
from traincast.planning.answer import Plan
from traincast.simulation.advised import advice_for
from traincast.simulation.forecast import forecast_step
from traincast.simulation.step import Setting
from traincast.simulation.study import Study


def advice_of_plan(plan: Plan) -> tuple[Advice, ...]:
    """Return what to change of the layout to run, in order; nothing where its cluster cannot be loaded again."""
    request, study = replace(plan.asked.request, **plan.best[0].layout.request()), Study()
    try:
        # Some ten steps are simulated.
        setting = Setting(cluster=load_cluster(plan.asked.cluster), engine="several")
        job = resolve_job(request, setting.cluster)
        result, done = forecast_step(job, setting, allow_oom=True, study=study)
    except TraincastError:
        return ()
    return advice_for(request, job, result, done, study)
