"""What a whole run takes, for people: time, GPU-hours, cost, energy and emissions, a line each."""

from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter

from traincast.analysis.summary import TrainingRun
from traincast.report.terminal import layout as ui
from traincast.units import format_count, format_share

Line = tuple[str, str, str]
"""What it is, how much with its range, and what that counts on."""


def training_run(run: TrainingRun | None) -> ui.View:
    """Yield a run, or nothing where none was asked for."""
    if run is None:
        return
    yield ui.heading(_title(run))
    yield ui.table(_COLUMNS, list(run_lines(run)))


def training_runs(a: TrainingRun | None, b: TrainingRun | None) -> ui.View:
    """Yield the runs of two sides next to each other; nothing where none was asked for."""
    known = a or b
    if known is None:
        return
    of_a, of_b = ({} if run is None else {name: text for name, text, _ in run_lines(run)} for run in (a, b))
    lines = [(name, of_a.get(name, "-"), of_b.get(name, "-")) for name in of_a | of_b]
    columns: tuple[ui.Column[Line], ...] = (
        ui.Column("", itemgetter(0), words=True),
        ui.Column("A", itemgetter(1), words=True),
        ui.Column("B", itemgetter(2), words=True),
    )
    yield ui.heading(_title(known))
    yield ui.table(columns, lines)


def training_runs_of(cases: Sequence[tuple[str, TrainingRun]]) -> ui.View:
    """Yield the runs of several cases, a line each; nothing where there are none.

    Ranges of cost, energy and emissions are left to the files: they are as wide as those of the time.
    """
    if not cases:
        return
    alike = len({run.tokens for _, run in cases}) == 1
    found: list[ui.Column[tuple[str, TrainingRun]]] = [
        ui.Column("of", itemgetter(0), words=True),
        *([] if alike else [ui.Column("tokens", lambda each: format_count(each[1].tokens))]),
        ui.Column("days", lambda each: amount((each[1].days, each[1].days_low, each[1].days_high))),
        ui.Column("GPU-hours", lambda each: number(each[1].gpu_hours)),
    ]
    for name, title in (
        ("cost", f"cost {cases[0][1].currency or ''}".strip()),
        ("energy_mwh", "MWh"),
        ("co2_t", "t CO2"),
    ):
        if any(getattr(run, name) is not None for _, run in cases):
            found.append(ui.Column(title, partial(_figure, name=name)))
    yield ui.heading(_title(cases[0][1]) if alike else "The whole run of each")
    yield ui.table(found, cases)


def _figure(case: tuple[str, TrainingRun], name: str) -> str:
    value = getattr(case[1], name)
    return "-" if value is None else number(value)


def _title(run: TrainingRun) -> str:
    return f"A run of {format_count(run.tokens)} tokens"


def run_lines(run: TrainingRun) -> Iterator[Line]:
    """Yield what a run takes, a line each."""
    yield "time", amount((run.days, run.days_low, run.days_high), "days"), ""
    if run.goodput is not None:
        yield "goodput", format_share(run.goodput), "useful share of that time"
    yield "GPU-hours", amount((run.gpu_hours, run.gpu_hours_low, run.gpu_hours_high)), f"{run.gpus:,} GPUs"
    if run.cost is not None:
        price = f"{run.cost / run.gpu_hours:,.4g} a GPU-hour" if run.gpu_hours else ""
        yield "cost", amount((run.cost, run.cost_low, run.cost_high), run.currency or ""), price
    if run.energy_mwh is not None and run.gpu_power_w is not None:
        energy = amount((run.energy_mwh, run.energy_mwh_low, run.energy_mwh_high), "MWh")
        design = " (design power, no host)" if run.power_is_design else ""
        yield "energy", energy, f"{run.gpu_power_w:,.4g} W a GPU{design}, PUE {run.pue:g}"
    if run.co2_t is not None:
        emitted = amount((run.co2_t, run.co2_t_low, run.co2_t_high), "t")
        yield "CO2", emitted, f"{run.grid_intensity:,.4g} g CO2e a kWh"


def amount(values: Sequence[float | None], unit: str = "") -> str:
    """Return an amount with its range: ``274 days (217.5 to 345.2)``."""
    middle, low, high = (None if each is None else number(each) for each in values)
    between = "" if low is None or high is None else f" ({low} to {high})"
    return f"{middle}{f' {unit}' if unit else ''}{between}"


def number(value: float) -> str:
    """Write a number with four digits: ``3,994,000``, ``274``, ``0.1234``."""
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:.4g}"


_COLUMNS: tuple[ui.Column[Line], ...] = (
    ui.Column("", itemgetter(0), words=True),
    ui.Column("", itemgetter(1), words=True),
    ui.Column("counted with", itemgetter(2), words=True),
)
