"""Plans of several models, clusters and numbers of GPUs: where each stands, and what days or money buy."""

from traincast.planning.answer import Choice
from traincast.planning.order import RankedCase
from traincast.planning.several import Plans
from traincast.report.terminal.goals import chance_text, largest_lines
from traincast.report.terminal.plans import plans_lines
from traincast.report.terminal.training_run import number
from traincast.serve.answers.shown import size_shown, time_shown
from traincast.serve.records.plans import CaseShown
from traincast.serve.records.values import Shown
from traincast.units import format_count, format_share


def cases_of(plans: Plans) -> tuple[CaseShown, ...]:
    """Return every case that can be run, in the order that was asked for."""
    runs = {(run.model, run.cluster, run.gpus): run for run in (plans.goal.runs if plans.goal is not None else ())}
    found = []
    for choice, place in zip(plans.best, plans.places, strict=True):
        run = runs.get((place.model, place.cluster, place.gpus))
        meets, chance = (None, "") if run is None else (run.meets, chance_text(run))
        found.append(_case(choice, place, meets=meets, chance=chance))
    return tuple(found)


def _case(choice: Choice, place: RankedCase, *, meets: bool | None, chance: str) -> CaseShown:

    run = choice.training
    whole = [None if run is None else getattr(run, name) for name in ("days", "cost", "energy_mwh")]
    days, cost, energy = (None if value is None else Shown(value, number(value)) for value in whole)
    return CaseShown(
        model=place.model,
        cluster=place.cluster,
        gpus=place.gpus,
        layout=choice.layout.text,
        step=time_shown(choice.step_s),
        tokens_per_s=Shown(choice.tokens_per_s, f"{choice.tokens_per_s:,.0f}"),
        memory=size_shown(choice.peak_bytes),
        days=days,
        cost=cost,
        energy=energy,
        behind=format_share(place.behind) if place.deviation else "first",
        tied=place.tied,
        meets=meets,
        chance=chance,
    )


def first_of(plans: Plans) -> Choice:
    """Return the layout to run: of the run that days or money buy, else of the first case."""
    chosen = None if plans.goal is None else plans.goal.chosen
    if chosen is None:
        return plans.best[0]
    wanted = (chosen.model, chosen.cluster, chosen.gpus)
    return next(each for each in plans.best if (each.model, each.cluster, each.layout.gpus) == wanted)


def headline_of(plans: Plans) -> str:
    """Return what to run, and where."""
    if plans.goal is not None and plans.goal.chosen is None:
        return "No run is within that"
    first = first_of(plans)
    several = f"{first.model} " if len({each.model for each in plans.best}) > 1 else ""
    return f"Run {several}{first.layout.text} on {first.layout.gpus:,} GPUs of {first.cluster}"


def facts_of(plans: Plans) -> tuple[str, ...]:
    """Return what the terminal report says above its table, and how large a model days or money buy."""
    tokens = {each.training.tokens for each in plans.best if each.training is not None}
    run = [f"Days and money are those of a run of {format_count(tokens.pop())} tokens"] if len(tokens) == 1 else []
    largest = [] if plans.goal is None else [f"The largest that it buys: {each}" for each in largest_lines(plans.goal)]
    return (*plans_lines(plans), *run, *largest)
