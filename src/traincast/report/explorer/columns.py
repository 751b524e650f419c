"""A simulated step as the explorer takes it: the result, and every shown operation in packed columns.

Times are whole ticks of the step, so that a column is integers, of which neighbours differ by little; the bytes of
a column are sorted by their place in the number before they are packed, and mostly equal then.

Letters: N shown operations, T template operations, G groups, H operations of the critical path.
"""

import base64
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from traincast.analysis.causes import causes
from traincast.analysis.waiting import waiting
from traincast.report.explorer.advice import advice
from traincast.report.json import result_to_dict
from traincast.report.operations import choose_ranks, described, simulated
from traincast.report.plain import Plain, encodable
from traincast.report.threads import Threads
from traincast.simulation.reproducible import memory_of
from traincast.simulation.result import Result

if TYPE_CHECKING:
    from traincast.analysis.timed_program import TimedProgram
    from traincast.workload.ops import FloatArray, IntArray
    from traincast.workload.program import GroupInstance, Program

MAX_OPS = 300_000
"""Most operations of a page: the canvas draws so many in a few milliseconds."""
_TICKS = 2**31 - 2
"""Ticks of the longest step; one of 20 s has ticks of 9.3 ns."""
_LEVEL = 6
_SHOWN_MEMBERS = 64
_SHOWN_WAITERS = 32


class Packed(NamedTuple):
    """A run as the page holds it."""

    header: dict[str, Plain]
    """What is read as JSON."""
    columns: str
    """The columns that ``header["columns"]`` lists, one after the other, deflated, in base64."""


def packed_run(result: Result, name: str) -> Packed:
    """Return a result with its operations, under a name for people.

    Raises
    ------
    ConfigError
        If it holds no single operations.
    """
    step = simulated(result)
    program, timeline = step.program, step.timeline
    sizes = np.diff(program.op_ptr_R1).tolist()
    choice = choose_ranks(result, sizes, MAX_OPS, "operations")
    index_N = np.concatenate([np.arange(*program.rank_slice(at).indices(len(program))[:2]) for at in choice.indices])
    tick_s = max(1e-9, timeline.step_s / _TICKS)
    columns = _operation_columns(step, index_N, tick_s)
    lanes = {at: Threads.from_program(program, timeline, at) for at in choice.indices}
    columns["lane"] = np.concatenate([lanes[at].thread_N for at in choice.indices])
    strings: dict[str, int] = {}
    rows_T, columns["row"] = np.unique(program.row_N[index_N], return_inverse=True)
    columns |= _template_columns(program, rows_T, strings)
    groups_G, columns["group"] = np.unique(program.group_N[index_N], return_inverse=True)
    listed, content = _pack(columns)
    header: dict[str, Plain] = {
        "name": encodable(name),
        "result": result_to_dict(result),
        "tick_s": tick_s,
        "shown": choice.reason,
        "advice": advice(result, rows_T),
        "ranks": [
            {
                "rank": int(program.rank_R[at]),
                "stage": int(program.stage_R[at]),
                "represents": int(program.represents_R[at]),
                "operations": sizes[at],
                "lanes": [[key, text] for key, text in sorted(lanes[at].names.items())],
            }
            for at in choice.indices
        ],
        "groups": [None if at < 0 else _group(program.groups[at]) for at in groups_G.tolist()],
        "memory": _memory(result),
        "waits": _waits(step),
        "strings": list(map(encodable, strings)),
        "columns": listed,
    }
    return Packed(header, content)


def _operation_columns(step: "TimedProgram", index_N: "IntArray", tick_s: float) -> dict[str, "IntArray | FloatArray"]:
    """Return when each shown operation was ready, waited and ran, and what it depends on."""
    program, timeline = step.program, step.timeline
    edges_s_N = (timeline.ready_s_N, timeline.start_s_N, timeline.end_s_N)
    ready_N, start_N, end_N = (np.rint(edge_s_N[index_N] / tick_s).astype(np.int64) for edge_s_N in edges_s_N)
    place = np.full(len(program) + 1, -1, dtype=np.int64)
    place[index_N] = np.arange(len(index_N))
    path_H = place[step.path.op_H]
    _, rendezvous_N = np.unique(program.rendezvous_N[index_N], return_inverse=True)
    alone_N = program.rendezvous_N[index_N] < 0
    cause_N = place[causes(step.graph, timeline)[index_N]]
    return {
        "ready": ready_N,
        "wait": start_N - ready_N,
        "run": end_N - start_N,
        "microbatch": program.microbatch_N[index_N],
        "rendezvous": np.where(alone_N, -1, rendezvous_N),
        # How far back, which repeats, and not where, which does not.
        "cause": np.where(cause_N < 0, 0, np.arange(len(index_N)) - cause_N),
        "path": path_H[path_H >= 0],
    }


def _template_columns(
    program: "Program", rows_T: "IntArray", strings: dict[str, int]
) -> dict[str, "IntArray | FloatArray"]:
    """Return what the shown operations are; texts are places in `strings`, -1 where there is none."""
    every = described(program.ops)
    shown = [every[row] for row in rows_T.tolist()]

    def place(text: str | None) -> int:
        return -1 if text is None else strings.setdefault(text, len(strings))

    texts = {
        key: np.array([place(getattr(each, key)) for each in shown], dtype=np.int64)
        for key in ("name", "phase", "kind", "stream", "operation")
    }
    places = [place(program.place(row).strip(" ()") or None) for row in rows_T.tolist()]
    return {
        **{f"{key}_T": column for key, column in texts.items()},
        "kind_of_group_T": np.array([place(each.group) for each in shown], dtype=np.int64),
        "layer_T": program.ops.layer_T[rows_T],
        "place_T": np.array(places, dtype=np.int64),
        "size_T": program.ops.size_bytes_T[rows_T].astype(np.float64),
        "flops_T": np.nan_to_num(program.ops.flops_T[rows_T], nan=-1.0),
    }


def _memory(result: Result) -> list[Plain]:
    """Return of each stage what it holds over the step: bytes where they are known, else microbatches in flight."""
    found: list[Plain] = []
    for curve in memory_of(result):
        sizes = curve.size_bytes_H
        held: list[Plain] = list(curve.in_flight_H.tolist() if sizes is None else sizes.tolist())
        times: list[Plain] = list(curve.time_s_H.tolist())
        found.append(
            {"stage": curve.stage, "rank": curve.rank, "bytes": sizes is not None, "time_s": times, "held": held}
        )
    return found


def _waits(step: "TimedProgram") -> dict[str, Plain]:
    """Return how long ranks waited because of others that were not waiting themselves, of those with the most of it."""
    pairs = waiting(step).root
    seconds: dict[int, float] = {}
    for rank_K in (pairs.rank_K, pairs.other_K):
        for rank, time_s in zip(rank_K.tolist(), pairs.time_s_K.tolist(), strict=True):
            seconds[rank] = seconds.get(rank, 0.0) + time_s
    ranks = sorted(sorted(seconds, key=lambda rank: -seconds[rank])[:_SHOWN_WAITERS])
    matrix = pairs.matrix(np.array(ranks, dtype=np.int64)).tolist()
    return {"ranks": list(ranks), "matrix_s": matrix}


def _group(group: "GroupInstance") -> Plain:
    members = group.members.tolist()
    return {"kind": group.kind.name.lower(), "size": len(members), "members": members[:_SHOWN_MEMBERS]}


def _pack(columns: dict[str, Any]) -> tuple[list[Plain], str]:
    """Return the list of columns (name, type, length) and their bytes, packed."""
    listed: list[Plain] = []
    pieces = []
    for name, column in columns.items():
        kind = "f8" if column.dtype.kind == "f" else "i4"
        narrow = np.ascontiguousarray(column, dtype=f"<{kind}")
        if kind == "i4" and not name.endswith("_T"):
            narrow = np.diff(narrow, prepend=narrow.dtype.type(0)) if name in _FROM_THE_LAST else narrow
        listed.append([name, kind, len(narrow), name in _FROM_THE_LAST])
        pieces.append(narrow.view(np.uint8).reshape(len(narrow), -1).T.tobytes())
    return listed, base64.b64encode(zlib.compress(b"".join(pieces), _LEVEL)).decode("ascii")


_FROM_THE_LAST = frozenset({"ready", "row", "path"})
"""Columns that hold by how much each number is above the one before it."""
