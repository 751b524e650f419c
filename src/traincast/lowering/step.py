"""What a rank runs in a step, in program order: its passes, what begins the step, and what ends it.

Written once, for numbers and for arrays (`traincast.lowering.emit`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from traincast.job.job import Job
from traincast.lowering.casts import weight_casts
from traincast.lowering.emit import Emitter, Rows
from traincast.lowering.gradients import own_gradients
from traincast.lowering.launches import step_fixed_s, update_launches
from traincast.lowering.layers import layers_backward, layers_forward
from traincast.lowering.offload import brought_in, gradients_out, parameters_in, sent_out, updated_rows
from traincast.lowering.stage import StageWork
from traincast.lowering.state import State
from traincast.lowering.work import Exchange, Pass
from traincast.mechanisms import all as mechanisms
from traincast.mechanisms.mechanism import Update
from traincast.model.blocks.part import Elements, Gemm, Kernel
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number, added, ceil_div, choose, larger, rounded
from traincast.model.structure import FIRST_BLOCKS, MTP_PROJECTION
from traincast.workload.builder import OUTSIDE
from traincast.workload.words import STREAM_OF_GROUP, CostClass, Group, Operation, Phase

NORM_BYTES = 4
"""The gradient norm is one 32-bit number, reduced over all ranks that hold a part of the model."""


class OfStage(NamedTuple):
    """A virtual stage with its state."""

    stage: StageWork
    state: State


def forward_pass(emit: Emitter, of: OfStage, *, gathers: bool = False) -> Rows:
    """Return a forward pass; whether it collects sharded parameters (ZeRO-3)."""
    alongside = of.state.gathered() if gathers else []
    rows = [] if of.stage.first else _message(emit, Phase.FORWARD)
    return rows + _forward(emit, of.stage, alongside, _come(emit.job, of.state) if gathers else 0)


def first_forward_pass(emit: Emitter, of: OfStage, following: OfStage | None, *, begins: bool) -> Rows:
    """Return the first forward pass of a step with a distributed optimizer: it meets updated parameters on their way.

    A virtual stage's parameters are gathered while the one before it runs. Source: Megatron-LM,
    megatron/core/pipeline_parallel/schedules.py (`param_sync_func`).

    Parameters
    ----------
    following : OfStage, optional
        The virtual stage that the rank runs next, whose parameters are launched one virtual stage ahead.
    begins : bool
        Whether its own are still coming while it runs, layer by layer; else they must be there before.
    """
    rows = [] if of.stage.first else _message(emit, Phase.FORWARD)
    arrived = emit.wait(*(STREAM_OF_GROUP[each.group] for each in of.state.gathered()))
    arrived += emit.all(following.state.gathered() if following else [], Phase.FORWARD, blocking=False)
    if not begins:
        return rows + arrived + _forward(emit, of.stage, [])
    return rows + _forward(emit, of.stage, [], arrived=arrived)


def _forward(
    emit: Emitter, stage: StageWork, alongside: list[Exchange], come: Number = 0, arrived: Rows | None = None
) -> Rows:
    """Return a forward pass from the embedding on.

    `alongside` are parameters that are collected while the layers run, and `come` those that come from the host for
    that; `arrived` is what follows the layers.
    """
    rows = emit.again(("before layers", Phase.FORWARD, stage.like), lambda: _before_layers(emit, stage))
    passed = sent_out(emit, *stage.offloaded, layers_forward(emit, stage, alongside))
    rows += emit.overlapped(parameters_in(emit, come, Phase.FORWARD), passed)
    return rows + (arrived or []) + _ends(emit, stage, Phase.FORWARD)


def _before_layers(emit: Emitter, stage: StageWork) -> Rows:
    """Return what precedes the layers of a forward pass: embedding lookup, and what joins MTP layers to the model."""
    rows: Rows = []
    if stage.first:
        lookup = stage.total({FIRST_BLOCKS: 1}, Phase.FORWARD)
        rows += emit.compute("embedding forward", Phase.FORWARD, lookup)
        rows += emit.all(lookup.exchanges, Phase.FORWARD)
    return rows + _mtp_projections(emit, stage, Phase.FORWARD)


def backward_pass(emit: Emitter, of: OfStage, *, gathers: bool = False, last: bool = False) -> Rows:
    """Return a backward pass; whether it collects sharded parameters (ZeRO-3), and is the last one of its step.

    Sharded parameters and their gradients are exchanged while it runs and done when it is; other gradients are reduced
    layer by layer while it runs, and nothing waits for them here: those that are kept in shares in every pass, all
    others in the last one.
    """
    job, state = emit.job, of.state
    alongside: list[Exchange] = []
    reduced: list[Exchange] = []
    if job.sharding.zero == 3:
        alongside = [*(state.gathered() if gathers else []), *([] if job.reduces_once else state.reduced())]
        reduced = state.summed() if last and not job.reduces_once else []
    elif last and (job.sharding.zero == 2 or job.sharding.overlap_grad_reduce):
        reduced = state.all_reduced()
    elif job.sharding.zero == 2:
        reduced = state.reduced()
    gone = state.updated() if job.offloads_gradients else 0
    return _backward(emit, of.stage, alongside, reduced, gone, _come(job, state) if gathers else 0)


def _backward(
    emit: Emitter, stage: StageWork, alongside: list[Exchange], reduced: list[Exchange], gone: Number, come: Number
) -> Rows:
    """Return a backward pass of which the gradients of `gone` parameters leave for the host, and `come` come."""
    rows = [] if stage.held.last else _message(emit, Phase.BACKWARD)
    rows += _ends(emit, stage, Phase.BACKWARD)
    # What is recomputed hides parameters on their way, too: layers are recomputed one by one.
    passed = stage.recompute(emit)
    # All layers but the one that is computed last have their gradients before the pass ends.
    early = 1 - 1 / larger(1, stage.layers)
    passed += emit.all(reduced, Phase.WEIGHT_GRADIENT, share=early, blocking=False)
    passed += gradients_out(emit, gone, early)
    passed += layers_backward(emit, stage)
    size_bytes, count = stage.offloaded
    whole = (count == stage.layers) & (not emit.job.offload.modules)
    passed = brought_in(emit, size_bytes, count, passed, whole=whole)
    passed = emit.overlapped(parameters_in(emit, come, Phase.BACKWARD), passed)
    rows += emit.alongside(alongside, Phase.BACKWARD, passed)
    rows += emit.again(("after layers", Phase.BACKWARD, stage.like), lambda: _after_layers(emit, stage))
    rows += gradients_out(emit, gone, 1 - early)
    return rows + emit.all(reduced, Phase.WEIGHT_GRADIENT, share=1 - early, blocking=False)


def _after_layers(emit: Emitter, stage: StageWork) -> Rows:
    """Return what follows the layers of a backward pass."""
    rows = _mtp_projections(emit, stage, Phase.BACKWARD, Phase.WEIGHT_GRADIENT)
    if stage.first and stage.of_rank.parts.share.trains_weights:
        lookup = stage.total({FIRST_BLOCKS: 1}, Phase.BACKWARD)
        rows += emit.all(lookup.exchanges, Phase.WEIGHT_GRADIENT)
        rows += emit.compute("embedding backward", Phase.WEIGHT_GRADIENT, lookup)
    return rows


def _come(job: Job, state: State) -> Number:
    """Return the parameters that come from the host for a gather."""
    return state.held() if job.offload.parameters else 0


def _message(emit: Emitter, phase: Phase) -> Rows:
    """Return what makes a message whole of which each tensor parallel rank got its part.

    Sources: Narayanan et al. 2021, arXiv 2104.04473, section 4.1 (scatter/gather optimization); DeepSpeed,
    runtime/pipe/engine.py (is_pipe_partitioned, PartitionedTensor).
    """
    if not emit.job.framework.splits_messages:
        return []
    share = emit.share
    whole = share.activation_bytes * emit.job.model.residual_streams
    size_bytes = choose((share.tp == 1) | share.splits_sequence, 0, whole)
    return emit.exchange(Exchange(Group.TP, Operation.ALL_GATHER, size_bytes), phase)


def _mtp_projections(emit: Emitter, stage: StageWork, *phases: Phase) -> Rows:
    """Return what joins MTP layers to the model, where the stage has some."""
    if not stage.held.mtp_layers:
        return []
    found = stage.total({MTP_PROJECTION: stage.held.mtp_layers}, *phases)
    rows = emit.compute(f"MTP projections {phases[0].name.lower()}", phases[0], found)
    return rows + emit.all(found.exchanges, phases[0])


def _ends(emit: Emitter, stage: StageWork, phase: Phase) -> Rows:
    """Return final norm, LM head and loss, of MTP layers, too, with what tensor parallel ranks exchange."""

    def write() -> Rows:
        found = stage.total(stage.ends, phase)
        if phase is Phase.FORWARD:
            return emit.compute("LM head forward", Phase.FORWARD, found) + emit.all(found.exchanges, Phase.FORWARD)
        weights, alongside = stage.total(stage.ends, Phase.WEIGHT_GRADIENT), stage.exchanged_with_gemms(stage.ends)
        rows, *left = own_gradients(emit, "LM head", found, weights, alongside, Phase.BACKWARD)
        both = stage.nothing()
        for each in left:
            both.add(each)
        return rows + emit.compute("LM head backward", phase, both) + emit.all(both.exchanges, phase)

    return emit.again(("ends", phase, stage.like), write)


def gathers_updated(job: Job) -> bool:
    """Return whether each step must collect parameters that other ranks have updated."""
    return job.sharding.zero in (1, 2)


def start_rows(emit: Emitter, own: Sequence[OfStage]) -> Rows:
    """Return what precedes the first forward pass of a rank: the host's work, and the gather of its parameters.

    The first layer's parameters must be there; those of the others come while it computes. What is exchanged outside
    the job after one step may be overlapped with the next one.
    """
    of = own[0]
    rows = emit.gap("step overhead", step_fixed_s(emit.job), CostClass.FIXED)
    if gathers_updated(emit.job) and emit.job.sharding.overlap_param_gather:
        share, gathered = 1 / max(1, of.stage.layers), of.state.gathered()
        rows += emit.all(gathered, share=share)
        rows += emit.all(gathered, share=1 - share, blocking=False)
    for each in mechanisms.outside(emit.job, added(each.state.updated() for each in own)):
        rows += emit.outside(each.name, each.duration_s, blocking=False) if each.hidden else []
    return rows


class Ending(NamedTuple):
    """How the step of a rank ends."""

    late: Sequence[State]
    """The states of virtual stages whose gradients nothing has reduced while passes ran."""
    has_copies: bool = False
    """Whether other ranks hold its virtual stages, too, as bidirectional schedules have it."""
    has_table: bool = False
    """Whether other ranks have the embedding's table, too, and it has to be summed."""


def end_rows(emit: Emitter, own: Sequence[OfStage], ending: Ending) -> Rows:
    """Return what follows the last backward pass: rest of the reduction, norm, update, parameter gather."""
    job, states = emit.job, [each.state for each in own]
    groups = {each.group for state in states for each in state.all_reduced()}
    rows = emit.wait(*(STREAM_OF_GROUP[group] for group in sorted(groups)))
    rows += emit.all([each for state in ending.late for each in state.all_reduced()])
    if ending.has_copies:
        # Each of them as far as its rank updates it. Source: deepseek-ai/DualPipe, README: every rank has the
        # parameters of two stages, each of them on two ranks.
        rows += emit.all([each for state in states for each in state.over_copies()])
    rows += _tied(emit) if ending.has_table else []
    if job.parallel.world_size > 1:
        rows += emit.exchange(Exchange(Group.WORLD, Operation.ALL_REDUCE, NORM_BYTES))
    updated = added(state.updated() for state in states)
    weights = sum((each.stage.weights() for each in own), Elements())
    update = mechanisms.updated(job, weights, updated)
    gemms = added(each.count for each in update.runs if isinstance(each.what, Gemm))
    host = update_launches(job, added(each.stage.tensors() for each in own), gemms)
    on_gpu = emit.hosted(host, Phase.STEP, _updated_on_gpu(emit, update, own[0].stage.nothing()))
    rows += updated_rows(emit, updated, max(1, sum(each.stage.layers for each in own)), on_gpu)
    for each in mechanisms.outside(job, updated):
        rows += emit.wait(OUTSIDE) if each.hidden else emit.outside(each.name, each.duration_s)
    casts = cast_kernels(job, emit.share, added(each.cast() for each in states))
    rows += emit.runs("weight casts", Phase.STEP, ((each, 1) for each in casts))
    if gathers_updated(job) and not job.sharding.overlap_param_gather:
        rows += emit.all([each for state in states for each in state.gathered()])
    return rows


def _updated_on_gpu(emit: Emitter, update: Update, found: Pass) -> Rows:
    """Return what the GPU runs and exchanges of an update; the pass is an empty one."""
    found.exchange(update.exchanges)
    return emit.all(found.exchanges) + emit.runs("optimizer", Phase.STEP, update.runs)


def _tied(emit: Emitter) -> Rows:
    """Return the sum of an embedding's gradients over the stages that have its table.

    These are several where the LM head is the embedding, or there are MTP layers. Source: Megatron-LM,
    megatron/core/distributed/finalize_model_grads.py (_allreduce_word_embedding_grads).
    """
    if emit.job.finetuning.task == "lora":
        return []
    elements = ceil_div(emit.share.vocab, emit.share.tp) * emit.job.model.hidden
    size_bytes = elements * emit.job.framework.grad_reduce_bytes
    return emit.exchange(Exchange(Group.EMB, Operation.ALL_REDUCE, size_bytes))


def cast_kernels(job: Job, share: Share, elements: Number) -> tuple[Kernel, ...]:
    """Return what brings so many trained weights of a rank's virtual stages to the type of 8-bit GEMMs.

    That is once a step, where each rank has them whole. Source: Megatron-LM,
    megatron/core/extensions/transformer_engine.py (is_first_microbatch).
    """
    if job.sharding.zero == 3 or not share.trains_weights:
        return ()
    return weight_casts(share, rounded(elements), gathered_cast=job.sharding.param_gather_bytes == 1)
