"""The operators of a described job as rows of a NeuSight forecast: nodes in the order of the forward pass.

Of any model the nodes are the modules of its layers, under Megatron Core's names; of GPT-2 without fused kernels they
are those that torch.fx traces (`traincast.formats.neusight.gpt2`). What a node communicates stands in rows of its own:
before the node what comes before its forward pass or, since the backward pass runs in reverse, after its backward one;
after it the others.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from traincast.lowering.work import work_of
from traincast.model.blocks.part import Exchange, Part
from traincast.model.blocks.share import Share
from traincast.model.structure import FIRST_BLOCKS, Blocks, last_blocks, mtp_layer, parts_of
from traincast.workload.ops import OperatorCall
from traincast.workload.words import Phase

Calls = Mapping[OperatorCall, float]
"""Operator calls, each as often as it is said."""

COMM_SUFFIX = "_comm"
"""Ends the name of a row that communicates over tp for the node next to it."""


class Node(Struct, frozen=True, kw_only=True):
    """What one row, and the row of its gradient, are made of."""

    name: str
    forward: Calls = field(default_factory=dict)
    backward: Calls = field(default_factory=dict)
    """Kernels of the input gradient and of the weight gradient together."""
    gradients: int = 0
    """Elements of the weights whose gradients are reduced over dp."""
    forward_comm: tuple[str, int] | None = None
    """Operation and elements of what blocks the forward pass; None for nothing."""
    backward_comm: tuple[str, int] | None = None

    @property
    def does_something(self) -> bool:
        """Whether it computes, communicates or has gradients."""
        return bool(self.forward or self.backward or self.gradients or self.forward_comm or self.backward_comm)


def module_nodes(share: Share, stage: tuple[Blocks, ...], first: int, *, begins: bool, ends: bool) -> Iterator[Node]:
    """Yield the modules of a pipeline stage.

    Parameters
    ----------
    share : Share
        What a rank works on.
    stage : tuple of Blocks
        Its layers.
    first : int
        Number of the first of them.
    begins, ends : bool
        Whether it has the embedding, and the LM head with what follows.
    """
    model = share.model
    if begins:
        yield from _nodes(share, FIRST_BLOCKS, "")
    for layer, blocks in enumerate(stage, first):
        yield from _nodes(share, blocks, f"decoder_layers_{layer}_")
    if ends:
        yield from _nodes(share, last_blocks(model, with_embedding=begins), "decoder_")
        for layer in range(model.mtp_layers):
            yield from _nodes(share, mtp_layer(model), f"mtp_layers_{layer}_")


def _nodes(share: Share, blocks: Blocks, prefix: str) -> Iterator[Node]:
    seen: Counter[str] = Counter()
    for part in parts_of(blocks, share):
        seen[part.name] += 1
        again = f"_{seen[part.name] - 1}" if seen[part.name] > 1 else ""
        name = f"{prefix}{part.name.replace('.', '_')}{again}"
        yield from (each for each in _of_part(share, part, name) if each.does_something)


def _of_part(share: Share, part: Part, name: str) -> Iterator[Node]:
    """Yield the nodes of a part: what it communicates before, itself, and what it communicates after."""
    trained = share.trains_weights or part.adapter
    passes = work_of([part], share).passes
    backward = Counter(passes[Phase.BACKWARD].calls)
    backward.update(passes[Phase.WEIGHT_GRADIENT].calls)
    # Ranks gather their inputs before a GEMM and sum up or scatter after it; backward it is the other way round.
    gathers, sums = _split(share, part.forward), _split(share, part.backward)
    yield from _communications(f"{name}{COMM_SUFFIX}", gathers[0], sums[1])
    elements = int(part.elements) if trained else 0
    yield Node(name=name, forward=passes[Phase.FORWARD].calls, backward=backward, gradients=elements)
    yield from _communications(f"{name}{COMM_SUFFIX}_after", gathers[1], sums[0])


_Sizes = list[tuple[str, int]]


def _split(share: Share, exchanges: tuple[Exchange, ...]) -> tuple[_Sizes, _Sizes]:
    """Return the all-gathers of a pass, and its other exchanges, as tokens and elements; without those of 0 bytes."""
    gathers: _Sizes = []
    others: _Sizes = []
    width = share.execution.element_bytes
    for each in exchanges:
        elements = math.ceil(int(each.size_bytes) / width)
        found = [(each.operation.replace("_", "").upper(), elements)] * int(each.count) if elements else []
        (gathers if each.operation == "all_gather" else others).extend(found)
    return gathers, others


def _communications(name: str, forward: _Sizes, backward: _Sizes) -> Iterator[Node]:
    for index in range(max(len(forward), len(backward))):
        yield Node(
            name=f"{name}_{index}" if index else name,
            forward_comm=forward[index] if index < len(forward) else None,
            backward_comm=backward[index] if index < len(backward) else None,
        )
