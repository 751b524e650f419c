"""Lower the rows of a NeuSight file to template operations.

Forward runs the rows in their order, backward in reverse, so that a gradient row, which stands
before its node, is launched right after the node's backward. A row computes and then
communicates; what is asynchronous holds nobody back.

A name is that of a node of a traced model: a function with a running number (``addmm_12``, ``softmax``) or
the path of a module (``transformer_h_0_ln_1``, ``lm_head``). Source: sitar-lab/NeuSight, the operator names
of its traced graphs, which are those of ``torch.fx``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from traincast.formats.neusight.rows import Column, NeusightFile, Row
from traincast.job.dtypes import bytes_per_element
from traincast.workload.builder import Place, Rows, WorkloadBuilder, collective_op, compute_op
from traincast.workload.words import Group, OverlapClass, Phase

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
    builder : WorkloadBuilder
        Receives the operations.
    file : NeusightFile
        Where the rows are.
    dtype : str
        Type of the elements that sizes are counted in.
    estimate_backward : bool
        Whether the file lacks the backward pass, and each operator's is taken as twice its forward.
    """

    builder: WorkloadBuilder
    file: NeusightFile
    dtype: str
    estimate_backward: bool
    reductions: set[int] = field(default_factory=set)
    """Template rows that reduce gradients over dp."""

    def forward(self, work: Sequence[tuple[int, int]]) -> Rows:
        """Lower the forward pass of rows, given with their layers; return template rows in program order."""
        ops = []
        for index, layer in work:
            row = self.file.rows[index]
            ops += self._compute(row, Phase.FORWARD, row.forward.compute_s, layer)
            ops += self._communicate(row, Column.FORWARD, layer)
        return ops

    def backward(self, work: Sequence[tuple[int, int]]) -> Rows:
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

    def _compute(self, row: Row, phase: Phase, duration_s: float, layer: int) -> Rows:
        if duration_s == 0:
            return []
        assumed = self.estimate_backward and phase is not Phase.FORWARD
        overlap_class, place = overlap_class_of(row.name), self._place(row)
        return self.builder.add(
            compute_op(
                row.name, phase, duration_s, overlap_class=overlap_class, assumed=assumed, place=place, layer=layer
            )
        )

    def _communicate(self, row: Row, column: Column, layer: int) -> Rows:
        """Add the collective of a cell; messages between stages come with the pipeline schedule."""
        cell = row.cell(column)
        if cell.group in (Group.NONE, Group.PP) or cell.elements == 0:
            return []
        added = self.builder.add(
            collective_op(
                row.name,
                _PHASE_OF_COLUMN[column],
                cell.group,
                cell.operation,
                cell.elements * bytes_per_element(self.dtype),
                blocking=not cell.asynchronous,
                dtype=self.dtype,
                process_s=row.process_s,
                place=self._place(row),
                layer=layer,
            )
        )
        if column is not Column.FORWARD and cell.group is Group.DP:
            self.reductions.update(added)
        return added

    def _place(self, row: Row) -> Place:
        return Place(0, 0 if self.file.entries else row.number)


_PRODUCTS = frozenset({"addmm", "baddbmm", "bmm", "dense", "einsum", "head", "linear", "matmul", "mm", "proj"})
_STREAMS = frozenset(
    {
        *("softmax", "norm", "layernorm", "ln", "dropout", "gelu", "relu", "silu", "tanh", "sigmoid", "erf", "rsqrt"),
        *("add", "sub", "rsub", "mul", "div", "truediv", "pow", "neg", "exp", "mean", "sum", "where", "cat", "to"),
        *("contiguous", "clone", "type", "float", "embedding", "embeddings", "wte", "wpe", "act"),
    }
)
_ENDINGS = frozenset({"grad", "f"})
"""Last words that say nothing of the work: a gradient's row, and GPT-2's final norm ``ln_f``."""


def overlap_class_of(name: str) -> OverlapClass:
    """Return the class of an operator by the last telling word of its name; unknown where none is known."""
    words = [word for word in name.lower().split("_") if word and not word.isdigit() and word not in _ENDINGS]
    last = words[-1] if words else ""
    if last in _PRODUCTS:
        return OverlapClass.COMPUTE_BOUND
    return OverlapClass.MEMORY_BOUND if last in _STREAMS else OverlapClass.UNKNOWN
