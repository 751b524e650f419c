"""The share of a job's work that one rank has, as the blocks of its model are asked for it."""

from traincast.job.job import Job
from traincast.model.blocks.share import Execution, Share


def rank_share(job: Job, ranks_per_node: int = 8) -> Share:
    """Return what one rank works on in a microbatch.

    Parameters
    ----------
    job : Job
        The job.
    ranks_per_node : int
        Ranks that reach each other without the network (64 where a job uses so many of an NVL72 rack).
    """
    parallel, framework = job.parallel, job.framework
    return Share(
        model=job.model,
        seq_length=job.seq_length,
        micro_batch=job.micro_batch,
        tp=parallel.tp,
        cp=parallel.cp,
        ep=parallel.ep,
        etp=parallel.expert_tp,
        sequence_parallel=job.sequence_parallel,
        vocab=job.padded_vocab,
        execution=Execution(
            precision=job.precision,
            attention_kernel=job.attention_kernel,
            cp_kind=job.cp_kind,
            lora_rank=job.lora_rank if job.task == "lora" else 0,
            expert_imbalance=job.expert_imbalance,
            ranks_per_node=ranks_per_node,
            fused_elementwise=framework.fused_elementwise,
            fused_expert_bias=framework.fused_expert_bias,
            deduplicated_dispatch=framework.deduplicated_dispatch,
        ),
    )
