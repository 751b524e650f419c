"""How long a rank spent in each part of its step, as a measurement would name it.

Pieces of one traced operation (`Op.part`) that stand together make one span, from the first
piece's readiness to the last one's end, as a tracer sees it. Other operations go by what they
are: the phase of a computation, the group of a communication.
"""

import numpy as np

from traincast.workload.ops import BoolArray, IntArray, OpTable
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Group, Kind, Phase

_WAIT = "wait"
"""Part of a WAIT that belongs to no traced operation; it takes no time of its own."""


def step_parts(program: Program, timeline: Timeline) -> list[dict[str, float]]:
    """Return the seconds each simulated rank spent in each part, waiting included.

    Parameters
    ----------
    program, timeline : Program, Timeline
        What ran and when.

    Returns
    -------
    list of dict
        For each of `program.rank_R`: part -> seconds, in the order in which parts first occur.
    """
    names, name_T = _names(program.ops)
    piece_T = np.array([part is not None for part in program.ops.part_T], dtype=np.bool_)
    return [_rank_parts(program, timeline, index, names, name_T, piece_T) for index in range(len(program.rank_R))]


def _rank_parts(
    program: Program, timeline: Timeline, index: int, names: list[str], name_T: IntArray, piece_T: BoolArray
) -> dict[str, float]:
    mine = program.rank_slice(index)
    row_N, ready_N, end_N = program.row_N[mine], timeline.ready_s_N[mine], timeline.end_s_N[mine]
    if not len(row_N):
        return {}
    part_N, microbatch_N, piece_N = name_T[row_N], program.microbatch_N[mine], piece_T[row_N]
    same_N = piece_N[1:] & piece_N[:-1] & (part_N[1:] == part_N[:-1]) & (microbatch_N[1:] == microbatch_N[:-1])
    starts = np.flatnonzero(np.concatenate([[True], ~same_N]))
    span_s = np.maximum.reduceat(end_N, starts) - np.minimum.reduceat(ready_N, starts)
    total_s = np.bincount(part_N[starts], span_s, len(names))
    order = dict.fromkeys(part_N[starts].tolist())
    return {names[part]: float(total_s[part]) for part in order if names[part] != _WAIT}


def _names(ops: OpTable) -> tuple[list[str], IntArray]:
    """Return the parts of a table and the part of each of its operations."""
    numbers: dict[str, int] = {}
    columns = zip(ops.part_T, ops.kind_T.tolist(), ops.phase_T.tolist(), ops.group_T.tolist(), strict=True)
    name_T = [
        numbers.setdefault(part or _name(kind, phase, group), len(numbers)) for part, kind, phase, group in columns
    ]
    return list(numbers), np.array(name_T, dtype=np.int64)


def _name(kind: int, phase: int, group: int) -> str:
    if kind == Kind.COMPUTE:
        return Phase(phase).name.lower()
    if kind in (Kind.GAP, Kind.WAIT):
        return "host_gap" if kind == Kind.GAP else _WAIT
    return Group(group).name.lower()
