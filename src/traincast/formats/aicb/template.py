"""Lay the rows of an AICB file out over stages, virtual stages and microbatches.

Letters: P stages, Q virtual stages in model order, M microbatches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from traincast.formats.aicb.layout import Layout
from traincast.formats.aicb.lower import LayerRows, RowLowering, backward_rows, forward_rows, lower_cells
from traincast.formats.aicb.rows import Column
from traincast.formats.aicb.structure import Block, OnceCell, StepRows, Structure
from traincast.job.options import LayoutOptions, StageRoles
from traincast.workload.builder import Rows
from traincast.workload.words import STREAM_OF_GROUP, Operation, Phase, Stream
from traincast.workload.workload import Template


@dataclass(slots=True)
class TemplateWriter:
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
        template.start_P[:] = self._per_stage(lambda _: lower_cells(self.lowering, self.steps.start))
        template.after_forward_P[:] = self._per_stage(self._after_forward)
        template.end_P[:] = self._per_stage(self._end)

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

    def _work(self, template: Template) -> None:
        """Lower every virtual stage of every block; repeat the last block for further microbatches."""
        parallel, segment = self.layout.parallel, self.lowering.builder.segment
        virtual, blocks = parallel.pp * parallel.vpp, len(self.parts.blocks)
        lowered: dict[tuple[int, tuple[tuple[int, int], ...], bool], tuple[int, int]] = {}
        for microbatch in range(parallel.microbatches):
            block = min(microbatch, blocks - 1)
            last = self._overlapped is not None and microbatch == parallel.microbatches - 1
            for q in range(virtual) if blocks else ():
                work = self._rows_of(self.parts.blocks[block], q)
                key = (block, work.row_layer, last)
                if key not in lowered:
                    buckets = self._buckets(work) if last else None
                    backward = [] if self.layout.forward_only else backward_rows(self.lowering, work, buckets)
                    lowered[key] = segment(forward_rows(self.lowering, work)), segment(backward)
                template.forward_QM[q, microbatch], template.backward_QM[q, microbatch] = lowered[key]

    def _per_stage(self, lower: Callable[[int], Rows]) -> list[int]:
        """Lower the first, a middle and the last stage; all middle ones share one segment."""
        stages = range(self.layout.parallel.pp)
        middle = stages[len(stages) // 2]
        lowered = {stage: self.lowering.builder.segment(lower(stage)) for stage in sorted({0, middle, stages[-1]})}
        return [lowered.get(stage, lowered[middle]) for stage in stages]

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

    def _buckets(self, work: LayerRows) -> dict[int, Rows]:
        """Split the gradient reduce-scatter evenly over the layers of a stage, one bucket each."""
        gradient, layers = self._overlapped, self._last_layers
        if gradient is None:
            return {}
        source = self.lowering.file.rows[gradient.row]
        buckets: dict[int, Rows] = {}
        for layer in sorted({layer for _, layer in work.row_layer if 0 <= layer < layers}):
            # Dealt byte by byte, so that no bucket grows where the whole shrinks.
            bucket = (source.weight_grad.size_bytes + layer) // layers
            if bucket:
                phase = Phase.WEIGHT_GRADIENT
                buckets[layer] = self.lowering.collective(source, gradient.column, phase, bucket, layer, blocking=False)
        return buckets

    def _after_forward(self, stage: int) -> Rows:
        if stage != self.layout.parallel.pp - 1 and not self._as_written:
            return []
        cells = [cell for cell in self.steps.after_forward if self._runs(cell.column)]
        return lower_cells(self.lowering, cells)

    def _end(self, stage: int) -> Rows:
        """Lower what follows the last backward: first of all, wait for what still runs beside it."""
        if self.layout.forward_only:
            return []
        middle = 0 < stage < self.layout.parallel.pp - 1
        outside = self.steps.embedding if middle else frozenset()
        cells = [cell for cell in self.steps.end if self._as_written or cell.row not in outside]
        waits = self.lowering.builder.wait(*self._asynchronous_streams())
        return waits + lower_cells(self.lowering, cells, overlapped=self._overlapped, silent=outside)

    def _runs(self, column: Column) -> bool:
        return column is Column.FORWARD or not self.layout.forward_only

    def _asynchronous_streams(self) -> list[Stream]:
        """Return the streams on which rows of the microbatches reduce weight gradients."""
        groups = {
            self.lowering.group(self.lowering.file.rows[row], Column.WEIGHT_GRAD)
            for row in rows_of_blocks(self.parts)
            if self.lowering.file.rows[row].weight_grad.operation is not Operation.NONE
        }
        return [STREAM_OF_GROUP[group] for group in sorted(groups)]


def _share(count: int, parts: int, part: int) -> tuple[int, int]:
    """Return the range of a part when `count` items are dealt evenly, the first parts getting the rest."""
    size, rest = divmod(count, parts)
    begin = part * size + min(part, rest)
    return begin, begin + size + (part < rest)


def rows_of_blocks(parts: Structure) -> Iterator[int]:
    """Yield the rows of every microbatch in their order."""
    for block in parts.blocks:
        for rows in (block.embedding, *block.layers, block.final):
            yield from rows
