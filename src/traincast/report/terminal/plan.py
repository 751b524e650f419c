"""A plan for people: the layout to run first, then the others, and what they trade for each other."""

from collections.abc import Iterator

from traincast.planning.advice import advice_of_plan
from traincast.planning.answer import Choice, Plan
from traincast.planning.changes import LayoutChange
from traincast.planning.layout import settings_text
from traincast.planning.sensitivity import Sensitivity
from traincast.planning.several import Plans
from traincast.planning.tuning import Effort, Switched
from traincast.report.terminal import layout as ui
from traincast.report.terminal.advice import advice
from traincast.report.terminal.training_run import training_run
from traincast.units import format_share, format_size, format_time


def most_lost(choice: Choice) -> str:
    """Return the largest part of a step that is not computation."""
    found = next(((name, share) for name, share in choice.limits if name != "compute"), None)
    return "-" if found is None else f"{found[0].removeprefix('exposed_')} {format_share(found[1])}"


def _columns(chosen: Choice) -> tuple[ui.Column[Choice], ...]:
    """Return the columns of a table of layouts; the one to run is marked wherever it stands."""

    def mark(each: Choice) -> str:
        return ">" if each.identity == chosen.identity else "=" if each.tied else ""

    return (ui.Column("", mark), *_COLUMNS)


_COLUMNS: tuple[ui.Column[Choice], ...] = (
    ui.column("step", "step_s", format_time),
    ui.column("MFU", "result.mfu", format_share),
    ui.column("memory", "peak_bytes", format_size),
    ui.column("best", "probability", ui.percent, spare=3),
    ui.column("regret", "regret", format_share, spare=2),
    ui.Column("lost to", most_lost, spare=1),
    ui.column("layout", "layout.text", words=True, least=24),
)
_CHANGES: tuple[ui.Column[LayoutChange], ...] = (
    ui.column("saves", "saving_s", format_time),
    ui.column("step", "step_s", format_time),
    ui.column("confidence", "probability", ui.percent, spare=2),
    ui.column("memory", "peak_bytes", format_size),
    ui.column("free", "free_bytes", format_size, spare=1),
    ui.column("change", "change", words=True),
)
_SENSITIVITIES: tuple[ui.Column[Sensitivity], ...] = (
    ui.Column("saves", lambda each: format_time(each.saving_s) if each.saving_s > 0 else "nothing"),
    ui.column("step", "step_s", format_time),
    ui.column("with", "better", words=True),
)
_EFFORTS: tuple[ui.Column[Effort], ...] = (
    ui.Column("step", lambda each: "-" if each.step_s is None else format_time(each.step_s)),
    ui.Column("memory", lambda each: "-" if each.peak_bytes is None else format_size(each.peak_bytes)),
    ui.column("tuned", "level"),
    ui.Column("layout", lambda each: "nothing fits" if each.layout is None else each.layout.text, words=True, least=24),
)
_SWITCHED: tuple[ui.Column[Switched], ...] = (
    ui.Column("saves", lambda each: format_time(each.saving_s) if each.saving_s > 0 else "nothing"),
    ui.Column("frees", lambda each: format_size(each.frees_bytes) if each.frees_bytes > 0 else "-", spare=1),
    ui.Column("switch", lambda each: f"{each.name}: {settings_text(each.settings)}", words=True, least=24),
)
_SHOWN_LIMITS = 3
_WIDTH, _HEIGHT, _FEWEST_SHOWN = 60, 10, 3


def plan_lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what is said of a plan below its headline, a line each, with its style."""
    chosen = plan.best[0]
    where = f"{plan.model} on {ui.number(plan.gpus, 'GPU')} of {plan.cluster}: sequences of {plan.seq_length:,} tokens"
    yield f"{where}, global batch {plan.global_batch:,}; framework {plan.framework}", ""
    yield _step(chosen), ""
    yield f"The time goes to {_limits(chosen)}", ""
    if chosen.risks:
        yield f"Not measured before: {'; '.join(chosen.risks)}", "yellow"
    yield (
        f"{plan.evaluated:,} layouts estimated in {format_time(plan.screen_s)}, {plan.feasible:,} of them can run; "
        f"the best {plan.simulated} simulated, {format_share(plan.screen_error)} from their estimates on average and "
        f"{format_share(plan.screen_error_most)} at most",
        "",
    )
    if plan.ties > 1:
        yield (
            f"{plan.ties} layouts (=) are too close for the forecast to tell which is fastest; the one with the fewest "
            "kinds of groups between nodes comes first, then the one with the most free memory",
            "",
        )


@ui.printed
def print_plan(plan: Plan) -> ui.View:
    """Print a plan: the layout to run, what it is limited by, and the others."""
    chosen = plan.best[0]
    yield ui.text(f"Run {chosen.layout.text}", "bold")
    for line, style in plan_lines(plan):
        yield ui.text(line, style)
    yield from ui.section("Layouts (> the one to run)", _columns(chosen), plan.best)
    if len(plan.pareto) > 1:
        yield from ui.section("Less memory, longer step", _columns(chosen), plan.pareto)
    yield from picture(plan)
    yield from software(plan)
    yield from training_run(chosen.training)
    yield from changes(plan)
    if plan.explained:
        yield ui.heading("Why not")
        for each in plan.explained:
            yield ui.hanging("-", each.text + (f"; {each.change}" if each.change else ""))
    yield from advice(advice_of_plan(plan), chosen.step_s)
    yield from ui.section("With better hardware", _SENSITIVITIES, plan.sensitivities)
    yield from ui.diagnostics("Assumptions", plan.assumptions)
    yield from ui.diagnostics("Warnings", plan.warnings, "yellow")


def software(plan: Plan) -> ui.View:
    """Yield what each level of effort reaches, and what the layout to run has switched on."""
    if len(plan.efforts) > 1:
        yield from ui.section("By how far the software is tuned (--tuned)", _EFFORTS, plan.efforts)
    yield from ui.section("Switched on, each saving by itself", _SWITCHED, plan.switched)
    for each in plan.switched:
        if each.changes:
            yield ui.hanging("-", f"{each.name} changes what the model learns from: {each.changes}")
    for each in plan.switched:
        if each.asks:
            yield ui.hanging("-", f"{each.name} asks for {each.asks}")


def picture(plan: Plan | Plans) -> ui.View:
    """Yield the layouts as marks: step upwards, memory to the right; those of the Pareto set are stars."""
    shown = plan.shown
    if len(shown) < _FEWEST_SHOWN:
        return
    stars = {each.identity for each in plan.pareto}
    memory, steps = [each.peak_bytes for each in shown], [each.step_s for each in shown]
    rows = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for each in sorted(shown, key=lambda each: each.identity in stars):
        across = round((_WIDTH - 1) * _share(each.peak_bytes, memory))
        down = round((_HEIGHT - 1) * (1 - _share(each.step_s, steps)))
        rows[down][across] = "*" if each.identity in stars else "o"
    label, lines = len(format_time(max(steps))), []
    for place, row in enumerate(rows):
        text = format_time(max(steps)) if place == 0 else format_time(min(steps)) if place == _HEIGHT - 1 else ""
        lines.append(f"{text:>{label}} |{''.join(row)}".rstrip())
    ends = f"{format_size(min(memory))}{format_size(max(memory)):>{_WIDTH - len(format_size(min(memory)))}}"
    yield ui.Drawing("Step against memory (* of the Pareto set)", (*lines, f"{'':>{label}}  {ends}"))


def _share(value: float, of: list[float]) -> float:
    spread = max(of) - min(of)
    return (value - min(of)) / spread if spread else 0.0


def changes(plan: Plan, case: str = "") -> ui.View:
    """Yield what single changes of the job that one has save, a few of them together, and what they risk."""
    start = plan.start
    if start is None:
        return
    yield ui.heading(f"From what you have{case}")
    best = plan.best[0]
    saved, usable = 1 - best.step_s / start.step_s, best.usable_bytes
    large = f" ({format_size(usable)} usable: it does not fit)" if start.peak_bytes > usable else ""
    compared = f"{format_share(abs(saved))} {'shorter' if saved >= 0 else 'longer'}"
    yield ui.indented(
        f"{start.layout.text}: step {format_time(start.step_s)}, {format_size(start.peak_bytes)} of memory{large}; "
        f"with the layout to run {format_time(best.step_s)}, {compared}"
    )
    if not start.changes:
        yield ui.indented("No single change saves anything")
    yield from ui.section("One change", _CHANGES, start.changes)
    yield from ui.section("A few together", _CHANGES, start.together)
    risky = [each for each in (*start.changes, *start.together) if each.risks]
    if risky:
        yield ui.heading("What they risk")
        for each in risky:
            yield ui.hanging("-", f"{each.change}: {'; '.join(each.risks)}")


def _step(choice: Choice) -> str:
    interval = choice.result.interval
    between = ""
    if interval is not None:
        low, high = format_time(interval.low_s), format_time(interval.high_s)
        between = f", between {low} and {high} ({format_share(interval.level, 0)} interval)"
    free = choice.usable_bytes - choice.peak_bytes
    memory = f"{format_size(choice.peak_bytes)} of memory, {format_size(free)} free"
    return f"Step {format_time(choice.step_s)}{between}; {memory}"


def _limits(choice: Choice) -> str:
    shown = choice.limits[:_SHOWN_LIMITS]
    return ", ".join(f"{name.replace('_', ' ')} {format_share(share)}" for name, share in shown)
