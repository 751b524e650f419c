"""Read execution traces into a workload of recorded operations.

Every node is an operation, its dependencies are edges, and what runs on one engine of a rank is in order: computations
of a stream of the GPU (of the whole GPU where none is said: ASTRA-sim has one of them in flight), host work of a
thread, collectives of a group. Sends and receives meet by their ranks, tag and order.

Units: ``duration_micros`` are microseconds; ``comm_size`` are bytes of what one rank puts in, so that an all-gather of
n ranks makes n times as much (ASTRA-sim, astra-sim/system/collective/Ring.cc: ``final_data_size = data_size *
nodes_in_ring``; PyTorch's converter adds up the input tensors: mlcommons/chakra, src/converter/pytorch_node.py).

Letters: L nodes of a rank, E edges.
"""

import heapq
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.diagnostics import Notebook
from traincast.errors import FormatError
from traincast.files import input_of
from traincast.formats.chakra.files import Run, only_run
from traincast.formats.chakra.grammar import BARRIER, PHASE, PIECES, Body, Node, NodeType, Trace
from traincast.formats.chakra.groups import DEFAULT, DEGREES
from traincast.formats.chakra.warnings import say_what_is_unusual
from traincast.job.options import LayoutOptions
from traincast.workload.builder import collective_op, compute_op, host_op
from traincast.workload.ops import Op, OperatorCall
from traincast.workload.recorded_groups import Told, classified
from traincast.workload.recorder import RankRecord, Recorder
from traincast.workload.words import STREAM_OF_GROUP, Group, Kind, Operation, Phase, Stream
from traincast.workload.workload import Workload

_BACKWARD = re.compile(r"backward|bwd|_grad|dgrad|wgrad|_IG_|_WG_", re.IGNORECASE)
_MOST_WORK = 2**62
_FORWARD = re.compile(r"forward|fwd", re.IGNORECASE)


def read_workload(paths: Sequence[Path], name: str, options: LayoutOptions) -> Workload:
    """Read the traces of one run (see `traincast.formats.contract.Format.read`)."""
    run = only_run(paths)
    traces = list(run.traces.values())
    notes = Notebook(traces[0].path)
    inputs = tuple(input_of(path, name) for path in paths)
    if not run.named:
        notes.assume("rank-supposed", "the name has no rank (PREFIX.RANK.et); taken as rank 0", None)
    options = _with_own_layout(options, traces)
    world = _world(run)
    told = _told(run, world)
    kinds = classified(told, options, world, notes)
    recorder = Recorder(Path(traces[0].path).name, kinds.parallel, inputs, notes)
    place = {each.path: number for number, each in enumerate(inputs)}
    for rank, trace in run.traces.items():
        reader = _Rank(rank, trace, recorder, {each: kinds.kind_of[each] for each in told}, told, place[trace.path])
        recorder.add(reader.record())
    say_what_is_unusual(traces, notes)
    workload = recorder.workload(measured_communication=options.comm != "model")
    return replace(workload, compute_is_in_situ=True)


def _with_own_layout(options: LayoutOptions, traces: Sequence[Trace]) -> LayoutOptions:
    """Return the options with the layout that our own traces say, where the user says none."""
    if any(getattr(options, name) is not None for name in DEGREES):
        return options
    degrees: Any = {
        name: value for name in DEGREES if isinstance(value := traces[0].metadata.get(name), int) and value > 0
    }
    return LayoutOptions(gpus=options.gpus, comm=options.comm, **degrees)


def _world(run: Run) -> int:
    """Return how many ranks the files speak of."""
    highest = max(run.traces)
    for ranks in run.groups.members.values():
        highest = max(highest, *ranks) if ranks else highest
    for trace in run.traces.values():
        said = trace.metadata.get("world_size")
        highest = max(highest, said - 1) if isinstance(said, int) else highest
        for body in trace.distinct():
            if body.is_message:
                highest = max(highest, body.number("comm_dst") or 0, body.number("comm_src") or 0)
    if highest >= 2**20:
        raise FormatError(
            f"the file speaks of rank {highest}, beyond any machine", next(iter(run.traces.values())).path
        )
    return highest + 1


def _pair(rank: int, body: Body) -> str | None:
    """Return a name for the pair of a message, None where its other end is not specified."""
    peer = body.peer
    if peer is None:
        return None
    return f"{rank}>{peer}" if body.type == NodeType.COMM_SEND else f"{peer}>{rank}"


def _group(body: Body) -> str:
    """Return the name of a collective's group; ASTRA-sim takes none and ``0`` as all ranks."""
    name = body.text("pg_name") or DEFAULT
    return str(int(name)) if name.isdecimal() else name


def _told(run: Run, world: int) -> dict[str, Told]:
    """Return what is said of every group that is used."""
    found: dict[str, Told] = {}
    for rank, trace in run.traces.items():
        for body, (node, _) in trace.distinct().items():
            if body.is_message:
                pair = _pair(rank, body)
                if pair is not None and pair not in found:
                    ends = tuple(map(int, pair.split(">")))
                    if ends[0] == ends[1]:
                        raise FormatError(f"{node} is a message of rank {rank} to itself", trace.path)
                    found[pair] = Told(ends, messages=True)
            elif body.is_collective:
                name = _group(body)
                exchanges = body.collective is Operation.ALL_TO_ALL
                if name not in found or (exchanges and not found[name].exchanges):
                    found[name] = _told_group(run, name, world, exchanges, node, trace.path)
    return found


def _told_group(run: Run, name: str, world: int, exchanges: bool, node: Node, path: str) -> Told:
    members = run.groups.members.get(name)
    if members is None and name != DEFAULT:
        raise FormatError(
            f"{node} is over the group {name!r}, whose ranks are not specified; give the run's comm-group file too",
            path,
        )
    description = run.groups.descriptions.get(name, "world" if name == DEFAULT else "")
    return Told(members or tuple(range(world)), description, exchanges)


class _Rank(Struct):
    """Makes the record of one rank."""

    rank: int
    trace: Trace
    recorder: Recorder
    kind_of: dict[str, Group]
    told: dict[str, Told]
    file: int
    queues: dict[tuple[str, object], int] = field(default_factory=dict)
    known: dict[Body, int] = field(default_factory=dict)
    """Bodies, and which of `columns` is theirs."""
    columns: list[tuple[int, int, int, int, float]] = field(default_factory=list)
    """Row, group, queue, key and duration."""

    def record(self) -> RankRecord:
        nodes, parents = self.trace.nodes, self._parents()
        order = _order(nodes, parents)
        if order is None:
            # Converters write callers as control dependencies, and not always without a circle.
            parents = self._parents(control=False)
            order = _order(nodes, parents)
            self.recorder.notes.warn(
                "control-dependencies",
                f"the control dependencies of rank {self.rank} form a circle; left out, as Chakra's feeder does",
                None,
            )
        if order is None:
            raise FormatError("the file has nodes whose data dependencies form a circle", self.trace.path)
        place = {at: position for position, at in enumerate(order)}
        edges = [(place[parent], place[at]) for at in order for parent in parents[at]]
        which = np.fromiter((self._which(nodes[at]) for at in order), np.int64, count=len(order))
        row, group, queue, key, duration = (np.array(column)[which] for column in zip(*self.columns, strict=True))
        return RankRecord(
            rank=self.rank,
            row_L=row,
            group_L=group,
            queue_L=queue,
            key_L=key,
            duration_s_L=duration,
            file=self.file,
            line_L=[at + 1 for at in order],
            edge_src_E=[source for source, _ in edges],
            edge_dst_E=[target for _, target in edges],
        )

    def _parents(self, *, control: bool = True) -> list[set[int]]:
        """Return the positions of the nodes that each node depends on; callers that are not in the file are none."""
        position: dict[int, int] = {}
        nodes, found = self.trace.nodes, []
        for at, node in enumerate(nodes):
            if position.setdefault(node.id, at) != at:
                first = nodes[position[node.id]]
                raise FormatError(f"{node} has the id of the node at byte {first.byte}", self.trace.path)
        for node in nodes:
            lost = next((parent for parent in node.data if parent not in position), None)
            if lost is not None:
                raise FormatError(f"{node} depends on node {lost}, which is not in the file", self.trace.path)
            said = (*node.data, *node.control) if control else node.data
            found.append({position[parent] for parent in said if parent in position})
        return found

    def _which(self, node: Node) -> int:
        """Return which columns are those of a node."""
        found = self.known.get(node.body)
        if found is None:
            found = self.known[node.body] = len(self.columns)
            self.columns.append(self._columns(node))
        return found

    def _columns(self, node: Node) -> tuple[int, int, int, int, float]:
        """Return row, group, queue, key and duration of a node."""
        body = node.body
        duration_s, known = body.duration_s, body.has_duration
        if not (math.isfinite(duration_s) and duration_s >= 0):
            raise FormatError(f"{node} takes {duration_s:g} s", self.trace.path)
        if body.is_message:
            return self._message(node, duration_s if known else math.nan)
        if body.is_collective:
            return self._collective(node, duration_s if known else math.nan)
        on_host = bool(body.number("is_cpu_op")) or body.type not in (
            NodeType.COMP,
            NodeType.MEM_LOAD,
            NodeType.MEM_STORE,
        )
        if on_host:
            op = replace(host_op(body.name, _phase(body), 0.0), stream=Stream.HOST)
            queue = ("host", body.number("tid") or 0) if duration_s else None
            return self.recorder.row(op), -1, self._queue(queue), -1, duration_s
        calls = None if known else _calls(body)
        op = replace(compute_op(body.name, _phase(body)), calls=calls)
        engine = "gpu" if body.type == NodeType.COMP else "memory"
        stream = body.number("stream")
        queue = (engine, body.number("tid") or 0 if stream is None else stream)
        return self.recorder.row(op), -1, self._queue(queue), -1, math.nan if calls else duration_s

    def _queue(self, name: tuple[str, object] | None) -> int:
        return -1 if name is None else self.queues.setdefault(name, len(self.queues))

    def _collective(self, node: Node, duration_s: float) -> tuple[int, int, int, int, float]:
        body = node.body
        name = _group(body)
        members, kind = self.told[name].members, self.kind_of[name]
        if self.rank not in members:
            raise FormatError(f"{node} is over the group {name!r}, which rank {self.rank} is not in", self.trace.path)
        operation, size = body.collective, body.number("comm_size")
        if operation is None:
            number = body.number("comm_type")
            if body.old or number != BARRIER:
                raise FormatError(f"{node} is a collective of the unknown type {number}", self.trace.path)
            operation, size = Operation.ALL_REDUCE, 1
        if size is not None and not 0 <= size < 2**62 // len(members):
            raise FormatError(f"{node} has a comm_size of {size} bytes", self.trace.path)
        if size is None and math.isnan(duration_s):
            raise FormatError(f"{node} has neither comm_size nor a duration", self.trace.path)
        if size is not None and operation in PIECES:
            size *= len(members)
        unequal = bool(body.number("unequal"))
        op = collective_op(body.name, _phase(body), kind, operation, size, unequal=unequal)
        return self.recorder.row(op), self.recorder.group(kind, members), self._queue(("group", name)), -1, duration_s

    def _message(self, node: Node, duration_s: float) -> tuple[int, int, int, int, float]:
        body = node.body
        sends, pair, size = body.type == NodeType.COMM_SEND, _pair(self.rank, body), body.number("comm_size")
        own = body.number("comm_src" if sends else "comm_dst")
        if own not in (None, self.rank):
            text = f"{node} is a message of rank {own} in the trace of rank {self.rank}"
            raise FormatError(text, self.trace.path)
        if size is not None and not 0 <= size < 2**62:
            raise FormatError(f"{node} has a comm_size of {size} bytes", self.trace.path)
        if size is None and math.isnan(duration_s):
            raise FormatError(f"{node} has neither comm_size nor a duration", self.trace.path)
        kind = Group.PP if pair is None else self.kind_of[pair]
        phase = _phase(body)
        stream = STREAM_OF_GROUP[kind]
        if kind is Group.PP:
            stream = Stream[f"{'SEND' if sends else 'RECV'}_{'BACKWARD' if phase is Phase.BACKWARD else 'FORWARD'}"]
        op = Op(
            name=body.name,
            kind=Kind.SEND if sends else Kind.RECV,
            phase=phase,
            stream=stream,
            group=kind,
            operation=Operation.SEND_RECV,
            size_bytes=size,
        )
        # Where nobody says who is at the other end nobody is waited for.
        members = (self.rank,) if pair is None else self.told[pair].members
        tag = body.number("comm_tag")
        return (
            self.recorder.row(op),
            self.recorder.group(kind, members),
            -1,
            -1 if tag is None or tag < 0 else tag,
            duration_s,
        )


def _order(nodes: Sequence[Node], parents: Sequence[set[int]]) -> list[int] | None:
    """Return the positions of nodes so that each stands after those it depends on, else by id; None in a circle."""
    if all(parent < at for at, those in enumerate(parents) for parent in those):
        return list(range(len(nodes)))
    waits = list(map(len, parents))
    children: list[list[int]] = [[] for _ in nodes]
    for at, those in enumerate(parents):
        for parent in those:
            children[parent].append(at)
    free = [(nodes[at].id, at) for at, count in enumerate(waits) if not count]
    heapq.heapify(free)
    order = []
    while free:
        _, at = heapq.heappop(free)
        order.append(at)
        for child in children[at]:
            waits[child] -= 1
            if not waits[child]:
                heapq.heappush(free, (nodes[child].id, child))
    return order if len(order) == len(nodes) else None


def _phase(body: Body) -> Phase:
    said = body.text(PHASE).upper()
    if said in Phase.__members__:
        return Phase[said]
    if _BACKWARD.search(body.name):
        return Phase.BACKWARD
    return Phase.FORWARD if _FORWARD.search(body.name) else Phase.STEP


def _calls(body: Body) -> tuple[tuple[OperatorCall, float], ...] | None:
    """Return what a node without a duration computes and moves in memory; None where it does not say."""
    flops, moved = body.number("num_ops") or 0, body.number("tensor_size") or 0
    if not 0 < moved < _MOST_WORK or not 0 <= flops < _MOST_WORK:
        return None
    if body.type != NodeType.COMP:
        return ((OperatorCall(family="copy", shape=(moved,), dtype="int8"), 1.0),)
    return ((OperatorCall(family="counted", shape=(max(flops, 1), moved), dtype="bf16"), 1.0),)
