"""Why a step took as long as it did: everything that is told of a program that ran, and the short form for a result.

It asks nothing but a program and its timeline, so that a step that was simulated, replayed or measured is explained in
the same way. Letters: N operations, H operations of the critical path, R simulated ranks.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from traincast.analysis.communication import communication_table, overlap_of_ranks
from traincast.analysis.critical_path import CriticalPath, slacks
from traincast.analysis.memory_curve import Saved, StageCurve, memory_curves
from traincast.analysis.roofline import roofline
from traincast.analysis.summary import (
    Analysis,
    CommunicationRow,
    KeptWaiting,
    PathShare,
    RankOverlap,
    RooflineRow,
    WaitShare,
)
from traincast.analysis.timed_program import TimedProgram
from traincast.analysis.waiting import Waiting, WaitingPairs, waiting
from traincast.units import counted
from traincast.workload.ops import FloatArray, OpTable, distinct
from traincast.workload.program import Program
from traincast.workload.words import Group, Kind, Phase

MOST_TOLD = 64
"""Lines of each list of a short form; what is left out is the least of it."""


class Explanation(Struct, frozen=True, kw_only=True):
    """Everything that is told of a step, by operation where it is of operations."""

    path: CriticalPath
    """A chain of operations as long as the step."""
    slack_s_N: FloatArray
    """How much longer each operation could have taken without making the step longer."""
    waiting: Waiting
    """Who waited for whom."""
    communication: tuple[CommunicationRow, ...]
    """Distinct communications, transfer and skew apart."""
    overlap: tuple[RankOverlap, ...]
    """Of each simulated rank the share of communication that overlapped with computation."""
    roofline: tuple[RooflineRow, ...]
    """Computations of the rank that computes longest."""
    memory: tuple[StageCurve, ...]
    """Of each stage, what it held over the step."""

    def __repr__(self) -> str:
        """Say how much is explained, in a line."""
        return f"<Explanation: {counted(len(self.slack_s_N), 'operation')}>"


def explain(
    step: TimedProgram,
    *,
    saved_Q: Mapping[int, Saved] | None = None,
    peak_bytes_P: Mapping[int, float] | None = None,
    engine: str = "auto",
) -> Explanation:
    """Explain a step that ran; `saved_Q` and `peak_bytes_P` are what is known of its memory (`memory_curves`)."""
    program, timeline = step.program, step.timeline
    return Explanation(
        path=step.path,
        slack_s_N=slacks(step.graph, timeline, engine),
        waiting=waiting(step),
        communication=communication_table(program, timeline),
        overlap=overlap_of_ranks(program, timeline),
        roofline=roofline(program, timeline),
        memory=memory_curves(program, timeline, saved_Q, peak_bytes_P),
    )


def short_form(step: TimedProgram) -> Analysis:
    """Return the short form of the explanation of a step that ran; what it does not tell is not worked out."""
    program, timeline = step.program, step.timeline
    waits = waiting(step)
    return Analysis(
        critical_path=path_shares(step.path, program),
        waits=_waits(waits.direct),
        kept_waiting=_kept_waiting(waits.root, program),
        communication=communication_table(program, timeline)[:MOST_TOLD],
        overlap=overlap_of_ranks(program, timeline)[:MOST_TOLD],
        roofline=roofline(program, timeline)[:MOST_TOLD],
    )


def path_shares(path: CriticalPath, program: Program) -> tuple[PathShare, ...]:
    """Return what a critical path spends on each stage in each kind of work, the longest first."""
    op_H, time_s_H = path.op_H[path.time_s_H > 0], path.time_s_H[path.time_s_H > 0]
    row_H, stage_H = program.row_N[op_H], program.stage_N[op_H]
    numbers: dict[str, int] = {}
    number_T = np.zeros(len(program.ops), dtype=np.int64)
    for row in distinct(row_H).tolist():
        number_T[row] = numbers.setdefault(what(program.ops, row), len(numbers))
    names = list(numbers)
    which_H = stage_H.astype(np.int64) * len(names) + number_T[row_H]
    sums = np.bincount(which_H, time_s_H)
    found = [
        PathShare(stage=each // len(names), what=names[each % len(names)], time_s=float(sums[each]))
        for each in distinct(which_H).tolist()
    ]
    return tuple(sorted(found, key=lambda each: (-each.time_s, each.stage, each.what)))


def what(ops: OpTable, row: int) -> str:
    """Return the kind of work that a template operation is, in a word."""
    kind = Kind(int(ops.kind_T[row]))
    if kind is Kind.COMPUTE:
        return Phase(int(ops.phase_T[row])).name.lower()
    if kind in (Kind.GAP, Kind.WAIT):
        return "host"
    if kind is Kind.COPY:
        return "copy"
    return Group(int(ops.group_T[row])).name.lower()


def _waits(pairs: WaitingPairs) -> tuple[WaitShare, ...]:
    columns: Sequence[np.ndarray] = (pairs.rank_K, pairs.other_K, pairs.time_s_K)
    lines = zip(*(column[:MOST_TOLD].tolist() for column in columns), strict=True)
    return tuple(WaitShare(rank=rank, other=other, time_s=time_s) for rank, other, time_s in lines if time_s > 0)


def _kept_waiting(pairs: WaitingPairs, program: Program) -> tuple[KeptWaiting, ...]:
    stage_of = dict(zip(program.rank_R.tolist(), program.stage_R.tolist(), strict=True))
    sums: dict[int, float] = {}
    for rank, time_s in zip(pairs.other_K.tolist(), pairs.time_s_K.tolist(), strict=True):
        sums[rank] = sums.get(rank, 0.0) + time_s
    order = sorted((rank for rank in sums if sums[rank] > 0), key=lambda rank: (-sums[rank], rank))
    return tuple(KeptWaiting(rank=rank, stage=stage_of[rank], time_s=sums[rank]) for rank in order[:MOST_TOLD])
