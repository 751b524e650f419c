"""Build the workload of a job: templates for every stage, computations priced later.

Letters: P stages, Q virtual stages in model order, M microbatches, D directions.
"""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.job.job import Job
from traincast.job.share import rank_share
from traincast.lowering.casts import weight_casts
from traincast.lowering.emit import Emitter
from traincast.lowering.held import table_stages
from traincast.lowering.offload import on_host, updated_rows
from traincast.lowering.stage import Gather, Offloaded, StageWork, backward_rows, forward_rows, stages_of
from traincast.lowering.state import Residency, StateExchange, residency
from traincast.lowering.work import Exchange, call_of
from traincast.model.blocks.experts import nodes_of_token
from traincast.model.blocks.part import Elements
from traincast.model.blocks.share import Share
from traincast.model.dispatch import DISPATCHERS
from traincast.model.numbers import ceil_div
from traincast.schedules.plan import SchedulePlan
from traincast.workload.builder import Rows, WorkloadBuilder
from traincast.workload.ops import IntArray, OperatorCall
from traincast.workload.words import STREAM_OF_GROUP, CostClass, Group, Operation, Phase
from traincast.workload.workload import Workload

NORM_BYTES = 4
"""The gradient norm is one 32-bit number, reduced over all ranks that hold a part of the model."""


def build_workload(job: Job, plan: SchedulePlan, ranks_per_node: int = 8) -> Workload:
    """Return the workload of a job, whose computations carry the operators they run and have no duration yet.

    `plan` says which stage holds which virtual stage; `ranks_per_node` reach each other without the network.
    """
    share = rank_share(job, ranks_per_node)
    builder = WorkloadBuilder(job.model.name, job.parallel, job.pipeline.schedule)
    emit = Emitter(job, share, builder)
    _StepWriter(job, plan, emit, stages_of(job, ranks_per_node)).write()
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
    if not job.communication.overlap_tp or emit.can_overlap(Group.TP) or job.parallel.tp == 1:
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
        nodes_of_token(experts, share.ep, share.etp, share.execution.ranks_per_node, limited=each)
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
    emit: Emitter
    stages: tuple[StageWork, ...]
    states: tuple[StateExchange, ...] = ()
    _followed: Residency | None = None

    microbatches: tuple[tuple[int, int], ...] = ()
    """First and last microbatch of each copy of the model."""

    def __post_init__(self) -> None:
        passing: dict[int, set[int]] = {}
        for slot in self.plan.slots[0]:
            passing.setdefault(slot.copy, set()).add(slot.microbatch)
        self.microbatches = tuple((min(each), max(each)) for _, each in sorted(passing.items()))
        self.states = tuple(StateExchange(self.job, stage.weights()) for stage in self.stages)

    def write(self) -> None:
        """Add the template, with the segments of every stage."""
        pp = range(self.job.parallel.pp)
        forward = list(map(self._forward, self.stages))
        backward = list(map(self._backward, self.stages))
        starts = [self._segment(self._start_rows(stage)) for stage in pp]
        ends = [self._segment(self._end_rows(stage)) for stage in pp]
        template = self.emit.builder.template(before_recv_DQM=self._before_messages())
        template.forward_QM[:], template.backward_QM[:] = forward, backward
        template.start_P[:], template.end_P[:] = starts, ends

    def _segment(self, rows: Rows) -> int:
        return self.emit.builder.segment(rows)

    def _forward(self, stage: StageWork) -> list[int]:
        """Return the segment of each microbatch: the first may collect the updated parameters beside its work."""
        count, gathered = self.job.parallel.microbatches, self.states[stage.index].gathered()
        if self.job.sharding.zero == 3:
            gathers_M = self._residency().forward_gathers_QM[stage.index]
            return self._segments(gathers_M, lambda gathers: self._forward_rows(stage, gathered if gathers else []))
        usual = self._segment(self._forward_rows(stage, []))
        if not (self._gathers_updated and self.job.sharding.overlap_param_gather):
            return [usual] * count
        segments = [usual] * count
        for placement_Q, (first, _) in zip(self.plan.placement, self.microbatches, strict=False):
            own = self._of_rank(placement_Q[stage.index])
            position = own.index(stage.index)
            following = self.states[own[position + 1]].gathered() if position + 1 < len(own) else []
            gather = Gather(following, begins=position == 0, own=gathered)
            segments[first] = self._segment(self._forward_rows(stage, [], gather))
        return segments

    def _forward_rows(self, stage: StageWork, beside: list[Exchange], gather: Gather | None = None) -> Rows:
        """Return the rows of a forward pass; stages that are alike have the same ones."""
        moved = None if gather is None else (tuple(gather.following), gather.begins, tuple(gather.own))
        key = Phase.FORWARD, stage.like, tuple(beside), moved
        come = self._sharded(stage) if beside else 0
        return self.emit.builder.again(key, lambda: forward_rows(self.emit, stage, beside, gather, come))

    def _backward_rows(
        self, stage: StageWork, beside: list[Exchange], reduced: list[Exchange], *, gathers: bool = False
    ) -> Rows:
        """Return the rows of a backward pass, likewise; whether it `gathers` its parameters."""
        key = Phase.BACKWARD, stage.like, tuple(beside), tuple(reduced), gathers
        gone = self.states[stage.index].updated() if self.job.offloads_gradients else 0
        offloaded = Offloaded(gone, self._sharded(stage) if gathers else 0)
        return self.emit.builder.again(key, lambda: backward_rows(self.emit, stage, beside, reduced, offloaded))

    def _sharded(self, stage: StageWork) -> int:
        """Return the parameters that come from the host for a gather."""
        return self.states[stage.index].held() if self.job.offload.parameters else 0

    def _backward(self, stage: StageWork) -> list[int]:
        """Return the segment of each microbatch: the last may reduce its gradients beside its work."""
        state, count = self.states[stage.index], self.job.parallel.microbatches
        if self.job.sharding.zero == 3:
            return self._fully_sharded_backward(stage, state)
        # Gradients that are kept in shares are reduced in every microbatch.
        every = state.reduced() if self.job.sharding.zero == 2 else []
        usual = self._segment(self._backward_rows(stage, [], every))
        if self.job.sharding.zero < 2 and not self.job.sharding.overlap_grad_reduce:
            return [usual] * count
        segments = [usual] * count
        for _, last in self.microbatches:
            segments[last] = self._segment(self._backward_rows(stage, [], state.all_reduced()))
        return segments

    def _fully_sharded_backward(self, stage: StageWork, state: StateExchange) -> list[int]:
        """Return the segment of each microbatch with sharded parameters: which gather, and which reduce gradients."""
        found = self._residency()
        last_M = np.arange(self.job.parallel.microbatches) == found.last_backward_Q[stage.index]
        once, ends = self.job.reduces_once, bool(found.ends_rank_Q[stage.index])

        def rows(choice: int) -> Rows:
            gathers, last = divmod(choice, 2)
            beside = [*(state.gathered() if gathers else []), *([] if once else state.reduced())]
            summed = state.summed() if last and not once else []
            passed = self._backward_rows(stage, beside, summed, gathers=bool(gathers))
            # What the rank computes last is reduced after its message has left, with what ends the step.
            return passed + (self.emit.all(state.all_reduced()) if last and once and not ends else [])

        return self._segments(2 * found.backward_gathers_QM[stage.index] + last_M, rows)

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

    @property
    def _gathers_updated(self) -> bool:
        """Whether each step must collect parameters that other ranks have updated."""
        return self.job.sharding.zero in (1, 2)

    def _of_rank(self, stage: int) -> list[int]:
        """Return the virtual stages of all copies on a stage, in model order: microbatches reach them in that order."""
        held = ({q for q, holder in enumerate(placement_Q) if holder == stage} for placement_Q in self.plan.placement)
        return sorted(set().union(*held))

    def _start_rows(self, stage: int) -> Rows:
        """Return what precedes the first forward pass: the host's work, and the gather of its parameters.

        The first layer's parameters must be there; those of the others come while it computes.
        """
        rows = self.emit.gap("step overhead", self.job.framework.step_fixed_s, CostClass.FIXED)
        if self._gathers_updated and self.job.sharding.overlap_param_gather:
            first = self._of_rank(stage)[0]
            share, gathered = 1 / max(1, self.stages[first].layers), self.states[first].gathered()
            rows += self.emit.all(gathered, share=share)
            rows += self.emit.all(gathered, share=1 - share, blocking=False)
        return rows

    def _end_rows(self, stage: int) -> Rows:
        """Return what follows the last backward pass: rest of the reduction, norm, update, parameter gather."""
        emit, job, own = self.emit, self.job, self._of_rank(stage)
        reduced = {index: self.states[index].all_reduced() for index in own}
        groups = {each.group for found in reduced.values() for each in found}
        rows = emit.builder.wait(*(STREAM_OF_GROUP[group] for group in sorted(groups)))
        late = own if not job.sharding.overlap_grad_reduce and job.sharding.zero < 2 else []
        if job.reduces_once:
            ends_Q = self._residency().ends_rank_Q
            late = [index for index in own if ends_Q[index]]
        rows += emit.all([each for index in late for each in reduced[index]])
        rows += emit.all([each for index in own for each in self._copied(index)]) + self._tied(stage)
        if job.parallel.world_size > 1:
            rows += emit.exchange(Exchange(Group.WORLD, Operation.ALL_REDUCE, NORM_BYTES))
        updated = sum(self.states[index].updated() for index in own)
        on_gpu = emit.compute("optimizer", Phase.STEP, optimizer_calls(job, updated - on_host(job, updated)))
        rows += updated_rows(emit, updated, max(1, sum(self.stages[index].layers for index in own)), on_gpu)
        rows += emit.compute("weight casts", Phase.STEP, self._weight_casts(own))
        if self._gathers_updated and not job.sharding.overlap_param_gather:
            rows += emit.all([each for index in own for each in self.states[index].gathered()])
        return rows

    def _weight_casts(self, own: list[int]) -> dict[OperatorCall, float]:
        """Return what brings trained weights to the type of 8-bit GEMMs."""
        return weight_cast_calls(self.job, self.emit.share, (self.states[index].weights for index in own))

    def _copied(self, index: int) -> list[Exchange]:
        """Return the sum of a virtual stage's gradients over the copies of the model, as far as its rank updates it.

        Source: deepseek-ai/DualPipe, README: every rank has the parameters of two stages, each of them on two ranks.
        """
        if len(self.plan.placement) == 1:
            return []
        return self.states[index].over_copies()

    def _tied(self, stage: int) -> Rows:
        """Return the sum of an embedding's gradients over the stages that have its table.

        These are several where the LM head is the embedding, or there are MTP layers. Source: Megatron-LM,
        megatron/core/distributed/finalize_model_grads.py (_allreduce_word_embedding_grads).
        """
        model, tables = self.job.model, table_stages(self.job, self.plan)
        if stage not in tables or self.job.finetuning.task == "lora":
            return []
        elements = ceil_div(self.job.kernels.padded_vocab, self.job.parallel.tp) * model.hidden
        size = elements * self.job.framework.grad_reduce_bytes
        return self.emit.exchange(Exchange(Group.EMB, Operation.ALL_REDUCE, size))

    def _before_messages(self) -> IntArray | None:
        """Return the host's work before each blocking receive, where the framework has any."""
        rows = self.emit.gap("P2P launch overhead", self.job.framework.p2p_handover_s, CostClass.HANDOVER)
        if not rows or self.plan.overlapped_p2p:
            return None
        return np.full((2, len(self.stages), self.job.parallel.microbatches), self._segment(rows), dtype=np.int32)


def weight_cast_calls(job: Job, share: Share, held: Iterable[Elements]) -> dict[OperatorCall, float]:
    """Return what brings the trained weights of a rank's virtual stages to the type of 8-bit GEMMs.

    That is once a step, where each rank has them whole. Source: Megatron-LM,
    megatron/core/extensions/transformer_engine.py (is_first_microbatch).
    """
    if job.sharding.zero == 3 or not share.trains_weights:
        return {}
    elements = round(sum(each.matrices + each.experts for each in held))
    found = weight_casts(share, elements, gathered_cast=job.sharding.param_gather_bytes == 1)
    return {call_of(each): 1.0 for each in found if min(each.shape) > 0}


def optimizer_calls(job: Job, parameters: int) -> dict[OperatorCall, float]:
    """Return the update of so many parameters; other types than fp32 move other bytes."""
    if not parameters:
        return {}
    call, types = OperatorCall(family="optimizer", shape=(parameters,), dtype="bf16"), job.optimizer
    if types.precision_aware:
        moved = types.step_bytes(job.precision.dtype, job.framework.grad_reduce_bytes, job.sharding.param_gather_bytes)
        call = replace(call, options=(("bytes_per_parameter", str(moved)),))
    return {call: 1.0}
