"""How long a rank spent in each part of its step.

Parts are what a measurement would name. Pieces of one traced operation (`Op.part`) that stand together make one
span, from the first piece's readiness to the last one's end, as a tracer sees it. So do a send and the receive that
is posted together with it, under the name of the send. Other operations go by what they are: the phase of a
computation, the group of a communication. Where nothing of a span runs, the rank waits for others.
Letters: N operations of a rank, S spans.
"""

from typing import NamedTuple

import numpy as np

from traincast.workload.ops import BoolArray, FloatArray, IntArray, OpTable, numbered
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Group, Kind, Phase

_UNNAMED = -1
"""Part of a WAIT that belongs to no traced operation; it takes no time of its own."""


class Spent(NamedTuple):
    """What a rank spent in a part, in seconds."""

    time_s: float
    """All of it."""
    wait_s: float
    """Of it waiting for other ranks."""


def step_parts(program: Program, timeline: Timeline) -> list[dict[str, Spent]]:
    """Return what each simulated rank spent in each part, for each of `program.rank_R`.

    Parts are in the order in which they first occur. Of operations that hold nobody back, such as asynchronous ones,
    parts may overlap.
    """
    names, name_T = _names(program.ops)
    piece_T = np.array([part is not None for part in program.ops.part_T], dtype=np.bool_)
    traced_T = np.where(piece_T, name_T, -1)
    blocks = (_parts_of(program, timeline, *block, names, name_T, traced_T) for block in program.rank_blocks())
    return [parts for block in blocks for parts in block]


def _parts_of(
    program: Program,
    timeline: Timeline,
    first: int,
    last: int,
    names: list[str],
    name_T: IntArray,
    traced_T: IntArray,
) -> list[dict[str, Spent]]:
    """Return what each simulated rank from one index to another spent in each part; `traced_T` are those of pieces."""
    ptr_R1 = program.op_ptr_R1[first : last + 1]
    mine = slice(int(ptr_R1[0]), int(ptr_R1[-1]))
    row_N, ready_N, end_N = program.row_N[mine], timeline.ready_s_N[mine], timeline.end_s_N[mine]
    if not len(row_N):
        return [{} for _ in range(first, last)]
    traced_N, microbatch_N = traced_T[row_N], program.microbatch_N[mine]
    same_N = (traced_N[1:] == traced_N[:-1]) & (microbatch_N[1:] == microbatch_N[:-1]) & (traced_N[1:] >= 0)
    begins_N = np.concatenate([[True], ~(same_N | _posted_together(program.ops, row_N)), [True]])
    begins_N[ptr_R1 - ptr_R1[0]] = True
    starts_S = np.flatnonzero(begins_N[:-1])
    span_s_S = np.maximum.reduceat(end_N, starts_S) - np.minimum.reduceat(ready_N, starts_S)
    wait_s_S = _waits(starts_S, ready_N, timeline.start_s_N[mine], end_N)
    part_S = name_T[row_N[starts_S]]
    named = part_S != _UNNAMED
    part_S, starts_S, span_s_S, wait_s_S = part_S[named], starts_S[named], span_s_S[named], wait_s_S[named]
    span_R1 = np.searchsorted(starts_S, ptr_R1 - ptr_R1[0])
    at_S = np.repeat(np.arange(last - first), np.diff(span_R1)) * len(names) + part_S
    size = (last - first) * len(names)
    total_s, wait_s = (np.bincount(at_S, each, size).tolist() for each in (span_s_S, wait_s_S))
    found: list[dict[str, Spent]] = [{} for _ in range(first, last)]
    for at in at_S[np.sort(numbered(at_S)[0])].tolist():
        rank, part = divmod(at, len(names))
        found[rank][names[part]] = Spent(total_s[at], wait_s[at])
    return found


def _posted_together(ops: OpTable, row_N: IntArray) -> BoolArray:
    """Tell which operations are a receive that was posted together with the send before it; from the second on."""
    sends_T, receives_T = (ops.kind_T == Kind.SEND) & ~ops.blocking_T, (ops.kind_T == Kind.RECV) & ops.blocking_T
    if not (sends_T.any() and receives_T.any()):
        return np.zeros(max(0, len(row_N) - 1), dtype=np.bool_)
    together_N: BoolArray = sends_T[row_N[:-1]] & receives_T[row_N[1:]]
    return together_N


def _waits(starts_S: IntArray, ready_N: FloatArray, start_N: FloatArray, end_N: FloatArray) -> FloatArray:
    """Return the seconds of each span, from its first readiness on, in which nothing of it runs, [S]."""
    size_S = np.diff(np.append(starts_S, len(ready_N)))
    wait_s_S: FloatArray = np.maximum(start_N[starts_S] - ready_N[starts_S], 0.0)
    long = np.flatnonzero(size_S > 1)
    if len(long):
        of_long_N = np.repeat(size_S > 1, size_S)
        first = np.cumsum(size_S[long]) - size_S[long]
        wait_s_S[long] = _waits_of_several(first, *(each[of_long_N] for each in (ready_N, start_N, end_N)))
    return wait_s_S


def _waits_of_several(starts_S: IntArray, ready_N: FloatArray, start_N: FloatArray, end_N: FloatArray) -> FloatArray:
    """Return the same of spans of several operations."""
    span_N = np.repeat(np.arange(len(starts_S)), np.diff(np.append(starts_S, len(ready_N))))
    order = np.lexsort((start_N, span_N))
    # The latest end so far within each span: ends as numbers in rising order, offset by span.
    ends, number_N = np.unique(end_N, return_inverse=True)
    latest_N = ends[np.maximum.accumulate(span_N * len(ends) + number_N[order]) % len(ends)]
    before_N = np.roll(latest_N, 1)
    before_N[starts_S] = np.minimum.reduceat(ready_N, starts_S)
    return np.bincount(span_N, np.maximum(start_N[order] - before_N, 0.0), len(starts_S)).astype(np.float64)


def _names(ops: OpTable) -> tuple[list[str], IntArray]:
    """Return the parts of a table and the part of each of its operations; `_UNNAMED` for none."""
    numbers: dict[str, int] = {}
    kinds = list(zip(ops.kind_T.tolist(), ops.phase_T.tolist(), ops.group_T.tolist(), strict=True))
    name_of = {kind: _name(*kind) for kind in dict.fromkeys(kinds)}
    names = [part or name_of[kind] for part, kind in zip(ops.part_T, kinds, strict=True)]
    name_T = [_UNNAMED if name is None else numbers.setdefault(name, len(numbers)) for name in names]
    return list(numbers), np.array(name_T, dtype=np.int64)


def _name(kind: int, phase: int, group: int) -> str | None:
    if kind == Kind.COMPUTE:
        return Phase(phase).name.lower()
    if kind == Kind.WAIT:
        return None
    if kind == Kind.COPY:
        return "copy"
    return "host_gap" if kind == Kind.GAP else Group(group).name.lower()
