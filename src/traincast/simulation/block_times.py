"""What each kind of block takes on each stage of a job: mixers, MLPs, experts, MTP layers, the ends of the model.

A block takes as long as its operators take one after the other, as in the step. What the step adds to that, the host's
work, exchanges and recomputation, is of layers and stages as a whole, and not in here.
"""

from collections import Counter
from collections.abc import Iterator

from traincast.estimate.memory.states import held_by
from traincast.job.job import Job
from traincast.lowering.held import Held, held_by_stages
from traincast.lowering.stage import StageParts
from traincast.model.structure import (
    FIRST_BLOCKS,
    MTP_HEAD,
    MTP_PROJECTION,
    Blocks,
    last_blocks,
    mtp_blocks,
)
from traincast.schedules.plan import SchedulePlan
from traincast.simulation.job_step import JobStep
from traincast.simulation.result_records import BlockResult
from traincast.workload.words import Phase


def block_times(done: JobStep, plan: SchedulePlan) -> tuple[BlockResult, ...]:
    """Return the blocks of each stage in the order of the model, with what one of each takes for one microbatch."""
    job = done.job
    of_rank, stages = StageParts(job, done.step.setting.cluster.ranks_per_node), held_by_stages(job, plan)
    seconds, known = done.compute.seconds, dict[Blocks, tuple[float, float]]()

    def taken_s(blocks: Blocks) -> tuple[float, float]:
        if blocks not in known:
            passes = of_rank.work(blocks).passes
            forward_s, input_s, weight_s = (
                sum(seconds.call_s(call, count) for call, count in passes[phase].calls.items())
                for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT)
            )
            known[blocks] = forward_s, input_s + weight_s
        return known[blocks]

    found = []
    for stage in range(len(plan.slots)):
        held = Counter[tuple[str, Blocks]]()
        for _, virtual_stage in held_by(plan, stage):
            held.update(_named(job, stages[virtual_stage]))
        for (name, blocks), count in held.items():
            forward_s, backward_s = taken_s(blocks)
            found.append(BlockResult(stage=stage, block=name, count=count, forward_s=forward_s, backward_s=backward_s))
    return tuple(found)


def _named(job: Job, held: Held) -> Iterator[tuple[str, Blocks]]:
    """Yield the blocks of a virtual stage, each under its name."""
    model = job.model
    if held.first:
        yield "embedding", FIRST_BLOCKS
    for layer in held.layers:
        for name, block in zip(model.names_of(layer), job.blocks_L[layer], strict=True):
            yield name, (block,)
    for _ in range(held.mtp_layers):
        yield "MTP projection", MTP_PROJECTION
        yield "MTP layer", mtp_blocks(model)
    if held.last:
        yield "LM head", last_blocks(model, with_embedding=held.shares_table)
        for _ in range(model.mtp_layers):
            yield "MTP head", MTP_HEAD
