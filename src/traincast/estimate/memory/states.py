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
from traincast.model.blocks.part import Elements, Matrix
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
    of_layers = {blocks: parts.elements(blocks) for blocks in layers}
    single = [parts.elements(blocks) for blocks in ends]
    of_ends = sum((each * count for each, count in zip(single, ends.values(), strict=True)), Elements())
    total = sum((of_layers[blocks] * count for blocks, count in layers.items()), of_ends)
    return RankParameters(
        total=total,
        ends=of_ends,
        largest_layer=most(each.total for each in of_layers.values()),
        largest_trained=most(each.trained for each in of_layers.values()),
        largest_matrix=most(_two_largest(each.shapes)[0] for each in of_layers.values()),
        largest_pair=most(sum(_two_largest(each.shapes)) for each in of_layers.values()),
        largest_end=most(each.total for each in single),
        one_of_each=one_of_each(total.shapes) if job.framework.gradient_placeholders else 0,
    )


def _two_largest(matrices: Iterable[Matrix]) -> tuple[Number, Number]:
    """Return the elements of the two largest tensors of a layer; experts' matrices are stacked in one."""
    first: Number = 0
    second: Number = 0
    for each in matrices:
        elements = each.rows * each.columns * (each.count if each.expert else 1)
        first, second = larger(first, elements), larger(second, smaller(first, elements))
    return first, second


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
