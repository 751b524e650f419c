"""SimAI-Analytical's own numbers for people, in its words, beside the simulated step."""

from collections.abc import Iterator

from rich.console import RenderableType

from traincast.estimate.simai.total import SimaiReport
from traincast.report.terminal.parts import heading, indented, notes, number, signed_percent, table, text
from traincast.simulation.result import Result
from traincast.units import counted, format_rate, format_time

_US_PER_S = 1_000_000
_WORDS = {
    "dp_s": "Expose DP comm",
    "dp_ep_s": "Expose DP_EP comm",
    "tp_s": "Expose TP comm",
    "ep_s": "Expose EP comm",
    "pp_s": "Expose PP comm",
    "bubble_s": "bubble time",
    "compute_s": "total comp",
    "exposed_s": "total exposed comm",
    "total_s": "Total time",
}
"""SimAI's names of its numbers, in its order."""


def view(report: SimaiReport, result: Result) -> Iterator[RenderableType]:
    """Yield what to print of SimAI's sum and of the simulated step of the same file.

    Parameters
    ----------
    report : SimaiReport
        SimAI's numbers.
    result : Result
        The simulated step.
    """
    yield text(f"SimAI-Analytical's sum {_us(report.total_s)} us ({format_time(report.total_s)})", "bold")
    yield from _setting(report)
    yield heading("In SimAI's words")
    rows = [(word, _us(getattr(report, name)), _share(report, name)) for name, word in _WORDS.items()]
    yield table(("", "us", "share"), rows, labels=("",))
    yield indented(text("a plain sum over the rows of the file: nothing is scheduled, overlapped or waited for", "dim"))
    yield heading("Simulated by traincast")
    yield indented(text(_simulated(report, result)))
    yield from notes("Warnings", report.warnings, "yellow", [each.path for each in result.inputs])


def _setting(report: SimaiReport) -> Iterator[RenderableType]:
    layout, machine, overlap = report.layout, report.machine, report.overlap
    degrees = ", ".join(f"{name} {getattr(layout, name)}" for name in ("tp", "ep", "pp", "vpp", "dp", "ga"))
    yield text(f"{number(layout.gpus, 'rank', 'ranks')}: {degrees}")
    rates = f"NVLink {format_rate(machine.nvlink_bytes_per_s)}, NIC {format_rate(machine.nic_bytes_per_s)}"
    servers = f"{counted(machine.nics_per_server, 'NIC')} and {counted(machine.gpus_per_server, 'GPU')} per server"
    yield text(f"{machine.name}: {rates}, {servers}")
    yield text(f"overlap as given: dp {overlap.dp:g}, tp {overlap.tp:g}, ep {overlap.ep:g}, pp {overlap.pp:g}")


def _simulated(report: SimaiReport, result: Result) -> str:
    step_s = result.iteration_time_s
    relative = signed_percent(report.total_s / step_s - 1) if step_s else "-"
    how = f"schedule {result.parallel['schedule']}, cluster {result.cluster['name']}"
    return (
        f"step {_us(step_s)} us ({format_time(step_s)}), {how}; SimAI's sum differs from it by {relative}; "
        "run without --pricing simai to see where it goes"
    )


def _us(time_s: float) -> str:
    return f"{time_s * _US_PER_S:,.0f}"


def _share(report: SimaiReport, name: str) -> str:
    if name == "total_s" or not report.total_s:
        return ""
    return f"{100 * getattr(report, name) / report.total_s:.2f} %"
