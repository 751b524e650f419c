"""What the names of AICB rows mean: once-per-step rows, and the group of a communication."""

from traincast.formats.aicb.rows import Cell, Column
from traincast.workload.words import Group, Operation

_ONCE = frozenset(
    {
        "norm",
        "grad_norm",
        "grad_gather",
        "grad_param",
        "grad_param_comm",
        "grad_param_compute",
        "layernorm",
        "embedding_grads",
        "embedding_norm",
    }
)
_ONCE_PREFIXES = ("moe_grad_norm", "cross_entropy", "optimizer")
_CLOSING_PREFIXES = ("cross_entropy", "optimizer")
_GROUP_OF_ROW = {
    "grad_norm": Group.DP,
    "grad_gather": Group.DP,
    "grad_param": Group.DP,
    "grad_param_comm": Group.DP,
    "embedding_grads": Group.EMB,
    "embedding_norm": Group.EMB,
}


def is_once(name: str) -> bool:
    """Tell whether rows of that name stand for work done once per step, not per microbatch."""
    return name in _ONCE or name.startswith(_ONCE_PREFIXES)


def is_closing(name: str) -> bool:
    """Tell whether a once-per-step row comes after the microbatches (loss and optimizer)."""
    return name.startswith(_CLOSING_PREFIXES)


def group_of(row_name: str, column: Column, cell: Cell) -> Group:
    """Return the group of a cell's communication.

    A suffix of the token decides; then the row's name, because the older files write gradient
    traffic in columns whose position says something else; then the column: weight gradients
    are reduced over `dp`, everything else over `tp`.

    Parameters
    ----------
    row_name : str
        Name of the row.
    column : Column
        Column of the cell.
    cell : Cell
        The cell.

    Returns
    -------
    Group
        Group.NONE where the cell has no communication.

    Notes
    -----
    Source: SimAI, ``astra-sim/workload/Workload.cc`` (suffix and position); AICB,
    ``workload_generator/SimAI_training_workload_generator.py`` (what the rows stand for).
    """
    if cell.operation is Operation.NONE:
        return Group.NONE
    if cell.suffix is not None:
        return cell.suffix
    if row_name.startswith("moe_grad_norm"):
        return Group.EDP
    if row_name in _GROUP_OF_ROW:
        return _GROUP_OF_ROW[row_name]
    return Group.DP if column is Column.WEIGHT_GRAD else Group.TP
