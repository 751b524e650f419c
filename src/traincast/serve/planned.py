"""A plan as a page shows it: the best layouts in full, all of them as points, and why not another one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from traincast.serve.cases import CaseShown, cases_of, facts_of, first_of, headline_of
from traincast.serve.forecasts import NoteShown, note_shown, run_shown
from traincast.serve.plan_points import columns_of
from traincast.serve.shown import Shown
from traincast.serve.words import Value, is_text

if TYPE_CHECKING:
    from traincast.planning.answer import Choice, Plan
    from traincast.planning.several import Plans


class BestLayout(Struct, frozen=True, kw_only=True):
    """A layout that was simulated."""

    text: str
    job: dict[str, Value]
    """All of a job that is laid out so, as `/api/forecast` takes it."""
    step: Shown
    low: Shown | None
    high: Shown | None
    mfu: Shown | None
    memory: Shown
    usable: Shown
    best: Shown
    """Probability that it is the fastest."""
    regret: Shown
    lost_to: str
    tied: bool
    """Whether it cannot be told from the fastest."""
    chosen: bool
    """Whether it is the one to run."""
    pareto: bool
    risks: tuple[str, ...]
    run: tuple[tuple[str, str, str], ...]
    """Of the whole run, where its tokens are said: what it takes, how much, and what that counts on, a line each."""


class WhyNotShown(Struct, frozen=True, kw_only=True):
    """Why a layout is not the best."""

    asked: str
    verdict: str
    """``impossible``, ``too large``, ``slower``, or ``best``."""
    text: str
    change: str | None
    step: Shown | None
    layout: str | None


class PlanAnswer(Struct, frozen=True, kw_only=True):
    """The layouts of a plan."""

    headline: str
    facts: tuple[str, ...]
    columns: dict[str, list[Any]]
    """Every layout that is worth a point, a list a column: fields of the layout, ``text``, ``step_s``, ``peak_bytes``,
    ``tokens_per_s``, ``mfu``, ``days``, ``cost``, ``energy_mwh``, and whether it is ``simulated``, ``pareto``, ``tied``
    and ``chosen``."""
    best: tuple[BestLayout, ...]
    evaluated: int
    feasible: int
    simulated: int
    ties: int
    sensitivities: tuple[dict[str, Any], ...] = ()
    refused: tuple[dict[str, Any], ...] = ()
    """Cases that have no layout, and why."""
    cases: tuple[CaseShown, ...] = ()
    """Of several models, clusters or numbers of GPUs where each stands, the best first."""
    explained: tuple[WhyNotShown, ...] = ()
    assumptions: tuple[NoteShown, ...]
    warnings: tuple[NoteShown, ...]
    command: str


def plan_answer(job: Mapping[str, Value], command: str, found: "Plan | Plans") -> PlanAnswer:
    """Return a plan, or several, of a job as a page shows them."""
    from traincast.planning.answer import Plan

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


def _facts(found: "Plan | Plans") -> tuple[str, ...]:
    """Return what the terminal report says of a plan below its headline."""
    from traincast.planning.answer import Plan
    from traincast.report.terminal.plan import plan_lines

    return tuple(line for line, _ in plan_lines(found)) if isinstance(found, Plan) else facts_of(found)


def _sensitivities(found: "Plan") -> list[dict[str, Any]]:
    from traincast.units import format_time

    return [
        {"better": each.better, "saving": Shown(each.saving_s, format_time(each.saving_s)), "step_s": each.step_s}
        for each in found.sensitivities
    ]


def _best(job: Mapping[str, Value], each: "Choice", first: "Choice", kept: set[Any]) -> BestLayout:
    from traincast.report.terminal import layout as ui
    from traincast.report.terminal.plan import most_lost
    from traincast.units import format_share, format_size, format_time

    interval, mfu = each.result.interval, each.result.mfu
    return BestLayout(
        text=each.layout.text,
        job=laid_out(job, each),
        step=Shown(each.step_s, format_time(each.step_s)),
        low=None if interval is None else Shown(interval.low_s, format_time(interval.low_s)),
        high=None if interval is None else Shown(interval.high_s, format_time(interval.high_s)),
        mfu=None if mfu is None else Shown(mfu, format_share(mfu)),
        memory=Shown(each.peak_bytes, format_size(each.peak_bytes)),
        usable=Shown(each.usable_bytes, format_size(each.usable_bytes)),
        best=Shown(each.probability, ui.percent(each.probability)),
        regret=Shown(each.regret, format_share(each.regret)),
        lost_to=most_lost(each),
        tied=each.tied,
        chosen=each.identity == first.identity,
        pareto=each.identity in kept,
        risks=each.risks,
        run=run_shown(each.training),
    )


def laid_out(job: Mapping[str, Value], choice: "Choice") -> dict[str, Value]:
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
    from traincast.units import format_time

    return WhyNotShown(
        asked=each.asked,
        verdict=each.verdict,
        text=each.text,
        change=each.change,
        step=None if each.step_s is None else Shown(each.step_s, format_time(each.step_s)),
        layout=None if each.layout is None else each.layout.text,
    )
