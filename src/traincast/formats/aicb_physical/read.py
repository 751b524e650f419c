"""Read a physical AICB workload into the intermediate form.

Letters: P stages, M microbatches.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from traincast.errors import FormatError
from traincast.files import read_bytes
from traincast.formats.aicb_physical.grammar import parse
from traincast.formats.aicb_physical.layout import Layout, decide_layout
from traincast.formats.aicb_physical.rows import PhysicalFile, PhysicalRow
from traincast.formats.aicb_physical.steps import Passes, Steps, steps_of
from traincast.formats.building import Notebook, Segments
from traincast.spec.inputs import input_of
from traincast.spec.options import LayoutOptions
from traincast.units import counted, format_size, format_time
from traincast.workload.calls import OperatorCall
from traincast.workload.ops import IntArray, Op, OpTableBuilder
from traincast.workload.words import STREAM_OF_GROUP, Group, Kind, Operation, OverlapClass, Phase, Provenance
from traincast.workload.workload import MeasuredRun, Template, Workload

_DTYPE = "bf16"
"""Type of the GEMMs: AICB counts two bytes an element."""
_STRIDED = frozenset({Group.DP, Group.EDP})


def read_workload(path: Path, name: str, options: LayoutOptions) -> Workload:
    """Read one file (see `traincast.formats.contract.Format.read`)."""
    data = read_bytes(path)
    file = parse(str(path), data.decode("utf-8", errors="replace"))
    steps = steps_of(file)
    notes = Notebook(str(path))
    layout = decide_layout(file, steps, options, notes)
    measured = _takes_times(file, steps, options)
    lowering = _Lowering(layout, measured)
    template, segments = lowering.template(steps.passes)
    forward_only = bool(steps.passes[0].forward) and not steps.passes[0].backward
    message_bytes = _message_bytes(steps, layout, options, notes)
    _say(steps, layout, lowering, notes)
    times = measured and steps.measured_s is not None
    return Workload(
        name=path.name,
        parallel=layout.parallel,
        schedule=layout.schedule,
        forward_only=forward_only,
        ops=lowering.builder.table(),
        segments=tuple(segments.rows),
        templates=(template,),
        template_W=np.zeros(layout.parallel.world_size, dtype=np.int32),
        message_bytes_Q=np.full(layout.parallel.pp, message_bytes, dtype=np.int64),
        inputs=(input_of(path, name, data),),
        assumptions=tuple(notes.assumptions),
        warnings=tuple(notes.warnings),
        measured=MeasuredRun(steps.measured_s, {0: steps.measured_s}, {}) if times and steps.measured_s else None,
    )


@dataclass(slots=True)
class _Lowering:
    """Turns the rows of every stage into template operations; equal passes are one segment."""

    layout: Layout
    measured: bool
    """Whether the times of the file are taken where they hold."""
    builder: OpTableBuilder = field(default_factory=OpTableBuilder)
    zero_sizes: set[int] = field(default_factory=set)
    """Lines of communications of 0 bytes."""
    _known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def template(self, passes: Sequence[Passes]) -> tuple[Template, Segments]:
        """Return the template of every rank, and its segments."""
        segments = Segments()
        parallel = self.layout.parallel
        stages = [passes[min(stage, len(passes) - 1)] for stage in range(parallel.pp)]
        forward_QM = np.full((parallel.pp, parallel.microbatches), -1, dtype=np.int32)
        backward_QM = forward_QM.copy()
        start_P, end_P = np.full(parallel.pp, -1, dtype=np.int32), np.full(parallel.pp, -1, dtype=np.int32)
        for stage, found in enumerate(stages):
            for microbatch in range(parallel.microbatches):
                for table, rows, phase in (
                    (forward_QM, found.forward, Phase.FORWARD),
                    (backward_QM, found.backward, Phase.BACKWARD),
                ):
                    if rows:
                        work = rows[min(microbatch, len(rows) - 1)]
                        table[stage, microbatch] = self._segment(segments, work, phase, stage)
            start_P[stage] = self._segment(segments, found.start, Phase.STEP, stage)
            end_P[stage] = self._segment(segments, found.end, Phase.STEP, stage)
        nothing: IntArray = np.full(parallel.pp, -1, dtype=np.int32)
        template = Template(
            forward_QM=forward_QM, backward_QM=backward_QM, start_P=start_P, after_forward_P=nothing, end_P=end_P
        )
        return template, segments

    def _segment(self, segments: Segments, rows: Sequence[PhysicalRow], phase: Phase, stage: int) -> int:
        """Return the segment of some rows; those that say the same have one."""
        # Between the first and the last stage nobody holds an embedding to agree on.
        middle = 0 < stage < self.layout.parallel.pp - 1
        kept = [row for row in rows if not (middle and row.group is Group.EMB)]
        key = (
            phase,
            *(
                (row.kind, row.group, row.size_bytes, row.product, row.stage, self._time_s(row), row.count)
                for row in kept
            ),
        )
        if key not in self._known:
            self._known[key] = segments.add([each for row in kept for each in self._lower(row, phase)])
        return self._known[key]

    def _time_s(self, row: PhysicalRow) -> float | None:
        """Return the time of a row, where the file's times are taken and hold for its group."""
        holds = row.group is Group.NONE or row.group in self.layout.as_written
        return row.time_s if self.measured and holds else None

    def _lower(self, row: PhysicalRow, phase: Phase) -> list[int]:
        time_s = self._time_s(row)
        provenance = Provenance.UNKNOWN if time_s is None else Provenance.FILE
        name = row.stage.partition(".")[2] or row.stage or row.kind
        if row.product is not None:
            batch, m, n, k = row.product
            shape = (m, n, k) if batch == 1 else (batch, m, n, k)
            call = OperatorCall(family="gemm", shape=shape, dtype=_DTYPE)
            return [
                self.builder.add(
                    Op(
                        name=name,
                        kind=Kind.COMPUTE,
                        phase=phase,
                        duration_s=time_s,
                        provenance=provenance,
                        file=0,
                        line=row.line,
                        calls=None if time_s is not None else ((call, float(row.count)),),
                        overlap_class=OverlapClass.COMPUTE_BOUND,
                    )
                )
            ]
        if row.size_bytes == 0 and time_s is None:
            self.zero_sizes.add(row.line)
            return []
        return [
            self.builder.add(
                Op(
                    name=name,
                    kind=Kind.COLLECTIVE,
                    phase=phase,
                    duration_s=time_s,
                    provenance=provenance,
                    stream=STREAM_OF_GROUP[row.group],
                    file=0,
                    line=row.line,
                    group=row.group,
                    operation=row.operation,
                    size_bytes=row.size_bytes,
                    repeats=float(row.count),
                )
            )
        ]


def _takes_times(file: PhysicalFile, steps: Steps, options: LayoutOptions) -> bool:
    """Decide whether the times of the file are taken: those of a log are, unless the user wants prices."""
    rows = [row for passes in steps.passes for row in passes.rows()]
    known = bool(rows) and all(row.time_s is not None for row in rows)
    if options.comm == "measured" and not known:
        lacking = next((row.line for row in rows if row.time_s is None), None)
        raise FormatError("has no measured times to take (--comm measured)", file.path, lacking)
    return known and options.comm != "model"


def _message_bytes(steps: Steps, layout: Layout, options: LayoutOptions, notes: Notebook) -> int:
    """Return the bytes of one message between stages: the commonest in the file."""
    if options.pp_message_bytes is not None:
        if layout.parallel.pp == 1:
            notes.assume("pp-comm-unused", "a single stage sends no messages, so their given size is not used", None)
        return options.pp_message_bytes
    if layout.parallel.pp == 1:
        return 0
    sizes = Counter(row.size_bytes for passes in steps.passes for row in passes.messages)
    if not sizes and not steps.passes[0].microbatches:
        return 0
    if not sizes:
        notes.warn(
            "pp-comm-unknown",
            "no row is a message between stages; they take no time (give --pp-comm)",
        )
        return 0
    size, times = sizes.most_common(1)[0]
    if len(sizes) > 1:
        notes.assume(
            "pp-comm-mixed",
            f"messages between stages have {len(sizes)} sizes; all are taken as the commonest, {format_size(size)} "
            f"({times} of {sum(sizes.values())})",
        )
    return size


def _say(steps: Steps, layout: Layout, lowering: _Lowering, notes: Notebook) -> None:
    """Note what was chosen, left out, and what the file does not hold."""
    first = steps.passes[0]
    rows, parallel = [row for passes in steps.passes for row in passes.rows()], layout.parallel
    before = [row for row in steps.initialisation if row.operation is not Operation.NONE]
    if before:
        total = sum(row.size_bytes * row.count for row in before)
        text = f"{counted(len(before), 'communication')} of the initialisation ({format_size(total)} on a rank)"
        notes.assume("initialisation-left-out", f"{text} are no part of a step and do not run", before[0].line)
    if steps.held > 1:
        which = "the first" if steps.measured_s is None else f"number {steps.chosen + 1}, which took the median time,"
        notes.assume("step-chosen", f"the file holds {steps.held} steps; {which} is simulated")
    if any(passes.twice for passes in steps.passes):
        notes.warn(
            "step-twice", "the rows that close a step stand twice, as AICB writes them with a pipeline; they run once"
        )
    if len(steps.passes) == 1 < parallel.pp:
        notes.assume("one-stage", f"the file has the rows of one stage; all {parallel.pp} stages run them")
    if lowering.measured:
        text = "the times in the file are those of one rank; every rank has them"
        if steps.measured_s is not None:
            inside_s = sum(row.time_s or 0.0 for row in [*first.rows(), *first.messages])
            text += (
                f". They make up {format_time(inside_s)} of its step of {format_time(steps.measured_s)}; what lies "
                "between them is not in the file and does not run"
            )
        notes.assume("times-of-one-rank", text)
    if lowering.zero_sizes:
        count = counted(len(lowering.zero_sizes), "communication of 0 bytes takes", "communications of 0 bytes take")
        notes.assume("zero-size", f"{count} no time", min(lowering.zero_sizes))
    if not any(row.product for row in rows):
        notes.warn(
            "communication-only",
            "no row of the step computes: what is simulated are its communications alone, one after the other",
            None,
        )
    trains = bool(first.backward) and parallel.dp > 1
    if trains and not any(row.group in _STRIDED and row.size_bytes for row in rows):
        notes.warn(
            "gradients-absent",
            f"no row of the step reduces gradients or gathers parameters over dp {parallel.dp}",
            None,
        )
