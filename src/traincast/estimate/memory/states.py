"""What lasts for a whole step on one rank of a stage: the sum of what mechanisms of training keep of its parameters."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from traincast.lowering.held import Held
from traincast.mechanisms.all import lasting
from traincast.mechanisms.layers import most
from traincast.mechanisms.rank import RankParameters, RankState, Where
from traincast.model.blocks.part import Elements
from traincast.model.model import Model
from traincast.model.numbers import Number
from traincast.model.structure import Blocks, RankParts
from traincast.schedules.plan import SchedulePlan


def held_by(plan: SchedulePlan, stage: int) -> Iterator[tuple[int, int]]:
    """Yield (copy, virtual stage) of all that a stage holds."""
    for copy, placement in enumerate(plan.placement):
        for virtual_stage, holder in enumerate(placement):
            if holder == stage:
                yield copy, virtual_stage


def rank_parameters(model: Model, held: Iterable[Held], parts: RankParts) -> RankParameters:
    """Return the elements on one rank that holds some virtual stages: sums over the parts of their blocks.

    Each part is split as its block says. A tied head on another stage than the embedding is a copy of it. Source:
    Shoeybi et al. 2019, arXiv 1909.08053, section 3.
    """
    layers, ends, kinds = Elements(), Elements(), dict[Blocks, Elements]()
    of_layers: list[Elements] = []
    for virtual_stage in held:
        for blocks, count in virtual_stage.kinds(model):
            each = kinds[blocks] = parts.elements(blocks)
            layers += each * count
            of_layers.append(each)
        for blocks, count in virtual_stage.ends(model).items():
            each = kinds[blocks] = parts.elements(blocks)
            ends += each * count
    return RankParameters(
        total=layers + ends,
        ends=ends,
        largest_layer=most(each.total for each in of_layers),
        largest_trained=most(each.trained for each in of_layers),
        distinct=one_of_each_matrix(kinds, parts),
    )


def one_of_each_matrix(kinds: Iterable[Blocks], parts: RankParts) -> Number:
    """Return the elements of the matrices of some blocks, those of one shape once (`RankParameters.distinct`)."""
    fused = [part for blocks in kinds for part in parts.of(blocks) if part.counts_as != "router"]
    shapes = [(gemm.n, gemm.k) for part in fused for gemm in part.gemms]
    if not any(isinstance(each, np.ndarray) for shape in shapes for each in shape):
        return float(sum(n * k for n, k in set(shapes)))
    total: Number = 0.0
    for place, (n, k) in enumerate(shapes):
        first: Number = True
        for n_before, k_before in shapes[:place]:
            first = first & ((n != n_before) | (k != k_before))
        total = total + n * k * first
    return total


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
            among[term] = among.get(term, 0.0) + size_bytes
    return States(gpu, update, host)
