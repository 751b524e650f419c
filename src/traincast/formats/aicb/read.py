"""Make the workload of an AICB file: its rows laid out over stages, virtual stages and microbatches.

Letters: P stages, Q virtual stages in model order, M microbatches.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from traincast.diagnostics import Notebook
from traincast.errors import FormatError
from traincast.formats.aicb.grammar import PLACEHOLDER_S, AicbFile, Column
from traincast.formats.aicb.inspection import structural_warnings
from traincast.formats.aicb.layout import Layout, decide_layout
from traincast.formats.aicb.lower import RowLowering, Work
from traincast.formats.aicb.meaning import (
    Block,
    OnceCell,
    StepRows,
    Structure,
    group_of,
    order_step_rows,
    rows_inside_experts,
    structure,
)
from traincast.formats.contract import Source
from traincast.formats.layout import known_message_bytes
from traincast.job.options import LayoutOptions, StageRoles
from traincast.units import counted, format_size
from traincast.workload.builder import Rows
from traincast.workload.experts import ExpertLoads, describe, expert_loads, with_expert_loads
from traincast.workload.words import STREAM_OF_GROUP, Group, Operation, Phase
from traincast.workload.workload import Template, Workload

_GRAVE = {"placeholder-compute", "embedding-norm-repeated", "row-count", "unknown-key"}
"""Warnings of the file that change the forecast, and so are warnings of a simulation."""


def build(file: AicbFile, options: LayoutOptions, source: Source) -> Workload:
    """Make the workload of a file."""
    parts, notes = structure(file), source.notes
    layout = decide_layout(file, parts, options, notes)
    builder = source.builder(layout.parallel, layout.schedule)
    lowering = RowLowering(builder, file, layout.positions, rows_inside_experts(file, parts))
    steps = order_step_rows(file, parts)
    _refuse_embedding_rows_in_blocks(file, parts, layout)
    _TemplateWriter(parts, layout, options, lowering, steps).write()
    message_bytes = _message_bytes(file, parts, layout, options, notes)
    lowering.say_what_was_left_out()
    loads, stretched = _decide_loads(lowering, options)
    if layout.forward_only:
        _say_what_is_not_forward(file, steps, notes)
    if options.overlap_grad_reduce and (layout.forward_only or steps.gradient is None):
        why = "the run is forward only" if layout.forward_only else "no row of the file reduces gradients"
        notes.warn("overlap-unused", f"the gradient reduction cannot overlap with anything: {why}", None)
    notes.warnings += [note for note in (*file.warnings, *structural_warnings(file, parts)) if note.code in _GRAVE]
    workload = builder.workload(message_bytes, forward_only=layout.forward_only)
    return workload if loads is None else with_expert_loads(workload, loads, stretched)


def _refuse_embedding_rows_in_blocks(file: AicbFile, parts: Structure, layout: Layout) -> None:
    """Refuse rows that meet the first and last stage where every stage of a pipeline would run them."""
    if layout.parallel.pp == 1:
        return
    inside = {row for block in parts.blocks for row in block.rows}
    for row, column, cell in file.communications:
        source = file.rows[row]
        if row in inside and group_of(source.name, column, cell) is Group.EMB:
            raise FormatError(
                f"row {source.name!r} stands between the rows of a microbatch, but its communication joins the "
                "first and last stage once per step; move it before the first microbatch",
                file.path,
                source.line,
            )


class _Role(NamedTuple):
    """What a virtual stage does of a block."""

    chunk: int
    """Which share of the layers of a stage it runs."""
    embeds: bool
    """Whether it begins with the embedding."""
    ends: bool
    """Whether it ends with the LM head."""


class _TemplateWriter(Struct):
    """Writes the template that every rank shares."""

    parts: Structure
    layout: Layout
    options: LayoutOptions
    lowering: RowLowering
    steps: StepRows

    def write(self) -> None:
        """Add the template and its segments."""
        template = self.lowering.builder.template()
        self._work(template)
        template.start_P[:] = self._per_stage(lambda _: self.lowering.once(self.steps.start))
        template.after_forward_P[:] = self._per_stage(self._after_forward)
        template.end_P[:] = self._per_stage(self._end)

    @property
    def _overlapped(self) -> OnceCell | None:
        """The gradient reduction, if it is to overlap with the last backward."""
        wanted = self.options.overlap_grad_reduce and not self.layout.forward_only
        return self.steps.gradient if wanted and self._last_layers else None

    @property
    def _last_layers(self) -> int:
        """Layers of the last microbatch, with whose backward the reduction of gradients overlaps."""
        blocks = self.parts.blocks
        return len(blocks[min(self.layout.parallel.microbatches, len(blocks)) - 1].layers) if blocks else 0

    @property
    def _as_written(self) -> bool:
        return self.options.stage_roles is StageRoles.AS_WRITTEN

    def _work(self, template: Template) -> None:
        """Lower every virtual stage of every block; repeat the last block for further microbatches."""
        parallel, segment = self.layout.parallel, self.lowering.builder.segment
        virtual, blocks = parallel.pp * parallel.vpp, self.parts.blocks
        lowered: dict[tuple[int, _Role, bool], tuple[int, int]] = {}
        roles = [self._role(q) for q in range(virtual)]
        for microbatch in range(parallel.microbatches if blocks else 0):
            block = min(microbatch, len(blocks) - 1)
            last = self._overlapped is not None and microbatch == parallel.microbatches - 1
            for q, role in enumerate(roles):
                key = (block, role, last)
                if key not in lowered:
                    work = self._rows_of(blocks[block], role)
                    buckets = self._buckets(work) if last else {}
                    backward = [] if self.layout.forward_only else self.lowering.backward(work, buckets)
                    lowered[key] = segment(self.lowering.forward(work)), segment(backward)
                template.forward_QM[q, microbatch], template.backward_QM[q, microbatch] = lowered[key]

    def _per_stage(self, lower: Callable[[int], Rows]) -> list[int]:
        """Lower the first, a middle and the last stage; all middle ones share one segment."""
        stages = range(self.layout.parallel.pp)
        middle = stages[len(stages) // 2]
        lowered = {stage: self.lowering.builder.segment(lower(stage)) for stage in sorted({0, middle, stages[-1]})}
        return [lowered.get(stage, lowered[middle]) for stage in stages]

    def _role(self, q: int) -> "_Role":
        """Return what a virtual stage does of a block."""
        pp, vpp = self.layout.parallel.pp, self.layout.parallel.vpp
        chunk = q // pp
        if self._as_written:
            return _Role(chunk, chunk == 0, chunk == vpp - 1)
        return _Role(chunk, q == 0, q == pp * vpp - 1)

    def _rows_of(self, block: Block, role: "_Role") -> Work:
        """Return the rows of a virtual stage: its share of the layers, and what its role adds."""
        chunk, first, last = role
        # Layers are dealt evenly, the first chunks getting the rest.
        size, rest = divmod(len(block.layers), self.layout.parallel.vpp)
        begin = chunk * size + min(chunk, rest)
        rows = [(row, -1) for row in block.embedding] if first else []
        rows += [(row, layer) for layer in range(begin, begin + size + (chunk < rest)) for row in block.layers[layer]]
        rows += [(row, len(block.layers)) for row in block.final] if last else []
        return tuple(rows)

    def _buckets(self, work: Work) -> dict[int, Rows]:
        """Split the gradient reduce-scatter evenly over the layers of a stage, one bucket each."""
        gradient, layers = self._overlapped, self._last_layers
        if gradient is None:
            return {}
        source = self.lowering.file.rows[gradient.row]
        buckets: dict[int, Rows] = {}
        for layer in sorted({layer for _, layer in work if 0 <= layer < layers}):
            # Dealt byte by byte, so that no bucket grows where the whole shrinks.
            bucket = (source.weight_grad.size_bytes + layer) // layers
            if bucket:
                phase = Phase.WEIGHT_GRADIENT
                buckets[layer] = self.lowering.collective(source, gradient.column, phase, bucket, layer, blocking=False)
        return buckets

    def _after_forward(self, stage: int) -> Rows:
        here = stage == self.layout.parallel.pp - 1 or self._as_written
        backward = not self.layout.forward_only
        cells = self.steps.after_forward if here else []
        return self.lowering.once(cell for cell in cells if backward or cell.column is Column.FORWARD)

    def _end(self, stage: int) -> Rows:
        """Lower what follows the last backward: first of all, wait for what still runs."""
        if self.layout.forward_only:
            return []
        middle = 0 < stage < self.layout.parallel.pp - 1
        outside = self.steps.embedding if middle else frozenset()
        cells = [cell for cell in self.steps.end if self._as_written or cell.row not in outside]
        launching = {
            self.lowering.group(source, Column.WEIGHT_GRAD)
            for source in (self.lowering.file.rows[row] for block in self.parts.blocks for row in block.rows)
            if source.weight_grad.operation is not Operation.NONE
        }
        waits = self.lowering.builder.wait(*(STREAM_OF_GROUP[group] for group in sorted(launching)))
        return waits + self.lowering.once(cells, self._overlapped, outside)


def _say_what_is_not_forward(file: AicbFile, steps: StepRows, notes: Notebook) -> None:
    """Note what a forward-only run leaves out."""
    closing = set(steps.end)
    lines = [
        row.line
        for index, row in enumerate(file.rows)
        for column in Column
        if (column is not Column.FORWARD or (index, column) in closing)
        and (row.cell(column).operation is not Operation.NONE or row.cell(column).compute_s > PLACEHOLDER_S)
    ]
    if lines:
        what = counted(len(lines), "computation or communication", "computations or communications")
        notes.assume(
            "forward-only",
            f"the file is of inference: {what} of the backward "
            f"pass and the optimizer {'is' if len(lines) == 1 else 'are'} not run",
            lines[0],
        )


def _message_bytes(file: AicbFile, parts: Structure, layout: Layout, options: LayoutOptions, notes: Notebook) -> int:
    """Return the bytes of one activation that a stage sends to the next."""
    known = known_message_bytes(options, layout.parallel.pp, file.header.pp_message_bytes, notes)
    if known is not None:
        return known
    activation, token, line = _activation(file, parts, layout)
    said = "no pp_comm" if file.header.pp_message_bytes is None else "pp_comm 0"
    if not activation:
        notes.warn(
            "pp-comm-unknown",
            f"the header says {said} and no row shows the size of an activation; pipeline sends and receives "
            "take no time (give --pp-comm)",
        )
        return 0
    sequence_parallel = token in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
    size = activation // layout.parallel.tp if sequence_parallel else activation
    shared = f" / tp {layout.parallel.tp} (sequence parallel rows)" if sequence_parallel else ""
    notes.assume(
        "pp-comm-absent",
        f"the header says {said}; a pipeline send/recv is the activation of {activation} bytes{shared} = {size} bytes",
        line,
        brief=f"the header says {said}; a pipeline send/recv has {format_size(size)}, as the activation",
    )
    return size


def _activation(file: AicbFile, parts: Structure, layout: Layout) -> tuple[int, Operation, int]:
    """Return the commonest size of a tp communication in the layers' forward pass, its operation and line."""
    seen: Counter[tuple[int, Operation]] = Counter()
    line_of: dict[tuple[int, Operation], int] = {}
    for block in parts.blocks[:1]:
        for row in [row for layer in block.layers for row in layer] or block.embedding:
            source = file.rows[row]
            cell = source.forward
            if group_of(source.name, Column.FORWARD, cell, layout.positions) is Group.TP and cell.size_bytes:
                key = cell.size_bytes, cell.operation
                seen[key] += 1000 if "attention" in source.name else 1
                line_of.setdefault(key, source.line)
    if not seen:
        return 0, Operation.NONE, 1
    key = seen.most_common(1)[0][0]
    return *key, line_of[key]


def _decide_loads(lowering: RowLowering, options: LayoutOptions) -> tuple[ExpertLoads | None, Rows]:
    """Return the loads of the expert ranks, None where all are equal, and the operations that stretch with them.

    Says what is assumed, and warns where there is nothing, or only half of it, to stretch.
    """
    notes, parallel = lowering.builder.notes, lowering.builder.parallel
    given = [name for name in ("expert_imbalance", "expert_loads") if getattr(options, name) is not None]
    if not given:
        return None, []
    exchanges = any(op.group is Group.EP and op.operation is Operation.ALL_TO_ALL for op in lowering.builder.ops)
    if not (exchanges or lowering.expert_rows):
        flag = given[0].replace("_", "-")
        notes.warn(f"{flag}-unused", f"--{flag} changes nothing: no row of the file is of experts", None)
        return None, []
    loads = expert_loads(options, parallel.ep)
    if loads is None:
        return None, []
    # The tp ranks of an expert get the same tokens only where the expert is split over as many (etp).
    tp, etp = parallel.tp, parallel.expert_tp
    inside = "the tp communications between dispatch and combine"
    too = f", {inside}" if lowering.token_rows and tp == etp else ""
    stretched = f"the computations of expert rows{too} and the all-to-alls over ep are stretched"
    if lowering.token_rows and tp != etp:
        stretched += f"; {inside} are not, because an expert is on etp {etp} ranks and not on tp {tp}"
    text = f"{describe(loads)}, in every layer and microbatch; {stretched}"
    notes.assume("expert-loads", text, None)
    if not lowering.expert_rows:
        text = "no row of the file is named as the experts' computation (moe, expert), so only the all-to-alls over ep"
        notes.warn("expert-compute-unknown", f"{text} are stretched by their loads", None)
    if not exchanges:
        text = "no row of the file is an all-to-all over ep, so only the experts' computations are stretched by"
        notes.warn("expert-exchange-unknown", f"{text} their loads", None)
    return loads, lowering.expert_rows + (lowering.token_rows if tp == etp else [])
