"""Make the workload of a physical AICB file: its layout, its passes, what it leaves out.

Letters: P stages, M microbatches.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct, field

from traincast.diagnostics import Notebook
from traincast.errors import FormatError
from traincast.formats.aicb_physical.grammar import PhysicalFile, PhysicalRow
from traincast.formats.aicb_physical.steps import Passes, Steps, steps_of, written_sizes
from traincast.formats.contract import Source
from traincast.formats.layout import (
    NODE_RANKS,
    asked_dp,
    known_message_bytes,
    microbatches_of,
    warn_single_microbatch,
)
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.units import counted, format_size, format_time
from traincast.workload.builder import Place, Rows, WorkloadBuilder, collective_op, compute_op
from traincast.workload.ops import OperatorCall
from traincast.workload.words import Group, Operation, OverlapClass, Phase
from traincast.workload.workload import MeasuredStep, Workload

_DTYPE = "bf16"
"""Type of the GEMMs: AICB counts two bytes an element."""
_STRIDED = frozenset({Group.DP, Group.EDP})


def build(file: PhysicalFile, options: LayoutOptions, source: Source) -> Workload:
    """Make the workload of a file."""
    steps, notes = steps_of(file), source.notes
    layout = _decide_layout(file, steps, options, notes)
    builder = source.builder(layout.parallel, layout.schedule)
    lowering = _Lowering(builder, layout.as_written, _takes_times(file, steps, options))
    lowering.lay_out(steps.passes)
    message_bytes = _message_bytes(steps, layout, options, notes)
    _say(steps, layout, lowering, notes)
    step_s = steps.measured_s if lowering.measured else None
    return builder.workload(
        message_bytes,
        forward_only=bool(steps.passes[0].forward) and not steps.passes[0].backward,
        measured=MeasuredStep(step_s, {0: step_s}, {}) if step_s else None,
    )


class _Layout(Struct, frozen=True):
    """The decided layout."""

    parallel: Parallel
    schedule: str
    as_written: frozenset[Group]
    """Groups that have as many members here as in the file, so that its times hold for them."""


def _decide_layout(file: PhysicalFile, steps: Steps, options: LayoutOptions, notes: Notebook) -> _Layout:
    """Work out degrees, microbatches and schedule: what the user says, then the sizes of groups, then a default."""
    sizes = written_sizes(file)
    tp = _degree("tp", options.tp, sizes.get(Group.TP, 1), notes)
    pp = _stages(file, steps, options, sizes, notes)
    written = _written_dp(file, sizes, tp, pp, notes)
    dp = asked_dp(options, {"tp": tp, "pp": pp}, file.path) or written
    ep = _experts(file, options, sizes, dp, notes)
    microbatches = microbatches_of(options, max(1, steps.passes[0].microbatches), "the step", notes)
    parallel = Parallel(tp=tp, dp=dp, pp=pp, ep=ep, etp=options.etp, microbatches=microbatches)
    members = {
        Group.TP: tp,
        Group.DP: dp,
        Group.EP: ep,
        Group.EDP: parallel.edp,
        Group.PP: pp,
        Group.EMB: min(2, pp),
        Group.WORLD: parallel.world_size,
    }
    if steps.passes[0].microbatches:
        warn_single_microbatch(notes, pp, pp, parallel.microbatches)
    same = frozenset(group for group, count in members.items() if sizes.get(group, count) == count)
    return _Layout(parallel, options.schedule or "1f1b", same)


def _degree(name: str, chosen: int | None, written: int, notes: Notebook) -> int:
    """Return a degree: the user's, with a warning where the file has another one, else the file's."""
    if chosen is not None and chosen != written:
        text = f"the file was written for {name} {written}; its sizes are kept for {name} {chosen}"
        notes.warn(f"{name}-not-rescaled", text)
    return written if chosen is None else chosen


def _stages(file: PhysicalFile, steps: Steps, options: LayoutOptions, sizes: dict[Group, int], notes: Notebook) -> int:
    """Return the number of pipeline stages."""
    sections = len(file.sections)
    if sections > 1:
        if options.pp not in (None, sections):
            text = f"describes {sections} pipeline stages; pp={options.pp} is another number"
            raise FormatError(text, file.path).typed(pp="--pp")
        return sections
    sends = bool(steps.passes[0].messages)
    written = sizes.get(Group.PP, 1)
    if sends and max(written, options.pp or 1) == 1:
        row = steps.passes[0].messages[0]
        text = "sends messages to another stage, and does not say how many stages there are; give pp=..."
        raise FormatError(text, file.path, row.line).typed(pp="--pp")
    if written == 1 and options.pp is not None:
        return options.pp
    return _degree("pp", options.pp, written, notes)


def _written_dp(file: PhysicalFile, sizes: dict[Group, int], tp: int, pp: int, notes: Notebook) -> int:
    """Return the data parallel degree that the file says: by its dp groups, by its titles, or a default."""
    told = [section.ranks for section in file.sections if section.ranks is not None]
    ranks = sum(told) if len(told) == len(file.sections) else None
    if Group.DP in sizes:
        dp = sizes[Group.DP]
        if ranks is not None and ranks != tp * dp * pp:
            text = f"the titles name {ranks} ranks, but tp {tp} x dp {dp} x pp {pp} = {tp * dp * pp}; the groups count"
            notes.warn("world-mismatch", text)
        return dp
    if ranks is not None and ranks % (tp * pp) == 0:
        return ranks // (tp * pp)
    if any(row.group is Group.DP for row in file.rows):
        text = f"the file does not say how many ranks a dp group has; taken as {NODE_RANKS} (give --gpus or --dp)"
        notes.assume("world-absent", text)
        return NODE_RANKS
    return sizes.get(Group.EP, 1) * sizes.get(Group.EDP, 1)


def _experts(file: PhysicalFile, options: LayoutOptions, sizes: dict[Group, int], dp: int, notes: Notebook) -> int:
    """Return the expert parallel degree; AICB's logs of expert layers often leave it out."""
    if options.ep is not None:
        return options.ep
    if Group.EP in sizes:
        return sizes[Group.EP]
    first = next((row for row in file.rows if row.group is Group.EP), None)
    if first is None:
        return 1
    notes.warn(
        "ep-absent", f"the file does not say how many ranks an ep group has; taken as dp {dp} (give --ep)", first.line
    )
    return dp


class _Lowering(Struct):
    """Turns the rows of every stage into template operations; equal passes are one segment."""

    builder: WorkloadBuilder
    as_written: frozenset[Group]
    """Groups for which the times of the file hold."""
    measured: bool
    """Whether the times of the file are taken where they hold."""
    zero_sizes: set[int] = field(default_factory=set)
    """Lines of communications of 0 bytes."""
    _known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def lay_out(self, passes: Sequence[Passes]) -> None:
        """Write the template of every rank."""
        template, parallel = self.builder.template(), self.builder.parallel
        for stage in range(parallel.pp):
            found = passes[min(stage, len(passes) - 1)]
            for microbatch in range(parallel.microbatches):
                for table, rows, phase in (
                    (template.forward_QM, found.forward, Phase.FORWARD),
                    (template.backward_QM, found.backward, Phase.BACKWARD),
                ):
                    if rows:
                        table[stage, microbatch] = self._segment(rows[min(microbatch, len(rows) - 1)], phase, stage)
            template.start_P[stage] = self._segment(found.start, Phase.STEP, stage)
            template.end_P[stage] = self._segment(found.end, Phase.STEP, stage)

    def _segment(self, rows: Sequence[PhysicalRow], phase: Phase, stage: int) -> int:
        """Return the segment of some rows; those that say the same have one."""
        # Between the first and the last stage nobody holds an embedding to agree on.
        middle = 0 < stage < self.builder.parallel.pp - 1
        kept = [row for row in rows if not (middle and row.group is Group.EMB)]
        key = (
            phase,
            *((row.kind, row.group, row.size_bytes, row.gemm, row.stage, self._time_s(row), row.count) for row in kept),
        )
        if key not in self._known:
            self._known[key] = self.builder.segment([each for row in kept for each in self._lower(row, phase)])
        return self._known[key]

    def _time_s(self, row: PhysicalRow) -> float | None:
        """Return the time of a row, where the file's times are taken and hold for its group."""
        holds = row.group is Group.NONE or row.group in self.as_written
        return row.time_s if self.measured and holds else None

    def _lower(self, row: PhysicalRow, phase: Phase) -> Rows:
        time_s, place = self._time_s(row), Place(0, row.line)
        name = row.stage.partition(".")[2] or row.stage or row.kind
        if row.gemm is not None:
            batch, m, n, k = row.gemm
            shape = (m, n, k) if batch == 1 else (batch, m, n, k)
            calls = ((OperatorCall(family="gemm", shape=shape, dtype=_DTYPE), float(row.count)),)
            bound = OverlapClass.COMPUTE_BOUND
            cost = calls if time_s is None else None
            return self.builder.add(compute_op(name, phase, time_s, calls=cost, overlap_class=bound, place=place))
        if row.size_bytes == 0 and time_s is None:
            self.zero_sizes.add(row.line)
            return []
        what = (row.group, row.operation, row.size_bytes)
        return self.builder.add(collective_op(name, phase, *what, time_s, repeats=float(row.count), place=place))


def _takes_times(file: PhysicalFile, steps: Steps, options: LayoutOptions) -> bool:
    """Decide whether the times of the file are taken: those of a log are, unless the user wants estimates."""
    rows = [row for passes in steps.passes for row in passes.rows()]
    known = bool(rows) and all(row.time_s is not None for row in rows)
    if options.comm == "measured" and not known:
        lacking = next((row.line for row in rows if row.time_s is None), None)
        raise FormatError("has no times to take with comm=measured", file.path, lacking).typed(comm="--comm")
    return known and options.comm != "model"


def _message_bytes(steps: Steps, layout: _Layout, options: LayoutOptions, notes: Notebook) -> int:
    """Return the bytes of one pipeline send/recv: the commonest in the file."""
    known = known_message_bytes(options, layout.parallel.pp, None, notes)
    if known is not None:
        return known
    sizes = Counter(row.size_bytes for passes in steps.passes for row in passes.messages)
    if not sizes and not steps.passes[0].microbatches:
        return 0
    if not sizes:
        text = "no row is a pipeline send/recv; they take no time (give --pp-comm)"
        notes.warn("pp-comm-unknown", text)
        return 0
    size, times = sizes.most_common(1)[0]
    if len(sizes) > 1:
        notes.assume(
            "pp-comm-mixed",
            f"pipeline sends and receives have {len(sizes)} sizes; all are taken as the commonest, {format_size(size)} "
            f"({times} of {sum(sizes.values())})",
        )
    return size


def _say(steps: Steps, layout: _Layout, lowering: _Lowering, notes: Notebook) -> None:
    """Note what was chosen, left out, and what the file does not hold."""
    first = steps.passes[0]
    rows, parallel = [row for passes in steps.passes for row in passes.rows()], layout.parallel
    before = [row for row in steps.initialisation if row.operation is not Operation.NONE]
    if before:
        total = sum(row.size_bytes * row.count for row in before)
        text = f"{counted(len(before), 'communication')} of the initialisation ({format_size(total)} on a rank)"
        notes.assume("initialisation-left-out", f"{text} are not part of a step and do not run", before[0].line)
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
    if not any(row.gemm for row in rows):
        text = "no row of the step computes: what is simulated are its communications alone, one after the other"
        notes.warn("communication-only", text, None)
    trains = bool(first.backward) and parallel.dp > 1
    if trains and not any(row.group in _STRIDED and row.size_bytes for row in rows):
        text = f"no row of the step reduces gradients or gathers parameters over dp {parallel.dp}"
        notes.warn("gradients-absent", text, None)
