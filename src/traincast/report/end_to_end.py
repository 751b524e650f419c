"""SimAI's ``EndToEnd.csv``: what a step takes in its words, then a line for each row of the workload.

Times are in us without decimals; bandwidths are GiB/s, which SimAI calls GB/s. SimAI prints ``-nan`` as the bandwidth
of what does not communicate; here that is 0. Source: aliyun/SimAI, ``astra-sim-alibabacloud/astra-sim/workload``:
``Layer.cc`` (``Layer::report``, ``compute_busbw``), ``CSVWriter.cc`` (``write_res``).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from msgspec import Struct, field

from traincast.analysis.breakdown import exposed_seconds, last_rank, rank_breakdown
from traincast.estimate.simai.total import SimaiReport, SimaiRow
from traincast.report.files import file_report
from traincast.report.operations import simulated
from traincast.report.plain import csv_line, encodable
from traincast.simulation.result import Result
from traincast.workload.words import Group, Kind, Operation, Phase, bus_factor

_SIMAI_RUN = "Analytical_test"
"""What SimAI-Analytical calls every run (``AnalyticalAstra.cc``)."""
_US_PER_S = 1e6
_GIB = 2**30
SUMMARY = {
    "dp": "Expose DP comm",
    "dp_ep": "Expose DP_EP comm",
    "tp": "Expose TP comm",
    "ep": "Expose_EP_comm",
    "pp": "Expose_PP_comm",
    "bubble": "bubble time",
    "compute": "total comp",
    "exposed": "total exposed comm",
    "total": "Total time",
}
"""SimAI's names of its numbers, in its order; the exposed communication is without that between stages."""
_FORWARD, _WEIGHT_GRAD, _INPUT_GRAD = range(3)
"""Columns in the order of the file."""
_NAMES = ("fwd", "wg", "ig")
_HEADINGS = (
    *(f"{name} compute" for name in _NAMES),
    *(f"{name} exposed comm" for name in _NAMES),
    *(heading for name in _NAMES for heading in (f"{name} total comm", "algbw", "busbw")),
)


class RowCommunication(NamedTuple):
    """What a row communicates in one of its columns."""

    time_s: float = 0.0
    exposed_s: float = 0.0
    size_bytes: float = 0.0
    bus_bytes: float = 0.0
    """Size times bus over algorithm bandwidth."""

    def plus(self, other: "RowCommunication") -> "RowCommunication":
        """Return both, one after the other."""
        return RowCommunication(*(a + b for a, b in zip(self, other, strict=True)))


class Line(NamedTuple):
    """A row of the workload, its columns in the order of the file."""

    name: str
    compute_s: tuple[float, float, float]
    communications: tuple[RowCommunication, RowCommunication, RowCommunication]


def end_to_end_csv(name: str, run: str, summary_s: Mapping[str, float], lines: Iterable[Line]) -> Iterator[str]:
    """Return the lines of a file: of a workload's run, the numbers of `SUMMARY` in seconds, and its rows."""
    total_s = summary_s["total"]
    shares = [f"{_us(summary_s[key])} ({_share(summary_s[key], total_s)}%)" for key in SUMMARY if key != "total"]
    yield ", ".join(("File name", *SUMMARY.values()))
    yield ", ".join((_cell(name), *shares, _us(total_s)))
    yield ",".join(("layer_name", _cell(run), *_HEADINGS))
    for line in lines:
        cells = list(map(_us, (*line.compute_s, *(each.exposed_s for each in line.communications))))
        cells += [cell for each in line.communications for cell in _bandwidths(each)]
        yield ",".join((_cell(line.name), _cell(run), *cells))


def _cell(name: str) -> str:
    """Return a name as one cell, for who splits a line at each comma as for a spreadsheet."""
    return csv_line([" ".join(name.replace(",", " ").replace('"', " ").splitlines())])


def _bandwidths(each: RowCommunication) -> tuple[str, str, str]:
    per_s = 1 / each.time_s / _GIB if each.time_s else 0.0
    return _us(each.time_s), f"{each.size_bytes * per_s:.2f}", f"{each.bus_bytes * per_s:.2f}"


def _us(time_s: float) -> str:
    return f"{time_s * _US_PER_S:.0f}"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0.0:.2f}"


def simai_end_to_end(report: SimaiReport, name: str) -> bytes:
    """Return SimAI's own sum of a workload file as the file that it writes, under the name of the workload."""
    summary = {key: getattr(report, f"{key}_s") for key in SUMMARY}
    return _bytes(end_to_end_csv(name, _SIMAI_RUN, summary, map(_simai_line, report.rows)))


def _simai_line(row: SimaiRow) -> Line:
    times = (row.forward_comm_s, row.input_grad_comm_s, row.weight_grad_comm_s)
    columns = zip(times, row.exposed_s, row.size_bytes, row.bus_factor, strict=True)
    forward, input_grad, weight_grad = (
        RowCommunication(time_s, exposed_s, size, size * factor) for time_s, exposed_s, size, factor in columns
    )
    compute = (row.forward_compute_s, row.weight_grad_compute_s, row.input_grad_compute_s)
    return Line(row.name, compute, (forward, weight_grad, input_grad))


_COLUMN_OF_PHASE = {
    Phase.FORWARD: _FORWARD,
    Phase.BACKWARD: _INPUT_GRAD,
    Phase.RECOMPUTE: _INPUT_GRAD,
    Phase.WEIGHT_GRADIENT: _WEIGHT_GRAD,
}
_REPLICAS = (Group.DP, Group.EDP, Group.SHARD, Group.REPLICA)


@file_report("endtoend", "EndToEnd.csv", needs_timeline=True, on_request=True)
def write_end_to_end(result: Result, stream: BinaryIO) -> None:
    """Write a simulated step in the layout: that of the lowest rank among those that end last, operation by operation.

    A line is a row of the input, or an operation's name where there are none. Once-per-step work has its computations
    in the column of the input gradient, its exchanges over replicas in that of the weight gradient and others in the
    forward one. Context parallel exchanges count as TP, waiting as communication; what belongs to nobody (the host,
    the end of other ranks) is in the total alone.
    """
    step = simulated(result)
    program, timeline = step.program, step.timeline
    index = last_rank(program, timeline)
    mine, ops = program.rank_slice(index), program.ops
    row_N, exposed_N = program.row_N[mine], exposed_seconds(step, index)
    time_N = timeline.end_s_N[mine] - timeline.start_s_N[mine]
    columns = (row_N, program.group_N[mine], time_N, exposed_N)
    lines: dict[tuple[int, int, str], _Sums] = {}
    for row, group, time_s, exposed_s in zip(*(column.tolist() for column in columns), strict=True):
        kind = Kind(int(ops.kind_T[row]))
        if kind not in (Kind.COMPUTE, Kind.COLLECTIVE):
            continue
        sums = lines.setdefault((int(ops.file_T[row]), int(ops.line_T[row]), ops.name_T[row]), _Sums())
        column = _column(Phase(int(ops.phase_T[row])), Group(int(ops.group_T[row])), kind)
        if kind is Kind.COMPUTE:
            sums.compute_s[column] += time_s
            continue
        size = max(0, int(ops.size_bytes_T[row])) * float(ops.repeats_T[row])
        ranks = len(program.groups[group].members) if group >= 0 else 1
        bus_bytes = size * bus_factor(Operation(int(ops.operation_T[row])), ranks)
        sums.communications[column] = sums.communications[column].plus(
            RowCommunication(time_s, exposed_s, size, bus_bytes)
        )
    parts = rank_breakdown(step, index).breakdown_s
    of_experts_s = float(exposed_N[ops.group_T[row_N] == Group.EDP].sum())
    name = Path(result.inputs[0].path).name if result.inputs else "traincast"
    table = [sums.line(name) for (_, _, name), sums in sorted(lines.items(), key=lambda item: item[0][:2])]
    stream.write(_bytes(end_to_end_csv(name, "traincast", _summary(result, parts, of_experts_s), table)))


class _Sums(Struct):
    """What is added up of a line, by column."""

    compute_s: list[float] = field(default_factory=lambda: [0.0] * 3)
    communications: list[RowCommunication] = field(default_factory=lambda: [RowCommunication()] * 3)

    def line(self, name: str) -> Line:
        """Return the line of that name."""
        (a, b, c), (d, e, f) = self.compute_s, self.communications
        return Line(name, (a, b, c), (d, e, f))


def _column(phase: Phase, group: Group, kind: Kind) -> int:
    if phase in _COLUMN_OF_PHASE:
        return _COLUMN_OF_PHASE[phase]
    if kind is Kind.COMPUTE:
        return _INPUT_GRAD
    return _WEIGHT_GRAD if group in _REPLICAS else _FORWARD


def _summary(result: Result, parts: Mapping[str, float], expert_s: float) -> dict[str, float]:
    """Return the numbers of `SUMMARY`, in seconds, of a rank's breakdown.

    `expert_s` is what expert data parallel groups are exposed.
    """
    expert_s = min(expert_s, parts["exposed_dp"])
    found = {
        "dp": parts["exposed_dp"] - expert_s,
        "dp_ep": expert_s,
        "tp": parts["exposed_tp"] + parts["exposed_cp"],
        "ep": parts["exposed_ep"],
        "pp": parts["exposed_pp"],
        "bubble": parts["bubble"],
        "compute": parts["compute"],
    }
    exposed_s = found["dp"] + found["dp_ep"] + found["tp"] + found["ep"]
    return {**found, "exposed": exposed_s, "total": result.iteration_time_s}


def _bytes(lines: Iterable[str]) -> bytes:
    return encodable("".join(f"{line}\n" for line in lines)).encode()
