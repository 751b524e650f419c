"""Lower the rows of an AICB file to template operations and segments.

A row's forward column is a computation and a blocking communication; its backward is the
input-gradient computation and its blocking communication, then the weight-gradient computation
and its communication, which runs beside what follows on the stream of its group.
Source: SimAI, astra-sim/workload/Workload.cc (iterate_hybrid_parallel_Transformer_fwd_in_bckwd).
"""

from dataclasses import dataclass, field

from traincast.formats.aicb.meaning import USUAL, Positions, group_of, is_expert, overlap_class_of
from traincast.formats.aicb.rows import AicbFile, Column, Row
from traincast.formats.building import Notebook, wait_op
from traincast.units import counted
from traincast.workload.ops import Op, OpTableBuilder
from traincast.workload.words import STREAM_OF_GROUP, Group, Kind, Operation, Phase, Provenance, Stream

_SILENT_COLUMNS = {
    "DATA": (Column.FORWARD, Column.INPUT_GRAD),
    "MODEL": (Column.WEIGHT_GRAD,),
    "DISTRIBUTED_INFERENCE": (Column.WEIGHT_GRAD,),
    "MICRO": (Column.FORWARD, Column.INPUT_GRAD),
}
"""Columns whose communication a policy does not run (the state machines of astra-sim/workload/Workload.cc,
aliyun/SimAI)."""


@dataclass(slots=True)
class RowLowering:
    """Turns cells of rows into template operations."""

    file: AicbFile
    notes: Notebook
    positions: Positions = USUAL
    """What the columns of the file stand for."""
    builder: OpTableBuilder = field(default_factory=OpTableBuilder)
    zero_sizes: set[tuple[int, Column]] = field(default_factory=set)
    """Lines and columns of communications of 0 bytes, which take no time."""
    expert_rows: list[int] = field(default_factory=list)
    """Template rows of computations that grow with the tokens of a rank's experts."""
    inside_experts: frozenset[int] = frozenset()
    """Rows of the file between a dispatch to experts and its combine."""
    token_rows: list[int] = field(default_factory=list)
    """Template rows of communications that carry the tokens of a rank's experts among its own tp ranks."""
    unused: set[tuple[int, Column]] = field(default_factory=set)
    """Lines and columns of communications that their policy never runs."""

    def cell(self, row: int, column: Column, phase: Phase, *, layer: int = -1, blocking: bool = True) -> list[int]:
        """Add the computation and the communication of a cell; return their template rows."""
        return self.compute(row, column, phase, layer) + self.communication(row, column, phase, layer, blocking)

    def compute(self, row: int, column: Column, phase: Phase, layer: int = -1) -> list[int]:
        """Add the computation of a cell, if it takes any time."""
        source = self.file.rows[row]
        duration_s = source.cell(column).compute_s
        if duration_s == 0:
            return []
        op = Op(
            name=source.name,
            kind=Kind.COMPUTE,
            phase=phase,
            duration_s=duration_s,
            provenance=Provenance.FILE,
            file=0,
            line=source.line,
            layer=layer,
            overlap_class=overlap_class_of(source.name),
        )
        added = self.builder.add(op)
        if is_expert(source.name):
            self.expert_rows.append(added)
        return [added]

    def communication(
        self, row: int, column: Column, phase: Phase, layer: int = -1, blocking: bool = True
    ) -> list[int]:
        """Add the communication of a cell, if it has one."""
        source = self.file.rows[row]
        cell = source.cell(column)
        if cell.operation is Operation.NONE:
            return []
        if not self.runs(source, column):
            self.unused.add((source.line, column))
            return []
        if cell.size_bytes == 0:
            self.zero_sizes.add((source.line, column))
            return []
        group = self.group(source, column)
        added = self.collective(source, cell.operation, group, cell.size_bytes, phase, layer, blocking)
        if row in self.inside_experts and group in (Group.TP, Group.ETP):
            self.token_rows.append(added)
        return [added]

    def collective(
        self,
        source: Row,
        operation: Operation,
        group: Group,
        size_bytes: int,
        phase: Phase,
        layer: int = -1,
        blocking: bool = True,
    ) -> int:
        """Add one collective and return its template row."""
        op = Op(
            name=source.name,
            kind=Kind.COLLECTIVE,
            phase=phase,
            blocking=blocking,
            stream=STREAM_OF_GROUP[group],
            file=0,
            line=source.line,
            layer=layer,
            group=group,
            operation=operation,
            size_bytes=size_bytes,
            process_s=source.process_s,
        )
        return self.builder.add(op)

    def runs(self, source: Row, column: Column) -> bool:
        """Tell whether the policy of a row runs the communication of a column."""
        return column not in _SILENT_COLUMNS.get(source.policy or self.file.header.policy, ())

    def group(self, source: Row, column: Column) -> Group:
        """Return the group of a cell under the file's policy."""
        group = group_of(source.name, column, source.cell(column), self.positions)
        policy = source.policy or self.file.header.policy
        return Group.DP if policy.startswith("HYBRID_DLRM") and group is Group.TP else group

    def wait(self, stream: Stream) -> int:
        """Add a wait for everything launched on a stream and return its template row."""
        return self.builder.add(wait_op(stream))

    def say_what_was_left_out(self) -> None:
        """Note the communications that take no time, so that none is zero in silence."""
        if self.zero_sizes:
            self.notes.assume(
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
            self.notes.warn(
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


def forward_rows(lowering: RowLowering, work: LayerRows) -> list[int]:
    """Lower the forward pass of some rows, in their order."""
    return [
        op for row, layer in work.row_layer for op in lowering.cell(row, Column.FORWARD, Phase.FORWARD, layer=layer)
    ]


def backward_rows(lowering: RowLowering, work: LayerRows, buckets: dict[int, list[int]] | None = None) -> list[int]:
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
    list of int
        Template rows in program order.
    """
    initiates = set(lowering.file.header.checkpoint_initiates)
    ops: list[int] = []
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


def _recompute(lowering: RowLowering, work: LayerRows, place: int) -> list[int]:
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
