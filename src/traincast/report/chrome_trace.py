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
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

import msgspec

from traincast.report.files import file_report
from traincast.report.operations import Described, RankChoice, choose_ranks, described, pieces, simulated
from traincast.report.plain import Plain, encodable, plain
from traincast.report.threads import Threads
from traincast.report.trace_links import counters, flows
from traincast.simulation.result import Result
from traincast.units import GIGA

if TYPE_CHECKING:
    from traincast.workload.ops import FloatArray
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
        threads = {index: Threads.from_program(program, timeline, index) for index in choice.indices}
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
    def from_timeline(cls, timeline: "Timeline", part: slice) -> "_Spans":
        """Return the spans of some operations."""
        edges_s_N = (timeline.ready_s_N, timeline.start_s_N, timeline.end_s_N)
        ready_N, start_N, end_N = ((edge_s_N[part] * GIGA).round() for edge_s_N in edges_s_N)
        edges = (ready_N, start_N - ready_N, start_N, end_N - start_N)
        return cls(*(edge_N / _NS_PER_US for edge_N in edges))


def _slice_count(timeline: "Timeline", part: slice) -> int:
    spans = _Spans.from_timeline(timeline, part)
    return int((spans.wait_us_N > 0).sum() + (spans.run_us_N > 0).sum())


def _slices(
    program: "Program", timeline: "Timeline", index: int, described_T: list[Described], threads: Threads
) -> Iterator[list[_Slice]]:
    """Yield the slices of a simulated rank in program order, in pieces that fit in memory."""
    rank, first = int(program.rank_R[index]), program.rank_slice(index).start
    # One more entry for the index -1: no group.
    ranks_G = [len(group.members) for group in program.groups] + [None]
    for part in pieces(program, index):
        thread_N = threads.thread_N[part.start - first : part.stop - first]
        own_N = (program.row_N[part], thread_N, program.microbatch_N[part], program.group_N[part])
        columns = (*own_N, *_Spans.from_timeline(timeline, part))
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


def _names(result: Result, program: "Program", choice: RankChoice, threads: dict[int, Threads]) -> list[Plain]:
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


def _other_data(result: Result, program: "Program", choice: RankChoice) -> Plain:
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
