"""The pipeline of a block: its passes as lowering writes them, and its length as its schedule has it.

Letters: K shares, R recomputations, Z ways to shard, U pairs of degrees and a way, J pairs of a share and a way,
C kinds of virtual stages, L pairs with longer passes.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import product

import numpy as np

from traincast.lowering.step import OfStage
from traincast.model.numbers import Number, added
from traincast.planning.screen.chunks import ChunkTable
from traincast.planning.screen.shape import StageKind
from traincast.planning.screen.state_times import StateArrays, StateSeconds
from traincast.planning.screen.tables import BlockTables
from traincast.planning.screen.ways import Ways
from traincast.schedules.length import BACKWARD, FORWARD, Pipeline, Sum, passes_of
from traincast.schedules.run import length_of
from traincast.schedules.schedule import SCHEDULES
from traincast.schedules.slots import SlotKind
from traincast.workload.ops import BoolArray, FloatArray, IntArray
from traincast.workload.words import Stream

_PASSES = ("forward_s", "backward_s", "weight_s")
"""Fields of `ChunkArrays` that are the passes of a pipeline."""


class Passes:
    """The pipeline of a block where nothing of its state is exchanged in each microbatch."""

    def __init__(self, block: BlockTables, table: ChunkTable) -> None:
        self.block, self.table = block, table
        self.schedule = SCHEDULES.get(block.job.pipeline.schedule)
        self.splits = block.shape.plan.splits_backward
        self.chunks_C = [table.times(each).rows(block.rows_K) for each in block.timed]
        self._early: dict[StageKind, FloatArray] = {}

    @cached_property
    def line(self) -> Pipeline:
        """The pipeline, of arrays [K, 1, R]."""
        return self._line(slice(None), *([getattr(c, name) for c in self.chunks_C] for name in _PASSES))

    @cached_property
    def pipeline_s(self) -> FloatArray:
        """Its seconds, [K, 1, R]."""
        return self.seconds(self.line)

    def seconds(self, line: Pipeline) -> FloatArray:
        """Return the seconds from the first pass of a pipeline of this schedule to its last one, [K, Z, R]."""
        found: FloatArray = length_of(self.schedule, line)
        return found

    def sharded(
        self, zero: int, at_K: IntArray, state_C: Sequence[StateSeconds], at_U: IntArray, *, reshard: bool
    ) -> tuple[Pipeline, list[dict[Stream, Number]]]:
        """Return the pipeline of some pairs with what each microbatch exchanges of their state, of [L, 1, R].

        And for how long each kind of virtual stage keeps streams busy that no pass waits for.

        Parameters
        ----------
        at_K : numpy.ndarray of int
            Their shares.
        at_U : numpy.ndarray of int
            Places of their ways to shard in `state_C`, [L, 1].
        reshard : bool
            Whether parameters are gathered again for the backward pass.
        """
        block, rows = self.block, self.block.rows_K[at_K]
        job = block.job.with_values(zero=zero)
        gathers = (zero == 3 and not self.reduces_once, zero == 3 and reshard)
        found, left_C = [], []
        for chunk, seconds in zip(block.shape.chunks, state_C, strict=True):
            of = OfStage(self.table.stage(chunk, block.recomputes).on(rows), StateArrays(seconds, at_U))
            times = self.table.passes(job, of, rows, splits=self.splits, gathers=gathers)
            passes_s = [*times.passes_s, *([] if self.splits else [0.0])]
            found.append([each if np.ndim(each) else np.full((len(rows), 1), each) for each in passes_s])
            left_C.append(times.left_s)
        return self._line(at_K, *([*each] for each in zip(*found, strict=True))), left_C

    def lengthened(self, ways: Ways, state_C: Sequence[StateSeconds], at_J: IntArray, *, reshard: bool) -> BoolArray:
        """Return which pairs have passes that exchanges of state in each microbatch lengthen, [J]."""
        found = np.zeros(len(at_J), dtype=np.bool_)
        if ways.zero < 2 or (ways.zero == 3 and self.reduces_once and not reshard):
            return found
        for state, hidden_K in zip(state_C, self._hidden_CK, strict=True):
            if ways.zero == 3:
                found |= (state.gathered_s + (0.0 if self.reduces_once else state.reduced_s) > 0)[at_J]
            else:
                exchanged_s = state.reduced_s
                if self.block.job.offload.optimizer:
                    exchanged_s = np.maximum(exchanged_s, self.block.out_s(state))
                found |= exchanged_s[at_J] > hidden_K[ways.share_J]
        return found

    @cached_property
    def _hidden_CK(self) -> FloatArray:
        """The shortest passes of a microbatch of each kind of virtual stage of every share."""
        found: FloatArray = np.stack([(c.forward_s + c.backward_s + c.weight_s).min(axis=1) for c in self.chunks_C])
        return found

    def _line(
        self,
        at_K: slice | IntArray,
        forward_C: Sequence[FloatArray],
        backward_C: Sequence[FloatArray],
        weight_C: Sequence[FloatArray],
    ) -> Pipeline:
        """Return the pipeline of some shares from its passes, each [L, 1] or [L, R]."""
        block, shape = self.block, self.block.shape
        return Pipeline(
            stages=block.job.parallel.pp,
            kind_Q=shape.kind_Q,
            placement_Q=shape.placement_Q,
            microbatches=block.in_pipeline_K[at_K, None, None],
            times=(block.microbatches_K / block.in_pipeline_K)[at_K, None, None],
            forward_s_C=[each[:, None, :] for each in forward_C],
            backward_s_C=np.stack(np.broadcast_arrays(*backward_C))[:, :, None, :],
            weight_s_C=[each[:, None, :] for each in weight_C],
            message_s=block.message_s[at_K, None, None],
            splits_backward=self.splits,
            handover_s=0.0 if shape.plan.overlapped_p2p else block.filled.handover_s,
            saved_s_C=[each.saved_s[at_K, None, :] for each in self.chunks_C] if block.job.experts.pairs_passes else (),
            pairs_P=[each[at_K, None, None] for each in self._pairs_PK],
        )

    @cached_property
    def _pairs_PK(self) -> IntArray:
        """How often each stage runs two passes as one, of every share; nothing where none do."""
        job, counts_K = self.block.job, self.block.in_pipeline_K
        if not job.experts.pairs_passes:
            return np.zeros((0, 0), dtype=np.int64)
        distinct, which_K = np.unique(counts_K, return_inverse=True)
        parallel = job.parallel
        flights = self.block.filled.common.flights
        pairs = [flights.pairs(job.pipeline.schedule, parallel.pp, parallel.vpp, each) for each in distinct.tolist()]
        found: IntArray = np.array(pairs).T[:, which_K]
        return found

    def drained_s(self, line: Pipeline, left_C: Sequence[dict[Stream, Number]]) -> FloatArray | None:
        """Return when the ranks of every stage have exchanged what each microbatch leaves to a stream, [L, 1, R].

        No pass waits for that. A stage has the first of it with its first gradients of weights, and then the stream of
        its ranks may have more to do than they have. None: they leave nothing.
        """
        found: list[Sum] = []
        copies = len(self.block.shape.plan.placement)
        for kind, stream in product(self.block.shape.stages, {stream for each in left_C for stream in each}):
            busy_s = added(left_C[each].get(stream, np.zeros((1, 1))) for each in kind.held)
            found.append(
                self._first_gradients(line, kind.stage) + busy_s[:, None] * (line.microbatches * line.times / copies)
            )
        return line.longest(found) if found else None

    def _first_gradients(self, line: Pipeline, stage: int) -> Sum:
        """Return when a stage begins with the first gradients of weights: its first microbatch has come back to it."""
        placement_Q, last = line.placement_Q, len(line.kind_Q)
        place = max(q for q, holder in enumerate(placement_Q) if holder == stage)
        way = line.passes(FORWARD, 0, last)
        if self.schedule.holds_all:
            # All others have come to the last virtual stage before.
            held = [kind for kind, holder in zip(line.kind_Q, placement_Q, strict=True) if holder == placement_Q[-1]]
            way = line.passes(FORWARD, 0, line.stages - 1) + passes_of(held, FORWARD) * line.microbatches
        way = way + line.passes(BACKWARD, place + 1, last) + (2 * last - 2 - place) * line.message_s
        slots = self.block.shape.plan.slots[stage]
        begin = next(at for at, slot in enumerate(slots) if slot.kind is not SlotKind.F)
        end = next(at for at, slot in enumerate(slots) if slot.kind in (SlotKind.W, SlotKind.BW))
        between = (
            Sum({(FORWARD if slot.kind is SlotKind.F else BACKWARD, line.kind_Q[slot.virtual_stage]): 1})
            for slot in slots[begin:end]
        )
        found: Sum = added([way, *between])
        return found

    @property
    def reduces_once(self) -> bool:
        """Whether gradients of sharded parameters are reduced once a step, not in each microbatch."""
        return self.block.job.parallel.pp > 1 and self.block.job.framework.pipelined_fsdp

    def early_s(self, kind: StageKind) -> FloatArray:
        """Return the same of the pipeline whose state is not exchanged in each microbatch, [K, 1, R]."""
        if kind not in self._early:
            self._early[kind] = np.broadcast_to(self.before(self.line, kind), self.pipeline_s.shape)
        return self._early[kind]

    def ends_early(self, kind: StageKind) -> bool:
        """Return whether a stage ends its passes before the first one does."""
        return bool(self.schedule.ends_on_first_stage and kind.stage)

    def before(self, line: Pipeline, kind: StageKind) -> Number:
        """Return the seconds by which a stage ends its passes before the first one."""
        if not self.ends_early(kind):
            return 0.0
        message_s = line.message_s + line.handover_s
        return line.longest([line.passes(BACKWARD, 0, kind.stage) + kind.stage * message_s])
