"""Whether a run is as fast as it should be, for people: the verdict, what it rests on, what would explain it."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from traincast.checking.causes import PossibleCause
from traincast.checking.check import Check, MeasuredSteps
from traincast.checking.figures import Figure
from traincast.checking.parts import NeededPart
from traincast.checking.verdict import Word
from traincast.report.terminal import layout as ui
from traincast.units import counted, format_share, format_size, format_time

_STYLES = {Word.AS_EXPECTED: "bold green", Word.FASTER: "bold green", Word.SLOWER: "bold red"}


def check_line(check: Check) -> str:
    """Return a check in a line: the verdict, the step, the ratio with its interval."""
    verdict, expected = check.verdict, check.expected
    step_s = expected.step_s * verdict.ratio
    within = "" if verdict.low is None else f", {verdict.low:.3f} to {verdict.high:.3f} in 90 of 100 cases"
    what = "the step would be" if check.measured is None else "the step is"
    return (
        f"{verdict.word}: {what} {format_time(step_s)}, {verdict.ratio:.3f} x the expected "
        f"{format_time(expected.step_s)}{within}"
    )


@ui.printed
def print_check(check: Check) -> ui.View:
    """Print a check."""
    verdict = check.verdict
    yield ui.text(check_line(check), _STYLES.get(verdict.word, "bold yellow"))
    allowed = f"; {format_share(verdict.allowed)} longer is allowed" if verdict.allowed else ""
    yield ui.text(f"{verdict.why}{allowed}")
    yield ui.text(f"expected: {check.expected.why}")
    for name, measured in (("measured", check.measured), ("baseline", check.baseline)):
        if measured is not None:
            yield ui.text(f"{name}: {_steps(measured)}")
    yield from _figures(check.figures)
    if verdict.ratio > 1 and verdict.word is not Word.AS_EXPECTED:
        yield from _parts(check)
    if check.causes:
        yield from _causes(check)
    if check.assumptions:
        found = counted(len(check.assumptions), "assumption")
        yield ui.text(f"\nThe forecast makes {found}, which traincast predict lists.", "dim")
    yield from ui.diagnostics("Warnings", check.warnings, "yellow", files=[each.path for each in check.inputs])


def _steps(measured: MeasuredSteps) -> str:
    """Return what was measured, in a line."""
    within = ""
    if measured.low_s is not None and measured.high_s is not None:
        within = f" (90 %: {format_time(measured.low_s)} to {format_time(measured.high_s)})"
    logs = "" if len(measured.logs) == 1 else f" of {len(measured.logs)} logs"
    left = ", ".join(f"{each.count} of {each.reason}" for each in measured.left_out)
    said = f"; left out: {left}" if left else ""
    mean = f"mean of {counted(measured.points, 'point')}{logs} of {measured.framework}"
    return f"{format_time(measured.step_s)}{within}, {mean}, spread {format_share(measured.spread)}{said}"


def _figures(figures: Sequence[Figure]) -> Iterator[RenderableType]:
    for each in figures:
        show = format_size if each.name == "memory" else _tera
        within = "" if each.low is None or each.high is None else f" ({show(each.low)} to {show(each.high)})"
        expected = f"expected {show(each.expected)}{within}"
        yield ui.text(f"{each.name} of a GPU: {show(each.measured)}, {expected}: {each.word}; {each.definition}")


def _tera(flops_per_s: float) -> str:
    return f"{flops_per_s / 1e12:,.1f} TFLOP/s"


def _parts(check: Check) -> ui.View:
    unit = ui.TimeUnit.from_largest(check.expected.step_s)
    columns: tuple[ui.Column[NeededPart], ...] = (
        ui.column("part", "part", ui.spaced, words=True),
        ui.column(f"expected, {unit.name}", "expected_s", unit.text),
        ui.Column("needed", lambda each: "-" if each.needed_s is None else unit.text(each.needed_s)),
        ui.Column("times", lambda each: "-" if each.factor is None else f"{each.factor:.2f}"),
    )
    yield from ui.section("What one part would have to take for this step", columns, check.parts)


def _causes(check: Check) -> ui.View:
    unit = ui.TimeUnit.from_largest(check.expected.step_s)
    columns: tuple[ui.Column[PossibleCause], ...] = (
        ui.column("cause", "name", words=True, least=30),
        ui.column(f"step, {unit.name}", "step_s", unit.text),
        ui.column("times", "ratio", "{:.3f}".format),
        ui.column("explains", "explains", lambda share: format_share(share, 0)),
        ui.column("chance", "chance", lambda share: format_share(share, 0)),
    )
    yield from ui.section("What may explain it, each by a forecast of its own", columns, check.causes)
    for number, each in enumerate(check.causes, 1):
        yield ui.indented(ui.hanging(f"{number}", f"look at: {each.look}"), "dim")
