"""Write the bus bandwidths that a simulated step reaches as SimAI's ``busbw.yaml``.

A rate is all that the ranks moved over a kind of group in an operation, by the time that it took, as nccl-tests counts
it: that is what SimAI divides a size by. Operations that the step has none of are ``null``.
"""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.formats.busbw import SECTIONS
from traincast.formats.writer import WRITERS, Run, Writer, Written
from traincast.units import GIGA
from traincast.workload.ops import OpTable
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Group, Kind, Operation, bus_factor

_SAME = {Group.ETP: Group.TP, Group.SHARD: Group.DP, Group.REPLICA: Group.DP}
"""Groups that have no section and count in that of another."""


def write(run: Run, options: Mapping[str, str]) -> Written:  # noqa: ARG001 it has none
    """Return the rates of a run."""
    rates = _rates(*run.simulated())
    known = [name for section in SECTIONS.values() for name in section.values()]
    if not any(name in rates for name in known):
        raise FormatError("has no communication over tp, dp, ep or pp, so that there is no bus bandwidth", run.name)
    lines = ["traincast"]
    for section, keys in SECTIONS.items():
        lines.append(f"{section}:")
        comma = "" if section == "PP" else ","
        lines += [f"{key}{comma}: {_shown(rates.get(name))}" for key, name in keys.items()]
    left = sorted(name for name in rates if name not in known)
    notes = [Note("busbw-left-out", f"SimAI has no rate of {', '.join(left)}")] if left else []
    return Written([("busbw.yaml", ["".join(f"{line}\n" for line in lines).encode()])], tuple(notes))


def _rates(program: Program, timeline: Timeline) -> dict[str, float]:
    """Return bytes per second on the bus by ``tp.all_reduce`` and the like; messages are ``pp``."""
    ops, row_N = program.ops, program.row_N
    members_G = np.array([0, *(len(group.members) for group in program.groups)])
    at = np.flatnonzero(np.isin(ops.kind_T[row_N], [Kind.COLLECTIVE, Kind.SEND]))
    # What is alike is looked at once: a template operation among so many members.
    key_at = row_N[at].astype(np.int64) * (int(members_G.max()) + 1) + members_G[program.group_N[at] + 1]
    found, which_at = np.unique(key_at, return_inverse=True)
    counts, time_s = np.bincount(which_at), np.bincount(which_at, (timeline.end_s_N - timeline.start_s_N)[at])
    moved: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for key, count, seconds in zip(found.tolist(), counts.tolist(), time_s.tolist(), strict=True):
        row, members = divmod(key, int(members_G.max()) + 1)
        name, factor = _kind(ops, row, members)
        if factor:
            moved[name][0] += count * factor * max(0, int(ops.size_bytes_T[row])) * float(ops.repeats_T[row])
            moved[name][1] += seconds
    return {name: size_bytes / seconds for name, (size_bytes, seconds) in moved.items() if size_bytes and seconds}


def _kind(ops: OpTable, row: int, members: int) -> tuple[str, float]:
    """Return what an operation among so many members is called, and its bus over its algorithm bandwidth."""
    if ops.kind_T[row] == Kind.SEND:
        return "pp", 1.0
    group, operation = Group(int(ops.group_T[row])), Operation(int(ops.operation_T[row]))
    name = f"{_SAME.get(group, group).name.lower()}.{operation.name.lower()}"
    return name, bus_factor(operation, members) if members > 1 else 0.0


def _shown(rate: float | None) -> str:
    return "null" if rate is None else f"{rate / GIGA:.6g}"


WRITERS.register("busbw")(
    Writer(name="busbw", title="SimAI bus bandwidths", write=write, one_file=True, needs_step=True)
)
