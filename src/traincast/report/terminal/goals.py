"""What days or money buy, for people: the answer first, then every run with its chance, then the largest model."""

from collections.abc import Iterator

from rich.text import Text

from traincast.planning.goals import Goal, GoalRun, Largest, Limits
from traincast.report.terminal import layout as ui
from traincast.report.terminal.training_run import amount, number
from traincast.units import format_count, format_share

_SURE = 0.995


def goal_answer(goal: Goal | None) -> Iterator[Text]:
    """Yield the run to choose, or by how much the nearest one misses; nothing where no days or money were given."""
    if goal is None:
        return
    yield ui.text(_answer(goal), "bold")
    if goal.chosen is not None:
        yield ui.text(f"Run {goal.chosen.layout}")


def brief_answer(goal: Goal) -> str:
    """Return the same in a line."""
    return _answer(goal) if goal.chosen is None else f"{_answer(goal)}: {goal.chosen.layout}"


def _answer(goal: Goal) -> str:
    chosen, limits = goal.chosen, _limits(goal)
    if chosen is None:
        return f"No run is within {limits}; the nearest: {_took(_nearest(goal), goal)}"
    return f"Within {limits}: {_took(chosen, goal)}; the chance of that is {chance_text(chosen)}"


def goal_runs(goal: Goal | None) -> ui.View:
    """Yield a table of all runs, the largest models first, and how large a model the limits buy."""
    if goal is None:
        return
    columns: list[ui.Column[GoalRun]] = [
        ui.Column("", lambda run: ">" if run == goal.chosen else "" if run.meets else "x"),
        ui.column("model", "model", words=True),
        ui.column("parameters", "parameters", format_count, spare=2),
        ui.column("tokens", "tokens", format_count, spare=3),
        ui.column("cluster", "cluster", words=True),
        ui.column("GPUs", "gpus", ui.count),
        ui.column("days", "days", number),
    ]
    if any(run.cost is not None for run in goal.runs):
        columns.append(ui.Column(f"cost {goal.currency or ''}".strip(), _cost))
    columns.append(ui.Column("chance", chance_text, spare=1))
    yield from ui.section(f"Runs within {_limits(goal)} (> the one to choose, x beyond that)", columns, goal.runs)
    yield ui.heading("The largest model that this buys")
    for line in largest_lines(goal):
        yield ui.hanging("-", line)


def largest_lines(goal: Goal) -> list[str]:
    """Return how large a model the limits buy on each cluster, a line each."""
    best: dict[str, Largest] = {}
    for each in goal.largest:
        best.setdefault(each.cluster, each)
    return [_largest(each, goal) for each in best.values()]


def _cost(run: GoalRun) -> str:
    return "-" if run.cost is None else number(run.cost)


def _largest(each: Largest, goal: Goal) -> str:
    rate = goal.tokens_per_parameter
    tokens = f"{format_count(each.tokens)} tokens{'' if rate is None else f', {rate:g} a parameter'}"
    count = f"{format_count(each.parameters)} {'active ' if each.active else ''}parameters"
    told = f"{count} on {each.gpus:,} GPUs of {each.cluster} with {tokens}"
    both = goal.limits.days is not None and goal.limits.budget is not None
    binds = "" if not both else "days bind, " if each.limit == "days" else "money binds, "
    return f"{told} ({binds}{each.how})"


def _limits(goal: Goal) -> str:
    limits: Limits = goal.limits
    found = [] if limits.days is None else [f"{number(limits.days)} {'day' if limits.days == 1 else 'days'}"]
    found += [] if limits.budget is None else [_money(limits.budget, goal)]
    return " and ".join(found)


def _money(value: float, goal: Goal) -> str:
    return f"{number(value)} {goal.currency}" if goal.currency else f"a cost of {number(value)}"


def _took(run: GoalRun, goal: Goal) -> str:
    cost = "" if run.cost is None else f", {_money(run.cost, goal)}"
    days = amount((run.days, run.days_low, run.days_high), "days")
    return f"{run.model} on {run.gpus:,} GPUs of {run.cluster}: {format_count(run.tokens)} tokens in {days}{cost}"


def chance_text(run: GoalRun) -> str:
    """Return the chance to be within the limits; nothing is certain."""
    chance = run.chance
    return "above 99 %" if chance > _SURE else "below 1 %" if chance < 1 - _SURE else format_share(chance, 0)


def _nearest(goal: Goal) -> GoalRun:
    """Return the run that is likeliest to be within, and of those that are not likely at all the shortest."""
    return max(goal.runs, key=lambda run: (run.chance, -run.days))
