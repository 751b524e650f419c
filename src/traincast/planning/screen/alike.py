"""Kinds of virtual stages that differ in how many layers they have alone, worked out together.

Lowering writes the same operations for all of them, of counts that are arrays: their tables follow each other, [X], as
long as there are shares for each of the kinds.

Letters: K shares, X shares of several kinds of virtual stages, one kind after the other.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Self, TypeVar

import numpy as np
from msgspec.structs import replace

from traincast.lowering.launches import LayerLaunches
from traincast.lowering.stage import StageParts
from traincast.lowering.work import Exchange, Pass, Work
from traincast.model.numbers import Number
from traincast.model.structure import Blocks
from traincast.planning.recomputation import Recompute
from traincast.planning.screen.array_stage import ArrayStage, Chunk
from traincast.planning.screen.rates import Each, repeated
from traincast.workload.words import Phase


def alike(chunk: Chunk, recomputes: tuple[Recompute, ...]) -> Hashable:
    """Return what kinds of virtual stages have in common that may be worked out together."""
    stage, held = chunk.stage, chunk.stage.held
    job = stage.job
    if job.offload.modules or any(each.offload_activations for each in recomputes):
        return chunk, recomputes
    ends = (held.mtp_layers, held.first, held.last, held.copies_table, held.shares_table)
    again = tuple((each.whole_layers, each.recomputed_modules) for each in recomputes)
    return tuple(stage.kinds), ends, again, job.parallel.pp > 1, job.experts.pairs_passes


T = TypeVar("T")


class PartsOfKinds(StageParts):
    """What a rank has of every block on shares of several kinds of virtual stages, [X], and what each costs."""

    def __init__(self, one: StageParts, kinds: int) -> None:
        super().__init__(one.job, one.parts.share.execution.ranks_per_node, one.parts)
        self._one, self._kinds, self._exchanges = one, kinds, dict[Exchange, Exchange]()

    def work(self, blocks: Blocks) -> Work:
        """Return what some blocks cost."""
        if blocks not in self._works:
            one, every = self._one.work(blocks), self._passes
            self._works[blocks] = Work(every(one.passes), every(one.places), every(one.alongside), every(one.modules))
        return self._works[blocks]

    def nothing(self) -> Pass:
        """Return a pass in which nothing runs."""
        return self._one.nothing()

    def launches(self, blocks: Blocks) -> LayerLaunches:
        """Return what the host does for a layer of some blocks."""
        if blocks not in self._launches:
            one = repeated(self._one.launches(blocks), self._kinds)
            modules = {name: repeated(each, self._kinds) for name, each in one.modules.items()}
            self._launches[blocks] = replace(one, modules=modules)
        return self._launches[blocks]

    def _passes(self, one: Mapping[T, Pass]) -> dict[T, Pass]:
        return {name: self._pass(each) for name, each in one.items()}

    def _pass(self, one: Pass) -> Pass:
        exchanges = {self._exchange(each): repeated(often, self._kinds) for each, often in one.exchanges.items()}
        found: Pass = replace(repeated(one, self._kinds), exchanges=exchanges)
        return found

    def _exchange(self, one: Exchange) -> Exchange:
        if one not in self._exchanges:
            self._exchanges[one] = one._replace(size_bytes=repeated(one.size_bytes, self._kinds))
        return self._exchanges[one]


class StageOfKinds(ArrayStage, frozen=True, dict=True):
    """A virtual stage of several kinds on all shares of each: how many layers it has of what is an array, [X]."""

    likes: Each = Each()
    """What tells each of them."""
    again: Each = Each()
    """What each of them recomputes."""
    shares_R: tuple[Number, ...] = ()
    """The share of the layers that each recomputation runs again, [X]."""

    @classmethod
    def of_kinds(cls, stages: Sequence[ArrayStage], shares: int) -> Self:
        """Return some kinds of virtual stages, which are alike, as one."""

        def column(values: Sequence[float]) -> Number:
            return np.repeat(values, shares)

        first = stages[0]
        return cls(
            first.job,
            first.index,
            first.held,
            {blocks: column([each.kinds[blocks] for each in stages]) for blocks in first.kinds},
            PartsOfKinds(first.of_rank, len(stages)),
            first.recomputes,
            likes=Each(each.like for each in stages),
            again=Each(each.recomputes for each in stages),
            shares_R=tuple(
                column(each) for each in zip(*(map(of.share_again, of.recomputes) for of in stages), strict=True)
            ),
        )

    @property
    def like(self) -> Hashable:
        """What tells them apart."""
        return self.likes

    @property
    def recomputed_as(self) -> Hashable:
        """What tells what is recomputed."""
        return self.again

    def share_again(self, recompute: Recompute) -> Number:
        """Return the share of the layers that run again."""
        return self.shares_R[self.recomputes.index(recompute)][:, None]

    def total(self, blocks: Mapping[Blocks, Number], *phases: Phase, share: Number = 1.0) -> Pass:
        """Return what some blocks do in some passes."""
        return self.summed(blocks, phases, share)

    def at(self, place: str, phase: Phase) -> Pass:
        """Return what its layers run in a pass at a place alongside the exchanges of tokens with their experts."""
        return self.summed_at(place, phase)
