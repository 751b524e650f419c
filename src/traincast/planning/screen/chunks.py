"""Virtual stages on arrays: what a microbatch takes and keeps on each kind of them, for many shares and recomputations.

A kind of virtual stage (`Chunk`) is told by its layers and by which end of the model it has. Its times are those of the
passes that lowering writes, on a rank where nothing else runs (`traincast.planning.screen.moments`).

Letters: K shares, R recomputations, L some of the shares.
"""

from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.estimate.memory.stage import chunk_bytes
from traincast.job.job import Job
from traincast.lowering.step import OfStage, backward_pass, forward_pass
from traincast.mechanisms.activations import LayerModel
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number
from traincast.planning.recomputation import Recompute
from traincast.planning.screen.alike import StageOfKinds, alike
from traincast.planning.screen.array_stage import ArrayParts, ArrayStage, Chunk, Stateless, recomputing
from traincast.planning.screen.costs import CostTable
from traincast.planning.screen.moments import MomentEmitter
from traincast.planning.screen.timed import Cycle
from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.words import Phase

_WEIGHTS = frozenset({Phase.WEIGHT_GRADIENT})
_ALL = frozenset(Phase)


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


def on_rows(share: Share, rows: IntArray) -> Share:
    """Return what ranks have on some of the shares, in columns [L, 1]."""
    arrays = {name: value for name in share.__struct_fields__ if isinstance(value := getattr(share, name), np.ndarray)}
    return replace(share, **{name: value[rows, None] for name, value in arrays.items()})


class ChunkArrays(Struct, frozen=True):
    """One kind of virtual stage on shares [K] with recomputations [R]: seconds of one microbatch."""

    forward_s: FloatArray
    """Of a forward pass, [K, 1]; where activations are offloaded, [K, R]."""
    backward_s: FloatArray
    """Of a backward pass with its recomputation, without the gradients of weights where these run by themselves, [K,
    R]."""
    weight_s: FloatArray
    """These, [K, 1]; nothing where they do not."""
    saved_s: FloatArray
    """What a forward and a backward pass save that run as one, [K, 1]."""

    def rows(self, rows: IntArray) -> "ChunkArrays":
        """Return it on some of the shares."""
        return ChunkArrays(*(getattr(self, name).take(rows, axis=0) for name in self.__struct_fields__))

    def between(self, begin: int, end: int) -> "ChunkArrays":
        """Return it on neighbouring shares."""
        return ChunkArrays(*(getattr(self, name)[begin:end] for name in self.__struct_fields__))


class TimedChunk(NamedTuple):
    """A kind of virtual stage as the passes of some pipelines have it."""

    chunk: Chunk
    recomputes: tuple[Recompute, ...]
    splits: bool
    """As in `ChunkTable.passes`."""

    @property
    def alike(self) -> Hashable:
        """What it has in common with those that may be worked out together."""
        return alike(self.chunk, self.recomputes), self.splits


class ChunkTable(Struct):
    """Virtual stages of one way of execution on shares [K]."""

    costs: CostTable
    emit: MomentEmitter
    expected: Collection[TimedChunk] = ()
    """What will be asked for, so that kinds which are alike are worked out together."""
    _layers: dict[tuple[str, ...], LayerModel] = field(default_factory=dict)
    _parts: dict[bool, ArrayParts] = field(default_factory=dict)
    _stages: dict[tuple[Chunk, tuple[Recompute, ...]], ArrayStage] = field(default_factory=dict)
    _found: dict[TimedChunk, ChunkArrays] = field(default_factory=dict)
    _sizes: dict[tuple[Chunk, tuple[Recompute, ...]], ChunkSizes] = field(default_factory=dict)

    def times(self, wanted: TimedChunk) -> ChunkArrays:
        """Return a kind of virtual stage with each of some recomputations."""
        if wanted not in self._found:
            others = (each for each in self.expected if each not in self._found and each.alike == wanted.alike)
            self._together(list(dict.fromkeys((wanted, *others))))
        return self._found[wanted]

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

    def _together(self, wanted: Sequence[TimedChunk]) -> None:
        """Work out several kinds of virtual stages that are alike, as one that has the shares of each."""
        kinds, shares = len(wanted), self.costs.shares
        stages = [self.stage(chunk, recomputes) for chunk, recomputes, _ in wanted]
        if kinds == 1:
            self._found[wanted[0]] = self._times(stages[0], splits=wanted[0].splits)
            return
        table = ChunkTable(self.costs, self.emit.of_kinds(kinds))
        times = table._times(StageOfKinds.of_kinds(stages, shares), splits=wanted[0].splits)
        for place, each in enumerate(wanted):
            self._found[each] = times.between(place * shares, (place + 1) * shares)
        self.emit.learn(table.emit, shares)

    def _times(self, stage: ArrayStage, *, splits: bool) -> ChunkArrays:
        shares, of = len(self.emit.rates.which_K), OfStage(stage, Stateless())
        job = stage.job.with_values(zero=0, offload_parameters=False)
        forward_s, backward_s, *weight_s = self.passes(job, of, None, splits=splits).passes_s
        saved_s = self._saved(job, stage) if job.experts.pairs_passes else 0.0

        def table(value: Number, recomputes: int = 1) -> FloatArray:
            columns = max(recomputes, np.shape(value)[-1] if np.ndim(value) else 1)
            return np.broadcast_to(value, (shares, columns))

        return ChunkArrays(
            table(forward_s),
            table(backward_s, len(stage.recomputes)),
            table(weight_s[0] if weight_s else 0.0),
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
        return self._columns([self._model(chunk.stage.job, each).stage(layers).away for each in recomputes])

    def _bytes(self, chunk: Chunk, recomputes: Sequence[Recompute]) -> dict[str, FloatArray]:
        found = [chunk_bytes(self._model(chunk.stage.job, each), chunk.stage.index) for each in recomputes]
        return {
            f"{name}_bytes": self._columns([getattr(each, name) for each in found])
            for name in ("saved", "forward", "backward", "host")
        }

    def _columns(self, values_R: Sequence[Number]) -> FloatArray:
        """Return numbers or arrays [K] next to each other, [K, R]."""
        found = np.empty((self.costs.shares, len(values_R)))
        for place, value in enumerate(values_R):
            found[:, place] = value
        return found

    def _model(self, job: Job, recompute: Recompute) -> LayerModel:
        modules, changed = recompute.recomputed_modules, recomputing(job, recompute)
        if modules not in self._layers:
            like = next(iter(self._layers.values()), None)
            self._layers[modules] = like.of_like(changed) if like else LayerModel(changed, self.costs.share)
        return self._layers[modules].of_job(changed)
