"""Lower the rows of an AICB file to operations.

A row's forward column is a computation and a blocking communication; its backward is the
input-gradient computation and its blocking communication, then the weight-gradient computation
and its communication, which overlaps with what follows on the stream of its group.
Source: SimAI, astra-sim/workload/Workload.cc (iterate_hybrid_parallel_Transformer_fwd_in_bckwd).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct, field

from traincast.formats.aicb.grammar import AicbFile, Column, Row
from traincast.formats.aicb.meaning import (
    USUAL,
    OnceCell,
    Positions,
    group_of,
    is_expert,
    looks_up_tables,
    overlap_class_of,
    positions_of_policy,
    runs,
)
from traincast.formats.aicb.policies import LAST_BOTTOM, POLICIES, WITH_TABLES
from traincast.units import counted
from traincast.workload.builder import Place, Rows, WorkloadBuilder, collective_op, compute_op
from traincast.workload.ops import Op
from traincast.workload.words import STREAM_OF_GROUP, Group, Operation, Phase, Stream

Work = Sequence[tuple[int, int]]
"""Rows of the file that a virtual stage runs in one microbatch, each with its layer."""


class RowLowering(Struct):
    """Turns cells of rows into operations."""

    builder: WorkloadBuilder
    file: AicbFile
    positions: Positions = USUAL
    """What the columns of the file stand for."""
    inside_experts: frozenset[int] = frozenset()
    """Rows of the file between a dispatch to experts and its combine."""
    expert_rows: Rows = field(default_factory=list)
    """Computations that grow with the tokens of a rank's experts."""
    token_rows: Rows = field(default_factory=list)
    """Communications that carry the tokens of a rank's experts among its own tp ranks."""
    zero_sizes: set[tuple[int, Column]] = field(default_factory=set)
    """Lines and columns of communications of 0 bytes, which take no time."""
    unused: set[tuple[int, Column]] = field(default_factory=set)
    """Lines and columns of communications that their policy never runs."""
    _lowered: dict[object, "_Lowered"] = field(default_factory=dict)
    """What was lowered before, for this layout or another one in which columns stand for the same groups."""
    _rows: dict[object, Rows] = field(default_factory=dict)
    """Rows of what is written down already: the stages of a microbatch have most of it in common."""

    def __post_init__(self) -> None:
        """Take what the file keeps."""
        parallel = self.builder.parallel
        groups = self.positions, self.inside_experts, parallel.tp, parallel.world_size
        self._lowered = self.file.lowered.setdefault(groups, {})

    def forward(self, work: Work, phase: Phase = Phase.FORWARD) -> Rows:
        """Lower the forward pass of some rows, in their order; tables are looked up while the bottom MLP runs."""
        ops: Rows = []
        for row, layer in work:
            ops += self._again((phase, row, layer), partial(self._forward_cell, row, phase, layer))
            if row == self._last_bottom:
                ops += self.builder.wait(Stream.WORLD)
        return ops

    @property
    def _last_bottom(self) -> int | None:
        """Last row of the bottom MLP of a recommendation model, None of others."""
        header = self.file.header
        return int(float(header.extra.get(LAST_BOTTOM, 0))) if header.policy in WITH_TABLES else None

    def _again(self, key: object, lower: Callable[[], Rows]) -> Rows:
        """Lower what may have been lowered before: equal work has equal rows, in another layout equal operations."""
        rows = self._rows.get(key)
        if rows is None:
            known = self._lowered.get(key)
            if known is None:
                known = self._lowered[key] = self._newly(lower)
            rows = self._rows[key] = self._written(known)
        return rows

    def _newly(self, lower: Callable[[], Rows]) -> "_Lowered":
        """Lower what was not lowered before; nothing of it is left in the workload."""
        begin, ops = len(self.builder.ops), self.builder.ops
        said = self.expert_rows, self.token_rows, self.zero_sizes, self.unused
        self.expert_rows, self.token_rows, self.zero_sizes, self.unused = [], [], set(), set()
        rows, experts, tokens = ([row - begin for row in each] for each in (lower(), self.expert_rows, self.token_rows))
        known = _Lowered(tuple(ops[begin:]), rows, experts, tokens, self.zero_sizes, self.unused)
        self.expert_rows, self.token_rows, self.zero_sizes, self.unused = said
        del ops[begin:]
        return known

    def _written(self, known: "_Lowered") -> Rows:
        """Write down what was lowered."""
        begin = len(self.builder.ops)
        self.builder.ops += known.ops
        self.expert_rows += [row + begin for row in known.expert_rows]
        self.token_rows += [row + begin for row in known.token_rows]
        self.zero_sizes |= known.zero_sizes
        self.unused |= known.unused
        return [row + begin for row in known.rows]

    def _forward_cell(self, row: int, phase: Phase, layer: int) -> Rows:
        return self._cell(row, Column.FORWARD, phase, layer, blocking=not self._is_lookup(row))

    def _is_lookup(self, row: int) -> bool:
        return looks_up_tables(self.file, self.file.rows[row])

    def _gradients(self, row: int, layer: int) -> Rows:
        """Lower both gradients of a row, in the order of its policy."""
        source, policy = self.file.rows[row], POLICIES[self.file.header.policy]
        weights = self._cell(row, Column.WEIGHT_GRAD, Phase.WEIGHT_GRADIENT, layer, blocking=False)
        if self._is_lookup(row):
            return weights + self.builder.wait(Stream.WORLD)
        # ASTRA-sim's first layer has no input to pass a gradient to.
        computes = not (policy.weights_first and row == 0)
        inputs = self._compute(row, Column.INPUT_GRAD, Phase.BACKWARD, layer) if computes else []
        blocks = not policy.overlaps_input
        exchange = self._communication(row, Column.INPUT_GRAD, Phase.BACKWARD, layer, blocking=blocks)
        if policy.weights_first:
            if self._last_bottom is not None and row == self._last_bottom + 1:
                inputs += self._communication(0, Column.INPUT_GRAD, Phase.BACKWARD, layer, blocking=False)
            return weights + inputs + exchange
        waits = [] if blocks or not exchange else [STREAM_OF_GROUP[self.group(source, Column.INPUT_GRAD)]]
        return inputs + exchange + weights + self.builder.wait(*waits)

    def backward(self, work: Work, buckets: dict[int, Rows]) -> Rows:
        """Lower the backward pass of some rows, in reverse, with recompute where the header asks for it.

        The gradient reductions of `buckets`, by layer, are launched after the weight gradients of their layer.
        """
        header = self.file.header
        initiates, checkpoints = set(header.checkpoint_initiates), set(header.checkpoints)
        ops: Rows = []
        for place in range(len(work) - 1, -1, -1):
            row, layer = work[place]
            if row in initiates:
                begin = place
                while begin > 0 and work[begin][0] not in checkpoints:
                    begin -= 1
                ops += self.forward(work[begin:place], Phase.RECOMPUTE)
            ops += self._again((Phase.BACKWARD, row, layer), partial(self._gradients, row, layer))
            if place == 0 or work[place - 1][1] != layer:
                ops += buckets.get(layer, [])
        return ops

    def once(
        self, cells: Iterable[OnceCell], overlapped: OnceCell | None = None, silent: frozenset[int] = frozenset()
    ) -> Rows:
        """Lower once-per-step cells, each blocking.

        The gradient reduction that was launched during the backward pass is only waited for; rows whose communication
        does not concern this stage are silent.
        """
        ops: Rows = []
        for cell in cells:
            ops += self._compute(*cell, Phase.STEP)
            if cell == overlapped:
                ops += self.builder.wait(STREAM_OF_GROUP[self.group(self.file.rows[cell.row], cell.column)])
            elif cell.row not in silent:
                ops += self._communication(*cell, Phase.STEP)
        return ops

    def _cell(self, row: int, column: Column, phase: Phase, layer: int, *, blocking: bool = True) -> Rows:
        return self._compute(row, column, phase, layer) + self._communication(row, column, phase, layer, blocking)

    def _compute(self, row: int, column: Column, phase: Phase, layer: int = -1) -> Rows:
        source = self.file.rows[row]
        duration_s = source.cell(column).compute_s
        if duration_s == 0:
            return []
        bound, place = overlap_class_of(source.name), Place(0, source.line)
        added = self.builder.add(
            compute_op(source.name, phase, duration_s, overlap_class=bound, place=place, layer=layer)
        )
        if is_expert(source.name):
            self.expert_rows += added
        return added

    def _communication(self, row: int, column: Column, phase: Phase, layer: int = -1, blocking: bool = True) -> Rows:
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
        self, source: Row, column: Column, phase: Phase, size_bytes: int, layer: int, blocking: bool = True
    ) -> Rows:
        """Add the collective of a cell, or so many bytes of it."""
        group, operation = self.group(source, column), source.cell(column).operation
        return self.builder.add(
            collective_op(
                source.name,
                phase,
                group,
                operation,
                size_bytes,
                blocking=blocking,
                process_s=source.process_s,
                place=Place(0, source.line),
                layer=layer,
            )
        )

    def group(self, source: Row, column: Column) -> Group:
        """Return the group of a cell under the file's policy."""
        if looks_up_tables(self.file, source):
            return Group.WORLD
        parallel, positions = self.builder.parallel, self.positions
        if source.policy is not None:
            positions = positions_of_policy(source.policy, parallel.tp, parallel.world_size)
        return group_of(source.name, column, source.cell(column), positions)

    def say_what_was_left_out(self) -> None:
        """Note the communications that take no time, so that none is zero in silence."""
        if self.zero_sizes:
            what = _communications(len(self.zero_sizes), "of 0 bytes takes", "of 0 bytes take")
            text = f"{what} no time (AICB writes 0 for what it takes as overlapped)"
            self.builder.notes.assume("zero-size", text, min(self.zero_sizes)[0], brief=f"{what} no time")
        if self.unused:
            lines = {line for line, _ in self.unused}
            policies = {row.policy or self.file.header.policy for row in self.file.rows if row.line in lines}
            ignoring = (
                f"policies {' and '.join(sorted(policies))} do" if len(policies) > 1 else f"policy {min(policies)} does"
            )
            text = f"{ignoring} not run {_communications(len(self.unused), 'that is', 'that are')} written"
            self.builder.notes.warn("policy-ignores", text, min(self.unused)[0])


class _Lowered(NamedTuple):
    """Operations, and what `RowLowering` notes of them; rows are counted from the first one."""

    ops: tuple[Op, ...]
    rows: Rows
    expert_rows: Rows
    token_rows: Rows
    zero_sizes: set[tuple[int, Column]]
    unused: set[tuple[int, Column]]


def _communications(count: int, one: str, many: str) -> str:
    return counted(count, f"communication {one}", f"communications {many}")
