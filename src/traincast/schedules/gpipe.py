"""GPipe: all forwards, then all backwards."""

from traincast.model.numbers import Number
from traincast.schedules.length import BACKWARD, FORWARD, Pipeline, Sum
from traincast.schedules.plan import SchedulePlan, one_chunk_plan
from traincast.schedules.schedule import Schedule, register


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


def _length(line: Pipeline) -> Number:
    """All forwards in a row, then all backwards: twice a ramp and the busiest stage."""
    hop = line.message_s + line.handover_s
    between_s = hop * (2 if line.stages > 2 else 1)
    total: Number = 0.0
    for which in (FORWARD, BACKWARD):
        ramp = line.passes(which, 0, line.stages) + (line.stages - 1) * hop
        again = ((Sum({(which, kind): 1}) + between_s) * (line.microbatches - 1) for kind in dict.fromkeys(line.kind_Q))
        total = total + line.longest([ramp + each for each in again])
    return total


GPIPE = register(
    Schedule(
        name="gpipe",
        plan=gpipe,
        virtual_stages=1,
        orders_one_stage=True,
        ends_on_first_stage=True,
        holds_all=True,
        length=_length,
    )
)
