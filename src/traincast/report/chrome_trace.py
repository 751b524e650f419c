"""``trace.json.gz``: the timeline for Perfetto and chrome://tracing.

A process is a rank, a thread one of its streams, a slice an operation; waiting for the other
members of a communication is a slice of its own before the transfer; arrows and counters are those of
`traincast.report.trace_links`. Times are rounded to nanoseconds at the edges of slices, not in their lengths, so that
neighbours never overlap.

Source: Trace Event Format (Google, "Duration" and "Metadata" events);
https://perfetto.dev/docs/getting-started/other-formats (slices of one thread must nest).
Letters: N operations, R simulated ranks, T template operations, G groups.
"""

import gzip
from collections.abc import Iterable, Iterator
from heapq import heappush, heapreplace
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

import msgspec

from traincast.report.files import file_report
from traincast.report.operations import Choice, Described, choose_ranks, described, pieces, simulated
from traincast.report.plain import Plain, encodable, plain
from traincast.report.trace_links import counters, flows
from traincast.simulation.result import Result
from traincast.units import GIGA
from traincast.workload.words import Stream

if TYPE_CHECKING:
    from traincast.workload.ops import FloatArray, IntArray
    from traincast.workload.program import Program, Timeline

T = TypeVar("T")

MAX_SLICES = 1_000_000
"""Most slices of a trace: above about 256 MB of JSON the viewers give up."""

_COUNTERS_AT_ONCE = 10_000
_LEVEL = 3
_NS_PER_US = 1000


class _Args(msgspec.Struct, omit_defaults=True, gc=False):
    phase: str
    layer: int | None = None
    group: str | None = None
    operation: str | None = None
    size_bytes: int | None = None
    microbatch: int | None = None
    ranks: int | None = None
    """Size of the group."""


class _Slice(msgspec.Struct, gc=False):
    name: str
    cat: str
    pid: int
    tid: int
    ts: float
    """Microseconds."""
    dur: float
    """Microseconds."""
    args: _Args
    ph: str = "X"


@file_report("trace", "trace.json.gz", needs_timeline=True)
def write_trace(result: Result, stream: BinaryIO) -> None:
    """Write the timeline of the simulated ranks, or of chosen ones above `MAX_SLICES`.

    It is gzip without name and time, so that the same result gives the same bytes; ``otherData`` says which
    ranks are shown and why.

    Raises
    ------
    ConfigError
        If the result holds no single operations.
    """
    step = simulated(result)
    program, timeline = step.program, step.timeline
    size_R = [_slice_count(timeline, program.rank_slice(index)) for index in range(len(program.rank_R))]
    choice = choose_ranks(result, size_R, MAX_SLICES, "slices")
    described_T = [each._replace(name=encodable(each.name)) for each in described(program.ops)]
    encode = msgspec.json.Encoder().encode
    # An empty name: GzipFile would otherwise write the name of the stream.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=stream, mtime=0) as packed:
        threads = {index: Threads.of(program, timeline, index) for index in choice.indices}
        packed.write(b'{"traceEvents":[' + encode(_names(result, program, choice, threads))[1:-1])
        for index in choice.indices:
            for slices in _slices(program, timeline, index, described_T, threads[index]):
                packed.write(b"," + encode(slices)[1:-1])
        for arrows in flows(program, timeline, threads):
            packed.write(b"," + encode(arrows)[1:-1])
        for values in batched(counters(result, program, timeline, choice.indices), _COUNTERS_AT_ONCE):
            packed.write(b"," + encode(values)[1:-1])
        packed.write(b'],"displayTimeUnit":"ms","otherData":' + encode(_other_data(result, program, choice)) + b"}\n")


def batched(each: Iterable[T], most: int) -> Iterator[list[T]]:
    """Yield what there is in lists of at most so many; it is in Python from 3.12 on."""
    rest = iter(each)
    while batch := list(islice(rest, most)):
        yield batch


class _Spans(NamedTuple):
    """When operations waited and ran; all arrays are microseconds, whole nanoseconds inside."""

    ready_us_N: "FloatArray"
    wait_us_N: "FloatArray"
    start_us_N: "FloatArray"
    run_us_N: "FloatArray"

    @classmethod
    def of(cls, timeline: "Timeline", part: slice) -> "_Spans":
        """Return the spans of some operations."""
        edges_s_N = (timeline.ready_s_N, timeline.start_s_N, timeline.end_s_N)
        ready_N, start_N, end_N = ((edge_s_N[part] * GIGA).round() for edge_s_N in edges_s_N)
        edges = (ready_N, start_N - ready_N, start_N, end_N - start_N)
        return cls(*(edge_N / _NS_PER_US for edge_N in edges))


def _slice_count(timeline: "Timeline", part: slice) -> int:
    spans = _Spans.of(timeline, part)
    return int((spans.wait_us_N > 0).sum() + (spans.run_us_N > 0).sum())


def _slices(
    program: "Program", timeline: "Timeline", index: int, described_T: list[Described], threads: "Threads"
) -> Iterator[list[_Slice]]:
    """Yield the slices of a simulated rank in program order, in pieces that fit in memory."""
    rank, first = int(program.rank_R[index]), program.rank_slice(index).start
    # One more entry for the index -1: no group.
    ranks_G = [len(group.members) for group in program.groups] + [None]
    for part in pieces(program, index):
        thread_N = threads.thread_N[part.start - first : part.stop - first]
        own_N = (program.row_N[part], thread_N, program.microbatch_N[part], program.group_N[part])
        columns = (*own_N, *_Spans.of(timeline, part))
        found: list[_Slice] = []
        for row, thread, microbatch, group, ready_us, wait_us, start_us, run_us in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            if not (wait_us or run_us):
                continue
            own = described_T[row]
            args = _Args(
                phase=own.phase,
                layer=own.layer,
                group=own.group,
                operation=own.operation,
                size_bytes=own.size_bytes,
                microbatch=microbatch if microbatch >= 0 else None,
                ranks=ranks_G[group],
            )
            if wait_us:
                found.append(_Slice(f"wait: {own.name}", "wait", rank, thread, ready_us, wait_us, args))
            if run_us:
                found.append(_Slice(own.name, own.phase, rank, thread, start_us, run_us, args))
        if found:
            yield found


class Threads(NamedTuple):
    """The thread of each operation of a rank, and their names; never 0, which viewers take for the idle thread."""

    thread_N: "IntArray"
    names: dict[int, str]

    @classmethod
    def of(cls, program: "Program", timeline: "Timeline", index: int) -> "Threads":
        """Return a thread for each stream; of a recorded program for each of its queues.

        What is in no queue shares the threads of its stream so that its slices never overlap.
        """
        import numpy as np

        mine = program.rank_slice(index)
        stream_N = program.ops.stream_T[program.row_N[mine]].astype(np.int64)
        if program.recorded is None:
            streams = sorted(set(stream_N.tolist()))
            return cls(stream_N + 1, {stream + 1: _words(stream) for stream in streams})
        queue_N = program.recorded.queue_N[mine]
        lane_N = queue_N.copy()
        loose = np.flatnonzero(queue_N < 0)
        free: dict[int, list[tuple[float, int]]] = {}
        lanes = int(queue_N.max(initial=-1)) + 1
        begin_N, end_N = timeline.ready_s_N[mine], timeline.end_s_N[mine]
        for op in loose[np.argsort(begin_N[loose], kind="stable")].tolist():
            known = free.setdefault(int(stream_N[op]), [])
            if known and known[0][0] <= begin_N[op]:
                lane_N[op] = known[0][1]
                heapreplace(known, (float(end_N[op]), int(lane_N[op])))
            else:
                lane_N[op] = lanes
                heappush(known, (float(end_N[op]), lanes))
                lanes += 1
        _, first, thread_N = np.unique(lane_N, return_index=True, return_inverse=True)
        found = [_words(int(stream)) for stream in stream_N[first]]
        names = {
            at + 1: name if found.count(name) == 1 else f"{name} {found[: at + 1].count(name)}"
            for at, name in enumerate(found)
        }
        return cls(thread_N + 1, names)


def _words(stream: int) -> str:
    return Stream(stream).name.lower().replace("_", " ")


def _names(result: Result, program: "Program", choice: Choice, threads: dict[int, Threads]) -> list[Plain]:
    """Return the metadata events that name and sort the processes and threads."""
    events: list[Plain] = []
    held = () if result.job is None else result.job.stages

    def name(what: str, key: str, value: Plain, **owner: Plain) -> None:
        events.append({"name": what, "ph": "M", **owner, "args": {key: value}})

    for index in choice.indices:
        rank, stage, represents = (int(of_R[index]) for of_R in (program.rank_R, program.stage_R, program.represents_R))
        stands = f", stands for {represents}" if represents > 1 else ""
        holds = f": {held[stage]}" if len(held) > stage else ""
        name("process_name", "name", f"rank {rank} (stage {stage}{holds}{stands})", pid=rank)
        name("process_sort_index", "sort_index", rank, pid=rank)
        for thread, words in threads[index].names.items():
            name("thread_name", "name", words, pid=rank, tid=thread)
            name("thread_sort_index", "sort_index", thread, pid=rank, tid=thread)
    return events


def _other_data(result: Result, program: "Program", choice: Choice) -> Plain:
    facts = {
        "producer": "traincast",
        "version": result.version,
        "iteration_time_s": result.iteration_time_s,
        "measured_s": result.measured_s,
        "model": None if result.job is None else result.job.model,
        "cluster": result.cluster.name,
        "parallel": result.parallel,
        "ranks_shown": [int(program.rank_R[index]) for index in choice.indices],
        "ranks_simulated": len(program.rank_R),
        "reason": choice.reason,
    }
    return plain(facts, "$.otherData")
