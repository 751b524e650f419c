"""Memory of every stage of a job: what lasts, what is in flight, what runs beside it."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, reduce

import numpy as np
from msgspec import Struct

from traincast.estimate.memory.activations import ChunkBytes, LayerBytes, LayerModel, peak_in_flight
from traincast.estimate.memory.states import (
    blocks_of_stage,
    held_by,
    layers_of,
    one_of_each,
    parameter_bytes,
    parameters_of,
    states,
)
from traincast.job.job import Job
from traincast.lowering.offload import offloaded_bytes, offloaded_layers
from traincast.lowering.plans import plan_of_job
from traincast.model.numbers import Number, larger
from traincast.schedules.plan import SchedulePlan

CONTEXT_BYTES = 0.5 * 2**30
"""CUDA context with PyTorch's kernels, which no allocator counts. Assumed (0.4 to 0.6 GiB is usual); not measured."""

COMMUNICATOR_BYTES = 0.3 * 2**30
"""Of one NCCL communicator: 16 channels (assumed) with a send and a receive buffer of each protocol, 4 MiB simple,
4.7 MiB LL128 (120 x 640 x 8 steps x 8 bytes) and 0.5 MiB LL. Source of the sizes: NCCL, src/include/device.h."""

SLACK = 0.04
"""Reserved over allocated memory, less 1: the median (3.8 %, range 2.8 to 7.9 %) of the 34 Megatron runs of SimuMax
that print both, which are 14 different measurements (docs/b200)."""

OUTSIDE_ALLOCATOR = ("cuda context", "nccl buffers")
"""Terms that PyTorch's allocator does not count."""

SLACK_TERM = "allocator slack"

_IN_TRAVEL = 2
"""Offloaded layers whose activations are on the GPU at a time: one that runs, one on its way (Transformer Engine,
pytorch/cpu_offload.py)."""


class StageMemory(Struct, frozen=True, kw_only=True):
    """Memory of the worst rank of one stage, at its peak: bytes of five kinds, and their sum."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    other: float
    peak: float
    terms: tuple[tuple[str, float], ...]
    """The same sum in explained pieces."""
    host: float = 0.0
    """What is offloaded to the memory of the host, at its peak."""

    @property
    def reserved(self) -> float:
        """Bytes that PyTorch's allocator holds (``max_memory_reserved``)."""
        return self.peak - sum(size for name, size in self.terms if name in OUTSIDE_ALLOCATOR)

    @property
    def allocated(self) -> float:
        """Bytes in use by tensors (``max_memory_allocated``)."""
        return self.reserved - sum(size for name, size in self.terms if name == SLACK_TERM)


@lru_cache(maxsize=16)
def job_memory(job: Job) -> tuple[StageMemory, ...]:
    """Return the memory of each pipeline stage of a job, worked out once for its forecasts on several clusters."""
    return stage_memory(job, plan_of_job(job))


def stage_memory(job: Job, plan: SchedulePlan) -> tuple[StageMemory, ...]:
    """Return the memory of each pipeline stage; the plan says in which order it runs, and so what is in flight."""
    model = LayerModel(job)
    return tuple(_stage(model, plan, stage) for stage in range(len(plan.slots)))


def saved_activations(job: Job, plan: SchedulePlan) -> dict[int, ChunkBytes]:
    """Return what one microbatch keeps on each virtual stage."""
    model = LayerModel(job)
    held = {virtual for stage in range(len(plan.slots)) for _, virtual in held_by(plan, stage)}
    return {each: chunk_bytes(model, each) for each in sorted(held)}


def chunk_bytes(model: LayerModel, virtual_stage: int) -> ChunkBytes:
    """Return what one microbatch keeps on a virtual stage, of numbers or arrays."""
    return _chunk(model, virtual_stage, sum(_parts(model, virtual_stage).values()))


def _stage(model: LayerModel, plan: SchedulePlan, stage: int) -> StageMemory:
    job, parts = model.job, model.parts
    held = tuple(blocks_of_stage(job, plan, stage))
    state = states(job, parameters_of(held, parts))
    activations = _activations(model, plan, stage)
    other = _other(model, plan)
    other["8-bit copies of weights"] = state.copies
    # The step makes them when activations are gone: the larger of both counts.
    other["fp32 gradients of the step"] = max(0.0, state.step_gradients - sum(activations.values()))
    if model.policy.gradient_placeholders and job.finetuning.task != "lora":
        kinds = dict.fromkeys(blocks for blocks, _, _ in held)
        other["unused weight gradients"] = parameter_bytes(job.precision.dtype) * one_of_each(kinds, parts)
    other["gathered layers"] = state.gathered
    lasting = {"parameters": state.parameters, "gradients": state.gradients, "optimizer": state.optimizer}
    outside = sum(other[name] for name in OUTSIDE_ALLOCATOR)
    allocated = sum(lasting.values()) + sum(activations.values()) + sum(other.values()) - outside
    other[SLACK_TERM] = SLACK * allocated
    terms = lasting | activations | other
    return StageMemory(
        **lasting,
        activations=sum(activations.values()),
        other=sum(other.values()),
        peak=sum(terms.values()),
        terms=tuple((name, size) for name, size in terms.items() if size),
        host=state.host + _offloaded(model, plan, stage),
    )


def _offloaded(model: LayerModel, plan: SchedulePlan, stage: int) -> float:
    """Return the activations of a stage that the memory of the host keeps, at their peak."""
    job, held = model.job, {virtual for _, virtual in held_by(plan, stage)}
    if not (job.offload.any_activations and held):
        return 0.0
    sizes = {each: offloaded_bytes(job, model.parts, layers_of(job)[each]) for each in held}
    chunks = {each: ChunkBytes(saved=size, for_weights=0.0, forward=0.0, backward=0.0) for each, size in sizes.items()}
    return peak_in_flight(plan, stage, chunks).saved_bytes


def _activations(model: LayerModel, plan: SchedulePlan, stage: int) -> dict[str, float]:
    """Return the activations of a stage at its peak, by part."""
    parts = {virtual_stage: _parts(model, virtual_stage) for _, virtual_stage in held_by(plan, stage)}
    if not parts:
        return {}
    chunks = {each: _chunk(model, each, sum(saved.values())) for each, saved in parts.items()}
    peak, found = peak_in_flight(plan, stage, chunks), _sum_of(parts.values())
    flights = f" x {peak.in_flight} in flight" if peak.in_flight > 1 else ""
    whole = sum(found.values())
    scale = peak.saved_bytes / whole if whole else 0.0
    saved = {f"{name}{flights}": size * scale for name, size in found.items()}
    return saved | {"passing activations": peak.passing_bytes}


def _sum_of(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of what is saved under each name, without what is nothing."""
    found: dict[str, float] = {}
    for part in parts:
        for name, size in part.items():
            if isinstance(size, np.ndarray) or size:
                found[name] = found.get(name, 0.0) + size
    return found


def _parts(model: LayerModel, virtual_stage: int) -> dict[str, float]:
    """Return what one microbatch saves on a virtual stage, by part."""
    job, layers = model.job, layers_of(model.job)[virtual_stage]
    again, gone = job.recompute.layers_of(len(layers)), offloaded_layers(job, layers)
    # Of each group of layers that are recomputed together, the first input is kept; what is offloaded is the host's.
    inputs = [model.layer(layers[first]).input_bytes for first in range(0, again, job.recompute.group) if first >= gone]
    found: list[Mapping[str, float]] = [{"layer inputs": inputs[0] * len(inputs)}] if inputs else []
    for layer, count in _kinds(map(model.layer, layers[max(again, gone) :])):
        found.append({name: size * count for name, size in layer.saved.items()})
    if job.model.mtp_layers and virtual_stage == job.pipeline.mtp_stage_index:
        extra = model.mtp_layer()
        one = extra.input_bytes if job.recompute.granularity == "full" else sum(extra.saved.values())
        found += [model.mtp_projection()] * job.model.mtp_layers + [{"MTP layers": job.model.mtp_layers * one}]
    if virtual_stage == len(job.pipeline.layers_Q) - 1:
        found.append(model.head())
    elif model.policy.stage_output_copy:
        found.append({"stage outputs": model.share.residual_bytes * job.hidden_states_after(virtual_stage)})
    return _sum_of(found)


def _chunk(model: LayerModel, virtual_stage: int, saved: Number) -> ChunkBytes:
    job, policy = model.job, model.policy
    layers = list(map(model.layer, layers_of(job)[virtual_stage]))
    again = job.recompute.layers_of(len(layers))
    extra = [model.mtp_layer()] if job.model.mtp_layers and virtual_stage == job.pipeline.mtp_stage_index else []
    # Recomputed whole, an MTP layer is a group of its own.
    alone, others = (extra, layers[again:]) if job.recompute.granularity == "full" else ([], layers[again:] + extra)
    forward = _most(layer.forward for layer, _ in _kinds(layers + extra))
    groups = (*_groups_again(layers[:again], job.recompute.group), *_groups_again(alone, 1))
    # The backward pass of other layers adds gradients, and what their modules recompute.
    backward = _most((*groups, *(layer.backward + layer.recomputed for layer, _ in _kinds(others))))
    if job.offload.activations:
        # A layer's activations are there while it runs, and those of the one whose copies are on their way.
        gone = offloaded_layers(job, layers_of(job)[virtual_stage])
        travel = min(gone, _IN_TRAVEL) * _most(sum(layer.saved.values()) for layer, _ in _kinds(layers[again:gone]))
        forward, backward = forward + travel, backward + travel
    if job.offload.modules:
        travel = _IN_TRAVEL * _most(sum(layer.away.values()) for layer, _ in _kinds(layers[again:]))
        forward, backward = forward + travel, backward + travel
    if virtual_stage == len(job.pipeline.layers_Q) - 1:
        logits = 1.0 * model.share.tokens * model.share.table_rows
        forward = larger(forward, policy.logit_bytes * logits - policy.saved_logit_bytes * logits)
        if policy.fused_loss:
            # The layers' backward passes begin when the logits are gone.
            backward = larger(backward - policy.saved_logit_bytes * logits, 0.0)
        else:
            # The logits' gradient in the GEMMs' type, with the softmax that it is made from. Where the head's weight
            # gradient is not fused, it takes about the room that the logits leave to the layers.
            backward = larger(backward, parameter_bytes(job.precision.dtype) * logits)
    # Weight gradients read the GEMMs' inputs; what only the inputs' gradients need (layernorm inputs, inputs of
    # activation functions, scores) is about half.
    return ChunkBytes(saved=saved, for_weights=saved / 2, forward=forward, backward=backward)


def _groups_again(layers: list[LayerBytes], group: int) -> Iterator[Number]:
    """Yield what the backward pass adds for each group of layers that are recomputed together from their first input.

    It has gradients of one layer, and all that the group saves.
    """
    groups = {tuple(map(id, layers[first : first + group])): first for first in range(0, len(layers), group)}
    for first in groups.values():
        members = layers[first : first + group]
        saved = sum(layer.all_bytes for layer in members) - members[0].input_bytes
        yield _most(layer.backward for layer in members) + saved


def _kinds(layers: Iterable[LayerBytes]) -> list[tuple[LayerBytes, int]]:
    """Return the layers that differ, with how many there are of each; those of one kind are one object."""
    found: dict[int, tuple[LayerBytes, int]] = {}
    for layer in layers:
        _, count = found.get(id(layer), (layer, 0))
        found[id(layer)] = layer, count + 1
    return list(found.values())


def _most(values: Iterable[Number]) -> Number:
    return reduce(larger, values, 0.0)


def _other(model: LayerModel, plan: SchedulePlan) -> dict[str, float]:
    parallel = model.job.parallel
    return {
        "cuda context": CONTEXT_BYTES,
        "nccl buffers": communicator_bytes(parallel.tp, parallel.cp, parallel.dp, parallel.ep, parallel.pp),
        "pipeline messages": 4 * model.share.residual_bytes if len(plan.slots) > 1 else 0.0,
        "communication buckets": model.policy.buffer_bytes,
    }


def communicator_bytes(*degrees: Number) -> Number:
    """Return the buffers of a communicator for every degree above one; numbers or arrays."""
    groups: Number = 0
    for degree in degrees:
        groups = groups + (degree > 1)
    # The norm of all gradients is summed in a group of its own.
    return (groups + (groups > 1)) * COMMUNICATOR_BYTES
