"""When FSDP gathers parameters and reduces gradients under a pipeline schedule.

A virtual stage's parameters are whole or sharded when a pass begins; a pass gathers them where they are
sharded, and what happens after it is the framework's choice. Sources: PyTorch, torch/distributed/fsdp
(`reshard_after_forward`: kept whole from the forward to the backward pass where it is off) and
torch/distributed/pipelining/stage.py (`backward_maybe_with_nosync` keeps parameters whole and does not reduce
after a backward pass; `perform_reduce_grad`, before 2.9 `run_post_backward`, reduces and shards after the last one).

Letters: Q virtual stages in model order, M microbatches.
"""

from dataclasses import dataclass

import numpy as np

from traincast.schedules.plan import SchedulePlan, SlotKind
from traincast.workload.ops import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class Residency:
    """What each pass of each virtual stage does to its sharded parameters and gradients."""

    forward_gathers_QM: BoolArray
    """Whether a forward pass gathers its parameters."""
    backward_gathers_QM: BoolArray
    last_backward_Q: IntArray
    """The microbatch whose weight gradients are computed last."""
    ends_rank_Q: BoolArray
    """Whether that is the last that its rank computes in a step."""


def residency(plan: SchedulePlan, microbatches: int, *, reshard_after_forward: bool, pipelined: bool) -> Residency:
    """Follow the parameters of every virtual stage through a step.

    Parameters
    ----------
    plan : SchedulePlan
        The order of every stage.
    microbatches : int
        M.
    reshard_after_forward : bool
        Whether a forward pass leaves its parameters sharded.
    pipelined : bool
        Whether a backward pass leaves them whole, as PyTorch's pipeline schedules do; else sharded.

    Returns
    -------
    Residency
    """
    virtual_stages = len(plan.placement[0])
    gathers = {kind: np.zeros((virtual_stages, microbatches), dtype=np.bool_) for kind in (SlotKind.F, SlotKind.B)}
    last_Q, ends_Q = np.zeros(virtual_stages, dtype=np.int64), np.zeros(virtual_stages, dtype=np.bool_)
    for slots in plan.slots:
        whole: set[tuple[int, int]] = set()
        final = 0
        for slot in slots:
            held = (slot.copy, slot.virtual_stage)
            kind = SlotKind.F if slot.kind is SlotKind.F else SlotKind.B
            if slot.kind is not SlotKind.W:
                gathers[kind][slot.virtual_stage, slot.microbatch] |= held not in whole
                stays = not reshard_after_forward if kind is SlotKind.F else pipelined
                whole = whole | {held} if stays else whole - {held}
            if slot.kind in (SlotKind.W, SlotKind.BW):
                last_Q[slot.virtual_stage] = slot.microbatch
                final = slot.virtual_stage
        ends_Q[final] = True
    return Residency(gathers[SlotKind.F], gathers[SlotKind.B], last_Q, ends_Q)
