"""Lower the rows of a NeuSight file to template operations.

Forward runs the rows in their order, backward in reverse, so that a gradient row, which stands
before its node, is launched right after the node's backward. A row computes and then
communicates; what is asynchronous holds nobody back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from traincast.formats.neusight.meaning import overlap_class_of
from traincast.formats.neusight.rows import Cell, Column, NeusightFile, Row
from traincast.spec.dtypes import bytes_per_element
from traincast.workload.ops import Op, OpTableBuilder
from traincast.workload.words import STREAM_OF_GROUP, Group, Kind, Phase, Provenance, Stream

_PHASE_OF_COLUMN = {
    Column.FORWARD: Phase.FORWARD,
    Column.BACKWARD: Phase.BACKWARD,
    Column.WEIGHT_GRAD: Phase.WEIGHT_GRADIENT,
}


@dataclass(slots=True)
class RowLowering:
    """Turns rows into template operations.

    Parameters
    ----------
    file : NeusightFile
        Where the rows are.
    dtype : str
        Type of the elements that sizes are counted in.
    estimate_backward : bool
        Whether the file lacks the backward pass, and each operator's is taken as twice its forward.
    """

    file: NeusightFile
    dtype: str
    estimate_backward: bool
    builder: OpTableBuilder = field(default_factory=OpTableBuilder)
    reductions: set[int] = field(default_factory=set)
    """Template rows that reduce gradients over dp."""
    asynchronous: set[Stream] = field(default_factory=set)
    """Streams on which something was launched that nobody has waited for."""

    def forward(self, work: Sequence[tuple[int, int]]) -> list[int]:
        """Lower the forward pass of rows, given with their layers; return template rows in program order."""
        ops = []
        for index, layer in work:
            row = self.file.rows[index]
            ops += self._compute(row, Phase.FORWARD, row.forward.compute_s, layer)
            ops += self._communicate(row, Column.FORWARD, layer)
        return ops

    def backward(self, work: Sequence[tuple[int, int]]) -> list[int]:
        """Lower the backward pass of rows, last row first; return template rows in program order."""
        ops = []
        for index, layer in reversed(work):
            row = self.file.rows[index]
            input_s, weight_s = row.backward.compute_s, row.weight_grad.compute_s
            if self.estimate_backward:
                input_s = weight_s = row.forward.compute_s
            blocks = row.backward.group is Group.TP
            ops += self._compute(row, Phase.BACKWARD, input_s, layer)
            ops += self._communicate(row, Column.BACKWARD, layer) if blocks else []
            ops += self._compute(row, Phase.WEIGHT_GRADIENT, weight_s, layer)
            # A reduction needs the accumulated gradient.
            ops += [] if blocks else self._communicate(row, Column.BACKWARD, layer)
            ops += self._communicate(row, Column.WEIGHT_GRAD, layer)
        return ops

    def _compute(self, row: Row, phase: Phase, duration_s: float, layer: int) -> list[int]:
        if duration_s == 0:
            return []
        assumed = self.estimate_backward and phase is not Phase.FORWARD
        op = Op(
            name=row.name,
            kind=Kind.COMPUTE,
            phase=phase,
            duration_s=duration_s,
            provenance=Provenance.ASSUMED if assumed else Provenance.FILE,
            file=0,
            line=self._line(row),
            layer=layer,
            overlap_class=overlap_class_of(row.name),
        )
        return [self.builder.add(op)]

    def _communicate(self, row: Row, column: Column, layer: int) -> list[int]:
        """Add the collective of a cell; messages between stages come with the pipeline schedule."""
        cell = row.cell(column)
        if cell.group in (Group.NONE, Group.PP) or cell.elements == 0:
            return []
        stream = STREAM_OF_GROUP[cell.group]
        op = Op(
            name=row.name,
            kind=Kind.COLLECTIVE,
            phase=_PHASE_OF_COLUMN[column],
            blocking=not cell.asynchronous,
            stream=stream,
            file=0,
            line=self._line(row),
            layer=layer,
            group=cell.group,
            operation=cell.operation,
            size_bytes=self.size_bytes(cell),
            dtype=self.dtype,
            process_s=row.process_s,
        )
        index = self.builder.add(op)
        if cell.asynchronous:
            self.asynchronous.add(stream)
        if column is not Column.FORWARD and cell.group is Group.DP:
            self.reductions.add(index)
        return [index]

    def size_bytes(self, cell: Cell) -> int:
        """Return the bytes of a cell's communication."""
        return cell.elements * bytes_per_element(self.dtype)

    def _line(self, row: Row) -> int:
        return 0 if self.file.entries else row.number
