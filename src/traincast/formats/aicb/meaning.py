"""What the names of AICB rows mean: once-per-step rows, and the group of a communication.

Source: AICB, ``workload_generator/SimAI_training_workload_generator.py`` and ``SimAI_inference_workload_generator.py``
(what the rows stand for); SimAI, ``astra-sim/workload/Workload.cc`` (suffix and position).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from traincast.formats.aicb.grammar import AicbFile, Cell, Column, Row
from traincast.workload.words import Group, Operation, OverlapClass

_GROUP_OF_ROW = {
    "grad_norm": Group.DP,
    "grad_gather": Group.DP,
    "grad_param": Group.DP,
    "grad_param_comm": Group.DP,
    "embedding_grads": Group.EMB,
    "embedding_norm": Group.EMB,
}
_ONCE = frozenset({*_GROUP_OF_ROW, "norm", "grad_param_compute", "layernorm"})
_CLOSING_PREFIXES = ("cross_entropy", "optimizer")
_ONCE_PREFIXES = ("moe_grad_norm", *_CLOSING_PREFIXES)
_EXPERT_WORDS = ("moe", "expert")
_EVEN_WORDS = ("rout", "shared", "norm")
"""Of an expert layer: what every rank does for its own tokens, however they are routed."""
_GEMM_PREFIXES = ("attention", "mlp", "final", "dense")


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
    """
    name = name.lower()
    named = any(word in name for word in _EXPERT_WORDS) and not any(word in name for word in _EVEN_WORDS)
    return named and not is_once(name) and not name.endswith("gate")


def overlap_class_of(name: str) -> OverlapClass:
    """Return how the computation of rows of that name slows down while it overlaps with communication.

    Layers and heads are large GEMMs; what is done once per step, norms and embedding lookups stream
    through memory. Names that say neither are of no known class.
    """
    name = name.lower()
    if is_once(name) or "norm" in name or name.startswith("embedding"):
        return OverlapClass.MEMORY_BOUND
    if name.startswith(_GEMM_PREFIXES) or is_expert(name):
        return OverlapClass.COMPUTE_BOUND
    return OverlapClass.UNKNOWN


@dataclass(frozen=True, slots=True)
class Positions:
    """Groups of communications that neither their token nor the name of their row gives a group."""

    activation: Group = Group.TP
    """In the forward and input-gradient column."""
    gradient: Group = Group.DP
    """In the weight-gradient column."""

    def of(self, column: Column) -> Group:
        """Return the group of a column."""
        return self.gradient if column is Column.WEIGHT_GRAD else self.activation


USUAL = Positions()
"""What SimAI reads into the columns."""


def gathers_parameters(rows: Iterable[Row], tp: int) -> bool:
    """Tell whether the rows of a file gather parameters that dp shares, as ZeRO-3 and FSDP do.

    Without a tensor parallel group no activation is gathered. A file whose forward and input-gradient
    columns hold all-gathers and nothing else then gathers parameters. Expert layers gather token
    counts there, so a file with them says nothing. Source: AICB, ``workload/simAI/model_workload`` (the files of
    DeepSpeed's stage 3) and ``workload_generator/generate_deepspeed_stage3_workload.py``.
    """
    rows = tuple(rows)
    if tp > 1 or any(is_expert(row.name) for row in rows):
        return False
    operations = {
        row.cell(column).operation
        for row in rows
        for column in (Column.FORWARD, Column.INPUT_GRAD)
        if row.cell(column).size_bytes and _by_position(row, column)
    }
    return operations - {Operation.NONE} == {Operation.ALL_GATHER}


def _only_in_gradients(rows: Iterable[Row]) -> bool:
    """Tell whether every communication of a file stands in a weight-gradient column and names no group.

    That is how AICB writes its tests of a collective, whatever group they are meant for.
    """
    found = [
        column is Column.WEIGHT_GRAD and _by_position(row, column)
        for row in rows
        for column in Column
        if row.cell(column).size_bytes and row.cell(column).operation is not Operation.NONE
    ]
    return bool(found) and all(found)


def positions_of(file: AicbFile, tp: int, world: int) -> Positions:
    """Tell which groups the columns of a file stand for in a layout of so many ranks."""
    if not file.header.policy.startswith("HYBRID_TRANSFORMER"):
        return USUAL
    if gathers_parameters(file.rows, tp):
        return Positions(activation=Group.DP)
    if world == tp > 1 and _only_in_gradients(file.rows):
        return Positions(gradient=Group.TP)
    return USUAL


def positions_as_written(file: AicbFile) -> Positions:
    """Tell which groups the columns of a file stand for in the layout of its header."""
    tp = file.header.tp or 1
    return positions_of(file, tp, file.header.all_gpus or tp * (file.header.pp or 1))


def _by_position(row: Row, column: Column) -> bool:
    """Tell whether only the column says which group the communication of a cell is of."""
    return row.cell(column).suffix is None and not is_once(row.name)


def group_of(row_name: str, column: Column, cell: Cell, positions: Positions = USUAL) -> Group:
    """Return the group of a cell's communication; NONE where it has none.

    A suffix of the token decides; then the row's name, because the older files write gradient
    traffic in columns whose position says something else; then the column: weight gradients
    are reduced over `dp`, everything else over `tp`, or what `positions` says.
    """
    if cell.operation is Operation.NONE:
        return Group.NONE
    if cell.suffix is not None:
        return cell.suffix
    if row_name.startswith("moe_grad_norm"):
        return Group.EDP
    if row_name in _GROUP_OF_ROW:
        return _GROUP_OF_ROW[row_name]
    return (USUAL if is_once(row_name) else positions).of(column)


_SILENT_COLUMNS = {
    "DATA": (Column.FORWARD, Column.INPUT_GRAD),
    "MODEL": (Column.WEIGHT_GRAD,),
    "DISTRIBUTED_INFERENCE": (Column.WEIGHT_GRAD,),
    "MICRO": (Column.FORWARD, Column.INPUT_GRAD),
}
"""Columns whose communication a policy does not run, by SimAI's state machines."""


def runs(file: AicbFile, row: Row, column: Column) -> bool:
    """Tell whether the policy of a row runs the communication of a column."""
    return column not in _SILENT_COLUMNS.get(row.policy or file.header.policy, ())
