"""Lower the rows of an AICB file to template operations and segments.

A row's forward column is a computation and a blocking communication; its backward is the
input-gradient computation and its blocking communication, then the weight-gradient computation
and its communication, which runs beside what follows on the stream of its group.
Source: SimAI, astra-sim/workload/Workload.cc (iterate_hybrid_parallel_Transformer_fwd_in_bckwd).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from traincast.formats.aicb.meaning import USUAL, Positions, group_of, is_expert, overlap_class_of, runs
from traincast.formats.aicb.rows import AicbFile, Column, Row
from traincast.formats.aicb.structure import OnceCell
from traincast.units import counted
from traincast.workload.builder import Place, Rows, WorkloadBuilder, collective_op, compute_op
from traincast.workload.words import STREAM_OF_GROUP, Group, Operation, Phase


@dataclass(slots=True)
class RowLowering:
    """Turns cells of rows into template operations."""

    builder: WorkloadBuilder
    file: AicbFile
    positions: Positions = USUAL
    """What the columns of the file stand for."""
    inside_experts: frozenset[int] = frozenset()
    """Rows of the file between a dispatch to experts and its combine."""
    zero_sizes: set[tuple[int, Column]] = field(default_factory=set)
    """Lines and columns of communications of 0 bytes, which take no time."""
    expert_rows: Rows = field(default_factory=list)
    """Computations that grow with the tokens of a rank's experts."""
    token_rows: Rows = field(default_factory=list)
    """Communications that carry the tokens of a rank's experts among its own tp ranks."""
    unused: set[tuple[int, Column]] = field(default_factory=set)
    """Lines and columns of communications that their policy never runs."""

    def cell(self, row: int, column: Column, phase: Phase, *, layer: int = -1, blocking: bool = True) -> Rows:
        """Add the computation and the communication of a cell."""
        return self.compute(row, column, phase, layer) + self.communication(row, column, phase, layer, blocking)

    def compute(self, row: int, column: Column, phase: Phase, layer: int = -1) -> Rows:
        """Add the computation of a cell, if it takes any time."""
        source = self.file.rows[row]
        duration_s = source.cell(column).compute_s
        if duration_s == 0:
            return []
        overlap_class, place = overlap_class_of(source.name), Place(0, source.line)
        added = self.builder.add(
            compute_op(source.name, phase, duration_s, overlap_class=overlap_class, place=place, layer=layer)
        )
        if is_expert(source.name):
            self.expert_rows += added
        return added

    def communication(self, row: int, column: Column, phase: Phase, layer: int = -1, blocking: bool = True) -> Rows:
        """Add the communication of a cell, if it has one."""
        source = self.file.rows[row]
        cell = source.cell(column)
        if cell.operation is Operation.NONE:
            return []
        if not runs(self.file, source, column):
            self.unused.add((source.line, column))
            return []
        if cell.size_bytes == 0:
            self.zero_sizes.add((source.line, column))
            return []
        added = self.collective(source, column, phase, cell.size_bytes, layer, blocking)
        if row in self.inside_experts and self.group(source, column) in (Group.TP, Group.ETP):
            self.token_rows += added
        return added

    def collective(
        self, source: Row, column: Column, phase: Phase, size_bytes: int, layer: int = -1, blocking: bool = True
    ) -> Rows:
        """Add the collective of a cell, or so many bytes of it."""
        return self.builder.add(
            collective_op(
                source.name,
                phase,
                self.group(source, column),
                source.cell(column).operation,
                size_bytes,
                blocking=blocking,
                process_s=source.process_s,
                place=Place(0, source.line),
                layer=layer,
            )
        )

    def group(self, source: Row, column: Column) -> Group:
        """Return the group of a cell under the file's policy."""
        group = group_of(source.name, column, source.cell(column), self.positions)
        policy = source.policy or self.file.header.policy
        return Group.DP if policy.startswith("HYBRID_DLRM") and group is Group.TP else group

    def say_what_was_left_out(self) -> None:
        """Note the communications that take no time, so that none is zero in silence."""
        if self.zero_sizes:
            self.builder.notes.assume(
                "zero-size",
                f"{_communications(len(self.zero_sizes), 'of 0 bytes takes', 'of 0 bytes take')} no time "
                "(AICB writes 0 for what it takes as overlapped)",
                min(self.zero_sizes)[0],
            )
        if self.unused:
            lines = {line for line, _ in self.unused}
            policies = {row.policy or self.file.header.policy for row in self.file.rows if row.line in lines}
            ignoring = (
                f"policies {' and '.join(sorted(policies))} do" if len(policies) > 1 else f"policy {min(policies)} does"
            )
            self.builder.notes.warn(
                "policy-ignores",
                f"{ignoring} not run {_communications(len(self.unused), 'that is', 'that are')} written",
                min(self.unused)[0],
            )


def _communications(count: int, one: str, many: str) -> str:
    return counted(count, f"communication {one}", f"communications {many}")


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Rows that a virtual stage runs in one microbatch, with the layer each belongs to."""

    row_layer: tuple[tuple[int, int], ...]


def forward_rows(lowering: RowLowering, work: LayerRows) -> Rows:
    """Lower the forward pass of some rows, in their order."""
    return [
        op for row, layer in work.row_layer for op in lowering.cell(row, Column.FORWARD, Phase.FORWARD, layer=layer)
    ]


def backward_rows(lowering: RowLowering, work: LayerRows, buckets: dict[int, Rows] | None = None) -> Rows:
    """Lower the backward pass of some rows, in reverse, with recomputation where the header asks for it.

    Parameters
    ----------
    lowering : RowLowering
        Receives the operations.
    work : LayerRows
        Rows of one virtual stage.
    buckets : dict, optional
        Gradient reductions to launch after the weight gradients of a layer: layer -> template rows.

    Returns
    -------
    Rows
    """
    initiates = set(lowering.file.header.checkpoint_initiates)
    ops: Rows = []
    for place in range(len(work.row_layer) - 1, -1, -1):
        row, layer = work.row_layer[place]
        if row in initiates:
            ops += _recompute(lowering, work, place)
        ops += lowering.cell(row, Column.INPUT_GRAD, Phase.BACKWARD, layer=layer)
        ops += lowering.cell(row, Column.WEIGHT_GRAD, Phase.WEIGHT_GRADIENT, layer=layer, blocking=False)
        starts_layer = place == 0 or work.row_layer[place - 1][1] != layer
        if buckets and starts_layer:
            ops += buckets.get(layer, [])
    return ops


def _recompute(lowering: RowLowering, work: LayerRows, place: int) -> Rows:
    """Lower the forward rows from the nearest checkpoint at or before a row up to, not including, that row."""
    checkpoints = set(lowering.file.header.checkpoints)
    begin = place
    while begin > 0 and work.row_layer[begin][0] not in checkpoints:
        begin -= 1
    return [
        op
        for row, layer in work.row_layer[begin:place]
        for op in lowering.cell(row, Column.FORWARD, Phase.RECOMPUTE, layer=layer)
    ]


def lower_cells(
    lowering: RowLowering,
    cells: Iterable[OnceCell],
    *,
    overlapped: OnceCell | None = None,
    silent: frozenset[int] = frozenset(),
) -> Rows:
    """Lower once-per-step cells, each blocking.

    Parameters
    ----------
    lowering : RowLowering
        Receives the operations.
    cells : iterable of OnceCell
        In their order.
    overlapped : OnceCell, optional
        The gradient reduction that was launched during the backward pass; only waited for here.
    silent : frozenset of int
        Rows whose communication does not concern this stage.

    Returns
    -------
    Rows
    """
    ops: Rows = []
    for cell in cells:
        ops += lowering.compute(cell.row, cell.column, Phase.STEP)
        if cell == overlapped:
            group = lowering.group(lowering.file.rows[cell.row], cell.column)
            ops += lowering.builder.wait(STREAM_OF_GROUP[group])
        elif cell.row not in silent:
            ops += lowering.communication(cell.row, cell.column, Phase.STEP)
    return ops
