"""Virtual stages on arrays: what a microbatch takes and keeps on each kind of them, for many shares and recomputations.

A kind of virtual stage (`Chunk`) is told by its layers and by which end of the model it has. Its times are those that
the rows of `traincast.lowering.stage` take where nothing else runs on the rank: computation with what is
overlapped with it, and what is not.

Letters: K shares, R recomputations.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.estimate.memory.stage import chunk_bytes
from traincast.job.job import Job
from traincast.lowering.launches import Launches
from traincast.lowering.stage import StageParts, StageWork
from traincast.mechanisms.activations import LayerModel
from traincast.model.numbers import Number, added
from traincast.model.structure import FIRST_BLOCKS, MTP_PROJECTION, Blocks
from traincast.planning.options import Recompute
from traincast.planning.screen.costs import CostTable, PassCosts, Transfer, passes_together
from traincast.planning.screen.pricing import Pricer, Timed, overlapped
from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.words import Group, Operation, Phase

_PLACES = ("experts", "with dispatch", "with combine")
"""Places beside the exchanges of tokens with their experts (`traincast.model.blocks.part.Part`)."""


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
    def of(cls, stage: StageWork, layers: tuple[Blocks, ...]) -> "Chunk":
        """Return the kind of a virtual stage of a model with some layers."""
        held, job = stage.held, stage.job
        ends = (held.first, held.last, held.copies_table, held.shares_table)
        return cls(
            layers[held.layers.start : held.layers.stop],
            (held.mtp_layers, *ends, job.hidden_states_after(stage.index)),
            stage,
        )


_BACKWARD = ("backward_s", "input_s")
"""Fields of `ChunkArrays` that are backward passes of layers."""


class ChunkArrays(Struct, frozen=True):
    """One kind of virtual stage on shares [K] with recomputations [R]: seconds of one microbatch."""

    forward_s: FloatArray
    """Of the layers' forward pass, which gathers of sharded parameters can be overlapped with, [K, 1]; where
    activations are offloaded, [K, R]."""
    host_forward_s: FloatArray
    """What the host needs to launch that at the least, [K, 1]."""
    ends_forward_s: FloatArray
    """Embedding, head and loss, [K, 1]."""
    backward_s: FloatArray
    """Of the layers' backward pass with its recomputation, both gradients together, [K, R]."""
    input_s: FloatArray
    """The same without the gradients of the weights, [K, R]."""
    weight_s: FloatArray
    """These, [K, 1]."""
    ends_backward_s: FloatArray
    """[K, 1]"""
    last_layers_s: FloatArray
    """Of the backward pass what follows the recomputation, [K, 1]."""
    saved_s: FloatArray
    """What a forward and a backward pass save that run as one, [K, 1]."""
    moved_s: FloatArray
    """Of copies of activations to the host, and as long back, [K, 1] where there are none, else [K, R]."""

    @property
    def whole_forward_s(self) -> FloatArray:
        """All of the forward pass where no parameters are gathered, [K, 1]."""
        return np.maximum(self.forward_s, self.host_forward_s) + self.ends_forward_s

    def rows(self, rows: IntArray) -> "ChunkArrays":
        """Return it on some of the shares."""
        return ChunkArrays(*(getattr(self, name)[rows] for name in self.__struct_fields__))


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
        return ChunkSizes(*(getattr(self, name)[rows] for name in self.__struct_fields__))


class ChunkTable(Struct):
    """Virtual stages of one way of execution on shares [K]."""

    job: Job
    """A job of the model and framework; its degrees and its recomputation do not count."""
    costs: CostTable
    seconds: Pricer
    overlap_tp: Number
    """Whether tensor parallel exchanges are hidden behind their GEMMs, [K]."""
    host_factor: Mapping[Phase, float]
    """Factor on the host's launches in each pass."""
    held_share: float = 0.0
    """By how much what multiprocessors bind is slower while a dispatcher holds some of them."""
    of_rank: StageParts | None = None
    """What a rank has of every block, where that is not what the virtual stages say."""
    link_bytes_per_s: float = math.inf
    """Rate of the link to the host."""
    _priced: dict[tuple[object, ...], Timed] = field(default_factory=dict)
    _layers: dict[tuple[str, ...], LayerModel] = field(default_factory=dict)
    _found: dict[tuple[Chunk, tuple[Recompute, ...]], ChunkArrays] = field(default_factory=dict)
    _sizes: dict[tuple[Chunk, tuple[Recompute, ...]], ChunkSizes] = field(default_factory=dict)

    def of(self, chunk: Chunk, recomputes: tuple[Recompute, ...]) -> ChunkArrays:
        """Return a kind of virtual stage with each of some recomputations."""
        key = (chunk, recomputes)
        if key not in self._found:
            self._found[key] = ChunkArrays(**self._times(chunk, recomputes))
        return self._found[key]

    def sizes(self, chunk: Chunk, recomputes: tuple[Recompute, ...]) -> ChunkSizes:
        """Return what a kind of virtual stage keeps with each of some recomputations."""
        key = (chunk, recomputes)
        if key not in self._sizes:
            self._sizes[key] = ChunkSizes(**self._bytes(chunk, recomputes))
        return self._sizes[key]

    def _times(self, chunk: Chunk, recomputes: tuple[Recompute, ...]) -> dict[str, FloatArray]:
        stage = replace(chunk.stage, of_rank=self.of_rank or chunk.stage.of_rank)
        kinds, joined = stage.kinds, {MTP_PROJECTION: stage.held.mtp_layers}
        weight = self._timed(kinds, Phase.WEIGHT_GRADIENT)
        lookup = {FIRST_BLOCKS: 1} if stage.first else {}
        ends = [joined, stage.ends]
        trained = self.costs.share.trains_weights
        looked_up = self._timed(lookup if trained else {}, Phase.BACKWARD)
        forward_ends = added(self._timed(each, Phase.FORWARD).alone_s for each in (lookup, *ends))
        forward_ends = forward_ends + (0.0 if stage.first else self._message_s())
        ends_back = added(self._timed(each, Phase.BACKWARD, Phase.WEIGHT_GRADIENT).alone_s for each in ends)
        ends_back = ends_back + (0.0 if stage.held.last else self._message_s())
        gradients_s = self._backward(stage, Phase.BACKWARD, Phase.WEIGHT_GRADIENT)
        inputs_s = self._backward(stage, Phase.BACKWARD)
        forward_s, launch_s = self._forward(stage)
        again = np.stack(self._again(stage, recomputes), axis=1)
        found = {
            "forward_s": forward_s[:, None],
            "host_forward_s": np.broadcast_to(launch_s, forward_ends.shape)[:, None],
            "ends_forward_s": forward_ends[:, None],
            "backward_s": gradients_s[:, None] + again,
            "input_s": inputs_s[:, None] + again,
            "weight_s": (weight.compute_s + looked_up.compute_s)[:, None],
            "ends_backward_s": (ends_back + looked_up.alone_s)[:, None],
            "last_layers_s": gradients_s[:, None],
            "saved_s": self._saved(stage, np.maximum(forward_s, launch_s) + gradients_s)[:, None],
        }
        found["moved_s"] = np.zeros_like(found["host_forward_s"])
        return found | self._with_offload(chunk, recomputes, found)

    def host_bytes(self, chunk: Chunk, recomputes: tuple[Recompute, ...]) -> FloatArray:
        """Return what a microbatch keeps in the memory of the host on a kind of virtual stage, [K, R]."""
        layers = chunk.stage.held.layers
        sizes = [self._model(chunk.stage.job, each).stage(layers).away for each in recomputes]
        return np.stack([np.broadcast_to(each, self.costs.shares) for each in sizes], axis=1)

    def _with_offload(
        self, chunk: Chunk, recomputes: tuple[Recompute, ...], found: Mapping[str, FloatArray]
    ) -> dict[str, FloatArray]:
        """Return the passes with the copies of activations to the host and back, as far as they take longer."""
        modules = self.job.offload.modules
        if not (modules or any(each.offloaded for each in recomputes)):
            return {}
        moved_s = self.host_bytes(chunk, recomputes) / self.link_bytes_per_s
        stage = chunk.stage
        counts_R = np.array([len(stage.held.layers) if modules else each.offloaded for each in recomputes])
        counts_R = np.minimum(counts_R, len(stage.held.layers))
        piece_s = moved_s / np.maximum(counts_R, 1)
        whole_R = (counts_R == stage.layers) & (counts_R > 0) & (not modules)
        first_s = np.where(whole_R, piece_s, 0.0)
        # Where all layers are offloaded, the last piece on its way out and the first on its way in are not hidden.
        returned = {name: 2 * first_s + np.maximum(found[name], moved_s - first_s) for name in _BACKWARD}
        return returned | {"forward_s": np.maximum(found["forward_s"], moved_s - piece_s), "moved_s": moved_s}

    def _forward(self, stage: StageWork) -> tuple[FloatArray, Number]:
        """Return the seconds of the layers' forward pass, and what the host needs to launch it at the least.

        As `traincast.lowering.layers` has it: what hides the exchanges of tokens with experts, and where the host
        waits for their counts, what it launches before and after.
        """
        phase, host = Phase.FORWARD, stage.host(Phase.FORWARD)
        timed, waits = self._timed(stage.kinds, phase), bool(np.any(host.waits))
        hides = self.job.experts.hides_exchanges
        idle_s, launch_s = self._idle_s(host, phase), self._launch_s(host, phase)
        if not (hides or waits):
            return self._beside(timed) + idle_s, launch_s
        experts, dispatch, combine = (self._timed(stage.kinds, phase, place=place) for place in _PLACES)
        before = timed.without(experts, *((dispatch, combine) if self._hides_shared else ()))
        rows_s = self._hidden(dispatch, timed.going("out")) + experts.compute_s
        rows_s = rows_s + self._hidden(combine, timed.going("back"))
        if (hides and not waits) or self.job.experts.pairs_passes:
            return self._beside(replace(before, compute_s=before.compute_s + rows_s)) + idle_s, launch_s
        ahead, after = host.parts
        passed_s = self._hosted(self._beside(before), ahead, phase)
        return passed_s + self._hosted(rows_s, after, phase), 0.0

    def _backward(self, stage: StageWork, *phases: Phase) -> FloatArray:
        """Return the seconds of the layers' backward pass without recomputation."""
        timed, host = self._timed(stage.kinds, *phases), stage.host(Phase.BACKWARD)
        if not self.job.experts.hides_exchanges:
            return self._hosted(self._beside(timed), host, Phase.BACKWARD)
        experts, dispatch, combine = (self._timed(stage.kinds, *phases, place=place) for place in _PLACES)
        before = timed.without(experts, *((dispatch, combine) if self._hides_shared else ()))
        rows_s = self._hidden(combine, timed.going("out")) + experts.compute_s
        rows_s = rows_s + self._hidden(dispatch, timed.going("back"))
        passed_s = self._beside(replace(before, compute_s=before.compute_s + rows_s))
        return self._hosted(passed_s, host, Phase.BACKWARD)

    def _message_s(self) -> FloatArray:
        """Return the seconds in which a stage gathers a message of which each of its ranks got a part, [K]."""
        share, total = self.costs.share, PassCosts.nothing(self.costs.shares)
        if not self.job.framework.splits_messages:
            return total.compute_s_K
        whole = share.activation_bytes * self.job.model.residual_streams * (share.tp > 1)
        size_bytes = np.where(share.splits_sequence, 0, np.broadcast_to(whole, self.costs.shares))
        total.exchange(Transfer(Group.TP, Operation.ALL_GATHER, size_bytes, 1.0, ""))
        return self.seconds.timed(total).alone_s

    def _saved(self, stage: StageWork, alone_s: FloatArray) -> FloatArray:
        """Return what is saved where a forward and a backward pass run as one, each hiding what the other exchanges.

        In the order of `traincast.workload.sequence`: attention forward while gradients go out, experts backward while
        tokens go out, experts forward while gradients come back, the rest backward while tokens come back.
        """
        if not self.job.experts.pairs_passes:
            return np.zeros(self.costs.shares)
        kinds, both = stage.kinds, (Phase.BACKWARD, Phase.WEIGHT_GRADIENT)
        forward, backward = self._timed(kinds, Phase.FORWARD), self._timed(kinds, *both)
        experts, back = (self._timed(kinds, *each, place="experts") for each in ((Phase.FORWARD,), both))
        weights = self._timed(kinds, Phase.WEIGHT_GRADIENT, place="experts").times(float(self.job.experts.delay_wgrad))
        rest, attention = backward.without(back), forward.without(experts)
        pair_s = self._meanwhile(attention, self._beside(attention), backward.going("out"))
        pair_s = pair_s + self._meanwhile(back, back.compute_s - weights.compute_s, forward.going("out"))
        pair_s = pair_s + self._meanwhile(experts, experts.compute_s + weights.compute_s, backward.going("back"))
        pair_s = pair_s + self._meanwhile(rest, self._beside(rest), forward.going("back"))
        hosts = ((Phase.FORWARD, stage.host(Phase.FORWARD)), (Phase.BACKWARD, stage.host(Phase.BACKWARD)))
        pair_s = pair_s + added(self._idle_s(host, phase) for phase, host in hosts)
        found: FloatArray = alone_s - np.maximum(pair_s, added(self._launch_s(host, phase) for phase, host in hosts))
        return found

    def _meanwhile(self, timed: Timed, compute_s: FloatArray, exchange_s: Number) -> FloatArray:
        """Return the seconds of a computation and an exchange that holds multiprocessors while it runs."""
        slowed_s = timed.slowed_s + self.held_share * timed.compute_s
        return overlapped(compute_s, slowed_s, np.asarray(exchange_s + np.zeros(self.costs.shares)))

    @property
    def _hides_shared(self) -> bool:
        return self.job.experts.shared_expert_overlap

    def _hidden(self, shared: Timed, exchange_s: Number) -> FloatArray:
        """Return the seconds of an exchange with experts, with what of the shared ones hides it."""
        if not self._hides_shared:
            return np.broadcast_to(np.asarray(exchange_s, dtype=np.float64), self.costs.shares)
        return overlapped(shared.compute_s, shared.slowed_s, exchange_s + np.zeros(self.costs.shares))

    def _timed(self, kinds: Mapping[Blocks, float], *phases: Phase, place: str = "") -> Timed:
        """Return some passes of blocks, each so many times: all of them, or what runs at a place beside exchanges."""
        key = (tuple(kinds.items()), phases, place)
        if key not in self._priced:
            total = PassCosts.nothing(self.costs.shares)
            for blocks, count in kinds.items():
                if count:
                    costs = self.costs.of(blocks)
                    total.add(passes_together(costs.at(place) if place else costs.passes, *phases), count)
            self._priced[key] = self.seconds.timed(total)
        return self._priced[key]

    def _again(self, stage: StageWork, recomputes: Sequence[Recompute]) -> list[FloatArray]:
        """Return the seconds of what the backward pass recomputes, [R] of [K]."""
        # As predict: the share of the virtual stage's layers that run again, MTP layers among them.
        whole_s = np.zeros(self.costs.shares)
        if any(each.kind == "full" for each in recomputes):
            passed_s = self._beside(self._timed(stage.kinds, Phase.FORWARD))
            whole_s = self._hosted(passed_s, stage.host(Phase.FORWARD), Phase.RECOMPUTE)
        ran = stage.layers
        return [
            whole_s * ((ran if each.layers is None or each.uniform else min(each.layers, ran)) / max(1, ran))
            if each.kind == "full"
            else self._modules_again(stage, each)
            for each in recomputes
        ]

    def _modules_again(self, stage: StageWork, recompute: Recompute) -> FloatArray:
        """Return the seconds of the modules that the backward pass recomputes, [K]."""
        kinds = stage.kinds
        if not recompute.recomputed_modules:
            return np.zeros(self.costs.shares)
        total, launched = PassCosts.nothing(self.costs.shares), Launches()
        for blocks, count in kinds.items():
            work, host = self.costs.of(blocks), stage.of_rank.launches(blocks)
            for module in recompute.recomputed_modules:
                if module in work.modules:
                    total.add(work.modules[module], count)
                    launched += host.modules.get(module, Launches()) * count
        hosted_s = self._hosted(self._beside(self.seconds.timed(total)), launched, Phase.RECOMPUTE)
        return np.where(total.compute_s_K > 0, hosted_s, 0.0)

    def _hosted(self, passed_s: FloatArray, host: Launches, phase: Phase) -> FloatArray:
        """Return the seconds of a pass that the host launches while it runs."""
        found: FloatArray = np.maximum(passed_s + self._idle_s(host, phase), self._launch_s(host, phase))
        return found

    def _launch_s(self, host: Launches, phase: Phase) -> Number:
        return host.seconds(self.job.framework) * self.host_factor[phase]

    def _idle_s(self, host: Launches, phase: Phase) -> Number:
        return host.idle_s(self.job.framework) * self.host_factor[phase]

    def _beside(self, timed: Timed) -> FloatArray:
        """Return the seconds of a computation with its transfers around it, as far as they can be overlapped."""
        compute_s, alone_s = timed.compute_s, np.zeros_like(timed.compute_s)
        hidden_s = np.zeros_like(compute_s)
        for (group, _), time_s in timed.transfer_s.items():
            share = self.seconds.unhidden(group, overlap_tp=self.overlap_tp)
            alone_s = alone_s + share * time_s
            hidden_s = np.maximum(hidden_s, (1 - share) * time_s)
        return overlapped(compute_s, timed.slowed_s, hidden_s) + alone_s

    def _bytes(self, chunk: Chunk, recomputes: Sequence[Recompute]) -> dict[str, FloatArray]:
        found = [chunk_bytes(self._model(chunk.stage.job, each), chunk.stage.index) for each in recomputes]
        return {
            f"{name}_bytes": np.stack(
                [np.broadcast_to(getattr(each, name), self.costs.shares) for each in found], axis=1
            )
            for name in ("saved", "forward", "backward", "host")
        }

    def _model(self, job: Job, recompute: Recompute) -> LayerModel:
        modules = recompute.recomputed_modules
        changed = job.with_values(
            recompute=recompute.kind,
            recompute_layers=None if recompute.uniform else recompute.layers,
            recompute_group=recompute.group,
            recompute_modules=modules or job.recompute.modules,
            offload_activations=recompute.offloaded,
        )
        if modules not in self._layers:
            self._layers[modules] = LayerModel(changed, self.costs.share)
        return self._layers[modules].of_job(changed)
