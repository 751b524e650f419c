"""Parameters that one rank of a stage holds, by how they are sharded."""

from collections.abc import Iterator
from dataclasses import dataclass

from traincast.model.counts import (
    LayerParameters,
    adapter_parameters,
    attention_matrices,
    layer_parameters,
    parameters,
)
from traincast.schedules.plan import SchedulePlan
from traincast.spec.job import Job


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


def rank_parameters(job: Job, plan: SchedulePlan, stage: int) -> RankParameters:
    """Return the elements on one rank of a stage.

    Matrices are divided by tp, experts by ep x etp; norms and routers are on every rank. A tied head on another
    stage than the embedding is a copy of it. Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3.

    Parameters
    ----------
    job : Job
        The job.
    plan : SchedulePlan
        Says which virtual stages the stage holds.
    stage : int
        The stage.
    """
    layers, last = layers_of(job), len(job.layers_Q) - 1
    dense = experts = ends = largest = 0.0
    for copy, virtual_stage in held_by(plan, stage):
        for layer in layers[virtual_stage]:
            one_dense, one_experts = _sharded(job, layer_parameters(job.model, layer))
            dense, experts = dense + one_dense, experts + one_experts
            largest = max(largest, one_dense + one_experts)
        tied_here = (copy, 0) in set(held_by(plan, stage))
        ends += _ends(job, first=virtual_stage == 0, last=virtual_stage == last, tied_here=tied_here)
        if virtual_stage == last:
            one_dense, one_experts = _mtp(job)
            dense, experts = dense + one_dense, experts + one_experts
    return RankParameters(dense=dense + ends, experts=experts, ends=ends, largest_layer=largest)


def trained(job: Job, held: RankParameters) -> RankParameters:
    """Return those of the elements that are trained: all, or the low-rank adapters beside frozen ones."""
    if job.task != "lora":
        return held
    model = job.model
    share = adapter_parameters(model, job.lora_rank, mlp=False) / max(parameters(model).total, 1)
    return RankParameters(
        dense=share * held.dense, experts=share * held.experts, ends=0.0, largest_layer=share * held.largest_layer
    )


def one_of_each_matrix(job: Job, plan: SchedulePlan, stage: int) -> float:
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
    """
    model, tp = job.model, job.parallel.tp
    up = 2 if model.gated else 1
    shapes: set[tuple[int, int, int]] = set()

    def add_feed_forward(inner: int, parts: int) -> None:
        shapes.update({(model.hidden, up * inner, parts), (inner, model.hidden, parts)} if inner else ())

    layers = layers_of(job)
    for _, virtual_stage in held_by(plan, stage):
        for layer in layers[virtual_stage]:
            shapes.update((rows, columns, tp) for rows, columns in attention_matrices(model))
            if model.experts is not None and model.has_experts(layer):
                add_feed_forward(model.experts.ffn_hidden, job.parallel.expert_tp)
                add_feed_forward(model.experts.shared_ffn_hidden, tp)
            else:
                add_feed_forward(model.ffn_hidden, tp)
        if virtual_stage == len(layers) - 1:
            shapes.add((model.hidden, job.padded_vocab, tp))
    return sum(rows * columns / parts for rows, columns, parts in shapes)


def _sharded(job: Job, layer: LayerParameters) -> tuple[float, float]:
    parallel = job.parallel
    split = (layer.attention + layer.mlp + layer.shared_experts) / parallel.tp
    return split + layer.norms + layer.router, layer.experts / (parallel.ep * parallel.expert_tp)


def _ends(job: Job, *, first: bool, last: bool, tied_here: bool) -> float:
    model = job.model
    counts = parameters(model, job.padded_vocab)
    total = 0.0
    if first:
        total += counts.embedding / job.parallel.tp + counts.positions
    if last:
        head = 0 if model.tied_embeddings and tied_here else counts.embedding
        total += head / job.parallel.tp + counts.final_norm + counts.other
    return total


def _mtp(job: Job) -> tuple[float, float]:
    counts = parameters(job.model)
    dense, experts = _sharded(job, counts.mtp)
    return dense + counts.mtp_projections / job.parallel.tp, experts
