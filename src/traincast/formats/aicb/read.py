"""Read an AICB file into the intermediate form.

Letters: P stages, Q virtual stages in model order, M microbatches.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traincast.errors import FormatError
from traincast.files import read_bytes
from traincast.formats.aicb.experts import decide_loads, stretched_rows
from traincast.formats.aicb.grammar import parse
from traincast.formats.aicb.layout import Layout, decide_layout
from traincast.formats.aicb.lower import LayerRows, RowLowering, backward_rows, forward_rows
from traincast.formats.aicb.meaning import group_of
from traincast.formats.aicb.oddities import structural_oddities
from traincast.formats.aicb.rows import AicbFile, Column
from traincast.formats.aicb.step import OnceCell, StepRows, lower_cells, order_step_rows
from traincast.formats.aicb.structure import Block, Structure, rows_inside_experts, structure
from traincast.formats.building import Notebook, Segments
from traincast.spec.inputs import input_of
from traincast.spec.options import LayoutOptions, StageRoles
from traincast.units import GIGA, counted
from traincast.workload.experts import with_expert_loads
from traincast.workload.ops import IntArray
from traincast.workload.words import STREAM_OF_GROUP, Group, Operation, Phase, Stream
from traincast.workload.workload import Template, Workload

_GRAVE = {"placeholder-compute", "embedding-norm-repeated", "row-count", "unknown-key"}
"""Oddities of the file that change the forecast, and so are warnings of a simulation."""

_PLACEHOLDER_S = 1 / GIGA
"""AICB writes 1 ns where it has nothing to say."""

_MANY = "computations or communications"


def read_workload(path: Path, name: str, options: LayoutOptions) -> Workload:
    """Read one file (see `traincast.formats.contract.Format.read`)."""
    data = read_bytes(path)
    file = parse(str(path), data.decode("utf-8", errors="replace"))
    parts = structure(file)
    notes = Notebook(str(path))
    layout = decide_layout(file, parts, options, notes)
    lowering = RowLowering(file, notes, layout.positions, inside_experts=rows_inside_experts(file, parts))
    steps = order_step_rows(lowering, parts)
    _refuse_embedding_rows_in_blocks(file, parts, layout)
    template, segments = _Lowerer(parts, layout, options, lowering, steps).template()
    message_bytes = _message_bytes(file, parts, layout, options, notes)
    lowering.say_what_was_left_out()
    loads = decide_loads(lowering, options, layout.parallel, notes)
    if layout.forward_only:
        _say_what_is_not_forward(file, steps, notes)
    if options.overlap_grad_reduce and (layout.forward_only or steps.gradient is None):
        why = "the run is forward only" if layout.forward_only else "no row of the file reduces gradients"
        notes.warn("overlap-unused", f"the gradient reduction cannot overlap with anything: {why}", None)
    notes.warnings += [note for note in (*file.oddities, *structural_oddities(file, parts)) if note.code in _GRAVE]
    workload = Workload(
        name=path.name,
        parallel=layout.parallel,
        schedule=layout.schedule,
        forward_only=layout.forward_only,
        ops=lowering.builder.table(),
        segments=tuple(segments.rows),
        templates=(template,),
        template_W=np.zeros(layout.parallel.world_size, dtype=np.int32),
        message_bytes_Q=np.full(layout.parallel.pp * layout.parallel.vpp, message_bytes, dtype=np.int64),
        inputs=(input_of(path, name, data),),
        assumptions=tuple(notes.assumptions),
        warnings=tuple(notes.warnings),
    )
    return workload if loads is None else with_expert_loads(workload, loads, stretched_rows(lowering, layout.parallel))


@dataclass(slots=True)
class _Lowerer:
    """Builds the template that every rank shares."""

    parts: Structure
    layout: Layout
    options: LayoutOptions
    lowering: RowLowering
    steps: StepRows

    def template(self) -> tuple[Template, Segments]:
        """Return the template and its segments."""
        segments = Segments()
        stages = range(self.layout.parallel.pp)
        forward_QM, backward_QM = self._work(segments)
        template = Template(
            forward_QM=forward_QM,
            backward_QM=backward_QM,
            start_P=_per_stage(segments, lambda _: lower_cells(self.lowering, self.steps.start), stages),
            after_forward_P=_per_stage(segments, self._after_forward, stages),
            end_P=_per_stage(segments, self._end, stages),
        )
        return template, segments

    @property
    def _overlapped(self) -> OnceCell | None:
        """The gradient reduction, if it is to run beside the last backward."""
        wanted = self.options.overlap_grad_reduce and not self.layout.forward_only
        return self.steps.gradient if wanted and self._last_layers else None

    @property
    def _last_layers(self) -> int:
        """Layers of the last microbatch, beside whose backward the gradients are reduced."""
        blocks = self.parts.blocks
        return len(blocks[min(self.layout.parallel.microbatches, len(blocks)) - 1].layers) if blocks else 0

    @property
    def _as_written(self) -> bool:
        return self.options.stage_roles is StageRoles.AS_WRITTEN

    def _work(self, segments: Segments) -> tuple[IntArray, IntArray]:
        """Lower every virtual stage of every block; repeat the last block for further microbatches."""
        parallel = self.layout.parallel
        virtual, microbatches = parallel.pp * parallel.vpp, parallel.microbatches
        forward_QM = np.full((virtual, microbatches), -1, dtype=np.int32)
        backward_QM = forward_QM.copy()
        blocks = len(self.parts.blocks)
        lowered: dict[tuple[int, tuple[tuple[int, int], ...], bool], tuple[int, int]] = {}
        for microbatch in range(microbatches):
            block = min(microbatch, blocks - 1)
            last = self._overlapped is not None and microbatch == microbatches - 1
            for q in range(virtual) if blocks else ():
                work = self._rows_of(self.parts.blocks[block], q)
                key = (block, work.row_layer, last)
                if key not in lowered:
                    buckets = self._buckets(work) if last else None
                    backward = [] if self.layout.forward_only else backward_rows(self.lowering, work, buckets)
                    lowered[key] = segments.add(forward_rows(self.lowering, work)), segments.add(backward)
                forward_QM[q, microbatch], backward_QM[q, microbatch] = lowered[key]
        return forward_QM, backward_QM

    def _rows_of(self, block: Block, q: int) -> LayerRows:
        """Return the rows of a virtual stage: its share of the layers, and what its role adds."""
        parallel = self.layout.parallel
        chunk = q // parallel.pp
        first = chunk == 0 if self._as_written else q == 0
        last = chunk == parallel.vpp - 1 if self._as_written else q == parallel.pp * parallel.vpp - 1
        begin, end = _share(len(block.layers), parallel.vpp, chunk)
        rows = [(row, -1) for row in block.embedding] if first else []
        rows += [(row, layer) for layer in range(begin, end) for row in block.layers[layer]]
        rows += [(row, len(block.layers)) for row in block.final] if last else []
        return LayerRows(tuple(rows))

    def _buckets(self, work: LayerRows) -> dict[int, list[int]]:
        """Split the gradient reduce-scatter evenly over the layers of a stage, one bucket each."""
        gradient, layers = self._overlapped, self._last_layers
        if gradient is None:
            return {}
        source = self.lowering.file.rows[gradient.row]
        size_bytes = source.weight_grad.size_bytes
        buckets: dict[int, list[int]] = {}
        for layer in sorted({layer for _, layer in work.row_layer if 0 <= layer < layers}):
            # Dealt byte by byte, so that no bucket grows where the whole shrinks.
            bucket = (size_bytes + layer) // layers
            if bucket:
                operation, phase = source.weight_grad.operation, Phase.WEIGHT_GRADIENT
                group = self.lowering.group(source, gradient.column)
                buckets[layer] = [
                    self.lowering.collective(source, operation, group, bucket, phase, layer, blocking=False)
                ]
        return buckets

    def _after_forward(self, stage: int) -> list[int]:
        if stage != self.layout.parallel.pp - 1 and not self._as_written:
            return []
        cells = [cell for cell in self.steps.after_forward if self._runs(cell.column)]
        return lower_cells(self.lowering, cells)

    def _end(self, stage: int) -> list[int]:
        """Lower what follows the last backward: first of all, wait for what still runs beside it."""
        if self.layout.forward_only:
            return []
        middle = 0 < stage < self.layout.parallel.pp - 1
        outside = self.steps.embedding if middle else frozenset()
        cells = [cell for cell in self.steps.end if self._as_written or cell.row not in outside]
        waits = [self.lowering.wait(stream) for stream in self._asynchronous_streams()]
        return waits + lower_cells(self.lowering, cells, overlapped=self._overlapped, silent=outside)

    def _runs(self, column: Column) -> bool:
        return column is Column.FORWARD or not self.layout.forward_only

    def _asynchronous_streams(self) -> list[Stream]:
        """Return the streams on which rows of the microbatches reduce weight gradients."""
        groups = {
            self.lowering.group(self.lowering.file.rows[row], Column.WEIGHT_GRAD)
            for row in _rows_of_blocks(self.parts)
            if self.lowering.file.rows[row].weight_grad.operation is not Operation.NONE
        }
        return [STREAM_OF_GROUP[group] for group in sorted(groups)]


def _refuse_embedding_rows_in_blocks(file: AicbFile, parts: Structure, layout: Layout) -> None:
    """Refuse rows that meet the first and last stage where every stage of a pipeline would run them."""
    if layout.parallel.pp == 1:
        return
    for row in _rows_of_blocks(parts):
        source = file.rows[row]
        for column in Column:
            if group_of(source.name, column, source.cell(column)) is Group.EMB:
                raise FormatError(
                    f"row {source.name!r} stands between the rows of a microbatch, but its communication joins the "
                    "first and last stage once per step; move it before the first microbatch",
                    file.path,
                    source.line,
                )


def _rows_of_blocks(parts: Structure) -> Iterator[int]:
    """Yield the rows of every microbatch in their order."""
    for block in parts.blocks:
        for rows in (block.embedding, *block.layers, block.final):
            yield from rows


def _say_what_is_not_forward(file: AicbFile, steps: StepRows, notes: Notebook) -> None:
    """Note what a forward-only run leaves out."""
    closing = {(cell.row, cell.column) for cell in steps.end}
    lines = [
        row.line
        for index, row in enumerate(file.rows)
        for column in Column
        if (column is not Column.FORWARD or (index, column) in closing)
        and (row.cell(column).operation is not Operation.NONE or row.cell(column).compute_s > _PLACEHOLDER_S)
    ]
    if lines:
        notes.assume(
            "forward-only",
            f"the file is of inference: {counted(len(lines), 'computation or communication', _MANY)} of the backward "
            f"pass and the optimizer {'is' if len(lines) == 1 else 'are'} not run",
            lines[0],
        )


def _per_stage(segments: Segments, lower: Callable[[int], list[int]], stages: range) -> IntArray:
    """Lower the first, a middle and the last stage; all middle ones share one segment."""
    lowered = {stage: segments.add(lower(stage)) for stage in sorted({stages[0], stages[len(stages) // 2], stages[-1]})}
    middle = lowered[stages[len(stages) // 2]]
    return np.array([lowered.get(stage, middle) for stage in stages], dtype=np.int32)


def _share(count: int, parts: int, part: int) -> tuple[int, int]:
    """Return the range of a part when `count` items are dealt evenly, the first parts getting the rest."""
    size, rest = divmod(count, parts)
    begin = part * size + min(part, rest)
    return begin, begin + size + (part < rest)


def _message_bytes(file: AicbFile, parts: Structure, layout: Layout, options: LayoutOptions, notes: Notebook) -> int:
    """Return the bytes of one activation message between stages."""
    if options.pp_message_bytes is not None:
        if layout.parallel.pp == 1:
            notes.assume("pp-comm-unused", "a single stage sends no messages, so their given size is not used", None)
        return options.pp_message_bytes
    if file.header.pp_message_bytes:
        return file.header.pp_message_bytes
    if layout.parallel.pp == 1:
        return 0
    activation, token, line = _activation(file, parts, layout)
    said = "no pp_comm" if file.header.pp_message_bytes is None else "pp_comm 0"
    if not activation:
        notes.warn(
            "pp-comm-unknown",
            f"the header says {said} and no row shows the size of an activation; messages between stages take no "
            "time (give --pp-comm)",
        )
        return 0
    sequence_parallel = token in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
    size = activation // layout.parallel.tp if sequence_parallel else activation
    shared = f" / tp {layout.parallel.tp} (sequence parallel rows)" if sequence_parallel else ""
    notes.assume(
        "pp-comm-absent",
        f"the header says {said}; a message between stages is the activation of {activation} bytes"
        f"{shared} = {size} bytes",
        line,
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
            attention = "attention" in source.name
            if group_of(source.name, Column.FORWARD, cell, layout.positions) is Group.TP and cell.size_bytes:
                seen[cell.size_bytes, cell.operation] += 1000 if attention else 1
                line_of.setdefault((cell.size_bytes, cell.operation), source.line)
    if not seen:
        return 0, Operation.NONE, 1
    (size, operation), _ = seen.most_common(1)[0]
    return size, operation, line_of[size, operation]
