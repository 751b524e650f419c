"""Write the bus bandwidths that a simulated step reaches as SimAI's ``busbw.yaml``.

A rate is all that the ranks moved over a kind of group in an operation, by the time that it took, as nccl-tests counts
it: that is what SimAI divides a size by. Operations that the step has none of are ``null``.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.formats.busbw import SECTIONS
from traincast.formats.writer import WRITERS, Run, Writer, Written
from traincast.units import GIGA
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
    moved: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, size_bytes, time_s in _transfers(program, timeline):
        moved[name][0] += size_bytes
        moved[name][1] += time_s
    return {name: size_bytes / time_s for name, (size_bytes, time_s) in moved.items() if size_bytes and time_s}


def _transfers(program: Program, timeline: Timeline) -> Iterator[tuple[str, float, float]]:
    """Return what every communication of all ranks is called, its bytes on the bus and its seconds."""
    ops = program.ops
    at = np.flatnonzero(np.isin(ops.kind_T[program.row_N], [Kind.COLLECTIVE, Kind.SEND]))
    time_s = (timeline.end_s_N - timeline.start_s_N)[at]
    for row, group, seconds in zip(
        program.row_N[at].tolist(), program.group_N[at].tolist(), time_s.tolist(), strict=True
    ):
        size = max(0, int(ops.size_bytes_T[row])) * float(ops.repeats_T[row])
        if ops.kind_T[row] == Kind.SEND:
            yield "pp", size, seconds
            continue
        kind, operation = Group(int(ops.group_T[row])), Operation(int(ops.operation_T[row]))
        ranks = len(program.groups[group].members) if group >= 0 else 1
        if ranks > 1:
            name = f"{_SAME.get(kind, kind).name.lower()}.{operation.name.lower()}"
            yield name, size * bus_factor(operation, ranks), seconds


def _shown(rate: float | None) -> str:
    return "null" if rate is None else f"{rate / GIGA:.6g}"


WRITERS.register("busbw")(
    Writer(name="busbw", title="SimAI bus bandwidths", write=write, one_file=True, needs_step=True)
)
