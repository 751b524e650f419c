"""SimAI's sum over the rows of a file."""

from dataclasses import dataclass, field

from traincast.diagnostics import Remarks
from traincast.estimate.simai.header import RAISES_SMALL, layout_of, message_bytes
from traincast.estimate.simai.machine import SimaiGroup, SimaiMachine, single
from traincast.estimate.simai.price import Price, SimaiLayout, group_of, price
from traincast.estimate.simai.report import SimaiReport, SimaiRow
from traincast.formats.aicb.rows import AicbFile, Cell, Column, Row
from traincast.job.options import LayoutOptions
from traincast.job.simai import SimaiOverlap
from traincast.units import GIGA, counted

_GIB = 1 << 30
_NS_PER_US = 1000
_US_PER_S = 1_000_000
_LONGEST_NS = 2**31
_NOT_IN_BUBBLE = "embedding_layer"
_SUMMED = ("dp", "dp_ep", "tp", "ep", "compute", "exposed")


def simai_sum(
    file: AicbFile,
    machine: SimaiMachine,
    options: LayoutOptions | None = None,
    overlap: SimaiOverlap | None = None,
) -> SimaiReport:
    """Add up a file as SimAI-Analytical does.

    Order, dependencies and overlap have no effect on the sum. SimAI counts in whole nanoseconds
    and adds microseconds; so does this.

    Parameters
    ----------
    file : AicbFile
        The file.
    machine : SimaiMachine
        SimAI's constants.
    options : LayoutOptions, optional
        World size, degrees and microbatches that override those of the header.
    overlap : SimaiOverlap, optional
        Shares of communication that SimAI is told to leave out.

    Returns
    -------
    SimaiReport

    Raises
    ------
    ConfigError
        If SimAI would divide by a degree that it has not read, or stop at the size of a message.
    InfeasibleError
        If a communication is above the 16 GiB where SimAI's tables end.

    Notes
    -----
    Source: SimAI, ``Layer.cc``, ``Layer::report``.
    """
    chosen, shares, remarks = options or LayoutOptions(), overlap or SimaiOverlap(), Remarks(file.path)
    layout = layout_of(file, chosen, remarks)
    pricer = _Pricer(layout, machine, file.header.policy == RAISES_SMALL, remarks)
    times = [(row, pricer.row(row)) for row in _rows_read(file, remarks)]
    sums = _Sums(shares)
    for row, each in times:
        sums.add(row, each)
    # The base is in the file GA times, as many as it has microbatches of its one stage.
    bubble_us = sums.base_us * ((layout.pp - 1) / (layout.ga * layout.vpp))
    messages_us = _messages_us(message_bytes(file, chosen), layout, shares.pp)
    return SimaiReport(
        **sums.in_seconds(),
        pp_s=messages_us / _US_PER_S,
        bubble_s=bubble_us / _US_PER_S,
        total_s=(sums.compute_us + sums.exposed_us + bubble_us + messages_us) / _US_PER_S,
        rows=tuple(each.in_seconds(row) for row, each in times),
        machine=machine,
        layout=layout,
        overlap=shares,
        warnings=remarks.notes(),
    )


def _rows_read(file: AicbFile, remarks: Remarks) -> tuple[Row, ...]:
    """Return the rows that SimAI reads: as many as are declared."""
    if file.left_out is not None:
        text = f"{counted(len(file.rows), 'row is', 'rows are')} declared; SimAI leaves out what is after them"
        remarks.add("simai-rows", text, file.left_out)
    if file.declared_rows == 0:
        remarks.add("simai-rows", "no row is declared; SimAI leaves out all that are there", file.rows[0].line)
        return ()
    return file.rows


def _messages_us(size_bytes: int, layout: SimaiLayout, overlap: float) -> int:
    """Return "Expose PP": two messages per virtual stage and microbatch, at a bandwidth of `overlap` GiB/s."""
    ns = size_bytes / _GIB / single(overlap) * GIGA
    return _exposed(int(2 * layout.vpp * layout.ga * ns / _NS_PER_US), overlap)


def _exposed(time: int, overlap: float) -> int:
    """Return what is left of a whole number; SimAI multiplies it in single precision."""
    return int(single(single(time) * single(1 - single(overlap))))


@dataclass(frozen=True, slots=True)
class _Times:
    """Times of a row in ns: forward, input gradient, weight gradient."""

    compute_ns: tuple[int, int, int]
    comm_ns: tuple[int, int, int]

    def in_seconds(self, source: Row) -> SimaiRow:
        compute_s, comm_s = ([ns / GIGA for ns in times] for times in (self.compute_ns, self.comm_ns))
        return SimaiRow(
            line=source.line,
            name=source.name,
            forward_compute_s=compute_s[0],
            input_grad_compute_s=compute_s[1],
            weight_grad_compute_s=compute_s[2],
            forward_comm_s=comm_s[0],
            input_grad_comm_s=comm_s[1],
            weight_grad_comm_s=comm_s[2],
        )


@dataclass(slots=True)
class _Pricer:
    """Prices rows and collects what SimAI passes over; equal cells, of which files are full, once."""

    layout: SimaiLayout
    machine: SimaiMachine
    raise_small: bool
    remarks: Remarks
    known: dict[tuple[Column, Cell], Price] = field(default_factory=dict)

    def row(self, row: Row) -> _Times:
        comm = [self._comm(row, column) for column in Column]
        compute = [self._compute(row, row.cell(column)) for column in Column]
        return _Times((compute[0], compute[1], compute[2]), (comm[0], comm[1], comm[2]))

    def _comm(self, row: Row, column: Column) -> int:
        key = column, row.cell(column)
        found = self.known.get(key) or price(*key, self.layout, self.machine, self.raise_small)
        self.known[key] = found
        if found.doubt:
            self.remarks.add(*found.doubt, row.line)
        return found.time_ns

    def _compute(self, row: Row, cell: Cell) -> int:
        time_ns = round(cell.compute_s * GIGA)
        if time_ns >= _LONGEST_NS:
            text = (
                "SimAI keeps compute times in 32 bits and ends without a result above 2.147 s; added as it is written"
            )
            self.remarks.add("simai-long-compute", text, row.line)
        return time_ns


@dataclass(slots=True)
class _Sums:
    """SimAI's sums, in us."""

    overlap: SimaiOverlap
    dp_us: float = field(default=0.0, init=False)
    dp_ep_us: float = field(default=0.0, init=False)
    tp_us: float = field(default=0.0, init=False)
    ep_us: float = field(default=0.0, init=False)
    base_us: float = field(default=0.0, init=False)
    """What the bubble is a multiple of."""
    compute_us: float = field(default=0.0, init=False)
    exposed_us: float = field(default=0.0, init=False)

    def add(self, source: Row, times: _Times) -> None:
        forward, input_grad, weight_grad = times.comm_ns
        compute_ns = sum(times.compute_ns)
        if source.name != _NOT_IN_BUBBLE:
            self.base_us += (forward + input_grad + compute_ns) / _NS_PER_US
        after_us = _exposed(weight_grad, self.overlap.dp) / _NS_PER_US
        if group_of(Column.WEIGHT_GRAD, source.weight_grad.token) is SimaiGroup.DP_EP:
            self.dp_ep_us += after_us
        else:
            self.dp_us += after_us
        # The group of the forward column decides on the input gradient, too.
        expert = group_of(Column.FORWARD, source.forward.token) is SimaiGroup.EP
        share = self.overlap.ep if expert else self.overlap.tp
        within_us = (_exposed(forward, share) + _exposed(input_grad, share)) / _NS_PER_US
        if expert:
            self.ep_us += within_us
        else:
            self.tp_us += within_us
        self.compute_us += compute_ns / _NS_PER_US
        self.exposed_us += after_us + within_us

    def in_seconds(self) -> dict[str, float]:
        """Return the sums that are fields of `SimaiReport`."""
        return {f"{name}_s": getattr(self, f"{name}_us") / _US_PER_S for name in _SUMMED}
