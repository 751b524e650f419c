"""One block of a space as arrays: the step and the peak of memory of each of its layouts, and the best of all blocks.

Letters: K shares, R recomputations, Z ways to shard, C kinds of virtual stages, L levels of memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from traincast.estimate.memory.stage import CONTEXT_BYTES, SLACK, communicator_bytes
from traincast.estimate.memory.states import (
    RankParameters,
    one_of_each_matrix,
    parameter_bytes,
    rank_parameters,
    states,
)
from traincast.job.job import Job
from traincast.model.blocks.part import Elements
from traincast.model.numbers import Number, added
from traincast.plan.chunks import Chunk, ChunkArrays
from traincast.plan.costs import at
from traincast.plan.flights import moments_of
from traincast.plan.layout import Layout
from traincast.plan.length import Pipeline, step_s
from traincast.plan.options import Recompute
from traincast.plan.pricing import overlapped
from traincast.plan.shape import Shape, StageKind
from traincast.plan.state_times import Sharding, StateSeconds
from traincast.workload.ops import BoolArray, FloatArray, IntArray
from traincast.workload.words import Group, Operation

if TYPE_CHECKING:
    from traincast.plan.screen import Filled, Member, ShareKey
    from traincast.plan.space import Degrees

_IN_ORDER = ("1f1b", "gpipe", "interleaved")
"""Schedules whose first stage has the last backward pass; with others all stages end together."""


@dataclass(frozen=True, slots=True)
class Part:
    """The layouts of a block with one stage of ZeRO."""

    zero: int
    shard_KZ: IntArray
    """Ranks that share one copy of the state; a share with fewer ways than others repeats its last one."""
    counts: BoolArray
    """Whether a layout is one of its own, [O, K, 1, Z]: repetitions have an infinite step."""
    overlaps: tuple[tuple[bool, bool], ...]
    """Whether gradients are reduced and parameters gathered while the rank computes."""
    step_s: FloatArray
    """[O, K, R, Z]"""
    peak_bytes: FloatArray
    """[K, R, Z]"""
    shape: tuple[int, ...]
    """That of the steps."""


@dataclass
class Block:
    """Layouts of one pipeline."""

    filled: "Filled"
    shape: Shape
    members: tuple["Member", ...]
    recomputes: tuple[Recompute, ...]
    shardings: Mapping[int, Sequence[Sharding]]
    """Ways to shard the state, by replicas of the parameters."""
    shares: Sequence["ShareKey"]

    @property
    def job(self) -> Job:
        """A job with this pipeline."""
        return self.shape.job

    @cached_property
    def rows_K(self) -> IntArray:
        """Each share in the tables of its family."""
        return np.array([member.share for member in self.members])

    @cached_property
    def microbatches_K(self) -> IntArray:
        """Microbatches of a step."""
        batch = self.job.global_batch
        return np.array([batch // (each.degrees.dp * self.shares[each.share].micro_batch) for each in self.members])

    @cached_property
    def _alike(self) -> list[tuple["Degrees", int]]:
        """One set of degrees, with its place, for all that hold and share parameters alike: cp counts as dp."""
        return [(self.degrees[place], place) for place in self._numbers.values()]

    @cached_property
    def _keys(self) -> list[tuple[int, int, int, int]]:
        return [(each.tp, each.dp * each.cp, each.ep, each.etp) for each in self.degrees]

    @cached_property
    def _numbers(self) -> dict[tuple[int, int, int, int], int]:
        found: dict[tuple[int, int, int, int], int] = {}
        for place, key in enumerate(self._keys):
            found.setdefault(key, place)
        return found

    @cached_property
    def _alike_K(self) -> IntArray:
        """Which of those each share is."""
        number = {key: each for each, key in enumerate(self._numbers)}
        return np.array([number[key] for key in self._keys])

    @cached_property
    def _weights(self) -> dict[Chunk, list[Elements]]:
        """The parameters of each kind of virtual stage, by these degrees."""
        shares, rows = self.filled.costs.shares, [self.members[place].share for _, place in self._alike]
        found = {}
        for chunk in self.shape.chunks:
            weights = chunk.stage.weights()
            found[chunk] = [_at(weights, row, shares) for row in rows]
        return found

    @cached_property
    def degrees(self) -> tuple["Degrees", ...]:
        """The degrees of every share."""
        return tuple(member.degrees for member in self.members)

    @cached_property
    def _degrees(self) -> dict[str, IntArray]:
        names = ("tp", "cp", "dp", "ep", "etp")
        return dict(
            zip(names, np.array([[getattr(each, name) for name in names] for each in self.degrees]).T, strict=True)
        )

    def of_degrees(self, name: str) -> IntArray:
        """Return a degree of every share, [K]."""
        return self._degrees[name]

    @cached_property
    def chunks_C(self) -> list[ChunkArrays]:
        """The kinds of virtual stages on these shares."""
        return [self.filled.chunks.of(each, self.recomputes).rows(self.rows_K) for each in self.shape.chunks]

    @cached_property
    def message_s(self) -> FloatArray:
        """Seconds of a message between stages, [K, 1]."""
        found = np.zeros(len(self.members))
        if self.job.parallel.pp == 1:
            return found[:, None]
        share = self.filled.costs.share
        split = np.where(share.splits_sequence, share.tp, 1)
        state_bytes = share.activation_bytes * self.job.model.residual_streams // split
        size_K = np.broadcast_to(state_bytes, self.filled.costs.shares)[self.rows_K]
        places: dict[Degrees, list[int]] = {}
        for place, member in enumerate(self.members):
            places.setdefault(member.degrees, []).append(place)
        for degrees, at_K in places.items():
            links = self.filled.links_of(degrees)
            found[at_K] = links.seconds(Group.PP, Operation.SEND_RECV, size_K[at_K])
        return found[:, None]

    def parts(self) -> Iterator[Part]:
        """Work the block out, one stage of ZeRO after the other."""
        space = self.filled.space
        for zero in sorted({zero for found in self.shardings.values() for zero, _ in found}):
            reduced: tuple[bool, ...] = (self.job.framework.overlap_grad_reduce,)
            if zero < 2:
                reduced = space.overlaps("overlap_grad_reduce", able=bool((self.replicas_K > 1).any()))
            gathered = space.overlaps("overlap_param_gather", able=zero in (1, 2))
            overlaps = tuple((one, other) for one in reduced for other in gathered)
            shard_KZ, own_KZ = self._shards(zero)
            # Without replicas nothing is reduced, and one of both is enough.
            once_OK = np.array([(self.replicas_K > 1) | (one == reduced[-1]) for one, _ in overlaps])
            counts = once_OK[:, :, None, None] & own_KZ[None, :, None, :]
            steps = self._step(zero, shard_KZ, overlaps)
            steps = steps if counts.all() else np.where(counts, steps, np.inf)
            yield Part(zero, shard_KZ, counts, overlaps, steps, self._peak(zero, shard_KZ), steps.shape)

    @cached_property
    def replicas_K(self) -> IntArray:
        """Ranks with equal dense parameters."""
        return self.of_degrees("dp") * self.of_degrees("cp")

    def _shards(self, zero: int) -> tuple[IntArray, BoolArray]:
        """Return the ranks that share state with a stage of ZeRO, and which of them are no repetitions, [K, Z]."""
        of = {count: [shard for each, shard in found if each == zero] for count, found in self.shardings.items()}
        most = max(map(len, of.values()))
        padded = {count: [*found, *[found[-1] if found else 1] * (most - len(found))] for count, found in of.items()}
        own = {count: [place < len(found) for place in range(most)] for count, found in of.items()}
        replicas = self.replicas_K.tolist()
        return np.array([padded[each] for each in replicas]), np.array([own[each] for each in replicas])

    def layout(self, part: Part, place: int) -> Layout:
        """Return the layout at a place of the flat array of steps of a part."""
        overlap, k, r, z = np.unravel_index(place, part.shape)
        member, recompute = self.members[int(k)], self.recomputes[int(r)]
        share, job, variant = self.shares[member.share], self.job, self.filled.family.variant
        reduced, gathered = part.overlaps[int(overlap)]
        degrees, full = member.degrees, recompute.kind == "full"
        return Layout(
            gpus=self.filled.space.request.gpus,
            tp=degrees.tp,
            pp=degrees.pp,
            vpp=job.parallel.vpp,
            cp=degrees.cp,
            dp=degrees.dp,
            ep=degrees.ep,
            etp=degrees.etp,
            micro_batch=share.micro_batch,
            microbatches=int(self.microbatches_K[int(k)]),
            schedule=job.schedule,
            sequence_parallel=share.sequence_parallel,
            zero=part.zero,
            shard=int(part.shard_KZ[int(k), int(z)]),
            recompute=recompute.kind,
            recompute_layers=recompute.layers if full else None,
            recompute_method="uniform" if recompute.uniform else None,
            recompute_modules=recompute.modules,
            overlap_grad_reduce=reduced and degrees.dp * degrees.cp > 1,
            overlap_param_gather=gathered,
            overlap_tp=variant.overlap_tp,
            precision=variant.precision,
            cp_kind=variant.cp_kind,
            moe_dispatcher=variant.moe_dispatcher,
        )

    # Time

    @cached_property
    def _fixed_s(self) -> FloatArray:
        return self.filled.fixed_s(self.members, self.shape)

    def _states(self, zero: int, shard_KZ: IntArray) -> list[StateSeconds]:
        """Return what the state of each kind of virtual stage takes, [C] of [K, Z]."""
        found, known = [], self.filled.screen.known_states
        for chunk in self.shape.chunks:
            key = (chunk, zero, self.degrees, self.filled.family.cluster.ranks_per_node)
            if key in known:
                found.append(known[key])
                continue
            weights = self._weights[chunk]
            of = []
            for (degrees, place), own in zip(self._alike, weights, strict=True):
                shardings = tuple((zero, shard) for shard in shard_KZ[place].tolist())
                of.append(self.filled.state_of(self.job, degrees, own, shardings))
            stacked = (np.stack([getattr(one, name) for one in of]) for name in StateSeconds.__slots__)
            known[key] = StateSeconds(*(each[self._alike_K] for each in stacked))
            found.append(known[key])
        return found

    def _step(self, zero: int, shard_KZ: IntArray, overlaps: Sequence[tuple[bool, bool]]) -> FloatArray:
        state_C = self._states(zero, shard_KZ)
        line = self._line(zero, state_C)
        pipeline_s = step_s(line, self.job.schedule)
        if pipeline_s.ndim == 2:
            pipeline_s = pipeline_s[:, :, None]
        update_s, gather_s = self._update(state_C)
        fixed_s = self._fixed_s[:, None, None]
        steps = []
        reduced_at = {each: self._reduced(line, state_C, pipeline_s, zero, overlap=each) for each, _ in overlaps}
        for reduced, gathered in overlaps:
            ends_s = update_s + (gather_s if zero in (1, 2) and not gathered else 0.0)
            begins_s = self._begins(state_C) if zero in (1, 2) and gathered else 0.0
            steps.append(reduced_at[reduced] + (ends_s[:, None, :] + begins_s + fixed_s))
        shape = (len(self.members), len(self.recomputes), shard_KZ.shape[1])
        return np.stack([np.broadcast_to(each, shape) for each in steps])

    def _line(self, zero: int, state_C: Sequence[StateSeconds]) -> Pipeline:
        """Return the pipeline, of arrays [K, R], or [K, R, Z] where the state is exchanged in every microbatch."""
        shape, chunks = self.shape, self.chunks_C
        forward = [each.whole_forward_s for each in chunks]
        backward = [each.backward_s + each.ends_backward_s for each in chunks]
        inputs = [each.input_s + each.ends_backward_s for each in chunks]
        weight = [each.weight_s for each in chunks]
        message_s, microbatches = self.message_s, self.microbatches_K[:, None]
        if zero >= 2:
            microbatches, message_s = microbatches[:, :, None], message_s[:, :, None]
            forward, backward, inputs, weight = (
                [each[:, :, None] for each in times] for times in (forward, backward, inputs, weight)
            )
            sharded = [
                self._sharded(zero, *each) for each in zip(chunks, state_C, forward, backward, inputs, strict=True)
            ]
            forward, backward, inputs = ([each[i] for each in sharded] for i in range(3))
        handover_s = 0.0 if shape.plan.overlapped_p2p else self.filled.handover_s
        return Pipeline(
            self.job.parallel.pp,
            shape.kind_Q,
            shape.placement_Q,
            microbatches,
            forward,
            backward,
            inputs,
            weight,
            message_s,
            handover_s,
        )

    def _sharded(
        self,
        zero: int,
        chunk: ChunkArrays,
        state: StateSeconds,
        forward: FloatArray,
        backward: FloatArray,
        inputs: FloatArray,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the passes with the exchanges of state that each microbatch has, [K, R, Z]."""
        reduced, gathered = state.reduced_s[:, None, :], state.gathered_s[:, None, :]
        if zero == 2:
            # The reduction has the next forward pass, too.
            return forward, np.maximum(backward, reduced - forward), np.maximum(inputs, reduced - forward)
        if self._reduces_once:
            return forward, backward, inputs
        share = self.job.framework.unhidden_fsdp
        layers_s, ends_s = chunk.forward_s[:, :, None], chunk.ends_forward_s[:, :, None]
        hosted_s = np.maximum(_with(layers_s, gathered, share), chunk.host_forward_s[:, :, None])
        exchanged = reduced + (gathered if self.job.reshard_after_forward else 0.0)
        return hosted_s + ends_s, _with(backward, exchanged, share), _with(inputs, exchanged, share)

    @property
    def _reduces_once(self) -> bool:
        return self.job.parallel.pp > 1 and self.job.framework.pipelined_fsdp

    def _reduced(
        self, line: Pipeline, state_C: Sequence[StateSeconds], pipeline_s: FloatArray, zero: int, *, overlap: bool
    ) -> FloatArray:
        """Return the seconds until all ranks have their gradients, [K, R, Z]."""
        latest: Number = 0.0
        for kind in self.shape.stages:
            before_s = self._before(line, kind)
            left_s = self._left(kind, state_C, zero, overlap=overlap)
            copied_s: Number = 0.0
            if len(self.shape.plan.placement) > 1:
                copied_s = added(state_C[each].copied_s for each in kind.held)[:, None, :]
            latest = np.maximum(latest, (pipeline_s - before_s) + (left_s + copied_s))
        return np.asarray(latest)

    def _before(self, line: Pipeline, kind: StageKind) -> Number:
        """Return the seconds by which a stage ends its passes before the first one."""
        if self.job.schedule not in _IN_ORDER or not kind.stage:
            return 0.0
        hop = line.message_s + line.handover_s
        before_s = line.sum_of(line.backward_s_C, 0, kind.stage) + kind.stage * hop
        return before_s[:, :, None] if before_s.ndim == 2 else before_s

    def _left(self, kind: StageKind, state_C: Sequence[StateSeconds], zero: int, *, overlap: bool) -> FloatArray:
        """Return the seconds of the reduction that are left when a stage's passes have ended, [K, 1, Z]."""
        all_s = added(state_C[each].reduced_s + state_C[each].summed_s for each in kind.held)[:, None, :]
        if zero == 3 and not self._reduces_once:
            return np.zeros((1, 1, 1))
        if (zero < 2 and not overlap) or zero == 3:
            return np.asarray(all_s)
        last = kind.held[0]
        own_s = (state_C[last].reduced_s + state_C[last].summed_s)[:, None, :]
        window_s = self.chunks_C[last].last_layers_s[:, :, None]
        late_s = own_s / max(1, self.shape.chunks[last].stage.layers)
        windows_s = added(self.chunks_C[each].last_layers_s for each in kind.held)[:, :, None]
        found: FloatArray = np.maximum(late_s, np.maximum(own_s - window_s, all_s - windows_s))
        return found

    def _update(self, state_C: Sequence[StateSeconds]) -> tuple[FloatArray, FloatArray]:
        """Return the seconds of the update and of the gather of parameters of the slowest stage, [K, Z]."""
        update: Number = 0.0
        gather: Number = 0.0
        for kind in self.shape.stages:
            count = added(state_C[each].updated for each in kind.held)
            distinct, which = np.unique(count, return_inverse=True)
            seconds = np.array([self.filled.states.update_s(self.job, each) for each in distinct])
            update = np.maximum(update, seconds[which].reshape(count.shape))
            gather = np.maximum(gather, added(state_C[each].gathered_s for each in kind.held))
        return update, gather

    def _begins(self, state_C: Sequence[StateSeconds]) -> FloatArray:
        """Return the seconds by which the gather of parameters delays the first pass of a step, [K, 1, Z]."""
        first = self.shape.stages[0].held[0]
        layers = max(1, self.shape.chunks[first].stage.layers)
        gathered = state_C[first].gathered_s[:, None, :]
        window_s = self.chunks_C[first].whole_forward_s[:, :, None]
        found: FloatArray = gathered / layers + np.maximum(0.0, gathered * (1 - 1 / layers) - window_s)
        return found

    # Memory

    def _peak(self, zero: int, shard_KZ: IntArray) -> FloatArray:
        """Return the memory of the stage that needs most, [K, R, Z]."""
        degrees = [self.of_degrees(each) for each in ("tp", "cp", "dp", "ep")]
        outside_K = CONTEXT_BYTES + communicator_bytes(*degrees, self.job.parallel.pp)
        peak: Number = 0.0
        for number, kind in enumerate(self.shape.stages):
            lasting, of_step = self._lasting(zero, shard_KZ, kind)
            passing = self.activations_S[number]
            whole = np.maximum(passing[:, :, None], of_step[:, None, :]) if of_step.any() else passing[:, :, None]
            peak = np.maximum(peak, whole + lasting[:, None, :])
        found: FloatArray = peak * (1.0 + SLACK) + outside_K[:, None, None]
        return found

    def _lasting(self, zero: int, shard_KZ: IntArray, kind: StageKind) -> tuple[FloatArray, FloatArray]:
        """Return what a stage keeps for the whole step, and what its end adds, [K, Z]."""
        job, parts = replace(self.job, zero=zero), self.filled.costs.parts
        columns = self._held[kind.stage]
        ranks = (self.of_degrees("etp") * self.of_degrees("ep"))[:, None]
        edp = (self.of_degrees("tp") * self.of_degrees("cp") * self.of_degrees("dp"))[:, None] // ranks
        expert = np.maximum(1, edp * shard_KZ // self.replicas_K[:, None]) if zero else np.ones_like(edp)
        dense = shard_KZ if zero else np.ones((1, 1), dtype=np.int64)
        found = states(job, columns, (dense, expert))
        policy, share = job.memory_policy, self.filled.costs.share
        other: Number = policy.buffer_bytes
        if policy.gradient_placeholders and job.task != "lora":
            unused = one_of_each_matrix(job, self.shape.plan, kind.stage, parts)
            other = other + parameter_bytes(job.precision) * self._column(unused)
        if job.parallel.pp > 1:
            other = other + 4 * self._column(share.residual_bytes)
        shape = shard_KZ.shape
        lasting = found.parameters + found.gradients + found.optimizer + found.copies + found.gathered + other
        return np.broadcast_to(lasting, shape), np.broadcast_to(np.asarray(found.step_gradients, np.float64), shape)

    @cached_property
    def _held(self) -> dict[int, RankParameters]:
        """The parameters of each kind of stage, by the first of them, of arrays [K, 1]."""
        shares, found = self.filled.costs.shares, {}
        for kind in self.shape.stages:
            held = rank_parameters(self.job, self.shape.plan, kind.stage, self.filled.costs.parts)
            found[kind.stage] = replace(
                held,
                total=_columns(held.total, self.rows_K, shares),
                ends=_columns(held.ends, self.rows_K, shares),
                largest_layer=self._column(held.largest_layer),
                largest_trained=self._column(held.largest_trained),
            )
        return found

    def _column(self, value: Number) -> FloatArray:
        return at(value, self.rows_K, self.filled.costs.shares)[:, None]

    @cached_property
    def activations_S(self) -> list[FloatArray]:
        """Activations of each kind of stage at their peak, [K, R]."""
        shape = (len(self.members), len(self.recomputes))
        found = [np.zeros(shape) for _ in self.shape.stages]
        parallel = self.job.parallel
        for count in np.unique(self.microbatches_K).tolist():
            at_K = np.flatnonzero(self.microbatches_K == count)
            kinds = moments_of(
                self.job.schedule, parallel.pp, parallel.vpp, count, self.shape.kind_Q, self.shape.kind_P
            )
            chunks = [each.rows(at_K) for each in self.chunks_C]
            for number, moments in enumerate(kinds):
                most: Number = 0.0
                for count_A, kind, forward in zip(moments.count_EA, moments.kind_E, moments.forward_E, strict=True):
                    held = sum(often * each.saved_bytes for often, each in zip(count_A, chunks, strict=True) if often)
                    if forward >= 0:
                        held = held + (chunks[kind].forward_bytes if forward else chunks[kind].backward_bytes)
                    most = np.maximum(most, held)
                found[number][at_K] = most
        return found


def _with(compute_s: FloatArray, transfer_s: FloatArray, share: float) -> FloatArray:
    """Return the seconds of a computation with transfers of which a share cannot be hidden."""
    return overlapped(compute_s, np.zeros_like(compute_s), transfer_s * (1 - share)) + transfer_s * share


def _at(weights: Elements, row: int, shares: int) -> Elements:
    """Return the parameters of one share."""
    values = {name: getattr(weights, name) for name in Elements.__dataclass_fields__}
    return Elements(**{name: np.broadcast_to(np.asarray(value), shares)[row].item() for name, value in values.items()})


def _columns(weights: Elements, rows: IntArray, shares: int) -> Elements:
    names = Elements.__dataclass_fields__
    return Elements(**{name: at(getattr(weights, name), rows, shares)[:, None] for name in names})


@dataclass(slots=True)
class Frontier:
    """The best layouts so far: the fastest that fit, and the fastest for less memory."""

    limit_bytes: float
    keep: int
    levels: int = 48
    evaluated: int = 0
    feasible: int = 0
    _cut_L: FloatArray = field(init=False)
    _found: list[tuple[float, float, Block, Part, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self._cut_L = np.full(self.levels + 1, np.inf)
        self._cut_L[-1] = -np.inf

    def add(self, block: Block) -> None:
        """Work a block out and keep what is better than what is there."""
        for part in block.parts():
            self._add(block, part)
        self._tidy()

    def _add(self, block: Block, part: Part) -> None:
        own = int(np.count_nonzero(part.counts)) * part.shape[2]
        self.evaluated += own
        level = np.minimum(part.peak_bytes * (self.levels / self.limit_bytes), self.levels).astype(np.int16)
        if own == part.step_s.size:
            self.feasible += len(part.overlaps) * int(np.count_nonzero(level < self.levels))
        else:
            self.feasible += int(np.count_nonzero((level < self.levels) & part.counts))
        better = np.flatnonzero((part.step_s < self._cut_L[level]).reshape(-1))
        if not len(better):
            return
        steps, peaks = part.step_s.reshape(-1)[better], part.peak_bytes.reshape(-1)[better % part.peak_bytes.size]
        light = replace(part, step_s=np.empty(0), peak_bytes=np.empty(0), shape=part.step_s.shape)
        for place in _front(steps, peaks, self.keep).tolist():
            self._found.append((float(steps[place]), float(peaks[place]), block, light, int(better[place])))

    def _tidy(self) -> None:
        """Drop what is neither among the fastest nor the fastest for its memory."""
        steps, peaks = (np.array([each[i] for each in self._found]) for i in (0, 1))
        self._found = [self._found[place] for place in _front(steps, peaks, self.keep)]
        last_s = self._found[self.keep - 1][0] if len(self._found) >= self.keep else np.inf
        # What is slower than a layout of a lower level is not the fastest for its memory.
        least_s = np.inf
        below = sorted(self._found, key=lambda each: each[1])
        place = 0
        for level in range(self.levels):
            bound = level * self.limit_bytes / self.levels
            while place < len(below) and below[place][1] < bound:
                least_s = min(least_s, below[place][0])
                place += 1
            self._cut_L[level] = max(last_s, least_s)

    def best(self) -> tuple[tuple[float, ...], tuple[float, ...], tuple[Layout, ...]]:
        """Return steps, peaks and layouts, the fastest first."""
        steps, peaks = tuple(each[0] for each in self._found), tuple(each[1] for each in self._found)
        return steps, peaks, tuple(block.layout(part, place) for _, _, block, part, place in self._found)


def _front(steps: FloatArray, peaks: FloatArray, keep: int) -> IntArray:
    """Return the places of the fastest so many, and of those that none faster beats in memory, the fastest first."""
    order = np.lexsort((peaks, steps))
    least = np.minimum.accumulate(peaks[order])
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = peaks[order][1:] < least[:-1]
    first[:keep] = True
    found: IntArray = order[first]
    return found
