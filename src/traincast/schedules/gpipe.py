"""GPipe: all forwards, then all backwards."""

from traincast.schedules.plan import SCHEDULES, SchedulePlan, one_chunk_plan


@SCHEDULES.register("gpipe")
def gpipe(stages: int, virtual_per_stage: int, microbatches: int) -> SchedulePlan:
    """Plan GPipe: every stage runs all its forwards, then all its backwards; V must be 1.

    Backwards go in the order of the forwards, 0..M-1, as PyTorch runs them. (The paper's figure draws them
    reversed; with equal microbatches the step is as long.) P2P is blocking: PyTorch posts a receive only when its
    data is needed, so the transfer is never hidden from the receiver.

    Notes
    -----
    Source: Huang et al. 2019, arXiv:1811.06965; order of the backwards: PyTorch,
    torch/distributed/pipelining/schedules.py, ScheduleGPipe._step_microbatches.
    """
    return one_chunk_plan("gpipe", virtual_per_stage, microbatches, [microbatches] * stages)
