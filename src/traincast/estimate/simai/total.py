"""SimAI's sum over the rows of a file."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct, field

from traincast.diagnostics import FileWarnings, Note
from traincast.errors import ConfigError
from traincast.estimate.simai.cost import (
    RAISES_SMALL,
    CellCost,
    SimaiLayout,
    bus_factor,
    cell_cost,
    counted_bytes,
    group_of,
    layout_of,
    message_bytes,
)
from traincast.estimate.simai.machine import SimaiGroup, SimaiMachine, single
from traincast.formats.aicb.grammar import AicbFile, Cell, Column, Row
from traincast.job.flags import flag_of
from traincast.job.options import LayoutOptions, SimaiOverlap, SimulateOptions
from traincast.units import GIGA, counted

_GIB = 1 << 30
_NS_PER_US = 1000
_US_PER_S = 1_000_000
_LONGEST_NS = 2**31
_NOT_IN_BUBBLE = "embedding_layer"
_SUMMED = ("dp", "dp_ep", "tp", "ep", "compute", "exposed")
SIMAI_OPTIONS = frozenset(SimaiLayout.__struct_fields__) - {"ga"} | {"microbatches", "pp_message_bytes"}
"""Fields of `LayoutOptions` that SimAI has a word for."""
_FLAGS = {"busbw_bytes_per_s": "busbw", "compute_slowdown": "slow"}
"""Flags that are not named like their fields."""


class SimaiRow(Struct, frozen=True):
    """SimAI's times of one row; communication before any overlap."""

    line: int
    name: str
    forward_compute_s: float
    input_grad_compute_s: float
    weight_grad_compute_s: float
    forward_comm_s: float
    input_grad_comm_s: float
    weight_grad_comm_s: float
    exposed_s: tuple[float, float, float]
    """What is left of these after the shares that SimAI is told to leave out: forward, input and weight gradient."""
    size_bytes: tuple[int, int, int]
    """Sizes of the same communications."""
    bus_factor: tuple[float, float, float]
    """Their bus over their algorithm bandwidth."""


class SimaiReport(Struct, frozen=True, kw_only=True):
    """What SimAI-Analytical says of a file, in seconds, and what it was computed for.

    Exposed communication by group ("Expose DP comm" and so on), then "bubble time", "total comp", "total exposed comm"
    (without PP) and "Total time".
    """

    dp_s: float
    dp_ep_s: float
    tp_s: float
    ep_s: float
    pp_s: float
    bubble_s: float
    compute_s: float
    exposed_s: float
    total_s: float
    rows: tuple[SimaiRow, ...]
    """Every row that SimAI reads."""
    machine: SimaiMachine
    layout: SimaiLayout
    overlap: SimaiOverlap
    warnings: tuple[Note, ...] = ()
    """Where SimAI would crash, print NaN, or take no time in silence."""


def refuse_with_simai(options: SimulateOptions) -> None:
    """Refuse, with a `ConfigError`, the first option that the user set and SimAI has no word for."""
    layout = [each for each in LayoutOptions.__struct_fields__ if each not in SIMAI_OPTIONS]
    given = [name for name in layout if getattr(options.layout, name) != getattr(LayoutOptions(), name)]
    of_costs = [each for each in SimulateOptions.__struct_fields__ if each not in ("layout", "cluster", "suggest")]
    given += [_FLAGS.get(name, name) for name in of_costs if getattr(options, name) != getattr(SimulateOptions(), name)]
    if given:
        raise ConfigError(f"{flag_of(given[0])} has no meaning for SimAI's total")


def simai_sum(
    file: AicbFile,
    machine: SimaiMachine,
    options: LayoutOptions | None = None,
    overlap: SimaiOverlap | None = None,
) -> SimaiReport:
    """Add up a file as SimAI-Analytical does.

    Order, dependencies and overlap have no effect on the sum. SimAI counts in whole nanoseconds and adds microseconds;
    so does this. `options` override world size, degrees and microbatches of the header; `overlap` are the shares of
    communication that SimAI is told to leave out. Source: SimAI, ``Layer.cc``, ``Layer::report``.

    Raises
    ------
    ConfigError
        If SimAI would divide by a degree that it has not read, or stop at the size of a message.
    InfeasibleError
        If a communication is above the 16 GiB where SimAI's tables end.
    """
    chosen, shares, warnings = options or LayoutOptions(), overlap or SimaiOverlap(), FileWarnings(file.path)
    layout = layout_of(file, chosen, warnings)
    costs = _CellCosts(layout, machine, file.header.policy == RAISES_SMALL, warnings)
    sums = _Sums(shares)
    for row in _rows_read(file, warnings):
        comm_ns = [costs.comm_ns(row, column) for column in Column]
        sums.add(row, comm_ns, [costs.compute_ns(row, column) for column in Column], costs.bandwidths(row))
    # The base is in the file GA times, as many as it has microbatches of its one stage.
    bubble_us = sums.us["base"] * ((layout.pp - 1) / (layout.ga * layout.vpp))
    messages_us = _messages_us(message_bytes(file, chosen), layout, shares.pp)
    return SimaiReport(
        **{f"{name}_s": sums.us[name] / _US_PER_S for name in _SUMMED},
        pp_s=messages_us / _US_PER_S,
        bubble_s=bubble_us / _US_PER_S,
        total_s=(sums.us["compute"] + sums.us["exposed"] + bubble_us + messages_us) / _US_PER_S,
        rows=tuple(sums.rows),
        machine=machine,
        layout=layout,
        overlap=shares,
        warnings=warnings.notes(),
    )


def _rows_read(file: AicbFile, warnings: FileWarnings) -> tuple[Row, ...]:
    """Return the rows that SimAI reads: as many as are declared."""
    if file.left_out is not None:
        text = f"{counted(len(file.rows), 'row is', 'rows are')} declared; SimAI leaves out what is after them"
        warnings.add("simai-rows", text, file.left_out)
    if file.declared_rows == 0:
        warnings.add("simai-rows", "no row is declared; SimAI leaves out all that are there", file.rows[0].line)
        return ()
    return file.rows


def _messages_us(size_bytes: int, layout: SimaiLayout, overlap: float) -> int:
    """Return "Expose PP": two messages per virtual stage and microbatch, at a bandwidth of `overlap` GiB/s."""
    ns = size_bytes / _GIB / single(overlap) * GIGA
    return _exposed(int(2 * layout.vpp * layout.ga * ns / _NS_PER_US), overlap)


def _exposed(time: int, overlap: float) -> int:
    """Return what is left of a whole number; SimAI multiplies it in single precision."""
    return int(single(single(time) * single(1 - single(overlap))))


class _Size(NamedTuple):
    """Bytes of a communication, and its bus over its algorithm bandwidth."""

    size_bytes: int
    bus_factor: float


class _CellCosts(Struct):
    """Estimates rows and collects what SimAI passes over; equal cells, of which files are full, once."""

    layout: SimaiLayout
    machine: SimaiMachine
    raise_small: bool
    warnings: FileWarnings
    known: dict[tuple[Column, Cell], CellCost] = field(default_factory=dict)

    def comm_ns(self, row: Row, column: Column) -> int:
        key = column, row.cell(column)
        found = self.known.get(key) or cell_cost(*key, self.layout, self.machine, self.raise_small)
        self.known[key] = found
        if found.doubt:
            self.warnings.add(*found.doubt, row.line)
        return found.time_ns

    def bandwidths(self, row: Row) -> list[_Size]:
        """Return what the bandwidths that SimAI prints of a row's communications are worked out from, by column."""
        cells = ((column, row.cell(column)) for column in Column)
        return [
            _Size(counted_bytes(column, cell, self.raise_small), bus_factor(column, cell, self.layout))
            for column, cell in cells
        ]

    def compute_ns(self, row: Row, column: Column) -> int:
        time_ns = round(row.cell(column).compute_s * GIGA)
        if time_ns >= _LONGEST_NS:
            text = (
                "SimAI keeps compute times in 32 bits and ends without a result above 2.147 s; added as it is written"
            )
            self.warnings.add("simai-long-compute", text, row.line)
        return time_ns


class _Sums(Struct):
    """SimAI's sums in us over rows, whose times are in ns: forward, input gradient, weight gradient."""

    overlap: SimaiOverlap
    us: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*_SUMMED, "base"), 0.0))
    """Those of `SimaiReport`, and the base of which the bubble is a multiple."""
    rows: list[SimaiRow] = field(default_factory=list)

    def add(self, row: Row, comm_ns: Sequence[int], compute_ns: Sequence[int], sizes: Sequence[_Size]) -> None:
        forward, input_grad, weight_grad = comm_ns
        if row.name != _NOT_IN_BUBBLE:
            self.us["base"] += (forward + input_grad + sum(compute_ns)) / _NS_PER_US
        after_ns = _exposed(weight_grad, self.overlap.dp)
        expert_dp = group_of(Column.WEIGHT_GRAD, row.weight_grad.token) is SimaiGroup.DP_EP
        self.us["dp_ep" if expert_dp else "dp"] += after_ns / _NS_PER_US
        # The group of the forward column decides on the input gradient, too.
        within = "ep" if group_of(Column.FORWARD, row.forward.token) is SimaiGroup.EP else "tp"
        share = getattr(self.overlap, within)
        exposed_ns = (_exposed(forward, share), _exposed(input_grad, share), after_ns)
        self.us[within] += (exposed_ns[0] + exposed_ns[1]) / _NS_PER_US
        self.us["compute"] += sum(compute_ns) / _NS_PER_US
        # In SimAI's order, so that halves of a microsecond are rounded as there.
        for ns in (exposed_ns[0], after_ns, exposed_ns[1]):
            self.us["exposed"] += ns / _NS_PER_US
        first, second, third = sizes
        self.rows.append(
            SimaiRow(
                row.line,
                row.name,
                forward_compute_s=compute_ns[0] / GIGA,
                input_grad_compute_s=compute_ns[1] / GIGA,
                weight_grad_compute_s=compute_ns[2] / GIGA,
                forward_comm_s=forward / GIGA,
                input_grad_comm_s=input_grad / GIGA,
                weight_grad_comm_s=weight_grad / GIGA,
                exposed_s=(exposed_ns[0] / GIGA, exposed_ns[1] / GIGA, exposed_ns[2] / GIGA),
                size_bytes=(first.size_bytes, second.size_bytes, third.size_bytes),
                bus_factor=(first.bus_factor, second.bus_factor, third.bus_factor),
            )
        )
