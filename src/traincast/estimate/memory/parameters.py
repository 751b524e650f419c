"""Parameters that one rank of a stage holds, by how they are sharded."""

from collections.abc import Iterator
from dataclasses import dataclass

from traincast.job.job import Job
from traincast.model.blocks.part import Elements
from traincast.model.structure import FIRST_BLOCKS, Blocks, RankParts, last_blocks, layer_kinds, mtp_layer
from traincast.schedules.plan import SchedulePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParameters:
    """Elements on one rank.

    Parameters
    ----------
    dense : float
        All but routed experts: replicated over dp x cp.
    experts : float
        Routed experts: replicated over edp.
    ends : float
        The part of `dense` that is embedding and head.
    largest_layer : float
        Most elements of one layer, dense and experts together.
    """

    dense: float
    experts: float
    ends: float
    largest_layer: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.dense + self.experts


def layers_of(job: Job) -> tuple[range, ...]:
    """Return the layers of each virtual stage, by index in the model."""
    ranges, first = [], 0
    for count in job.layers_Q:
        ranges.append(range(first, first + count))
        first += count
    return tuple(ranges)


def held_by(plan: SchedulePlan, stage: int) -> Iterator[tuple[int, int]]:
    """Yield (copy, virtual stage) of all that a stage holds."""
    for copy, placement in enumerate(plan.placement):
        for virtual_stage, holder in enumerate(placement):
            if holder == stage:
                yield copy, virtual_stage


def rank_parameters(
    job: Job, plan: SchedulePlan, stage: int, parts: RankParts
) -> tuple[RankParameters, RankParameters]:
    """Return the elements on one rank of a stage, and those of them that are trained.

    Sums over the parts of the blocks that the stage holds, each split as its block says. A tied head on another
    stage than the embedding is a copy of it. Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3.

    Parameters
    ----------
    job : Job
        The job.
    plan : SchedulePlan
        Says which virtual stages the stage holds.
    stage : int
        The stage.
    parts : RankParts
        What a rank of the job has of blocks.
    """
    total = ends = Elements()
    largest = trained_largest = 0.0
    for blocks, count, is_end in _blocks_of(job, plan, stage):
        found = parts.elements(blocks)
        total = total + found * count
        if is_end:
            ends = ends + found * count
        else:
            largest = max(largest, found.total)
            trained_largest = max(trained_largest, found.trained_dense + found.trained_experts)
    held = RankParameters(dense=total.dense, experts=total.experts, ends=ends.total, largest_layer=largest)
    return held, RankParameters(
        dense=total.trained_dense,
        experts=total.trained_experts,
        ends=ends.trained_dense,
        largest_layer=trained_largest,
    )


def one_of_each_matrix(job: Job, plan: SchedulePlan, stage: int, parts: RankParts) -> float:
    """Return the elements on one rank of a stage's matrices, where those of one shape count once.

    Experts are matrices of their own. The embedding is a table, and a router's weights are not fused.

    Parameters
    ----------
    job : Job
        The job.
    plan : SchedulePlan
        Says which virtual stages the stage holds.
    stage : int
        The stage.
    parts : RankParts
        What a rank of the job has of blocks.
    """
    kinds = dict.fromkeys(blocks for blocks, _, _ in _blocks_of(job, plan, stage))
    fused = [part for blocks in kinds for part in parts.of(blocks) if part.counts_as != "router"]
    return float(sum(n * k for n, k in {(gemm.n, gemm.k) for part in fused for gemm in part.gemms}))


def _blocks_of(job: Job, plan: SchedulePlan, stage: int) -> Iterator[tuple[Blocks, int, bool]]:
    """Yield the blocks that a stage holds, how often, and whether they are ends of the model, not layers."""
    model, layers, held = job.model, layers_of(job), tuple(held_by(plan, stage))
    for copy, virtual_stage in held:
        for blocks, count in layer_kinds(model, layers[virtual_stage]).items():
            yield blocks, count, False
        if virtual_stage == 0:
            yield FIRST_BLOCKS, 1, True
        if virtual_stage == len(layers) - 1:
            yield last_blocks(model, with_embedding=(copy, 0) in held), 1, True
            if model.mtp_layers:
                yield mtp_layer(model), model.mtp_layers, False
