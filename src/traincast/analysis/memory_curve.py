"""Memory over the time of a step: what every stage holds of its microbatches, from their forward to their backward.

A forward pass saves what its backward pass needs, a virtual stage's share of one microbatch from the begin of its first
forward operation on. The end of its last backward operation frees it; where the schedule splits the backward pass, the
input gradients free what only they need, and the weight gradients the rest. What lasts all step (weights, gradients,
optimizer states) and what passes (buffers, gathered layers) is taken as constant, so that the highest point of a curve
is the peak that is told for its stage.

Letters: N operations of a rank, C virtual stages with their microbatches, H points of a curve.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from traincast.analysis.breakdown import last_of_stages
from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Kind, Phase

_BACKWARD = (Phase.RECOMPUTE, Phase.BACKWARD, Phase.WEIGHT_GRADIENT)


class Saved(Struct, frozen=True, kw_only=True):
    """What one microbatch leaves on a virtual stage, in bytes."""

    all_bytes: float
    """From the forward pass on."""
    for_weights_bytes: float
    """Of it until the weight gradients are there."""


class StageCurve(Struct, frozen=True, kw_only=True):
    """What a stage holds over the step: constant from each point to the next."""

    stage: int
    rank: int
    """Of the stage the rank that ends last."""
    time_s_H: FloatArray
    in_flight_H: IntArray
    """Virtual stages with a microbatch whose backward pass has not ended."""
    size_bytes_H: FloatArray | None
    """Bytes in all; None where it is not known what is saved."""


def memory_curves(
    program: Program,
    timeline: Timeline,
    saved_Q: Mapping[int, Saved] | None = None,
    peak_bytes_P: Mapping[int, float] | None = None,
) -> tuple[StageCurve, ...]:
    """Return what each stage holds over a step that ran; nothing where no operation is of a microbatch.

    Parameters
    ----------
    program, timeline : Program, Timeline
        What ran.
    saved_Q : mapping, optional
        What one microbatch leaves on each virtual stage.
    peak_bytes_P : mapping, optional
        Bytes of each stage at its peak.
    """
    curves = []
    for stage, index in last_of_stages(program, timeline).items():
        curve = _curve(program, timeline, index, saved_Q, None if peak_bytes_P is None else peak_bytes_P.get(stage))
        if curve is not None:
            curves.append(curve)
    return tuple(curves)


def _curve(
    program: Program, timeline: Timeline, index: int, saved_Q: Mapping[int, Saved] | None, peak_bytes: float | None
) -> StageCurve | None:
    mine = program.rank_slice(index)
    row_N, microbatch_N, virtual_N = (
        each[mine] for each in (program.row_N, program.microbatch_N, program.virtual_stage_N)
    )
    kind_N, phase_N = program.ops.kind_T[row_N], program.ops.phase_T[row_N]
    of_microbatch = np.flatnonzero((microbatch_N >= 0) & (kind_N == Kind.COMPUTE))
    if not len(of_microbatch):
        return None
    virtual_at = np.maximum(virtual_N[of_microbatch], 0).astype(np.int64)
    keys, which_at = np.unique(
        virtual_at * (int(microbatch_N.max()) + 1) + microbatch_N[of_microbatch], return_inverse=True
    )
    virtual_C = keys // (int(microbatch_N.max()) + 1)
    start_at, end_at, phase_at = (
        timeline.start_s_N[mine][of_microbatch],
        timeline.end_s_N[mine][of_microbatch],
        phase_N[of_microbatch],
    )
    begin_C, gradient_C, end_C = np.full(len(keys), np.inf), np.full(len(keys), -np.inf), np.full(len(keys), -np.inf)
    forward_at, inputs_at = phase_at == Phase.FORWARD, phase_at == Phase.BACKWARD
    np.minimum.at(begin_C, which_at[forward_at], start_at[forward_at])
    np.maximum.at(gradient_C, which_at[inputs_at], end_at[inputs_at])
    backward_at = np.isin(phase_at, _BACKWARD)
    np.maximum.at(end_C, which_at[backward_at], end_at[backward_at])
    known = np.isfinite(begin_C)
    # Without a backward pass (forward only) a forward frees what it saved when it ends.
    last_C = np.full(len(keys), -np.inf)
    np.maximum.at(last_C, which_at, end_at)
    end_C = np.where(np.isfinite(end_C), end_C, last_C)
    gradient_C = np.where(np.isfinite(gradient_C), gradient_C, end_C)
    begin_C, gradient_C, end_C, virtual_C = (each[known] for each in (begin_C, gradient_C, end_C, virtual_C))
    time_s_H, place = np.unique(np.concatenate([[0.0], begin_C, gradient_C, end_C]), return_inverse=True)
    count = len(begin_C)
    at_begin, at_gradient, at_end = place[1 : 1 + count], place[1 + count : 1 + 2 * count], place[1 + 2 * count :]
    points = len(time_s_H)
    change_H = np.bincount(at_begin, minlength=points) - np.bincount(at_end, minlength=points)
    size_bytes_H = None
    if saved_Q is not None:
        all_C, weights_C = (
            np.array([getattr(saved_Q[int(each) % len(saved_Q)], name) for each in virtual_C])
            for name in ("all_bytes", "for_weights_bytes")
        )
        bytes_H = np.bincount(at_begin, all_C, points) - np.bincount(at_gradient, all_C - weights_C, points)
        held_H = np.cumsum(bytes_H - np.bincount(at_end, weights_C, points))
        size_bytes_H = held_H + (0.0 if peak_bytes is None else peak_bytes - float(held_H.max()))
    return StageCurve(
        stage=int(program.stage_R[index]),
        rank=int(program.rank_R[index]),
        time_s_H=time_s_H,
        in_flight_H=np.cumsum(change_H).astype(np.int64),
        size_bytes_H=size_bytes_H,
    )
