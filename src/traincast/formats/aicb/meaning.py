"""What the names of AICB rows mean: once-per-step rows, and the group of a communication."""

from traincast.formats.aicb.rows import Cell, Column
from traincast.workload.words import Group, Operation, OverlapClass

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
_EXPERT_WORDS = ("moe", "expert")
_EVEN_WORDS = ("rout", "shared", "norm")
"""Of an expert layer: what every rank does for its own tokens, however they are routed."""
_PRODUCT_PREFIXES = ("attention", "mlp", "final", "dense")
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


def is_expert(name: str) -> bool:
    """Tell whether the computation of rows of that name grows with the tokens that are routed to a rank's experts.

    Training files name all rows of an expert layer ``mlp_moelayer`` and write its whole computation,
    shared experts included, into the first; inference files have ``moe_route``, which routes a
    rank's own tokens, and ``moe_expert``.

    Notes
    -----
    Source: AICB, ``workload_generator/SimAI_training_workload_generator.py`` and
    ``SimAI_inference_workload_generator.py``.
    """
    name = name.lower()
    named = any(word in name for word in _EXPERT_WORDS) and not any(word in name for word in _EVEN_WORDS)
    return named and not is_once(name) and not name.endswith("gate")


def overlap_class_of(name: str) -> OverlapClass:
    """Return how the computation of rows of that name slows down beside communication.

    Layers and heads are large matrix products; what is done once per step, norms and look-ups stream
    through memory. Names that say neither are of no known class.
    """
    name = name.lower()
    if is_once(name) or "norm" in name or name.startswith("embedding"):
        return OverlapClass.MEMORY_BOUND
    if name.startswith(_PRODUCT_PREFIXES) or is_expert(name):
        return OverlapClass.COMPUTE_BOUND
    return OverlapClass.UNKNOWN


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
