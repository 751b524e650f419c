"""1F1B (PipeDream-flush): after a short warmup, one forward and one backward in turn."""

from traincast.schedules.plan import SCHEDULES, SchedulePlan, one_chunk_plan


@SCHEDULES.register("1f1b")
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
