"""What lasts for a whole step on one rank of a stage: the sum of what mechanisms of training keep of its parameters."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from traincast.job.job import Job
from traincast.lowering.held import Held
from traincast.mechanisms.all import lasting
from traincast.mechanisms.gradients import one_of_each
from traincast.mechanisms.layers import most
from traincast.mechanisms.rank import RankParameters, RankState, Where
from traincast.model.blocks.part import Elements
from traincast.model.numbers import Number, larger, smaller
from traincast.model.structure import Blocks, RankParts
from traincast.schedules.plan import SchedulePlan


def held_by(plan: SchedulePlan, stage: int) -> Iterator[tuple[int, int]]:
    """Yield (copy, virtual stage) of all that a stage holds."""
    for copy, placement in enumerate(plan.placement):
        for virtual_stage, holder in enumerate(placement):
            if holder == stage:
                yield copy, virtual_stage


def rank_parameters(job: Job, held: Iterable[Held], parts: RankParts) -> RankParameters:
    """Return the elements on one rank that holds some virtual stages: sums over the parts of their blocks.

    Each part is split as its block says. A tied head on another stage than the embedding is a copy of it. Source:
    Shoeybi et al. 2019, arXiv 1909.08053, section 3.
    """
    layers, ends = Counter[Blocks](), Counter[Blocks]()
    for virtual_stage in held:
        for blocks, count in virtual_stage.kinds(job):
            layers[blocks] += count
        ends.update(virtual_stage.ends(job))
    # Muon alone asks for shapes.
    elements = parts.numbers if job.optimizer.muon is None else parts.elements
    of_layers = {blocks: elements(blocks) for blocks in layers}
    single = [elements(blocks) for blocks in ends]
    of_ends = sum((each * count for each, count in zip(single, ends.values(), strict=True)), Elements())
    total = sum((of_layers[blocks] * count for blocks, count in layers.items()), of_ends)
    largest = [_two_largest(parts, blocks) for blocks in of_layers]
    return RankParameters(
        total=total,
        ends=of_ends,
        largest_layer=most(each.total for each in of_layers.values()),
        largest_trained=most(each.trained for each in of_layers.values()),
        largest_matrix=most(first for first, _ in largest),
        largest_pair=most(first + second for first, second in largest),
        largest_end=most(each.total for each in single),
        one_of_each=_one_of_each(parts, frozenset((*layers, *ends))) if job.framework.gradient_placeholders else 0,
    )


def _two_largest(parts: RankParts, blocks: Blocks) -> tuple[Number, Number]:
    """Return the elements of the two largest tensors of a layer; experts' matrices are stacked in one."""

    def made() -> tuple[Number, Number]:
        first: Number = 0
        second: Number = 0
        for each in parts.elements(blocks).shapes:
            elements = each.rows * each.columns * (each.count if each.expert else 1)
            first, second = larger(first, elements), larger(second, smaller(first, elements))
        return first, second

    return parts.once(("two largest", blocks), made)


def _one_of_each(parts: RankParts, kinds: frozenset[Blocks]) -> Number:
    """Return the elements of the matrices of some kinds of layers where those of one shape count once."""
    shapes = (each for blocks in kinds for each in parts.elements(blocks).shapes)
    return parts.once(("one of each", kinds), lambda: one_of_each(shapes))


class States(NamedTuple):
    """Bytes on one rank that last for the whole step, and of its update."""

    gpu: dict[str, Number]
    """On the GPU the whole step, by what they are."""
    update: dict[str, Number]
    """There in the update alone, when activations are gone."""
    host: Number
    """In the memory of the host."""


def states(rank: RankState) -> States:
    """Return the bytes of all states of a rank, of numbers or of arrays."""
    gpu, update, host = dict[str, Number](), dict[str, Number](), 0.0
    for term, size_bytes, where in lasting(rank):
        if where is Where.HOST:
            host = host + size_bytes
        else:
            among = gpu if where is Where.GPU else update
            among[term] = among.get(term, 0) + size_bytes
    return States(gpu, update, host)
