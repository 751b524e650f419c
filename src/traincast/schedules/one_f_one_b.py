"""1F1B (PipeDream-flush): after a short warmup, one forward and one backward in turn."""

from traincast.schedules.order import one_chunk_plan
from traincast.schedules.plan import SCHEDULES, SchedulePlan


@SCHEDULES.register("1f1b")
def one_f_one_b(stages: int, virtual_per_stage: int, microbatches: int) -> SchedulePlan:
    """Plan 1F1B without interleaving: stage s warms up with min(P - s - 1, M) forwards.

    Parameters
    ----------
    stages, virtual_per_stage, microbatches : int
        P, V and M; V must be 1.

    Returns
    -------
    SchedulePlan
        Slots F and BW, blocking p2p; stage s holds at most min(P - s, M) microbatches.

    Raises
    ------
    InfeasibleError
        If V > 1.

    Notes
    -----
    Source: Narayanan et al. 2021, arXiv:2006.09503 (PipeDream-flush); Megatron-LM,
    megatron/core/pipeline_parallel/schedules.py,
    forward_backward_pipelining_without_interleaving.
    """
    warmups = [min(stages - stage - 1, microbatches) for stage in range(stages)]
    return one_chunk_plan("1f1b", virtual_per_stage, microbatches, warmups)
