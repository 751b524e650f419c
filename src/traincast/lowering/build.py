"""Build the workload of a job: templates for every stage, whose computations are estimated later.

Letters: P stages, Q virtual stages in model order, M microbatches, D directions.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from traincast.diagnostics import Note
from traincast.job.job import Job
from traincast.job.share import rank_share
from traincast.lowering.emit import Emitter, RowEmitter
from traincast.lowering.held import table_stages
from traincast.lowering.stage import stages_of
from traincast.lowering.state import Residency, StateExchange, residency
from traincast.lowering.step import (
    Ending,
    OfStage,
    backward_pass,
    end_rows,
    first_forward_pass,
    forward_pass,
    gathers_updated,
    start_rows,
)
from traincast.model.blocks.experts import nodes_of_token
from traincast.model.blocks.share import Share
from traincast.model.dispatch import DISPATCHERS
from traincast.schedules.plan import SchedulePlan
from traincast.workload.builder import Rows, WorkloadBuilder
from traincast.workload.ops import IntArray
from traincast.workload.words import CostClass, Phase
from traincast.workload.workload import Workload


def build_workload(job: Job, plan: SchedulePlan, ranks_per_node: int = 8) -> Workload:
    """Return the workload of a job, whose computations carry the operators they run and have no duration yet.

    `plan` says which stage holds which virtual stage; `ranks_per_node` reach each other without the network.
    """
    share = rank_share(job, ranks_per_node)
    builder = WorkloadBuilder(job.model.name, job.parallel, job.pipeline.schedule)
    emit = RowEmitter(job, share, builder)
    stages_Q = stages_of(job, ranks_per_node, plan=plan)
    each_Q = tuple(OfStage(each, StateExchange(job, each.weights())) for each in stages_Q)
    _StepWriter(job, plan, emit, each_Q).write()
    builder.notes.assumptions += [*job.assumptions, *_overlap_notes(emit), *_routing_notes(job, share)]
    state_bytes = share.activation_bytes * job.model.residual_streams
    state_bytes //= job.parallel.tp if share.splits_sequence or job.framework.splits_messages else 1
    sent = [state_bytes * job.hidden_states_after(index) for index in range(len(job.pipeline.layers_Q))]
    return builder.workload(
        sent,
        table_stages=table_stages(job, plan),
        exchange_sms=DISPATCHERS[job.experts.dispatcher].sms if job.experts.hides_exchanges else 0,
        pairs_passes=job.experts.pairs_passes,
    )


def _overlap_notes(emit: Emitter) -> tuple[Note, ...]:
    """Say where an overlap that was asked for cannot be had."""
    job, ranks = emit.job, emit.share.execution.ranks_per_node
    if not job.communication.overlap_tp or emit.can_overlap_tp():
        return ()
    text = (
        f"overlap_tp needs tensor parallel groups inside one NVLink domain, as its kernels write to the memory of "
        f"their peers: tp {job.parallel.tp} with {ranks} ranks per node crosses nodes, so nothing of "
        "its transfers is hidden"
    )
    brief = f"overlap_tp hides nothing: tp {job.parallel.tp} with {ranks} ranks per node crosses nodes"
    return (Note("overlap-tp-across-nodes", text, brief=brief),)


def _routing_notes(job: Job, share: Share) -> tuple[Note, ...]:
    """Say what node-limited routing changes."""
    experts = job.model.experts
    if experts is None or experts.group_topk == experts.groups:
        return ()
    limited, free = (
        nodes_of_token(experts, share.ep, share.expert_stride, share.execution.ranks_per_node, limited=each)
        for each in (True, False)
    )
    if limited is None or free is None:
        return ()
    groups = f"{experts.group_topk} of {experts.groups} groups"
    text = brief = f"node-limited routing: the top-{experts.topk} experts of a token are in {groups}"
    if DISPATCHERS[job.experts.dispatcher].sends == "once":
        text += f", on {limited:.2f} nodes on average instead of {free:.2f}; it is sent to each of them once"
    else:
        text += f"; that changes nothing here, as {job.experts.dispatcher} does not send a token once to each node"
    return (Note("node-limited-routing", text, brief=brief),)


class _StepWriter(Struct):
    """Writes the template that every rank shares."""

    job: Job
    plan: SchedulePlan
    emit: RowEmitter
    each_Q: tuple[OfStage, ...]
    _followed: Residency | None = None

    microbatches: tuple[tuple[int, int], ...] = ()
    """First and last microbatch of each copy of the model."""

    _own_P: list[list[int]] = field(default_factory=list)
    """The virtual stages of all copies on each stage."""

    def __post_init__(self) -> None:
        slots = self.plan.columns_P[0]
        passing = (slots.microbatch_S[slots.copy_S == copy] for copy in range(len(self.plan.placement)))
        self.microbatches = tuple((int(each.min()), int(each.max())) for each in passing if len(each))
        self._own_P = [self._of_rank(stage) for stage in range(self.job.parallel.pp)]

    def write(self) -> None:
        """Add the template, with the segments of every stage."""
        pp = range(self.job.parallel.pp)
        forward = list(map(self._forward, self.each_Q))
        backward = list(map(self._backward, self.each_Q))
        starts = [self._segment(self._start_rows(stage)) for stage in pp]
        ends = [self._segment(self._end_rows(stage)) for stage in pp]
        template = self.emit.builder.template(before_recv_DQM=self._before_messages())
        template.forward_QM[:], template.backward_QM[:] = forward, backward
        template.start_P[:], template.end_P[:] = starts, ends

    def _segment(self, rows: Rows) -> int:
        return self.emit.builder.segment(rows)

    def _forward(self, of: OfStage) -> list[int]:
        """Return the segment of each microbatch: the first may collect the updated parameters during its work."""
        job, index, count = self.job, of.stage.index, self.job.parallel.microbatches
        if job.sharding.zero == 3:
            gathers_M = self._residency().forward_gathers_QM[index]
            return self._segments(gathers_M, lambda gathers: self._forward_rows(of, gathers=bool(gathers)))
        segments = [self._segment(self._forward_rows(of))] * count
        if not (gathers_updated(job) and job.sharding.overlap_param_gather):
            return segments
        for placement_Q, (first, _) in zip(self.plan.placement, self.microbatches, strict=False):
            own = self._own_P[placement_Q[index]]
            position = own.index(index)
            following = self.each_Q[own[position + 1]] if position + 1 < len(own) else None
            segments[first] = self._segment(self._first_forward_rows(of, following, begins=position == 0))
        return segments

    def _forward_rows(self, of: OfStage, *, gathers: bool = False) -> Rows:
        """Return the rows of a forward pass; stages that are alike have the same ones."""
        key = Phase.FORWARD, of.stage.like, gathers
        return self.emit.builder.again(key, lambda: forward_pass(self.emit, of, gathers=gathers))

    def _first_forward_rows(self, of: OfStage, following: OfStage | None, *, begins: bool) -> Rows:
        """Return the rows of the first forward pass of a step, likewise."""
        key = Phase.FORWARD, of.stage.like, following and following.stage.like, begins
        return self.emit.builder.again(key, lambda: first_forward_pass(self.emit, of, following, begins=begins))

    def _backward_rows(self, of: OfStage, *, gathers: bool = False, last: bool = False) -> Rows:
        """Return the rows of a backward pass, likewise."""
        key = Phase.BACKWARD, of.stage.like, gathers, last
        return self.emit.builder.again(key, lambda: backward_pass(self.emit, of, gathers=gathers, last=last))

    def _backward(self, of: OfStage) -> list[int]:
        """Return the segment of each microbatch: the last may reduce its gradients during its work."""
        if self.job.sharding.zero == 3:
            return self._fully_sharded_backward(of)
        segments = [self._segment(self._backward_rows(of))] * self.job.parallel.microbatches
        if self.job.sharding.zero < 2 and not self.job.sharding.overlap_grad_reduce:
            return segments
        for _, last in self.microbatches:
            segments[last] = self._segment(self._backward_rows(of, last=True))
        return segments

    def _fully_sharded_backward(self, of: OfStage) -> list[int]:
        """Return the segment of each microbatch with sharded parameters: which gather, and which reduce gradients."""
        found, index = self._residency(), of.stage.index
        last_M = np.arange(self.job.parallel.microbatches) == found.last_backward_Q[index]
        late = self.job.reduces_once and not found.ends_rank_Q[index]

        def rows(choice: int) -> Rows:
            gathers, last = divmod(choice, 2)
            passed = self._backward_rows(of, gathers=bool(gathers), last=bool(last))
            # What the rank computes last is reduced after its message has left, with what ends the step.
            return passed + (self.emit.all(of.state.all_reduced()) if last and late else [])

        return self._segments(2 * found.backward_gathers_QM[index] + last_M, rows)

    def _segments(self, choice_M: npt.ArrayLike, rows: Callable[[int], Rows]) -> list[int]:
        """Return the segment of each microbatch, made once for each distinct choice."""
        chosen = list(map(int, np.asarray(choice_M)))
        made = {choice: self._segment(rows(choice)) for choice in dict.fromkeys(chosen)}
        return [made[choice] for choice in chosen]

    def _residency(self) -> Residency:
        if self._followed is None:
            job = self.job
            self._followed = residency(
                self.plan,
                job.parallel.microbatches,
                reshard_after_forward=job.sharding.reshard_after_forward,
                pipelined=job.reduces_once,
            )
        return self._followed

    def _of_rank(self, stage: int) -> list[int]:
        """Return the virtual stages of all copies on a stage, in model order: microbatches reach them in that order."""
        held = ({q for q, holder in enumerate(placement_Q) if holder == stage} for placement_Q in self.plan.placement)
        return sorted(set().union(*held))

    def _start_rows(self, stage: int) -> Rows:
        """Return what precedes the first forward pass of a stage; stages that are alike have the same rows."""
        own = [self.each_Q[index] for index in self._own_P[stage]]
        key = "start", *(each.stage.like for each in own)
        return self.emit.builder.again(key, lambda: start_rows(self.emit, own))

    def _end_rows(self, stage: int) -> Rows:
        """Return what follows the last backward pass of a stage, likewise."""
        job, own, late = self.job, self._own_P[stage], list[int]()
        if job.reduces_once:
            ends_Q = self._residency().ends_rank_Q
            late = [index for index in own if ends_Q[index]]
        elif not job.sharding.overlap_grad_reduce and job.sharding.zero < 2:
            late = own
        has_table, stages = stage in table_stages(job, self.plan), [self.each_Q[index] for index in own]
        ending = Ending(
            [self.each_Q[index].state for index in late], has_copies=len(self.plan.placement) > 1, has_table=has_table
        )
        key = "end", has_table, *((each.stage.like, each.stage.index in late) for each in stages)
        return self.emit.builder.again(key, lambda: end_rows(self.emit, stages, ending))

    def _before_messages(self) -> IntArray | None:
        """Return the host's work before each blocking receive, where the framework has any."""
        rows = self.emit.gap("P2P launch overhead", self.job.framework.p2p_handover_s, CostClass.HANDOVER)
        if not rows or self.plan.overlapped_p2p:
            return None
        return np.full((2, len(self.each_Q), self.job.parallel.microbatches), self._segment(rows), dtype=np.int32)
