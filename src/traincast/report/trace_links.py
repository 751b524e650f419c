"""What a timeline for Perfetto has in addition to its slices: arrows between ranks, and counters.

An arrow (a flow of the Trace Event Format) leads from each send to its receive, and in a collective from the member
that arrived last, for which all others waited, to each of them. Counters of a rank are the bytes that its stage holds,
or the microbatches in flight where bytes are not known, and for each kind of group the bytes/s of the transfers that
run: size over time, as nccl-tests' algorithm bandwidth.

Source: Trace Event Format (Google), "Flow events" (``s``, ``f`` with ``bp: e``) and "Counter events".
Letters: N operations, P points of a counter, J rendezvous.
"""

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np

from traincast.report.threads import Threads
from traincast.simulation.reproducible import memory_of
from traincast.simulation.result import Result
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Group, Kind

MOST_FLOWS = 300_000
"""Arrows of a trace; a step with more has none."""
_US = 1e6
_NS_PER_US = 1000
_BEFORE, _AFTER = 0.25, 0.75
"""Where an arrow leaves and ends in its slices, which begin and end together."""


class Flow(msgspec.Struct, gc=False, omit_defaults=True):
    """One end of an arrow; it is bound to the slice around it."""

    name: str
    ph: str
    id: int
    pid: int
    tid: int
    ts: float
    bp: str | None = None
    cat: str = "rendezvous"


class Counter(msgspec.Struct, gc=False):
    """The value of a counter of a rank from a time on."""

    name: str
    pid: int
    ts: float
    args: dict[str, float]
    ph: str = "C"
    cat: str = "counter"


def flows(program: Program, timeline: Timeline, threads: Mapping[int, Threads]) -> Iterator[list[Flow]]:
    """Yield the arrows between the ranks that are shown, in pieces; nothing where there are too many."""
    index_N = np.repeat(np.arange(len(program.rank_R)), np.diff(program.op_ptr_R1))
    took_N = timeline.end_s_N > timeline.start_s_N
    met = np.flatnonzero((program.rendezvous_N >= 0) & np.isin(index_N, list(threads)) & took_N)
    met = met[np.argsort(program.rendezvous_N[met], kind="stable")]
    bounds = np.flatnonzero(np.diff(program.rendezvous_N[met], prepend=-1, append=-1))
    if len(met) - (len(bounds) - 1) > MOST_FLOWS:
        return
    kind_N = program.ops.kind_T[program.row_N]
    number = 0

    def end(op: int, phase: str, at: float) -> Flow:
        index = int(index_N[op])
        start_s, end_s = float(timeline.start_s_N[op]), float(timeline.end_s_N[op])
        thread = int(threads[index].thread_N[op - program.rank_slice(index).start])
        ts = round((start_s + at * (end_s - start_s)) * _US * _NS_PER_US) / _NS_PER_US
        name = "message" if kind_N[op] in (Kind.SEND, Kind.RECV) else "collective"
        return Flow(name, phase, number, int(program.rank_R[index]), thread, ts, "e" if phase == "f" else None)

    for begin, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        members = met[begin:stop]
        last = int(members[np.argmax(timeline.ready_s_N[members])])
        sends = members[kind_N[members] == Kind.SEND]
        source = int(sends[0]) if len(sends) else last
        found = []
        for other in members.tolist():
            if other != source:
                number += 1
                found += [end(source, "s", _BEFORE), end(other, "f", _AFTER)]
        if found:
            yield found


def counters(result: Result, program: Program, timeline: Timeline, indices: tuple[int, ...]) -> Iterator[Counter]:
    """Yield the counters of the ranks that are shown: memory of their stage, and bytes/s of each kind of group."""
    yield from _memory(result, {int(program.rank_R[index]) for index in indices})
    for index in indices:
        yield from _link_use(program, timeline, index)


def _memory(result: Result, ranks: set[int]) -> Iterator[Counter]:
    for curve in memory_of(result):
        if curve.rank not in ranks:
            continue
        in_bytes = curve.size_bytes_H is not None
        name = "memory (GiB)" if in_bytes else "microbatches in flight"
        values = curve.in_flight_H if curve.size_bytes_H is None else curve.size_bytes_H / 2**30
        for time_s, value in zip(curve.time_s_H.tolist(), values.tolist(), strict=True):
            yield Counter(name, curve.rank, _us(time_s), {"GiB" if in_bytes else "count": round(value, 4)})


def _link_use(program: Program, timeline: Timeline, index: int) -> Iterator[Counter]:
    mine = program.rank_slice(index)
    row_N = program.row_N[mine]
    size_N, group_N = program.ops.size_bytes_T[row_N], program.ops.group_T[row_N]
    start_N, end_N = timeline.start_s_N[mine], timeline.end_s_N[mine]
    moves_N = (size_N > 0) & (end_N > start_N) & (group_N != Group.NONE)
    for group in np.unique(group_N[moves_N]).tolist():
        at = np.flatnonzero(moves_N & (group_N == group))
        rate = size_N[at] / (end_N[at] - start_N[at])
        time_s_P, place = np.unique(np.concatenate([start_N[at], end_N[at]]), return_inverse=True)
        change_P = np.bincount(place[: len(at)], rate, len(time_s_P))
        change_P -= np.bincount(place[len(at) :], rate, len(time_s_P))
        name = f"{Group(group).name.lower()} transfers (GB/s)"
        running_P = np.bincount(place[: len(at)], minlength=len(time_s_P))
        running_P = np.cumsum(running_P - np.bincount(place[len(at) :], minlength=len(time_s_P)))
        rate_P = np.where(running_P > 0, np.maximum(np.cumsum(change_P), 0.0), 0.0)
        for time_s, value in zip(time_s_P.tolist(), rate_P.tolist(), strict=True):
            yield Counter(name, int(program.rank_R[index]), _us(time_s), {"GB/s": round(value / 1e9, 4)})


def _us(time_s: float) -> float:
    return round(time_s * _US * _NS_PER_US) / _NS_PER_US
