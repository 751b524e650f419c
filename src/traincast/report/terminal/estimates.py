"""What a collective, an operator, or SimAI's sum over a file comes to, for people."""

from operator import itemgetter

from traincast.estimate.collective_table import CollectiveRow, CollectiveTable
from traincast.estimate.operators.cost import OperatorCost
from traincast.estimate.simai.total import SimaiReport
from traincast.report.terminal import layout as ui
from traincast.simulation.result import Result
from traincast.units import GIGA, counted, format_decimal_size, format_rate, format_share, format_size, format_time

_US_PER_S = 1e6


def _gb_per_s(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else f"{bytes_per_s / GIGA:,.2f}"


_COLLECTIVE: tuple[ui.Column[CollectiveRow], ...] = (
    ui.column("size", "size_bytes"),
    ui.column(" ", "size_bytes", format_size),
    ui.Column("time", lambda row: f"{row.time_s / 1e-6:,.2f}"),
    ui.column("algbw", "algbw_bytes_per_s", _gb_per_s),
    ui.column("busbw", "busbw_bytes_per_s", _gb_per_s),
    ui.column("algorithm", "algorithm", ui.spaced, words=True),
    ui.Column("protocol", lambda row: row.protocol or "-", words=True),
)


@ui.printed
def print_collective(collective: CollectiveTable) -> ui.View:
    """Print the time of a collective over sizes, in the units of nccl-tests: bytes, us, GB/s."""
    where = f"{ui.number(collective.ranks, 'rank')} on {ui.number(collective.nodes, 'node')} of {collective.cluster}"
    yield ui.text(f"{ui.operation(collective.op)} over {where}", "bold")
    yield ui.text("time in us; algbw and busbw, as nccl-tests defines them, in GB/s")
    yield ui.table(_COLLECTIVE, collective.rows)
    yield from ui.diagnostics("Assumptions", collective.assumptions)


_TERMS: tuple[ui.Column[tuple[str, str]], ...] = (
    ui.Column("term", itemgetter(0), words=True),
    ui.Column("value", itemgetter(1)),
)


@ui.printed
def print_operator(estimated: OperatorCost) -> ui.View:
    """Print what an operator takes: its time, what binds it, and every term behind it."""
    call, cost = estimated.call, estimated.cost
    shape = " x ".join(map(str, call.shape))
    what = "" if call.direction == "forward" else f" {call.direction}"
    yield ui.text(f"{call.family.replace('_', ' ')}{what} {shape}, {call.dtype}, on {estimated.gpu}", "bold")
    yield ui.text(f"{format_time(cost.time_s)}, bound by {cost.bound}: {format_share(cost.utilisation)} of its peak")
    yield ui.heading("Why")
    lines = [
        ("FLOP", _flop(cost.flops)),
        ("bytes", format_decimal_size(cost.bytes_moved)),
        ("FLOP per byte", f"{cost.flops / max(cost.bytes_moved, 1):.4g}"),
        ("FLOP/s reached", f"{_flop(cost.flops / cost.time_s)}/s"),
        ("bytes/s reached", format_rate(cost.bytes_moved / cost.time_s)),
        *((name.removesuffix(" s"), _term(name, value)) for name, value in cost.terms),
    ]
    yield ui.table(_TERMS, lines)
    yield ui.text(f"Source: {cost.source} (confidence: {cost.confidence})")
    yield from ui.diagnostics("Assumptions", estimated.assumptions)


def _flop(flops: float) -> str:
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if flops >= scale:
            return f"{flops / scale:.4g} {prefix}FLOP"
    return f"{flops:.0f} FLOP"


def _term(name: str, value: float) -> str:
    if name.endswith(" s"):
        return format_time(value)
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"


_SIMAI = {
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


@ui.printed
def print_simai(report: SimaiReport, result: Result) -> ui.View:
    """Print SimAI-Analytical's own numbers of a file in its words, then the simulated step of the same file."""
    columns: tuple[ui.Column[str], ...] = (
        ui.Column("", _SIMAI.__getitem__, words=True),
        ui.Column("us", lambda name: _us(getattr(report, name))),
        ui.Column("share", lambda name: _share_of_sum(report, name)),
    )
    yield ui.text(f"SimAI-Analytical's sum {_us(report.total_s)} us ({format_time(report.total_s)})", "bold")
    yield from _simai_setting(report)
    yield from ui.section("In SimAI's words", columns, _SIMAI)
    yield ui.indented("a plain sum over the rows of the file: nothing is scheduled, overlapped or waited for", "dim")
    step_s = result.iteration_time_s
    relative = ui.change(report.total_s / step_s - 1) if step_s else "-"
    how = f"schedule {result.parallel.schedule}, cluster {result.cluster.name}"
    yield ui.heading("Simulated by traincast")
    yield ui.indented(
        f"step {_us(step_s)} us ({format_time(step_s)}), {how}; SimAI's sum differs from it by {relative}; "
        "run without --pricing simai to see where it goes"
    )
    yield from ui.diagnostics("Warnings", report.warnings, "yellow", [each.path for each in result.inputs])


def _simai_setting(report: SimaiReport) -> ui.View:
    layout, machine, overlap = report.layout, report.machine, report.overlap
    degrees = ", ".join(f"{name} {getattr(layout, name)}" for name in ("tp", "ep", "pp", "vpp", "dp", "ga"))
    yield ui.text(f"{ui.number(layout.gpus, 'rank')}: {degrees}")
    rates = f"NVLink {format_rate(machine.nvlink_bytes_per_s)}, NIC {format_rate(machine.nic_bytes_per_s)}"
    servers = f"{counted(machine.nics_per_server, 'NIC')} and {counted(machine.gpus_per_server, 'GPU')} per server"
    yield ui.text(f"{machine.name}: {rates}, {servers}")
    yield ui.text(f"overlap as given: dp {overlap.dp:g}, tp {overlap.tp:g}, ep {overlap.ep:g}, pp {overlap.pp:g}")


def _us(time_s: float) -> str:
    return f"{time_s * _US_PER_S:,.0f}"


def _share_of_sum(report: SimaiReport, name: str) -> str:
    return "" if name == "total_s" or not report.total_s else format_share(getattr(report, name) / report.total_s, 2)
