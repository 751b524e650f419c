"""What the rows of an AICB file mean: groups, once-per-step rows, microbatches and their layers.

Numbers of rows index `AicbFile.rows` (0-based). Of the once-per-step rows ``norm`` precedes the first forward;
``cross_entropy*`` follows the last forward on the last stage. After the last backward come, in this order: the gradient
reduce-scatter (dp, edp), the layer-norm and embedding all-reduces, the parameter update, the optimizer's flags, and the
parameter gather. This is the order of Megatron-LM's finalize_model_grads and distributed optimizer step.

Source: AICB, ``workload_generator/SimAI_training_workload_generator.py`` and ``SimAI_inference_workload_generator.py``
(what the rows stand for, and their order); SimAI, ``astra-sim/workload/Workload.cc`` (suffix and position).
"""

from collections.abc import Iterable
from itertools import chain, pairwise
from typing import NamedTuple

from msgspec import Struct

from traincast.formats.aicb.grammar import AicbFile, Cell, Column, Row
from traincast.formats.aicb.policies import POLICIES, WITH_TABLES, Span
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
"""Words of an expert layer's rows for what every rank does for its own tokens, however they are routed."""
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


class Positions(Struct, frozen=True):
    """Groups of communications that neither their token nor the name of their row gives a group."""

    activation: Group = Group.TP
    """In the forward and input-gradient column."""
    gradient: Group = Group.DP
    """In the weight-gradient column."""

    def group(self, column: Column) -> Group:
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
    if POLICIES[file.header.policy].of_astra_sim:
        return positions_of_policy(file.header.policy, tp, world)
    if gathers_parameters(file.rows, tp):
        return Positions(activation=Group.DP)
    if world == tp > 1 and _only_in_gradients(file.rows):
        return Positions(gradient=Group.TP)
    return USUAL


def positions_of_policy(policy: str, tp: int, world: int) -> Positions:
    """Tell which groups the columns stand for by a policy alone: the inner dimension is tp, the outer ones are dp."""
    whole = Group.DP if tp == 1 else Group.TP if tp == world else Group.WORLD
    groups = {Span.INNER: Group.TP, Span.OUTER: Group.DP, Span.WORLD: whole}
    found = POLICIES[policy]
    return Positions(groups.get(found.activation, USUAL.activation), groups.get(found.gradient, USUAL.gradient))


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
    return (USUAL if is_once(row_name) else positions).group(column)


def runs(file: AicbFile, row: Row, column: Column) -> bool:
    """Tell whether the policy of a row runs the communication of a column."""
    policy = POLICIES[row.policy or file.header.policy]
    if column is Column.WEIGHT_GRAD:
        return policy.gradient is not Span.NONE
    first = row is file.rows[0]
    if first and looks_up_tables(file, row):
        return True
    reaches = not (first and column is Column.INPUT_GRAD and POLICIES[file.header.policy].overlaps_input)
    return policy.activation is not Span.NONE and reaches


def looks_up_tables(file: AicbFile, row: Row) -> bool:
    """Tell whether a row is the lookup of a recommendation model's tables, which all ranks share out."""
    return file.header.policy in WITH_TABLES and row is file.rows[0]


# --- microbatches and layers

_ATTENTION = ("attention", "attn")
_MLP = ("mlp", "moe", "ffn", "expert")
_BACKWARD = (Column.INPUT_GRAD, Column.WEIGHT_GRAD)
_GRADIENT_ROWS = ("grad_param_comm", "grad_param", "grad_norm")
_REDUCE, _SHARED, _UPDATE, _OPTIMIZER, _GATHER = range(5)


class Block(Struct, frozen=True):
    """One microbatch of one stage."""

    embedding: tuple[int, ...]
    """Rows of the input embedding, which only the first stage runs."""
    layers: tuple[tuple[int, ...], ...]
    """Rows of each layer."""
    final: tuple[int, ...]
    """Rows of the LM head, which only the last stage runs."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Every row, in order."""
        return (*self.embedding, *chain.from_iterable(self.layers), *self.final)


class Structure(Struct, frozen=True):
    """Every row of a file in exactly one place."""

    leading: tuple[int, ...]
    """Once-per-step rows before the microbatches."""
    blocks: tuple[Block, ...]
    """One per microbatch."""
    trailing: tuple[int, ...]
    """Once-per-step rows after the microbatches."""
    embedding_norm: tuple[int, ...]
    """Every ``embedding_norm`` row, wherever it stands: older files write one per microbatch, but the gradients of tied
    embeddings are reduced once per step, so the first one counts."""


def rows_inside_experts(file: AicbFile, parts: Structure) -> frozenset[int]:
    """Return the rows of expert layers between a dispatch to experts and the combine after it.

    Dispatch and combine are a layer's all-to-alls over `ep`, two by two. What a row between them
    communicates over `tp` are the tokens that the rank's experts got.
    """
    inside = set()
    for layer in (layer for block in parts.blocks for layer in block.layers):
        dispatched = False
        for row in layer:
            cell = file.rows[row].forward
            if cell.operation is Operation.ALL_TO_ALL and cell.suffix is Group.EP:
                dispatched = not dispatched
            elif dispatched and is_expert(file.rows[row].name):
                inside.add(row)
    return frozenset(inside)


def structure(file: AicbFile) -> Structure:
    """Split the rows of a file into once-per-step rows and blocks of layers.

    A block starts at each ``embedding_layer`` row; without such rows the header's ``ga`` splits the rows where its
    pieces have the same names. Source: AICB, ``workload_generator/SimAI_training_workload_generator.py`` (order of
    the rows).
    """
    names = [row.name for row in file.rows]
    if POLICIES[file.header.policy].of_astra_sim and file.header.ga is None:
        # A network of layers, whatever they are called.
        return Structure((), (Block((), tuple((index,) for index in range(len(names))), ()),), (), ())
    norms = tuple(index for index, name in enumerate(names) if name == "embedding_norm")
    others = [index for index, name in enumerate(names) if name != "embedding_norm"]
    repeated = [place for place, index in enumerate(others) if not is_once(names[index])]
    if repeated:
        first, end = repeated[0], repeated[-1] + 1
    else:
        # Once-per-step rows only: the loss and the optimizer still come last.
        first = end = next((place for place, index in enumerate(others) if is_closing(names[index])), len(others))
    blocks = tuple(_block(piece, names) for piece in _pieces(others[first:end], names, file.header.ga))
    return Structure(tuple(others[:first]), blocks, tuple(others[end:]), norms)


def _pieces(rows: list[int], names: list[str], microbatches: int | None) -> list[list[int]]:
    """Cut the rows between the once-per-step ones into microbatches."""
    starts = [place for place, index in enumerate(rows) if names[index].startswith("embedding_layer")]
    if starts:
        # Rows before the first embedding belong to the first microbatch.
        return [rows[start:end] for start, end in pairwise([0, *starts[1:], len(rows)])]
    count = microbatches or 1
    if count > 1 and rows and len(rows) % count == 0:
        length = len(rows) // count
        if all(names[rows[place]] == names[rows[place - length]] for place in range(length, len(rows))):
            return [rows[start : start + length] for start in range(0, len(rows), length)]
    return [rows] if rows else []


def _block(rows: list[int], names: list[str]) -> Block:
    start = next((place for place, index in enumerate(rows) if not names[index].startswith("embedding")), len(rows))
    end = len(rows)
    while end > start and names[rows[end - 1]].startswith("final"):
        end -= 1
    return Block(tuple(rows[:start]), _layers(rows[start:end], names), tuple(rows[end:]))


def _layers(rows: list[int], names: list[str]) -> tuple[tuple[int, ...], ...]:
    """Cut the rows of one microbatch into layers."""
    if not rows:
        return ()
    own = [names[index].lower() for index in rows]
    starts = _attention_starts(own) or list(range(0, len(own), _period(own)))
    cuts = [0, *(start for start in starts if start), len(rows)]
    return tuple(tuple(rows[start:end]) for start, end in pairwise(cuts))


def _attention_starts(names: list[str]) -> list[int]:
    """Return where layers start that have attention rows: at the first of each run of them.

    A second row of the name that began the run begins a layer of attention alone. A norm that
    names neither half of the layer goes with the attention after it.
    """
    starts: list[int] = []
    opening: str | None = None
    for place, name in enumerate(names):
        if not any(word in name for word in _ATTENTION):
            opening = None
        elif opening is None or name == opening:
            before = names[place - 1] if place else ""
            follows_norm = "norm" in before and not any(word in before for word in (*_ATTENTION, *_MLP))
            starts.append(place - 1 if follows_norm else place)
            opening = name
    return starts


def _period(names: list[str]) -> int:
    """Return the smallest period that divides the names into at least two equal parts, else 1."""
    border = [0] * len(names)  # length of the longest proper prefix that ends here
    for place in range(1, len(names)):
        length = border[place - 1]
        while length and names[place] != names[length]:
            length = border[length - 1]
        border[place] = length + (names[place] == names[length])
    period = len(names) - border[-1]
    return period if len(names) % period == 0 and period < len(names) else 1


class OnceCell(NamedTuple):
    """One column of a once-per-step row."""

    row: int
    column: Column


class StepRows(Struct):
    """Once-per-step cells in the order they run."""

    start: list[OnceCell]
    after_forward: list[OnceCell]
    end: list[OnceCell]
    embedding: frozenset[int]
    """Rows that only the first and last stage run."""
    gradient: OnceCell | None
    """The dense gradient reduce-scatter, which may overlap with the last backward."""


def order_step_rows(file: AicbFile, parts: Structure) -> StepRows:
    """Sort the once-per-step rows of a file into the parts of the step."""
    once = [*parts.leading, *parts.embedding_norm[:1], *parts.trailing]
    embedding = frozenset(row for row in once if file.rows[row].name.startswith("embedding_"))
    steps = StepRows([], [], [], embedding, None)
    for row in once:
        source = file.rows[row]
        if source.name.startswith("cross_entropy"):
            steps.after_forward += [OnceCell(row, column) for column in Column]
        elif source.name == "norm":
            steps.start.append(OnceCell(row, Column.FORWARD))
            steps.end += [OnceCell(row, column) for column in _BACKWARD]
        else:
            steps.end += [OnceCell(row, column) for column in Column]
        cell = source.weight_grad
        reduces = cell.operation is not Operation.NONE and cell.size_bytes and runs(file, source, Column.WEIGHT_GRAD)
        if source.name in _GRADIENT_ROWS and reduces:
            steps.gradient = OnceCell(row, Column.WEIGHT_GRAD)
    steps.end.sort(key=lambda cell: _part(file, *cell))
    return steps


def _part(file: AicbFile, row: int, column: Column) -> int:
    """Return the part of the closing work that a cell belongs to."""
    name = file.rows[row].name
    if name == "grad_norm":
        return {Column.FORWARD: _GATHER, Column.INPUT_GRAD: _UPDATE, Column.WEIGHT_GRAD: _REDUCE}[column]
    if name == "grad_gather":
        return _GATHER
    if name.startswith("moe_grad_norm"):
        return _GATHER if file.rows[row].weight_grad.operation is Operation.ALL_GATHER else _REDUCE
    if name == "layernorm" or name.startswith("embedding_"):
        return _SHARED
    if name == "grad_param_compute":
        return _UPDATE
    return _OPTIMIZER if name.startswith("optimizer") else _REDUCE
