"""Read the profiler traces of one run into the intermediate form: one step, as it was recorded.

A file is a rank. One step is taken of all of them (`traincast.formats.kineto.step`); what ranks did together is
matched, their clocks are brought together by it, and every rank becomes a record of operations
(`traincast.workload.recorder`), with which the step is replayed, or run with other times of communication.

Letters: G pieces of work of the GPU of a rank, I instants of its host, L operations of its record.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from traincast.diagnostics import Notebook
from traincast.files import InputFile, input_of
from traincast.formats.kineto.communication import Communication, GroupOfRanks, world_size
from traincast.formats.kineto.grammar import Trace, read_trace
from traincast.formats.kineto.match import Found, communications, together, with_supposed_groups
from traincast.formats.kineto.operators import with_operators
from traincast.formats.kineto.ranks import ranks_of
from traincast.formats.kineto.record import Instant, order_of
from traincast.formats.kineto.step import RankStep, Task, chosen, cut, marks
from traincast.formats.kineto.times import Times, common_times
from traincast.job.options import LayoutOptions
from traincast.progress import advanced, announce
from traincast.units import counted, format_size
from traincast.workload.builder import collective_op, compute_op, copy_op, host_op, message_op
from traincast.workload.ops import FloatArray, IntArray, Op
from traincast.workload.recorded_groups import Classified, Told, classified
from traincast.workload.recorder import RankRecord, Recorder
from traincast.workload.words import Group, Kind, Operation, Phase
from traincast.workload.workload import Workload

_LONG_BYTES = 2**28
"""Size of files from which reading is announced: about a second, packed ones several."""


def read_workload(paths: Sequence[Path], name: str, options: LayoutOptions) -> Workload:
    """Read the traces of one run (see `traincast.formats.contract.Format.read`)."""
    notes = Notebook(str(paths[0]))
    return recorded(_traces(paths), tuple(input_of(path, name) for path in paths), options, notes)


def recorded(
    traces: Sequence[Trace], inputs: tuple[InputFile, ...], options: LayoutOptions, notes: Notebook
) -> Workload:
    """Return one step of the ranks of a run as it was recorded.

    Raises
    ------
    TraincastError
        If two traces are of one rank, one lacks the step or has nothing of a GPU, or a degree does not fit.
    """
    steps = _steps(traces, options, notes)
    found = with_supposed_groups({rank: communications(step) for rank, step in steps.items()}, steps, notes)
    times = common_times(steps, found, together(found, notes), notes)
    groups = _groups(found)
    ranks = [*steps, *(member for group in groups.values() for member in group.members)]
    ranks += [rank for own in found.values() for each in own for rank in (each.what.source, each.what.target) if rank]
    world = max(max(ranks) + 1, *(world_size(step.trace.document) for step in steps.values()))
    kinds = classified({key: _told(group, found) for key, group in groups.items()}, options, world, notes)
    if len(steps) == 1 < world:
        text = f"one of {world} ranks was traced: the time of a collective contains that rank's waiting for the others"
        notes.assume("waits-not-seen", text, None)
    recorder = Recorder(traces[0].path.name, kinds.parallel, inputs, notes)
    writer = _Writer(recorder, kinds, {group: key for key, group in groups.items()}, times)
    for file, (rank, step) in enumerate(steps.items()):
        recorder.add(writer.record(file, step, {each.at: each.what for each in found[rank]}))
    return recorder.workload(measured_communication=options.comm != "model")


def _traces(paths: Sequence[Path]) -> list[Trace]:
    """Read the files; long work says how far it is."""
    size = sum(path.stat().st_size for path in paths if path.is_file())
    if size > _LONG_BYTES:
        announce(f"reading {counted(len(paths), 'trace')} of {format_size(size)}")
    traces = []
    for path in paths:
        traces.append(read_trace(path))
        advanced(len(traces) / len(paths))
    return traces


def _steps(traces: Sequence[Trace], options: LayoutOptions, notes: Notebook) -> dict[int, RankStep]:
    """Return the same step of every rank, in the order of the files."""
    ranks, mark = ranks_of(traces, notes), chosen(traces[0], options.step)
    if mark is None:
        notes.assume("step-not-marked", "no ProfilerStep#n marks a step; the whole trace is taken as one", None)
    elif options.step is None:
        held = len(marks(traces[0]))
        if held > 1:
            text = f"of {held} steps ProfilerStep#{mark.number} is taken (--step takes another)"
            notes.assume("step-chosen", text, None)
    return {
        rank: with_operators(cut(trace, rank, None if mark is None else chosen(trace, mark.number)))
        for rank, trace in zip(ranks, traces, strict=True)
    }


def _groups(found: Mapping[int, Sequence[Found]]) -> dict[str, GroupOfRanks]:
    """Return the groups of a run, each by a name that is only its own."""
    groups: dict[str, GroupOfRanks] = {}
    for group in dict.fromkeys(each.what.group for own in found.values() for each in own):
        if group is not None:
            name = group.name or f"ranks {group.members[0]} to {group.members[-1]}"
            groups[f"{name} of rank {group.members[0]}, {len(groups)}" if name in groups else name] = group
    return groups


def _told(group: GroupOfRanks, found: Mapping[int, Sequence[Found]]) -> Told:
    used = {each.what.operation for own in found.values() for each in own if each.what.group == group}
    return Told(group.members, group.purpose, Operation.ALL_TO_ALL in used, used == {Operation.SEND_RECV})


class _Writer:
    """Writes down what each rank ran."""

    def __init__(
        self, recorder: Recorder, kinds: Classified, name_of: Mapping[GroupOfRanks, str], times: Times
    ) -> None:
        self.recorder, self.kinds, self.name_of, self.times = recorder, kinds, name_of, times
        self.rows: dict[tuple[str, Task, Phase, Communication | None, bool, bool], tuple[int, Group]] = {}

    def record(self, file: int, step: RankStep, what_of: Mapping[int, Communication]) -> RankRecord:
        """Return the record of a rank: the instants of its host first, then the work of its GPU."""
        order, rank, gpu = order_of(step), step.rank, step.trace.gpu
        instants, work = len(order.host), len(step.at_G)
        group_G, key_G, row_G = (np.full(work, -1) for _ in range(3))
        names = [step.trace.names[name] for name in gpu.name_G[step.at_G].tolist()]
        for at, (name, task, phase) in enumerate(zip(names, step.task_G, step.phase_G.tolist(), strict=True)):
            what, key = what_of.get(at), self.times.key.get((rank, at), -1)
            row_G[at], kind = self._row(name, task, Phase(phase), what, rank, key >= 0)
            if what is not None:
                group_G[at], key_G[at] = self._group(what, kind, rank, key >= 0), max(key, 0)
        start_s_I, end_s_I = self._host_times(order.host, rank)
        launched = np.flatnonzero(order.launch_G >= 0)
        waits_for_I = np.array([each.waits_for for each in order.host])
        waiting = np.flatnonzero(waits_for_I >= 0)
        return RankRecord(
            rank=rank,
            file=file,
            row_L=np.concatenate([self._host_rows(step, order.host), row_G]),
            group_L=np.concatenate([np.full(instants, -1), group_G]),
            queue_L=np.concatenate([np.full(instants, order.lanes), order.lane_G]),
            key_L=np.concatenate([np.full(instants, -1), key_G]),
            start_s_L=np.concatenate([start_s_I, self.times.start_s[rank]]),
            end_s_L=np.concatenate([end_s_I, self.times.end_s[rank]]),
            edge_src_E=np.concatenate(
                [order.launch_G[launched], order.edge_src_E + instants, waits_for_I[waiting] + instants]
            ),
            edge_dst_E=np.concatenate([launched + instants, order.edge_dst_E + instants, waiting]),
            line_L=np.concatenate([self._host_events(step, order.host) + 1, gpu.event_G[step.at_G] + 1]),
        )

    def _host_rows(self, step: RankStep, host: Sequence[Instant]) -> list[int]:
        trace = step.trace
        names = [trace.names[trace.calls.name_C[each.call]] if each.waits_for >= 0 else "host" for each in host]
        row_of = {
            name: self.recorder.row(host_op(name, Phase.STEP, 0.0, launches=True)) for name in dict.fromkeys(names)
        }
        return [row_of[name] for name in names]

    def _host_events(self, step: RankStep, host: Sequence[Instant]) -> IntArray:
        return np.array([step.trace.calls.event_C[each.call] if each.call >= 0 else -1 for each in host])

    def _host_times(self, host: Sequence[Instant], rank: int) -> tuple[FloatArray, FloatArray]:
        """Return begin and end of what the host does up to each of its instants, in seconds on the common clock."""
        end_us = np.array([each.time_us for each in host])
        before_us = np.concatenate([[self.times.steps[rank].begin_us], end_us[:-1]])
        begin_us = np.minimum(np.maximum(before_us, [each.after_us for each in host]), end_us)
        return self.times.seconds(rank, begin_us), self.times.seconds(rank, end_us)

    def _row(
        self, name: str, task: Task, phase: Phase, what: Communication | None, rank: int, met: bool
    ) -> tuple[int, Group]:
        """Return the row of what a kernel or copy has in common with others like it, and the kind of its group."""
        key = name, task, phase, what, met, what is not None and what.source == rank
        if key not in self.rows:
            kind = Group.NONE if what is None else self._kind(what)
            self.rows[key] = self.recorder.row(self._op(name, task, phase, what, kind, rank, met)), kind
        return self.rows[key]

    def _kind(self, what: Communication) -> Group:
        if what.group is not None:
            return self.kinds.kind_of[self.name_of[what.group]]
        if what.kind is not Group.NONE:
            return what.kind
        return Group.PP if what.operation is Operation.SEND_RECV else Group.WORLD

    def _op(
        self, name: str, task: Task, phase: Phase, what: Communication | None, kind: Group, rank: int, met: bool
    ) -> Op:
        if what is None:
            return (compute_op if task is Task.COMPUTE else copy_op)(name, phase)
        size = what.size_bytes if met else None
        if met and what.source is not None:
            return message_op(name, Kind.SEND if what.source == rank else Kind.RECV, phase, kind, size)
        operation = Operation.ALL_REDUCE if what.operation is Operation.NONE else what.operation
        return collective_op(name, phase, kind, operation, size, dtype=what.dtype)

    def _group(self, what: Communication, kind: Group, rank: int, met: bool) -> int:
        if met and what.source is not None and what.target is not None:
            return self.recorder.pair(what.source, what.target, kind)
        members = what.group.members if met and what.group is not None else (rank,)
        return self.recorder.group(kind, members)
