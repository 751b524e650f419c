"""Order the once-per-step rows of an AICB file.

``norm`` precedes the first forward; ``cross_entropy*`` follows the last forward on the last
stage. After the last backward come, in this order: the gradient reduce-scatter (dp, edp), the
layer-norm and embedding all-reduces, the parameter update, the optimizer's flags, and the
parameter gather. This is the order of Megatron-LM's finalize_model_grads and distributed
optimizer step.
"""

from dataclasses import dataclass

from traincast.formats.aicb.lower import RowLowering
from traincast.formats.aicb.rows import Column
from traincast.formats.aicb.structure import Structure
from traincast.workload.words import STREAM_OF_GROUP, Operation, Phase

_BACKWARD = (Column.INPUT_GRAD, Column.WEIGHT_GRAD)
_ALL = (Column.FORWARD, *_BACKWARD)
_GRADIENT_ROWS = ("grad_param_comm", "grad_param", "grad_norm")
_REDUCE, _SHARED, _UPDATE, _OPTIMIZER, _GATHER = range(5)


@dataclass(frozen=True, slots=True)
class OnceCell:
    """One column of a once-per-step row."""

    row: int
    column: Column


@dataclass(slots=True)
class StepRows:
    """Once-per-step cells in the order they run."""

    start: list[OnceCell]
    after_forward: list[OnceCell]
    end: list[OnceCell]
    embedding: frozenset[int]
    """Rows that only the first and last stage run."""
    gradient: OnceCell | None
    """The dense gradient reduce-scatter, which may overlap with the last backward."""


def order_step_rows(lowering: RowLowering, parts: Structure) -> StepRows:
    """Sort the once-per-step rows of a file into the parts of the step.

    Parameters
    ----------
    lowering : RowLowering
        The file.
    parts : Structure
        Its once-per-step rows.

    Returns
    -------
    StepRows
    """
    rows = lowering.file.rows
    once = [*parts.leading, *parts.embedding_norm[:1], *parts.trailing]
    steps = StepRows([], [], [], frozenset(row for row in once if rows[row].name.startswith("embedding_")), None)
    end: list[tuple[int, OnceCell]] = []
    for row in once:
        name = rows[row].name
        if name.startswith("cross_entropy"):
            steps.after_forward += [OnceCell(row, column) for column in _ALL]
        elif name == "norm":
            steps.start.append(OnceCell(row, Column.FORWARD))
            end += [(_REDUCE, OnceCell(row, column)) for column in _BACKWARD]
        else:
            end += [(_part(lowering, row, column), OnceCell(row, column)) for column in _ALL]
        if name in _GRADIENT_ROWS and _communicates(lowering, row, Column.WEIGHT_GRAD):
            steps.gradient = OnceCell(row, Column.WEIGHT_GRAD)
    steps.end = [cell for _, cell in sorted(end, key=lambda item: item[0])]
    return steps


def _communicates(lowering: RowLowering, row: int, column: Column) -> bool:
    source = lowering.file.rows[row]
    cell = source.cell(column)
    return cell.operation is not Operation.NONE and cell.size_bytes > 0 and lowering.runs(source, column)


def _part(lowering: RowLowering, row: int, column: Column) -> int:
    """Return the part of the closing work that a cell belongs to."""
    source = lowering.file.rows[row]
    name = source.name
    if name == "grad_norm":
        return {Column.FORWARD: _GATHER, Column.INPUT_GRAD: _UPDATE, Column.WEIGHT_GRAD: _REDUCE}[column]
    if name == "grad_gather":
        return _GATHER
    if name.startswith("moe_grad_norm"):
        return _GATHER if source.weight_grad.operation is Operation.ALL_GATHER else _REDUCE
    if name == "layernorm" or name.startswith("embedding_"):
        return _SHARED
    if name == "grad_param_compute":
        return _UPDATE
    return _OPTIMIZER if name.startswith("optimizer") else _REDUCE


def lower_cells(
    lowering: RowLowering,
    cells: list[OnceCell],
    *,
    overlapped: OnceCell | None = None,
    silent: frozenset[int] = frozenset(),
) -> list[int]:
    """Lower once-per-step cells, each blocking.

    Parameters
    ----------
    lowering : RowLowering
        Receives the operations.
    cells : list of OnceCell
        In their order.
    overlapped : OnceCell, optional
        The gradient reduction that was launched during the backward pass; only waited for here.
    silent : frozenset of int
        Rows whose communication does not concern this stage.

    Returns
    -------
    list of int
        Template rows in program order.
    """
    ops: list[int] = []
    for cell in cells:
        ops += lowering.compute(cell.row, cell.column, Phase.STEP)
        if cell == overlapped:
            ops.append(lowering.wait(STREAM_OF_GROUP[lowering.group(lowering.file.rows[cell.row], cell.column)]))
        elif cell.row not in silent:
            ops += lowering.communication(cell.row, cell.column, Phase.STEP)
    return ops
