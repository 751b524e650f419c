"""Find ranks whose own work takes much longer than that of their peers.

A rank is compared with the other ranks of its stage, which do the same work; where a stage has
one rank only, with the middle stages of the pipeline.

Letters: R simulated ranks.
"""

import numpy as np
from msgspec import Struct

from traincast.workload.ops import BoolArray, FloatArray, IntArray
from traincast.workload.program import Program
from traincast.workload.words import Kind

WELL_ABOVE = 1.1
"""Own time over that of the like from which a rank is a straggler; ranks of one stage agree within 2 %."""

WELL_ABOVE_LIKE_STAGES = 1.25
"""The same against other stages, whose layers may differ a little."""

SAME_LOAD = 0.05
"""Relative difference of two loads of experts up to which ranks are alike: half of what makes a straggler."""


class Straggler(Struct, frozen=True):
    """A rank that is slower than its peers."""

    index: int
    """Index into `Program.rank_R`."""
    slowdown: float
    """Own time over that of its peers."""


def find_stragglers(program: Program, duration_s_N: FloatArray, load_R: FloatArray | None = None) -> list[Straggler]:
    """Return the ranks whose computations take much longer than those of their peers, by rank.

    Parameters
    ----------
    program : Program
        What ran.
    duration_s_N : float array [N]
        Seconds of each operation.
    load_R : float array [R], optional
        Tokens of each rank's experts over the mean: ranks of unequal load are not alike, and the
        busiest is not a straggler. None where all are equal.
    """
    own_s_R = _own_s(program, duration_s_N)
    found = []
    for index in range(len(program.rank_R)):
        alike_R = np.ones(len(own_s_R), dtype=np.bool_)
        if load_R is not None:
            alike_R = np.abs(load_R - load_R[index]) <= SAME_LOAD * load_R[index]
        usual_s, limit = _usual_s(program, own_s_R, index, alike_R)
        if usual_s > 0 and own_s_R[index] > limit * usual_s:
            found.append(Straggler(index, float(own_s_R[index] / usual_s)))
    return found


def _own_s(program: Program, duration_s_N: FloatArray) -> FloatArray:
    """Return the seconds of computation of each rank, [R]."""
    compute_N = program.ops.kind_T[program.row_N] == Kind.COMPUTE
    own_s_N = np.where(compute_N, duration_s_N, 0.0)
    # Rank by rank, so that a rank's sum does not depend on which others are simulated.
    return np.array([own_s_N[program.rank_slice(index)].sum() for index in range(len(program.rank_R))])


def _usual_s(program: Program, own_s_R: FloatArray, index: int, alike_R: BoolArray) -> tuple[float, float]:
    """Return the median time of a rank's peers, 0 where it has none, and how far above it a straggler begins."""
    stage = program.stage_R[index]
    others_R = np.where((program.stage_R == stage) & alike_R, program.represents_R, 0)
    others_R[index] -= 1
    if others_R.sum():
        return _median(own_s_R, others_R), WELL_ABOVE
    middle = (program.stage_R > 0) & (program.stage_R < program.stage_R.max())
    if not middle[index]:
        return 0.0, WELL_ABOVE_LIKE_STAGES
    others_R = np.where(middle & alike_R, program.represents_R, 0)
    others_R[index] = 0
    return _median(own_s_R, others_R), WELL_ABOVE_LIKE_STAGES


def _median(value_R: FloatArray, weight_R: IntArray) -> float:
    """Return the lower weighted median, 0 if nothing has weight."""
    if not weight_R.sum():
        return 0.0
    order = np.argsort(value_R, kind="stable")
    reached = np.cumsum(weight_R[order]) * 2 >= weight_R.sum()
    return float(value_R[order[int(np.argmax(reached))]])
