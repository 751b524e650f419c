"""Virtual stages on arrays: what a microbatch takes and keeps on each kind of them, for many shares and recomputations.

A kind of virtual stage (`Chunk`) is told by its layers and by which end of the model it has. Its times are those of the
passes that lowering writes, on a rank where nothing else runs (`traincast.planning.screen.moments`).

Letters: K shares, R recomputations, L some of the shares.
"""

import dataclasses
from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.estimate.memory.stage import chunk_bytes
from traincast.job.job import Job
from traincast.lowering.emit import Emitter, Rows
from traincast.lowering.layers import layers_backward
from traincast.lowering.stage import StageParts, StageWork
from traincast.lowering.step import OfStage, backward_pass, forward_pass
from traincast.lowering.work import Exchange, Work
from traincast.mechanisms.activations import LayerModel
from traincast.model.blocks.part import Elements
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number
from traincast.model.structure import Blocks
from traincast.planning.options import Recompute
from traincast.planning.screen.costs import CostTable, PassCosts
from traincast.planning.screen.moments import MomentEmitter
from traincast.planning.screen.timed import Cycle
from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.words import Phase

_WEIGHTS = frozenset({Phase.WEIGHT_GRADIENT})
_ALL = frozenset(Phase)


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


class ChunkSizes(Struct, frozen=True):
    """What one microbatch keeps on one kind of virtual stage, on shares [K] with recomputations [R]."""

    saved_bytes: FloatArray
    """[K, R]"""
    forward_bytes: FloatArray
    backward_bytes: FloatArray
    """What passes while each pass runs, [K, R]."""
    host_bytes: FloatArray
    """What the memory of the host keeps, [K, R]."""

    def rows(self, rows: IntArray) -> "ChunkSizes":
        """Return it on some of the shares."""
        return ChunkSizes(*(getattr(self, name).take(rows, axis=0) for name in self.__struct_fields__))


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
        return alone.again(("recomputed", self.like, self.recomputes), lambda: self._side_by_side(alone))

    def _side_by_side(self, emit: MomentEmitter) -> Rows:
        # Layers are alike to each other: of so many of them that share of the time is recomputed.
        alone: dict[tuple[str, ...] | None, Rows] = {}
        columns = []
        for each in self.recomputes:
            full = each.whole_layers
            job = recomputing(self.job, each)
            modules = None if full else job.recompute.recomputed_modules
            if modules not in alone:
                whole = job.with_values(recompute_layers=None) if full else job
                stage = StageWork(whole, self.index, self.held, self.kinds, self.of_rank)
                key = ("recomputed alone", self.like, modules)
                alone[modules] = emit.again(key, partial(stage.recompute, emit))
            share = job.recompute.layers_of(self.layers) / max(1, self.layers) if full else 1.0
            columns.append((alone[modules], share))
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


def on_rows(share: Share, rows: IntArray) -> Share:
    """Return what ranks have on some of the shares, in columns [L, 1]."""
    arrays = {name: value for name in share.__struct_fields__ if isinstance(value := getattr(share, name), np.ndarray)}
    return replace(share, **{name: value[rows, None] for name, value in arrays.items()})


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


class ChunkArrays(Struct, frozen=True):
    """One kind of virtual stage on shares [K] with recomputations [R]: seconds of one microbatch."""

    forward_s: FloatArray
    """Of a forward pass, [K, 1]; where activations are offloaded, [K, R]."""
    backward_s: FloatArray
    """Of a backward pass with its recomputation, without the gradients of weights where these run by themselves, [K,
    R]."""
    weight_s: FloatArray
    """These, [K, 1]; nothing where they do not."""
    layers_s: FloatArray
    """Of the backward pass what follows the recomputation: both gradients of the layers, [K, 1]."""
    saved_s: FloatArray
    """What a forward and a backward pass save that run as one, [K, 1]."""

    def rows(self, rows: IntArray) -> "ChunkArrays":
        """Return it on some of the shares."""
        return ChunkArrays(*(getattr(self, name).take(rows, axis=0) for name in self.__struct_fields__))


class ChunkTable(Struct):
    """Virtual stages of one way of execution on shares [K]."""

    costs: CostTable
    emit: MomentEmitter
    _layers: dict[tuple[str, ...], LayerModel] = field(default_factory=dict)
    _parts: dict[bool, ArrayParts] = field(default_factory=dict)
    _stages: dict[tuple[Chunk, tuple[Recompute, ...]], ArrayStage] = field(default_factory=dict)
    _found: dict[tuple[object, ...], ChunkArrays] = field(default_factory=dict)
    _sizes: dict[tuple[Chunk, tuple[Recompute, ...]], ChunkSizes] = field(default_factory=dict)

    def times(self, chunk: Chunk, recomputes: tuple[Recompute, ...], *, splits: bool) -> ChunkArrays:
        """Return a kind of virtual stage with each of some recomputations; `splits` as in `passes`."""
        key = (chunk, recomputes, splits)
        if key not in self._found:
            self._found[key] = self._times(self.stage(chunk, recomputes), splits=splits)
        return self._found[key]

    def sizes(self, chunk: Chunk, recomputes: tuple[Recompute, ...]) -> ChunkSizes:
        """Return what a kind of virtual stage keeps with each of some recomputations."""
        key = (chunk, recomputes)
        if key not in self._sizes:
            self._sizes[key] = ChunkSizes(**self._bytes(chunk, recomputes))
        return self._sizes[key]

    def stage(self, chunk: Chunk, recomputes: tuple[Recompute, ...]) -> ArrayStage:
        """Return a virtual stage of a kind on the shares of the table."""
        key = (chunk, recomputes)
        if key not in self._stages:
            of, job = chunk.stage, chunk.stage.job
            # What the host does depends on whether there is a pipeline.
            parts = self._parts.setdefault(job.parallel.pp > 1, ArrayParts(job, self.costs))
            moved, layers = None, len(of.held.layers)
            if recomputes and (job.offload.modules or any(each.offload_activations for each in recomputes)):
                counts = [
                    layers if job.offload.modules else min(each.offload_activations, layers) for each in recomputes
                ]
                moved = np.rint(self.host_bytes(chunk, recomputes)).astype(np.int64), np.array(counts)
            self._stages[key] = ArrayStage(job, of.index, of.held, of.kinds, parts, recomputes, moved)
        return self._stages[key]

    def passes(
        self, job: Job, of: OfStage, rows: IntArray | None, *, splits: bool, gathers: tuple[bool, bool] = (False, False)
    ) -> Cycle:
        """Return the seconds of the passes of a virtual stage that a rank runs again and again.

        Parameters
        ----------
        job : Job
            One that shards its state as the layouts do.
        of : OfStage
            The virtual stage, on some rows of the table.
        splits : bool
            Whether gradients of the weights run by themselves: then there are three passes, else two.
        gathers : pair of bool
            Whether a forward and a backward pass gather sharded parameters.
        """
        emit = self.emit.on(job, rows)
        written = [forward_pass(emit, of, gathers=gathers[0])]
        parts = (_ALL - _WEIGHTS, _WEIGHTS) if splits else (_ALL,)
        written += [backward_pass(self.emit.on(job, rows, phases), of, gathers=gathers[1]) for phases in parts]
        return emit.cycle(*written)

    def _times(self, stage: ArrayStage, *, splits: bool) -> ChunkArrays:
        shares, of = self.costs.shares, OfStage(stage, Stateless())
        job = stage.job.with_values(zero=0, offload_parameters=False)
        forward_s, backward_s, *weight_s = self.passes(job, of, None, splits=splits).passes_s
        emit = self.emit.on(job, None)
        layers_s = emit.seconds(layers_backward(emit, stage))
        saved_s = self._saved(job, stage) if job.experts.pairs_passes else 0.0

        def table(value: Number, recomputes: int = 1) -> FloatArray:
            columns = max(recomputes, np.shape(value)[-1] if np.ndim(value) else 1)
            return np.broadcast_to(value, (shares, columns))

        return ChunkArrays(
            table(forward_s),
            table(backward_s, len(stage.recomputes)),
            table(weight_s[0] if weight_s else 0.0),
            table(layers_s),
            table(saved_s),
        )

    def _saved(self, job: Job, stage: ArrayStage) -> Number:
        """Return what is saved where a forward and a backward pass run as one, each hiding what the other exchanges."""
        emit = MomentEmitter(job, self.emit.share, self.emit.rates, self.emit.overlap_tp)
        of = OfStage(replace(stage, recomputes=(), moved=None), Stateless())
        forward, backward = forward_pass(emit, of), backward_pass(emit, of)
        both_s = emit.seconds(forward) + emit.seconds(backward)
        return both_s - emit.seconds(emit.by_turns(forward, backward))

    def host_bytes(self, chunk: Chunk, recomputes: tuple[Recompute, ...]) -> FloatArray:
        """Return what a microbatch keeps in the memory of the host on a kind of virtual stage, [K, R]."""
        layers = chunk.stage.held.layers
        sizes = [self._model(chunk.stage.job, each).stage(layers).away for each in recomputes]
        return np.stack([np.broadcast_to(each, self.costs.shares) for each in sizes], axis=1)

    def _bytes(self, chunk: Chunk, recomputes: Sequence[Recompute]) -> dict[str, FloatArray]:
        found = [chunk_bytes(self._model(chunk.stage.job, each), chunk.stage.index) for each in recomputes]
        return {
            f"{name}_bytes": np.stack(
                [np.broadcast_to(getattr(each, name), self.costs.shares) for each in found], axis=1
            )
            for name in ("saved", "forward", "backward", "host")
        }

    def _model(self, job: Job, recompute: Recompute) -> LayerModel:
        modules, changed = recompute.recomputed_modules, recomputing(job, recompute)
        if modules not in self._layers:
            self._layers[modules] = LayerModel(changed, self.costs.share)
        return self._layers[modules].of_job(changed)
