"""The step of the layouts of a block: the passes of its pipeline, and what state its ranks exchange and update.

Letters: K shares, R recomputations, Z ways to shard, J pairs of a share and a way, U pairs of degrees and a way,
O choices of overlaps, S kinds of stages, C kinds of virtual stages.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traincast.job.offload import GRADIENT_BYTES, PARAMETER_BYTES
from traincast.model.blocks.part import Elements
from traincast.model.numbers import Number, added
from traincast.plan.chunks import Chunk, ChunkArrays
from traincast.plan.flights import pairs_of
from traincast.plan.length import Pipeline, splits_backward, step_s
from traincast.plan.pricing import with_exchanges
from traincast.plan.shape import StageKind
from traincast.plan.state_times import StateSeconds
from traincast.plan.ways import Rows, Ways
from traincast.workload.ops import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from traincast.plan.block import Block, Overlaps

_IN_ORDER = ("1f1b", "gpipe", "interleaved")
"""Schedules whose first stage has the last backward pass; with others all stages end together."""


class Passes:
    """The pipeline of a block where nothing of its state is exchanged in each microbatch."""

    def __init__(self, block: "Block", chunks_C: Sequence[ChunkArrays]) -> None:
        self.block, self.chunks_C = block, chunks_C
        self._early: dict[StageKind, FloatArray] = {}

    @cached_property
    def line(self) -> Pipeline:
        """The pipeline, of arrays [K, 1, R]."""
        return self._line(slice(None), *self._times(slice(None)))

    @cached_property
    def pipeline_s(self) -> FloatArray:
        """Its seconds, [K, 1, R]."""
        return step_s(self.line, self.block.job.schedule)

    def sharded(
        self, zero: int, at_K: slice | IntArray, state_C: Sequence[StateSeconds], at_U: IntArray, *, reshard: bool
    ) -> Pipeline:
        """Return the pipeline of some shares with what each microbatch exchanges of their state, of [K, Z, R].

        Parameters
        ----------
        reshard : bool
            Whether parameters are gathered again for the backward pass.
        at_U : numpy.ndarray of int
            Places of their ways to shard in `state_C`, [K, Z].
        """
        forward, backward = self._times(at_K)
        of = zip(self.chunks_C, state_C, forward, backward, strict=True)
        found = [
            self._reduced(state, at_U[..., None], one, two)
            if zero == 2
            else self._gathered(at_K, chunk, state, at_U[..., None], one, two, reshard=reshard)
            for chunk, state, one, two in of
        ]
        if self.block.job.offload_optimizer and not (zero == 3 and self.reduces_once):
            moved_C = [each.moved_s[at_K, None, :] for each in self.chunks_C]
            found = [
                self._offloaded(state, at_U[..., None], moved_s, *each)
                for state, moved_s, each in zip(state_C, moved_C, found, strict=True)
            ]
        return self._line(at_K, [each[0] for each in found], [each[1] for each in found])

    def lengthened(self, ways: Ways, state_C: Sequence[StateSeconds], at_J: IntArray, *, reshard: bool) -> BoolArray:
        """Return which pairs have passes that exchanges of state in each microbatch lengthen, [J]."""
        found = np.zeros(len(at_J), dtype=np.bool_)
        if ways.zero < 2 or (ways.zero == 3 and self.reduces_once and not reshard):
            return found
        for state, forward, backward in zip(state_C, *self._times(slice(None)), strict=True):
            if ways.zero == 3:
                found |= (state.gathered_s + (0.0 if self.reduces_once else state.reduced_s) > 0)[at_J]
            else:
                hidden_K = (forward + backward)[:, 0].min(axis=1)
                exchanged_s = state.reduced_s
                if self.block.job.offload_optimizer:
                    exchanged_s = np.maximum(exchanged_s, self.out_s(state))
                found |= exchanged_s[at_J] > hidden_K[ways.share_J]
        return found

    def out_s(self, state: StateSeconds) -> FloatArray:
        """Return the seconds in which the gradients of a virtual stage go to the host."""
        share = GRADIENT_BYTES * self.block.job.offload_optimizer / self.block.filled.host.link_bytes_per_s
        found: FloatArray = share * state.updated
        return found

    def _offloaded(
        self, state: StateSeconds, at_U: IntArray, moved_s: FloatArray, forward: FloatArray, backward: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the passes where gradients go to the host in each microbatch, and parameters may come from it.

        Activations share the links with them.
        """
        in_s: Number = 0.0
        if self.block.job.offload_parameters:
            in_s = PARAMETER_BYTES / self.block.filled.host.link_bytes_per_s * state.updated[at_U]
        forward = np.maximum(forward, in_s)
        # Copies out have the next forward pass, too.
        return forward, np.maximum(backward, moved_s + np.maximum(in_s, self.out_s(state)[at_U] - forward))

    def _times(self, at_K: slice | IntArray) -> tuple[list[FloatArray], list[FloatArray]]:
        """Return forward and backward passes of each kind of virtual stage, [K, 1, 1] and [K, 1, R]."""
        split = splits_backward(self.block.job.schedule)
        forward, backward = [], []
        for each in self.chunks_C:
            forward.append(each.whole_forward_s[at_K, None, :])
            back = each.input_s if split else each.backward_s
            backward.append(back[at_K, None, :] + each.ends_backward_s[at_K, None, :])
        return forward, backward

    def _line(self, at_K: slice | IntArray, forward: list[FloatArray], backward: list[FloatArray]) -> Pipeline:
        block, shape = self.block, self.block.shape
        return Pipeline(
            stages=block.job.parallel.pp,
            kind_Q=shape.kind_Q,
            placement_Q=shape.placement_Q,
            microbatches=block.microbatches_K[at_K, None, None],
            forward_s_C=forward,
            backward_s_C=backward,
            weight_s_C=[each.weight_s[at_K, None, :] for each in self.chunks_C],
            message_s=block.message_s[at_K, None, None],
            handover_s=0.0 if shape.plan.overlapped_p2p else block.filled.handover_s,
            saved_s_C=[each.saved_s[at_K, None, :] for each in self.chunks_C] if block.job.pairs_passes else (),
            pairs_P=[each[at_K, None, None] for each in self._pairs_PK],
        )

    @cached_property
    def _pairs_PK(self) -> IntArray:
        """How often each stage runs two passes as one, of every share; nothing where none do."""
        job, counts_K = self.block.job, self.block.microbatches_K
        if not job.pairs_passes:
            return np.zeros((0, 0), dtype=np.int64)
        distinct, which_K = np.unique(counts_K, return_inverse=True)
        parallel = job.parallel
        pairs = [pairs_of(job.schedule, parallel.pp, parallel.vpp, count) for count in distinct.tolist()]
        found: IntArray = np.array(pairs).T[:, which_K]
        return found

    def _reduced(
        self, state: StateSeconds, at_U: IntArray, forward: FloatArray, backward: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the passes where gradients are reduced in each microbatch."""
        # The reduction has the next forward pass, too.
        return forward, np.maximum(backward, state.reduced_s[at_U] - forward)

    def _gathered(
        self,
        at_K: slice | IntArray,
        chunk: ChunkArrays,
        state: StateSeconds,
        at_U: IntArray,
        forward: FloatArray,
        backward: FloatArray,
        *,
        reshard: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """Return the passes where parameters are gathered, and gradients reduced, in each microbatch."""
        share, gathered = self.block.job.framework.unhidden_fsdp, state.gathered_s[at_U]
        if self.reduces_once:
            # A backward pass leaves parameters whole, for the next forward pass.
            return forward, with_exchanges(backward, gathered, share) if reshard else backward
        hosted_s = with_exchanges(chunk.forward_s[at_K, None, :], gathered, share)
        hosted_s = np.maximum(hosted_s, chunk.host_forward_s[at_K, None, :])
        exchanged = state.reduced_s[at_U] + (gathered if reshard else 0.0)
        return hosted_s + chunk.ends_forward_s[at_K, None, :], with_exchanges(backward, exchanged, share)

    @property
    def reduces_once(self) -> bool:
        """Whether gradients of sharded parameters are reduced once a step, not in each microbatch."""
        return self.block.job.parallel.pp > 1 and self.block.job.framework.pipelined_fsdp

    def early_s(self, kind: StageKind) -> FloatArray:
        """Return the same of the pipeline whose state is not exchanged in each microbatch, [K, 1, R]."""
        if kind not in self._early:
            self._early[kind] = np.broadcast_to(self.before(self.line, kind), self.pipeline_s.shape)
        return self._early[kind]

    def before(self, line: Pipeline, kind: StageKind) -> Number:
        """Return the seconds by which a stage ends its passes before the first one."""
        if self.block.job.schedule not in _IN_ORDER or not kind.stage:
            return 0.0
        return line.sum_of(line.backward_s_C, 0, kind.stage) + kind.stage * (line.message_s + line.handover_s)


class States:
    """What the state of a block's virtual stages takes, by degrees that share parameters alike: cp counts as dp."""

    def __init__(self, block: "Block") -> None:
        self.block = block
        keys = [(each.tp, each.dp * each.cp, each.ep, each.etp) for each in block.degrees]
        first: dict[tuple[int, int, int, int], int] = {}
        for place, key in enumerate(keys):
            first.setdefault(key, place)
        self.alike = tuple(first)
        number = {key: each for each, key in enumerate(first)}
        self.alike_K = np.array([number[key] for key in keys])
        self.places = tuple(first.values())
        self._weights: dict[Chunk, list[Elements]] = {}
        self._casts: dict[StageKind, FloatArray] = {}

    def of(self, ways: Ways) -> tuple[list[StateSeconds], IntArray]:
        """Return the seconds of each kind of virtual stage, [C] of [U], and the place of each pair in them, [J]."""
        ways_K = {place: rows.ways_Z for rows in ways.rows for place in range(rows.shares.start, rows.shares.stop)}
        ways_A = [ways_K.get(place, ()) for place in self.places]
        begin_A = np.cumsum([0, *map(len, ways_A)])[:-1]
        at_J = begin_A[self.alike_K[ways.share_J]] + ways.way_J
        return [self._seconds(chunk, ways.zero, ways_A) for chunk in self.block.shape.chunks], at_J

    def _seconds(self, chunk: Chunk, zero: int, ways_A: Sequence[tuple[int, ...]]) -> StateSeconds:
        filled = self.block.filled
        known = filled.states.whole
        key = (filled.number_of(chunk), zero, self.alike, tuple(ways_A), self.block.job.param_gather_bytes)
        if key not in known:
            found = [
                filled.state_of(self.block.job, self.block.degrees[place], own, tuple((zero, way) for way in ways))
                for place, own, ways in zip(self.places, self.weights(chunk), ways_A, strict=True)
                if ways
            ]
            known[key] = StateSeconds(
                # Of a block in which no way is left there are none.
                *(
                    np.concatenate([np.zeros(0), *(getattr(one, name) for one in found)])
                    for name in StateSeconds.__struct_fields__
                )
            )
        return known[key]

    def casts_s(self, kind: StageKind) -> FloatArray:
        """Return the seconds of what brings the weights of a stage to the type of 8-bit GEMMs, by degrees."""
        if kind not in self._casts:
            filled = self.block.filled
            held = zip(*(self.weights(self.block.shape.chunks[each]) for each in kind.held), strict=True)
            found = [filled.states.casts_s(self.block.job, filled.costs.share, own) for own in held]
            self._casts[kind] = np.array(found)
        return self._casts[kind]

    def weights(self, chunk: Chunk) -> list[Elements]:
        """Return the parameters of a kind of virtual stage by these degrees."""
        if chunk not in self._weights:
            rows, shares = self.block.rows_K, self.block.filled.costs.shares
            weights = chunk.stage.weights()
            self._weights[chunk] = [_at(weights, int(rows[place]), shares) for place in self.places]
        return self._weights[chunk]


class Steps:
    """The steps of a block with one stage of ZeRO."""

    def __init__(self, block: "Block", ways: Ways, *, reshard: bool) -> None:
        self.block, self.ways, self.passes, self.reshard = block, ways, block.passes(ways.zero), reshard
        self.state_C, self.at_J = block.states.of(ways)
        self.lengthened_J = self.passes.lengthened(ways, self.state_C, self.at_J, reshard=reshard)
        self.fixed_J = block.fixed_s[ways.share_J]
        self._ends: dict[Overlaps, list[FloatArray]] = {}

    def of(self, rows: Rows, overlaps: tuple["Overlaps", ...]) -> FloatArray:
        """Return the steps of some shares, [O, K, Z, R]."""
        whole_s, early_s = self._lengths(rows)
        ends_S = [
            np.stack([rows.of_pairs(each) for each in of_overlaps])
            for of_overlaps in zip(*(self._ends_of(each) for each in overlaps), strict=True)
        ]
        first_s = latest_s = ends_S[0]
        for kind, ends_s in zip(self.block.shape.stages[1:], ends_S[1:], strict=True):
            # The first stage ends its passes last: others count only where more is left for them to do.
            if (ends_s <= first_s).all():
                continue
            latest_s = np.maximum(latest_s, ends_s - early_s(kind))
        found: FloatArray = latest_s + whole_s
        return found

    def _lengths(self, rows: Rows) -> tuple[FloatArray, Callable[[StageKind], Number]]:
        """Return the seconds of the pipelines of some shares, and by how much each kind of stage ends before them."""
        passes, zero, ways = self.passes, self.ways.zero, len(rows.ways_Z)
        longer = np.flatnonzero(self.lengthened_J[rows.pairs])
        if 2 * len(longer) > rows.pairs.stop - rows.pairs.start:
            at_U = self.at_J[rows.pairs].reshape(-1, ways)
            line = passes.sharded(zero, rows.shares, self.state_C, at_U, reshard=self.reshard)
            return step_s(line, self.block.job.schedule), lambda kind: passes.before(line, kind)
        usual_s = passes.pipeline_s[rows.shares]
        if not len(longer):
            return usual_s, lambda kind: passes.early_s(kind)[rows.shares]
        # The others are as long as without state.
        pairs = rows.pairs.start + longer
        at_U = self.at_J[pairs, None]
        line = passes.sharded(zero, self.ways.share_J[pairs], self.state_C, at_U, reshard=self.reshard)

        def replaced(usual_s: FloatArray, longer_s: Number) -> FloatArray:
            found = np.repeat(usual_s, ways, axis=1)
            shape = (len(longer), 1, found.shape[-1])
            found.reshape(-1, shape[-1])[longer] = np.broadcast_to(longer_s, shape)[:, 0]
            return found

        whole_s = replaced(usual_s, step_s(line, self.block.job.schedule))
        return whole_s, lambda kind: replaced(passes.early_s(kind)[rows.shares], passes.before(line, kind))

    def _ends_of(self, overlaps: "Overlaps") -> list[FloatArray]:
        """Return what each kind of stage does between its last pass and the end of the step, [S] of [J]."""
        if overlaps not in self._ends:
            reduced, gathered = overlaps
            ends_s = self._update_J + self.fixed_J
            if self.ways.zero in (1, 2):
                ends_s = ends_s + (self._begins() if gathered else self._gather_J)
            self._ends[overlaps] = [
                self._left(kind, overlap=reduced) + self._copied(kind) + ends_s for kind in self.block.shape.stages
            ]
        return self._ends[overlaps]

    def _left(self, kind: StageKind, *, overlap: bool) -> FloatArray:
        """Return the seconds of the reduction that are left when a stage's passes have ended, [J]."""
        zero, at_J = self.ways.zero, self.at_J
        leaves = zero >= 2 and self.block.job.offload_optimizer > 0 and not (zero == 3 and self.passes.reduces_once)
        out_s = self._late_out(kind) if leaves else np.zeros(len(at_J))
        if zero == 3 and not self.passes.reduces_once:
            return out_s
        reduced_C = [each.reduced_s + each.summed_s for each in self.state_C]
        all_s = added(reduced_C[each] for each in kind.held)[at_J]
        if (zero < 2 and not overlap) or zero == 3:
            return np.asarray(all_s)
        left_s = self._late(kind, reduced_C)
        return np.maximum(left_s, out_s) if leaves else left_s

    def _late_out(self, kind: StageKind) -> FloatArray:
        """Return the seconds that gradients need to the host when a stage's passes have ended, [J].

        Where they take longer than a microbatch its passes wait for them already, but for the last layer's.
        """
        chunk, last = self.passes.chunks_C[kind.held[0]], self.block.shape.chunks[kind.held[0]].stage
        passes_s = (chunk.whole_forward_s + chunk.backward_s + chunk.ends_backward_s)[self.ways.share_J, 0]
        own_s = self.passes.out_s(self.state_C[kind.held[0]])[self.at_J]
        left_s = self._late(kind, [self.passes.out_s(each) for each in self.state_C])
        found: FloatArray = np.where(own_s > passes_s, own_s / max(1, last.layers), left_s)
        return found

    def _late(self, kind: StageKind, seconds_C: Sequence[FloatArray]) -> FloatArray:
        """Return the seconds that are left of what goes on behind the last passes of a stage, layer by layer, [J]."""
        at_J, share_J = self.at_J, self.ways.share_J
        last, chunks = kind.held[0], self.passes.chunks_C
        own_s, all_s = seconds_C[last][at_J], added(seconds_C[each] for each in kind.held)[at_J]
        window_s = chunks[last].last_layers_s[share_J, 0]
        late_s = own_s / max(1, self.block.shape.chunks[last].stage.layers)
        windows_s = added(chunks[each].last_layers_s for each in kind.held)[share_J, 0]
        found: FloatArray = np.maximum(late_s, np.maximum(own_s - window_s, all_s - windows_s))
        return found

    def _copied(self, kind: StageKind) -> Number:
        if len(self.block.shape.plan.placement) == 1:
            return 0.0
        return added(self.state_C[each].copied_s for each in kind.held)[self.at_J]

    @cached_property
    def _update_J(self) -> FloatArray:
        """Seconds of the update of the slowest stage."""
        update: Number = 0.0
        job = self.block.job
        if job.offload_optimizer:
            job = replace(job, zero=self.ways.zero)
        for kind in self.block.shape.stages:
            count = added(self.state_C[each].updated for each in kind.held)
            layers = sum(self.block.shape.chunks[each].stage.layers for each in kind.held)
            seconds = np.array([self.block.filled.update_s(job, each, layers) for each in count.tolist()])
            update = np.maximum(update, seconds[self.at_J] + self._casts_s(kind))
        return np.asarray(update)

    def _casts_s(self, kind: StageKind) -> Number:
        """Return the seconds of the casts of a stage's weights that follow its update, [J]."""
        filled, states = self.block.filled, self.block.states
        if self.ways.zero == 3 or filled.costs.share.execution.scaling is None:
            return 0.0
        return states.casts_s(kind)[states.alike_K[self.ways.share_J]]

    @cached_property
    def _gather_J(self) -> FloatArray:
        """Seconds of the gather of parameters of the slowest stage."""
        gather: Number = 0.0
        for kind in self.block.shape.stages:
            gather = np.maximum(gather, added(self.state_C[each].gathered_s for each in kind.held))
        return np.asarray(gather)[self.at_J]

    def _begins(self) -> FloatArray:
        """Return the seconds by which the gather of parameters delays the first pass of a step, [J]."""
        held = self.block.shape.stages[0].held
        layers = max(1, self.block.shape.chunks[held[0]].stage.layers)
        gathered = [each.gathered_s[self.at_J] for each in self.state_C]
        forward = [each.whole_forward_s[self.ways.share_J, 0] for each in self.passes.chunks_C]
        first = gathered[held[0]]
        found: FloatArray = first / layers + np.maximum(0.0, first * (1 - 1 / layers) - forward[held[0]])
        if self.block.job.schedule == "interleaved":
            # The next virtual stage's parameters come while so many microbatches pass this one.
            passing = np.minimum(self.block.job.parallel.pp, self.block.microbatches_K)[self.ways.share_J]
            for own, following in pairwise(held):
                found += np.maximum(0.0, gathered[following] - passing * forward[own])
        return found


def _at(weights: Elements, row: int, shares: int) -> Elements:
    """Return the parameters of one share."""
    values = {name: getattr(weights, name) for name in Elements.__struct_fields__}
    return Elements(**{name: np.broadcast_to(np.asarray(value), shares)[row].item() for name, value in values.items()})
