"""A kind of virtual stage on arrays: what it runs in each pass, on many shares and with many recomputations.

A kind (`Chunk`) is told by its layers and by which end of the model it has.

Letters: K shares, R recomputations, L some of the shares.
"""

import dataclasses
from collections.abc import Hashable
from functools import cached_property, partial

import numpy as np
from msgspec.structs import replace

from traincast.job.job import Job
from traincast.lowering.emit import Emitter, Rows
from traincast.lowering.stage import StageParts, StageWork
from traincast.lowering.work import Exchange, Work
from traincast.model.blocks.part import Elements
from traincast.model.numbers import Number
from traincast.model.structure import Blocks
from traincast.planning.recomputation import Recompute
from traincast.planning.screen.costs import CostTable, PassCosts
from traincast.planning.screen.moments import MomentEmitter
from traincast.workload.ops import IntArray
from traincast.workload.words import Phase


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """A kind of virtual stage; those are alike that hold the same."""

    layers: tuple[Blocks, ...]
    """Its layers in their order, MTP layers left out."""
    holds: tuple[object, ...]
    """What else it holds."""
    stage: StageWork = dataclasses.field(compare=False)
    """One of them."""

    @classmethod
    def from_stage(cls, stage: StageWork, layers: tuple[Blocks, ...]) -> "Chunk":
        """Return the kind of a virtual stage of a model with some layers."""
        held, job = stage.held, stage.job
        ends = (held.first, held.last, held.copies_table, held.shares_table)
        return cls(
            layers[held.layers.start : held.layers.stop],
            (held.mtp_layers, *ends, job.hidden_states_after(stage.index)),
            stage,
        )


class ArrayParts(StageParts):
    """What a rank has of every block on shares [K], and what each costs."""

    def __init__(self, job: Job, costs: CostTable) -> None:
        super().__init__(job, costs.share.execution.ranks_per_node, costs.parts)
        self.costs = costs

    def work(self, blocks: Blocks) -> Work:
        """Return what some blocks cost."""
        return self.costs.work(blocks)

    def nothing(self) -> PassCosts:
        """Return a pass in which nothing runs."""
        return PassCosts()


class ArrayStage(StageWork, frozen=True, dict=True):
    """A virtual stage on some shares, with each of some recomputations alongside the others."""

    recomputes: tuple[Recompute, ...] = ()
    moved: tuple[IntArray, IntArray] | None = None
    """The bytes of activations that go to the host, [K, R], and of how many layers, [R]; None where none do."""
    rows: IntArray | None = None
    """The shares; None: all of the table."""

    @cached_property
    def offloaded(self) -> tuple[Number, Number]:
        """The bytes of activations of a microbatch that go to the host, and of how many layers they are."""
        if self.moved is None:
            return 0, 0
        moved_KR, counts_R = self.moved
        return (moved_KR if self.rows is None else moved_KR[self.rows]), counts_R

    def on(self, rows: IntArray) -> "ArrayStage":
        """Return it on some of the shares."""
        return replace(self, rows=rows)

    def weights(self) -> Elements:
        """Return the weights that a rank holds of it, of arrays [L, 1] on some of the shares."""
        return self._weights

    @cached_property
    def _weights(self) -> Elements:
        found = super().weights()
        return found if self.rows is None else found.changed(self._column)

    def tensors(self) -> Number:
        """Return in how many tensors these are, likewise."""
        found = super().tensors()
        return found if self.rows is None else self._column(found)

    def _column(self, value: Number) -> Number:
        return value[self.rows, None] if np.ndim(value) else value

    def recompute(self, emit: Emitter) -> Rows:
        """Return what the backward pass recomputes, each of the recomputations alongside the others."""
        if not self.recomputes or not isinstance(emit, MomentEmitter) or not emit.writes(Phase.RECOMPUTE):
            return []
        # Passes with and without the gradients of weights recompute the same.
        alone = emit.on(emit.job, self.rows, (Phase.RECOMPUTE,))
        return alone.again(("recomputed", self.like, self.recomputed_as), lambda: self._side_by_side(alone))

    @property
    def recomputed_as(self) -> Hashable:
        """What tells what is recomputed."""
        return self.recomputes

    def share_again(self, recompute: Recompute) -> Number:
        """Return the share of the layers that run again, if they are recomputed whole, else all."""
        if not recompute.whole_layers:
            return 1.0
        return recomputing(self.job, recompute).recompute.layers_of(self.layers) / max(1, self.layers)

    def _side_by_side(self, emit: MomentEmitter) -> Rows:
        # Layers are alike to each other: of so many of them that share of the time is recomputed.
        alone: dict[tuple[str, ...] | None, Rows] = {}
        columns = []
        for each in self.recomputes:
            full = each.whole_layers
            job = recomputing(self.job, each)
            modules = None if full else job.recompute.recomputed_modules
            if modules not in alone:
                stage = replace(self, job=job.with_values(recompute_layers=None) if full else job)
                key = ("recomputed alone", self.like, modules)
                alone[modules] = emit.again(key, partial(StageWork.recompute, stage, emit))
            columns.append((alone[modules], self.share_again(each)))
        return emit.side_by_side(columns)


def recomputing(job: Job, recompute: Recompute) -> Job:
    """Return a job that recomputes so much, and offloads activations as is said with it."""
    return job.with_values(
        recompute=recompute.recompute,
        recompute_layers=None if recompute.recompute_method else recompute.recompute_layers,
        recompute_group=recompute.group,
        recompute_modules=recompute.recomputed_modules or job.recompute.modules,
        offload_activations=recompute.offload_activations,
    )


class Stateless:
    """The state of a virtual stage of which no pass exchanges anything."""

    def gathered(self) -> list[Exchange]:
        """Return nothing."""
        return []

    reduced = summed = all_reduced = over_copies = gathered

    def updated(self) -> Number:
        """Return that the host updates none of it while passes run."""
        return 0

    held = cast = updated
