"""1F1B (PipeDream-flush): after a short warmup, one forward and one backward in turn."""

from itertools import groupby

from traincast.model.numbers import Number, larger
from traincast.schedules.in_flight import settled
from traincast.schedules.length import BACKWARD, FORWARD, Pipeline, interleaved_length
from traincast.schedules.plan import SchedulePlan, one_chunk_plan
from traincast.schedules.schedule import Pairing, Schedule, register


def one_f_one_b(stages: int, virtual_per_stage: int, microbatches: int) -> SchedulePlan:
    """Plan 1F1B without interleaving (V must be 1): stage s warms up with min(P - s - 1, M) forwards.

    Stage s holds at most min(P - s, M) microbatches; p2p is blocking.

    Notes
    -----
    Source: Narayanan et al. 2021, arXiv:2006.09503 (PipeDream-flush); Megatron-LM,
    megatron/core/pipeline_parallel/schedules.py, forward_backward_pipelining_without_interleaving.
    """
    warmups = [min(stages - stage - 1, microbatches) for stage in range(stages)]
    return one_chunk_plan("1f1b", virtual_per_stage, microbatches, warmups)


def _length(line: Pipeline) -> Number:
    """Take each stage as the one that holds all others back: its work with its messages, and the way to it and back."""
    if line.saved_s_C:
        # Passes that run as one send their messages as interleaved ones do.
        return interleaved_length(line)
    stages, count, hop = line.stages, line.microbatches, line.message_s + line.handover_s
    way = line.both(0, stages) + 2 * (stages - 1) * hop
    found = []
    place = 0
    for _, run in groupby(line.kind_Q):
        place += len(list(run))
        at = place - 1
        messages_s = hop * ((at > 0) + (at < stages - 1))
        found.append(line.both(0, at) + 2 * at * hop + (line.both(at, place) + messages_s) * count)
        if place == stages:
            break  # the last stage waits for none
        turn = (line.passes(BACKWARD, at, place) + messages_s / 2) * (count - 1)
        steady = larger(count - stages + at, 0)
        found.append(way + turn + (line.passes(FORWARD, at, place) + messages_s / 2) * steady)
    return line.longest(found)


ONE_F_ONE_B = register(
    Schedule(
        name="1f1b",
        plan=one_f_one_b,
        virtual_stages=1,
        orders_one_stage=True,
        pairing=Pairing.POSSIBLE,
        ends_on_first_stage=True,
        fewer=settled(1, 1),
        length=_length,
    )
)
