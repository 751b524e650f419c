"""Plans of several models, clusters and numbers of GPUs for people: one table, and what none of them beats."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from rich.console import Console
from rich.text import Text

from traincast.planning.answer import Choice, Plan
from traincast.planning.order import USUAL, RankedCase
from traincast.planning.several import Plans
from traincast.report.terminal import layout as ui
from traincast.report.terminal.goals import brief_answer, goal_answer, goal_runs
from traincast.report.terminal.plan import changes, picture, print_plan
from traincast.report.terminal.training_run import training_runs_of
from traincast.units import counted, format_share, format_size, format_time

_TERA = 1e12
_MOST_SHOWN = 12
_ORDERS = {"tokens-per-s": "tokens/s", "days": "days", "cost": "cost", "energy": "energy"}

Figure = Callable[[Choice], float]


def show_plan(console: Console, plan: Plan | Plans) -> None:
    """Print one plan, or several side by side."""
    if isinstance(plan, Plan):
        print_plan(console, plan)
    else:
        print_plans(console, plan)


def brief_lines(plan: Plan | Plans) -> list[str]:
    """Return the layout to run of a plan, or of each, in a line: what a script reads.

    Of what days or money buy it is the run to choose, or by how much the nearest one misses.
    """
    plans = (plan,) if isinstance(plan, Plan) else plan.plans
    if isinstance(plan, Plans) and plan.goal is not None:
        return [brief_answer(plan.goal)]
    lines = []
    for one in plans:
        best = one.best[0]
        case = "" if isinstance(plan, Plan) else f"{_case(one.model, one.gpus, one.cluster)}: "
        memory = f"{format_size(best.peak_bytes)} of {format_size(best.usable_bytes)} usable"
        lines.append(f"{case}{best.layout.text}; step {format_time(best.step_s)}; memory {memory}")
    return lines


@ui.printed
def print_plans(plans: Plans) -> ui.View:
    """Print the layout to run of every case, which of them wins in what, and what none beats."""
    best, places, kept = plans.best, plans.places, {each.identity for each in plans.pareto}
    yield from _lines(plans)
    # A mark that all have tells nothing.
    kept = kept if any(each.identity not in kept for each in best) else set()
    marked = f" (* in the Pareto set of {_axes(best)})" if kept else ""
    yield from goal_runs(plans.goal)
    behind: dict[object, RankedCase] = {choice.identity: place for choice, place in zip(best, places, strict=True)}
    ranked = "" if plans.rank_by == USUAL else f", by {_ORDERS[plans.rank_by]}"
    title = f"The layout to run of each{ranked}{marked}"
    yield from ui.section(title, _columns(best, kept, behind if plans.rank_by != USUAL else None), best)
    if plans.refused:
        yield ui.heading("Cannot be run")
        for case in plans.refused:
            yield ui.hanging("-", f"{_case(case.model, case.gpus, case.cluster)}: {case.in_shell}")
    if plans.goal is None:
        yield from _traded(plans)
    for plan in plans.plans:
        yield from changes(plan, f": {_case(plan.model, plan.gpus, plan.cluster)}")
    if any(plan.explained for plan in plans.plans):
        yield ui.heading("Why not")
        for plan in plans.plans:
            for answer in plan.explained:
                change = f"; {answer.change}" if answer.change else ""
                yield ui.hanging("-", f"{_case(plan.model, plan.gpus, plan.cluster)}: {answer.text}{change}")
    yield from ui.diagnostics("Assumptions", plans.assumptions)
    yield from ui.diagnostics("Warnings", plans.warnings, "yellow")


def plans_lines(plans: Plans) -> list[str]:
    """Return what is said of several cases above their table: which wins in what, and what is too close to tell."""
    return [line.plain for line in _lines(plans)]


def _lines(plans: Plans) -> Iterator[Text]:
    yield from goal_answer(plans.goal)
    best, places = plans.best, plans.places
    for model in dict.fromkeys(each.model for each in best):
        alike = [each for each in best if each.model == model]
        if len(alike) > 1:
            yield ui.text(f"{model}: {_winners(alike)}", "" if plans.goal else "bold")
            yield from _too_close([each for each in places if each.model == model], plans.rank_by)
    totals = [sum(getattr(plan, name) for plan in plans.plans) for name in ("evaluated", "simulated")]
    seconds = sum(plan.screen_s for plan in plans.plans)
    yield ui.text(
        f"{counted(len(plans.plans), 'plan')}: {totals[0]:,} layouts estimated in {format_time(seconds)}, the best "
        f"{totals[1]:,} simulated"
    )


def _traded(plans: Plans) -> ui.View:
    """Yield what layouts trade for each other, and what a whole run takes with each of the best."""
    best = plans.best
    more = [each for each in plans.pareto if each.identity not in {one.identity for one in best}]
    yield from _also(more, several=len({each.model for each in best}) > 1)
    yield from picture(plans)
    runs = [(f"{_case(each.model, each.layout.gpus, each.cluster)}", each.training) for each in best if each.training]
    yield from training_runs_of(runs)


def _also(more: Sequence[Choice], *, several: bool) -> ui.View:
    """Yield what else is in the Pareto sets, of each model a table."""
    for model in dict.fromkeys(each.model for each in more):
        found = [each for each in more if each.model == model]
        shown = found[:_MOST_SHOWN]
        title = f"Also in the Pareto set of {model}" if several else "Also in the Pareto set"
        yield from ui.section(title, _columns(shown, set()), shown)
        if len(found) > len(shown):
            yield ui.indented(f"... and {len(found) - len(shown)} more (--json and --out have all)", "dim")


def _case(model: str, gpus: int | None, cluster: str) -> str:
    return f"{model} on {'its' if gpus is None else f'{gpus:,}'} GPUs of {cluster}"


def _winners(best: Sequence[Choice]) -> str:
    """Return which case is the fastest, and which the cheapest and the most sparing, where that is another one."""
    figures: list[tuple[str, Figure]] = [("the most tokens/s", lambda each: -each.tokens_per_s)]
    if all(each.per_token("cost") is not None for each in best):
        figures.append(("the least cost of a token", lambda each: each.per_token("cost") or 0.0))
    else:
        figures.append(("the fewest GPU-hours for a token", lambda each: each.layout.gpus / each.tokens_per_s))
    if all(each.per_token("energy_mwh") is not None for each in best):
        figures.append(("the least energy for a token", lambda each: each.per_token("energy_mwh") or 0.0))
    won: dict[str, list[str]] = {}
    for name, figure in figures:
        first = min(best, key=figure)
        won.setdefault(f"{first.layout.gpus:,} GPUs of {first.cluster}", []).append(name)
    return "; ".join(f"{_listed(names)} with {case}" for case, names in won.items())


def _too_close(places: Sequence[RankedCase], by: str) -> Iterator[Text]:
    """Yield which cases of a model are too close to the first one to tell."""
    ties = [f"{_case_of(each)} ({format_share(each.behind)} behind)" for each in places if each.tied]
    if ties:
        yield ui.text(f"Too close to {_case_of(places[0])} to tell which is better in {_ORDERS[by]}: {_listed(ties)}")


def _case_of(place: RankedCase) -> str:
    return f"{place.gpus:,} GPUs of {place.cluster}"


def _behind(choice: Choice, places: Mapping[object, RankedCase]) -> str:
    """Return how far behind the first a case is; = where that is too close to tell."""
    place = places[choice.identity]
    return f"{'= ' if place.tied else ''}{format_share(place.behind)}" if place.deviation else "first"


def _listed(names: Sequence[str]) -> str:
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def _axes(best: Sequence[Choice]) -> str:
    """Return what the Pareto set is of."""
    names = ["tokens/s", "memory", "GPUs"]
    names += ["cost"] if all(each.per_token("cost") is not None for each in best) else []
    names += ["energy"] if all(each.per_token("energy_mwh") is not None for each in best) else []
    return _listed(names)


def _columns(
    lines: Sequence[Choice], kept: AbstractSet[object], places: Mapping[object, RankedCase] | None = None
) -> list[ui.Column[Choice]]:
    """Return the columns of a table of layouts of several cases; what is alike in all is not among them."""
    found: list[ui.Column[Choice]] = [ui.Column("", lambda each: "*" if each.identity in kept else "")]
    if len({each.model for each in lines}) > 1:
        found.append(ui.column("model", "model", words=True))
    if len({each.cluster for each in lines}) > 1:
        found.append(ui.column("cluster", "cluster", words=True))
    found += [
        ui.column("GPUs", "layout.gpus", ui.count),
        ui.column("step", "step_s", format_time),
        ui.column("tokens/s", "tokens_per_s", "{:,.0f}".format),
        ui.column("memory", "peak_bytes", format_size, spare=2),
    ]
    for name, title, spare in (("cost", "cost of\nT tokens", 0), ("energy_mwh", "MWh of\nT tokens", 1)):
        if any(each.per_token(name) is not None for each in lines):
            found.append(ui.Column(title, partial(_per_tera, name=name), spare=spare))
    if places is not None and len(lines) > 1:
        found.insert(1, ui.Column("behind", partial(_behind, places=places)))
    return [*found, ui.column("layout", "layout.text", words=True, least=18)]


def _per_tera(choice: Choice, name: str) -> str:
    """Return a figure of 10^12 tokens."""
    figure = choice.per_token(name)
    return "-" if figure is None else f"{figure * _TERA:,.0f}"
