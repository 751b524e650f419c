"""The pipeline of a block: its passes as lowering writes them, and its length as its schedule has it.

Letters: K shares, R recomputations, Z ways to shard, U pairs of degrees and a way, J pairs of a share and a way,
C kinds of virtual stages, L pairs with longer passes.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct

from traincast.lowering.step import OfStage
from traincast.lowering.work import Exchange
from traincast.model.numbers import Number
from traincast.planning.screen.chunks import ChunkTable
from traincast.planning.screen.flights import pairs_of
from traincast.planning.screen.moments import TimedExchange
from traincast.planning.screen.shape import StageKind
from traincast.planning.screen.state_times import StateSeconds
from traincast.planning.screen.tables import BlockTables
from traincast.planning.screen.ways import Ways
from traincast.schedules.length import BACKWARD, Pipeline
from traincast.schedules.run import length_of
from traincast.schedules.schedule import SCHEDULES
from traincast.workload.ops import BoolArray, FloatArray, IntArray
from traincast.workload.words import Group, Operation

_PASSES = ("forward_s", "backward_s", "weight_s")
"""Fields of `ChunkArrays` that are the passes of a pipeline."""


class PairState(Struct):
    """The state of a virtual stage on some pairs of a share and a way, [L, 1]."""

    seconds: StateSeconds
    at_U: IntArray

    def _exchange(self, group: Group, operation: Operation, time_s_U: FloatArray) -> list[Exchange]:
        return [TimedExchange(group, operation, time_s_U[self.at_U])]

    def gathered(self) -> list[Exchange]:
        """Return the gather of its parameters."""
        return self._exchange(Group.DP, Operation.ALL_GATHER, self.seconds.gathered_s)

    def reduced(self) -> list[Exchange]:
        """Return the reduction of its gradients."""
        return self._exchange(Group.DP, Operation.REDUCE_SCATTER, self.seconds.reduced_s)

    def summed(self) -> list[Exchange]:
        """Return their sum over copies of the shares."""
        return self._exchange(Group.REPLICA, Operation.ALL_REDUCE, self.seconds.summed_s)

    def all_reduced(self) -> list[Exchange]:
        """Return both."""
        return [*self.reduced(), *self.summed()]

    def over_copies(self) -> list[Exchange]:
        """Return the sum over the copies of the model."""
        return self._exchange(Group.COPY, Operation.ALL_REDUCE, self.seconds.copied_s)

    def updated(self) -> Number:
        """Return the parameters that the optimizer of a rank updates."""
        return self.seconds.updated[self.at_U]

    held = cast = updated


class Passes:
    """The pipeline of a block where nothing of its state is exchanged in each microbatch."""

    def __init__(self, block: BlockTables, table: ChunkTable) -> None:
        self.block, self.table = block, table
        self.schedule = SCHEDULES.get(block.job.pipeline.schedule)
        self.splits = block.shape.plan.splits_backward
        self.chunks_C = [
            table.times(each, block.recomputes, splits=self.splits).rows(block.rows_K) for each in block.shape.chunks
        ]
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
    ) -> Pipeline:
        """Return the pipeline of some pairs with what each microbatch exchanges of their state, of [L, 1, R].

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
        found = []
        for chunk, seconds in zip(block.shape.chunks, state_C, strict=True):
            of = OfStage(self.table.stage(chunk, block.recomputes).on(rows), PairState(seconds, at_U))
            times = self.table.passes(job, of, rows, splits=self.splits, gathers=gathers)
            found.append([*times, *([] if self.splits else [np.zeros((len(rows), 1))])])
        return self._line(at_K, *([*each] for each in zip(*found, strict=True)))

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
            microbatches=block.microbatches_K[at_K, None, None],
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
        job, counts_K = self.block.job, self.block.microbatches_K
        if not job.experts.pairs_passes:
            return np.zeros((0, 0), dtype=np.int64)
        distinct, which_K = np.unique(counts_K, return_inverse=True)
        parallel = job.parallel
        pairs = [pairs_of(job.pipeline.schedule, parallel.pp, parallel.vpp, count) for count in distinct.tolist()]
        found: IntArray = np.array(pairs).T[:, which_K]
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
