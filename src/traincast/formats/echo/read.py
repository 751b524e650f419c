"""Read rank traces of one run into the intermediate form.

A full run is replayed: every rank has a template of its own. From fewer ranks the run is rebuilt:
ranks that were not traced get the template of a traced rank of their stage, and stages that were
not traced that of another stage. Flags extrapolate: see `traincast.formats.echo.layout`.

Letters: Q virtual stages (stages: traces have one chunk each), M microbatches, D directions, W ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from traincast.diagnostics import Notebook
from traincast.errors import ConfigError, FormatError
from traincast.formats.echo.clocks import Alignment, align
from traincast.formats.echo.experts import ExpertScaling, received_over_mean
from traincast.formats.echo.files import RankTrace, only_run
from traincast.formats.echo.layout import Layouts, Traced, decide_layouts
from traincast.formats.echo.lines import TraceOp
from traincast.formats.echo.meetings import Meetings, Messages, measured_run
from traincast.formats.echo.pieces import Pieces
from traincast.formats.echo.remarks import changes_loads, chosen_loads, say_what_was_read
from traincast.formats.echo.split import BUCKET, RankWork, Splitter
from traincast.formats.echo.stages import Stages
from traincast.job.inputs import input_of
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.schedules.plan import SlotKind
from traincast.workload.builder import WorkloadBuilder
from traincast.workload.experts import ExpertLoads, load_of_rank
from traincast.workload.groups import GroupTable, rank_groups
from traincast.workload.ops import FloatArray, IntArray, Op
from traincast.workload.words import Group
from traincast.workload.workload import MeasuredRun, Workload


def read_workload(paths: Sequence[Path], name: str, options: LayoutOptions) -> Workload:
    """Read the traces of one run (see `traincast.formats.contract.Format.read`)."""
    run = only_run(paths)
    traces = run.traces
    notes = Notebook(str(traces[min(traces)].path))
    _refuse_plans(traces)
    traced = Traced(traces, all(op.is_simulated for trace in traces.values() for op in trace.ops))
    if traced.profile and options.comm == "measured":
        raise ConfigError("has no meaning for a single-GPU profile: its communication ran on a world of one", "--comm")
    layouts = decide_layouts(traced, options, notes)
    alignment = align(run, layouts.traced.world_size, layouts.traced.pp)
    notes.assumptions += alignment.notes
    name_of_run = traces[traced.first_rank].path.name
    inputs = tuple(input_of(trace.path, name) for trace in traces.values())
    builder = WorkloadBuilder(name_of_run, layouts.target, options.schedule or "1f1b", notes, inputs)
    return _Replay(traced, layouts, alignment, options, builder).workload()


def _refuse_plans(traces: Mapping[int, RankTrace]) -> None:
    for trace in traces.values():
        for op in trace.ops:
            if op.scope == "stage":
                raise FormatError(
                    "is a scheduling plan: it gives an order without times; give the traces of ranks", op.path, op.line
                )


@dataclass(slots=True)
class _Replay:
    """Makes the workload of one run."""

    traced: Traced
    layouts: Layouts
    alignment: Alignment
    options: LayoutOptions
    builder: WorkloadBuilder
    meetings: Meetings = field(init=False)
    messages: Messages = field(init=False)
    _sources: list[int] = field(init=False, default_factory=list)
    """Traced rank that each rank does the work of."""

    def __post_init__(self) -> None:
        self.messages = Messages(self.traced, self.layouts)
        tables = rank_groups(self.layouts.traced, [kind for kind in Group if kind is not Group.NONE])
        self.meetings = Meetings(tables)
        # One GPU that plays all ranks meets nobody.
        ops = {} if self.traced.profile else {rank: trace.ops for rank, trace in self.traced.traces.items()}
        for rank, rank_ops in ops.items():
            for op in rank_ops:
                self.meetings.add(op, rank, self.alignment.offset_s[rank])
        self.meetings.settle(ops)

    @property
    def notes(self) -> Notebook:
        """What was assumed and what looks wrong."""
        return self.builder.notes

    def workload(self) -> Workload:
        """Return the workload."""
        parallel = self.layouts.target
        loads = chosen_loads(self.traced, self.options, parallel.ep)
        load_W = np.ones(parallel.world_size) if loads is None else load_of_rank(parallel, loads)
        stages = self._stages(np.unique(load_W).tolist(), loads)
        numbers: dict[tuple[int, tuple[int, int], float], int] = {}
        template_W = np.zeros(parallel.world_size, dtype=np.int32)
        for rank, load in enumerate(load_W.tolist()):
            stage = rank // parallel.ranks_per_stage
            source = stages[load].source(rank)
            self._sources.append(source[1])
            key = stage, source, load
            if key not in numbers:
                numbers[key] = len(numbers)
                self._template(stages[load].work(stage, source), stage, source[1])
            template_W[rank] = numbers[key]
        say_what_was_read(self.traced, self.layouts, self.options, loads, self.notes)
        message_bytes, measured = self._message_bytes(), self._measured_run()
        return self.builder.workload(
            message_bytes,
            template_W=template_W,
            measured=measured,
            compute_is_in_situ=not self.traced.profile,
            expert_load_W=self._traced_load_W() if loads is None else load_W,
        )

    def _traced_load_W(self) -> FloatArray | None:
        """Return the tokens of each rank's experts over the mean as traced; None where there are no experts."""
        if self.traced.profile or changes_loads(self.traced, self.options):
            return None
        load_of = {rank: received_over_mean(trace.ops) for rank, trace in self.traced.traces.items()}
        if all(load is None for load in load_of.values()):
            return None
        return np.array([load_of[rank] or 0.0 for rank in self._sources], dtype=np.float64)

    def _stages(self, distinct: Sequence[float], loads: ExpertLoads | None) -> dict[float, Stages]:
        """Return the work of every stage for each load of experts; what is noted of it is the same for all."""
        found: dict[float, Stages] = {}
        for load in distinct:
            notes = Notebook(self.notes.path) if found else self.notes
            found[load] = Stages(self.traced, self.layouts, self._works(ExpertScaling(load, loads)), notes)
        return found

    @property
    def _measured(self) -> bool:
        """Whether communication times are taken from the trace."""
        chosen = self.options.comm or ("model" if self.traced.profile else "measured")
        return chosen == "measured"

    def _measured_run(self) -> MeasuredRun | None:
        """Return what was measured, if the run to simulate is the one that was traced."""
        if self.traced.profile:
            return None
        measured = measured_run(self.traced.traces, self.alignment, self.meetings, self.messages)
        original, target = self.layouts.traced, self.layouts.target
        if measured is None or (original.tp, original.pp, original.dp, self.traced.microbatches) == (
            target.tp,
            target.pp,
            target.dp,
            target.microbatches,
        ):
            return measured
        self.notes.assume(
            "measured-otherwise",
            f"the traced step took {1e3 * measured.step_s:.1f} ms with tp {original.tp}, pp {original.pp}, dp "
            f"{original.dp} and {self.traced.microbatches} microbatch(es); another run is simulated, so they are not "
            "compared",
            None,
        )
        return None

    def _works(self, experts: ExpertScaling) -> dict[int, RankWork]:
        """Split every traced rank; the experts of a profile are brought to their load."""
        tables = self.meetings.tables
        target = rank_groups(self.layouts.target, tables)
        pieces = Pieces(
            self.meetings,
            _sizes(tables, self.layouts.traced).__getitem__,
            _sizes(target, self.layouts.target).__getitem__,
            self._measured,
            experts if self.traced.profile or changes_loads(self.traced, self.options) else None,
            self.traced.profile,
        )
        traces = enumerate(self.traced.traces.items())
        return {rank: self._work(pieces, rank, file, trace.ops) for file, (rank, trace) in traces}

    def _work(self, pieces: Pieces, rank: int, file: int, ops: tuple[TraceOp, ...]) -> RankWork:
        said = self.traced.stage(rank)
        stage = rank // self.layouts.traced.ranks_per_stage if said is None else said
        splitter = Splitter(pieces, rank, file, stage, self.layouts.traced.pp, self.alignment.offset_s[rank])
        work = splitter.split(ops)
        if splitter.untraced_waits and not self.traced.profile:
            self.notes.warn(
                "wait-untraced",
                f"rank {rank} must have waited for a message before {len(splitter.untraced_waits)} operation(s), but "
                "no receive was traced; the time before them is taken as that wait, not as a gap of the host",
                splitter.untraced_waits[0].line,
            )
        return work

    def _template(self, work: RankWork, stage: int, rank: int) -> None:
        """Write a rank's work down as a template; microbatches beyond the traced ones repeat the last."""
        microbatches = self.layouts.target.microbatches
        written: dict[SlotKind, list[int]] = {}
        for kind in (SlotKind.F, SlotKind.BW):
            batches = [work.slots[key] for key in sorted(work.slots) if key[0] is kind]
            each = [self._segment(_without_buckets(batch)) for batch in batches] or [-1]
            last = self._segment(batches[-1]) if batches else -1
            written[kind] = [each[min(at, len(each) - 1)] for at in range(microbatches - 1)] + [last]
        start, end = self._segment(work.start), self._segment(work.end)
        template = self.builder.template(
            before_recv_DQM=self._before_recv(work, stage),
            message_s_DQM=self.messages.transfer_s_DQM(rank) if self._measured else None,
        )
        template.forward_QM[stage], template.backward_QM[stage] = written[SlotKind.F], written[SlotKind.BW]
        template.start_P[stage], template.end_P[stage] = start, end

    def _before_recv(self, work: RankWork, stage: int) -> IntArray:
        parallel = self.layouts.target
        before_DQM = self.builder.nothing(2, parallel.pp, parallel.microbatches)
        for (forward, batch), gap in work.before_recv.items():
            boundary, last = stage - 1 if forward else stage, self.traced.microbatches - 1
            same = slice(batch, parallel.microbatches if batch == last else batch + 1)
            before_DQM[int(not forward), boundary, same] = self._segment(gap)
        return before_DQM

    def _segment(self, ops: list[Op]) -> int:
        return self.builder.segment(self.builder.add(*ops))

    def _message_bytes(self) -> int:
        """Return the bytes of a message between stages: as traced, else the largest exchange inside a forward."""
        if self.options.pp_message_bytes is not None or self.layouts.target.pp == 1:
            return self.options.pp_message_bytes or 0
        ops = [op for trace in self.traced.traces.values() for op in trace.ops]
        traced = [op.size_bytes for op in ops if op.op.startswith(("send_", "recv_")) and op.size_bytes]
        if traced:
            return max(traced)
        inside = [sub.size_bytes or 0 for op in ops if op.op == "forward_step" for sub in op.sub_ops]
        size = max(inside, default=0)
        self.notes.assume(
            "message-size",
            f"the trace has no message between stages; taken as its largest exchange, {size} bytes (give --pp-comm)",
            None,
        )
        return size


def _sizes(tables: Mapping[Group, GroupTable], parallel: Parallel) -> dict[Group, int]:
    sizes = {kind: table.members_GK.shape[1] for kind, table in tables.items()}
    return sizes if parallel.pp > 1 else {**sizes, Group.EMB: 1}


def _without_buckets(ops: list[Op]) -> list[Op]:
    """Return a microbatch's work without gradient buckets, which only the last one launches."""
    return [op for op in ops if op.part != BUCKET]
