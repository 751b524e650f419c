"""A plan for people: the layout to run first, then the others, and what they trade for each other."""

from traincast.plan.answer import Choice, Plan
from traincast.report.terminal import layout as ui
from traincast.units import format_share, format_size, format_time

_COLUMNS: tuple[ui.Column[Choice], ...] = (
    ui.Column("step", lambda each: format_time(each.step_s)),
    ui.Column("MFU", lambda each: "-" if each.result.mfu is None else format_share(each.result.mfu)),
    ui.Column("memory", lambda each: format_size(each.peak_bytes)),
    ui.Column("best", lambda each: format_share(each.probability), spare=2),
    ui.Column("regret", lambda each: format_share(each.regret), spare=1),
    ui.Column("layout", lambda each: each.layout.text, words=True),
)
_SHOWN_LIMITS = 3


@ui.printed
def print_plan(plan: Plan) -> ui.View:
    """Print a plan: the layout to run, what it is limited by, and the others."""
    chosen = plan.best[0]
    yield ui.text(f"Run {chosen.layout.text}", "bold")
    yield ui.text(
        f"{plan.model} on {ui.number(plan.gpus, 'GPU')} of {plan.cluster}: sequences of {plan.seq_length:,} tokens, "
        f"global batch {plan.global_batch:,}; framework {plan.framework}"
    )
    yield ui.text(_step(chosen))
    yield ui.text(f"Spent on {_limits(chosen)}")
    yield ui.text(
        f"{plan.evaluated:,} layouts worked out in {format_time(plan.screen_s)}, {plan.feasible:,} of them fit; "
        f"the best {plan.simulated} simulated, {format_share(plan.screen_error)} off the screen on average and "
        f"{format_share(plan.screen_error_most)} at most"
    )
    ties = [each for each in plan.best if each.tied]
    if len(ties) > 1:
        yield ui.text(
            f"The first {len(ties)} cannot be told apart by the forecast's error; the one with fewest kinds of groups "
            "between nodes, then with most free memory, comes first"
        )
    yield from ui.section("Layouts", _COLUMNS, plan.best)
    if len(plan.pareto) > 1:
        yield from ui.section("Less memory for a longer step", _COLUMNS, plan.pareto)
    yield from ui.diagnostics("Assumptions", plan.assumptions)
    yield from ui.diagnostics("Warnings", plan.warnings, "yellow")


def _step(choice: Choice) -> str:
    interval = choice.result.interval
    between = ""
    if interval is not None:
        low, high = (format_time(interval[key]) for key in ("low_s", "high_s"))
        between = f", between {low} and {high} ({100 * interval['level']:.0f} % interval)"
    free = choice.usable_bytes - choice.peak_bytes
    memory = f"{format_size(choice.peak_bytes)} of memory, {format_size(free)} free"
    return f"Step {format_time(choice.step_s)}{between}; {memory}"


def _limits(choice: Choice) -> str:
    shown = choice.limits[:_SHOWN_LIMITS]
    return ", ".join(f"{name.replace('_', ' ')} {format_share(share)}" for name, share in shown)
