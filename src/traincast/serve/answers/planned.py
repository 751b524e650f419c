"""A plan as a page shows it: the best layouts in full, all of them as points, and why not another one."""

from collections.abc import Mapping
from typing import Any

from traincast.planning.answer import Choice, Plan
from traincast.planning.several import Plans
from traincast.report.terminal.layout import percent
from traincast.report.terminal.plan import most_lost, plan_lines
from traincast.serve.answers.cases import cases_of, facts_of, first_of, headline_of
from traincast.serve.answers.forecasts import note_shown, run_shown
from traincast.serve.answers.plan_points import columns_of
from traincast.serve.answers.shown import share_shown, size_shown, time_shown
from traincast.serve.answers.words import is_text
from traincast.serve.records.plans import BestLayout, PlanAnswer, WhyNotShown
from traincast.serve.records.values import Shown, Value


def plan_answer(job: Mapping[str, Value], command: str, found: Plan | Plans) -> PlanAnswer:
    """Return a plan, or several, of a job as a page shows them."""
    plans = (found,) if isinstance(found, Plan) else found.plans
    first = found.best[0] if isinstance(found, Plan) else first_of(found)
    kept = {each.identity for each in found.pareto}
    return PlanAnswer(
        headline=f"Run {first.layout.text}" if isinstance(found, Plan) else headline_of(found),
        facts=_facts(found),
        columns=columns_of(plans, kept, first),
        best=tuple(_best(job, each, first, kept) for each in found.shown),
        evaluated=sum(each.evaluated for each in plans),
        feasible=sum(each.feasible for each in plans),
        simulated=sum(each.simulated for each in plans),
        ties=plans[0].ties,
        sensitivities=tuple(_sensitivities(plans[0])) if len(plans) == 1 else (),
        refused=()
        if isinstance(found, Plan)
        else tuple(
            {"model": each.model, "cluster": each.cluster, "gpus": each.gpus, "reason": each.reason}
            for each in found.refused
        ),
        cases=() if isinstance(found, Plan) else cases_of(found),
        explained=tuple(why_shown(each) for one in plans for each in one.explained),
        assumptions=tuple(map(note_shown, found.assumptions)),
        warnings=tuple(map(note_shown, found.warnings)),
        command=command,
    )


def _facts(found: Plan | Plans) -> tuple[str, ...]:
    """Return what the terminal report says of a plan below its headline."""
    return tuple(line for line, _ in plan_lines(found)) if isinstance(found, Plan) else facts_of(found)


def _sensitivities(found: Plan) -> list[dict[str, Any]]:

    return [
        {"better": each.better, "saving": time_shown(each.saving_s), "step_s": each.step_s}
        for each in found.sensitivities
    ]


def _best(job: Mapping[str, Value], each: Choice, first: Choice, kept: set[Any]) -> BestLayout:

    interval, mfu = each.result.interval, each.result.mfu
    return BestLayout(
        text=each.layout.text,
        job=laid_out(job, each),
        step=time_shown(each.step_s),
        low=None if interval is None else time_shown(interval.low_s),
        high=None if interval is None else time_shown(interval.high_s),
        mfu=None if mfu is None else share_shown(mfu),
        memory=size_shown(each.peak_bytes),
        usable=size_shown(each.usable_bytes),
        best=Shown(each.probability, percent(each.probability)),
        regret=share_shown(each.regret),
        lost_to=most_lost(each),
        tied=each.tied,
        chosen=each.identity == first.identity,
        pareto=each.identity in kept,
        risks=each.risks,
        run=run_shown(each.training),
    )


def laid_out(job: Mapping[str, Value], choice: Choice) -> dict[str, Value]:
    """Return a job with a planned layout, in words."""
    said = {name: _said(value) for name, value in choice.layout.request().items() if value is not None}
    own: dict[str, Value] = {"model": choice.model, "cluster": choice.cluster, "gpus": choice.layout.gpus}
    # A model or cluster that is described by a text stays so.
    named = {name: value for name, value in own.items() if not is_text(str(job.get(name, "")))}
    return {**job, **named, **said}


def _said(value: Any) -> Value:  # noqa: ANN401
    return list(value) if isinstance(value, tuple) else value


def why_shown(each: Any) -> WhyNotShown:  # noqa: ANN401
    """Return why a layout is not the best, as a page shows it."""
    return WhyNotShown(
        asked=each.asked,
        verdict=each.verdict,
        text=each.text,
        change=each.change,
        step=None if each.step_s is None else time_shown(each.step_s),
        layout=None if each.layout is None else each.layout.text,
    )
