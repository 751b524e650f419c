"""Read rank traces of one run into the intermediate form.

A full run is replayed: every rank has a template of its own. From fewer ranks the run is rebuilt:
ranks that were not traced get the template of a traced rank of their stage, and stages that were
not traced that of another stage.

Letters: Q virtual stages (stages: traces have one chunk each), M microbatches, D directions, W ranks.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traincast.errors import FormatError
from traincast.formats.building import Notebook, Segments, warn_single_microbatch
from traincast.formats.echo.clocks import Alignment, align
from traincast.formats.echo.experts import ExpertScaling, expert_layers
from traincast.formats.echo.files import RankTrace, Run, read_runs
from traincast.formats.echo.layout import Traced, decide_layout
from traincast.formats.echo.lines import TraceOp
from traincast.formats.echo.measured import measured_run
from traincast.formats.echo.meetings import Meetings
from traincast.formats.echo.messages import Messages
from traincast.formats.echo.pieces import Pieces
from traincast.formats.echo.split import BUCKET, RankWork, Splitter
from traincast.formats.echo.stages import plan_stages
from traincast.schedules.plan import SlotKind
from traincast.spec.options import LayoutOptions
from traincast.spec.parallel import Parallel
from traincast.workload.groups import GroupTable, rank_groups
from traincast.workload.ops import Op, OpTableBuilder
from traincast.workload.words import Group
from traincast.workload.workload import InputFile, Template, Workload


def read_workload(paths: Sequence[Path], name: str, options: LayoutOptions) -> Workload:
    """Read the traces of one run (see `traincast.formats.contract.Format.read`)."""
    run = _only_run(paths)
    traces = run.traces
    notes = Notebook(str(traces[min(traces)].path))
    traced = Traced(traces, all(op.is_simulated for trace in traces.values() for op in trace.ops))
    parallel = decide_layout(traced, options, notes)
    alignment = align(run, parallel.world_size, parallel.pp)
    for note in alignment.notes:
        notes.assumptions.append(note)
    for trace in traces.values():
        notes.warnings += trace.notes
    builder = _Builder(traced, parallel, alignment, options, notes)
    return builder.workload(name)


def _only_run(paths: Sequence[Path]) -> Run:
    runs = read_runs(paths)
    if len(runs) > 1:
        shown = "; ".join(f"{run.key} with {len(run.traces)} rank(s)" for run in runs)
        raise FormatError(f"the files are of {len(runs)} runs ({shown}); give those of one", str(paths[0]))
    return runs[0]


@dataclass(slots=True)
class _Builder:
    """Builds the workload of one run."""

    traced: Traced
    parallel: Parallel
    alignment: Alignment
    options: LayoutOptions
    notes: Notebook

    def workload(self, name: str) -> Workload:
        """Return the workload."""
        tables = rank_groups(self.parallel, [kind for kind in Group if kind is not Group.NONE])
        works = self._works(tables)
        stages = plan_stages(self.traced, self.parallel, works, self.notes)
        ops, segments = OpTableBuilder(), Segments()
        numbers = {rank: number for number, rank in enumerate(stages.works)}
        messages = Messages(self.traced, self.parallel, self.alignment)
        templates = [
            self._template(work, stages.stage_of[rank], messages, rank, ops, segments)
            for rank, work in stages.works.items()
        ]
        self._say_more()
        return Workload(
            name=self.traced.traces[self.traced.first_rank].path.name,
            parallel=self.parallel,
            schedule=self.options.schedule or "1f1b",
            forward_only=False,
            ops=ops.table(),
            segments=tuple(segments.rows),
            templates=tuple(templates),
            template_W=np.array([numbers[stages.source_of(rank)] for rank in range(self.parallel.world_size)]),
            message_bytes_Q=np.full(self.parallel.pp, self._message_bytes(), dtype=np.int64),
            inputs=tuple(_input(trace, name) for trace in self.traced.traces.values()),
            assumptions=tuple(self.notes.assumptions),
            warnings=tuple(self.notes.warnings),
            measured=None if self.traced.profile else measured_run(self.traced.traces, self.alignment),
        )

    @property
    def _measured(self) -> bool:
        """Whether communication times are taken from the trace."""
        chosen = self.options.comm or ("model" if self.traced.profile else "measured")
        return chosen == "measured"

    def _works(self, tables: Mapping[Group, GroupTable]) -> dict[int, RankWork]:
        """Split every traced rank."""
        meetings = Meetings(tables)
        ops = {rank: trace.ops for rank, trace in self.traced.traces.items()}
        for rank, rank_ops in ops.items():
            for op in rank_ops:
                meetings.add(op, rank, self.alignment.offset_s[rank])
        meetings.settle(ops)
        sizes = {kind: table.members_GK.shape[1] for kind, table in tables.items()}
        if self.parallel.pp == 1:
            sizes[Group.EMB] = 1
        experts = ExpertScaling(self.options.expert_imbalance or 1.0) if self.traced.profile else None
        pieces = Pieces(meetings, lambda kind: sizes.get(kind, 1), self._measured, experts)
        works = {}
        for file, (rank, rank_ops) in enumerate(ops.items()):
            stage = rank // self.parallel.ranks_per_stage
            splitter = Splitter(pieces, rank, file, stage, self.parallel.pp, self.alignment.offset_s[rank])
            works[rank] = splitter.split(rank_ops)
            if splitter.untraced_waits and not self.traced.profile:
                self._warn_untraced(rank, splitter.untraced_waits)
        return works

    def _warn_untraced(self, rank: int, waits: Sequence[TraceOp]) -> None:
        self.notes.warn(
            "wait-untraced",
            f"rank {rank} must have waited for a message before {len(waits)} operation(s), but no receive was traced; "
            "the time before them is taken as that wait, not as a gap of the host",
            waits[0].line,
        )

    def _template(
        self, work: RankWork, stage: int, messages: Messages, rank: int, ops: OpTableBuilder, segments: Segments
    ) -> Template:
        """Write a rank's work down as a template; microbatches beyond the traced ones repeat the last."""
        stages, microbatches = self.parallel.pp, self.parallel.microbatches
        forward_QM = np.full((stages, microbatches), -1, dtype=np.int32)
        backward_QM = forward_QM.copy()
        for kind, table in ((SlotKind.F, forward_QM), (SlotKind.BW, backward_QM)):
            batches = [work.slots[key] for key in sorted(work.slots) if key[0] is kind]
            if batches:
                written = [segments.add(_add(ops, _without_buckets(batch))) for batch in batches]
                table[stage] = [written[min(microbatch, len(written) - 1)] for microbatch in range(microbatches)]
                table[stage, -1] = segments.add(_add(ops, batches[-1]))
        before_recv_DQM = np.full((2, stages, microbatches), -1, dtype=np.int32)
        for (forward, batch), gap in work.before_recv.items():
            boundary, last = stage - 1 if forward else stage, self.traced.microbatches - 1
            same = slice(batch, microbatches if batch == last else batch + 1)
            before_recv_DQM[int(not forward), boundary, same] = segments.add(_add(ops, gap))
        nothing = np.full(stages, -1, dtype=np.int32)
        start_P, end_P = nothing.copy(), nothing.copy()
        start_P[stage] = segments.add(_add(ops, work.start))
        end_P[stage] = segments.add(_add(ops, work.end))
        return Template(
            forward_QM=forward_QM,
            backward_QM=backward_QM,
            start_P=start_P,
            after_forward_P=nothing,
            end_P=end_P,
            before_recv_DQM=before_recv_DQM,
            message_s_DQM=messages.transfer_s_DQM(rank) if self._measured else None,
        )

    def _message_bytes(self) -> int:
        """Return the bytes of a message between stages: as traced, else the largest expert exchange."""
        if self.options.pp_message_bytes is not None or self.parallel.pp == 1:
            return self.options.pp_message_bytes or 0
        ops = [op for trace in self.traced.traces.values() for op in trace.ops]
        traced = [op.size_bytes for op in ops if op.op in ("send_forward", "recv_backward") and op.size_bytes]
        if traced:
            return max(traced)
        inside = [sub.size_bytes or 0 for op in ops if op.op == "forward_step" for sub in op.sub_ops]
        size = max(inside, default=0)
        self.notes.assume(
            "message-size",
            f"the trace has no message between stages; taken as its largest exchange, {size} bytes (give --pp-comm)",
        )
        return size

    def _say_more(self) -> None:
        """Note what a user should know of the run as it was read."""
        parallel, notes = self.parallel, self.notes
        if parallel.microbatches > self.traced.microbatches:
            notes.assume(
                "microbatches-repeated",
                f"the trace has {self.traced.microbatches} microbatch(es); the last one is repeated to make "
                f"{parallel.microbatches}",
                None,
            )
        warn_single_microbatch(notes, parallel.pp, parallel.pp, parallel.microbatches, None)
        if not self.traced.profile:
            return
        layers = [layer for trace in self.traced.traces.values() for op in trace.ops for layer in expert_layers(op)]
        if layers:
            imbalance = self.options.expert_imbalance or 1.0
            notes.assume(
                "expert-tokens",
                f"expert layers were traced with {layers[0].traced} tokens; a balanced rank receives as many as it "
                f"routes, {layers[0].routed}, x imbalance {imbalance:g} = {layers[0].routed * imbalance:g}: dispatch "
                "and combine carry the routed tokens, and the experts' work is brought to that load at 0.5 us forward "
                "and 0.95 us backward per token at hidden size 4096",
                None,
            )
        if layers and self.options.expert_imbalance is None:
            notes.warn(
                "expert-balance",
                "experts are taken as balanced; measured runs of this kind were 9 to 50 % slower (give "
                "--expert-imbalance)",
                None,
            )


def _without_buckets(ops: list[Op]) -> list[Op]:
    """Return a microbatch's work without gradient buckets, which only the last one launches."""
    return [op for op in ops if op.part != BUCKET]


def _add(builder: OpTableBuilder, ops: list[Op]) -> list[int]:
    return [builder.add(op) for op in ops]


def _input(trace: RankTrace, name: str) -> InputFile:
    return InputFile(str(trace.path), name, hashlib.sha256(trace.path.read_bytes()).hexdigest())
