"""Memory of every stage of a job: what lasts, what is in flight, and what runs at the peak."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from traincast.estimate.memory.activations import ChunkBytes, peak_in_flight
from traincast.estimate.memory.states import held_by, rank_parameters, states
from traincast.job.job import Job
from traincast.lowering.held import Held, held_by_stages
from traincast.mechanisms.activations import LayerModel
from traincast.mechanisms.layers import kinds, most
from traincast.mechanisms.mechanism import GRADIENTS, OPTIMIZER, PARAMETERS
from traincast.mechanisms.rank import RankState
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


def stage_memory(job: Job, plan: SchedulePlan) -> tuple[StageMemory, ...]:
    """Return the memory of each pipeline stage; the plan says in which order it runs, and so what is in flight."""
    model, held_Q = LayerModel(job), held_by_stages(job, plan)
    return tuple(_stage(model, plan, stage, held_Q) for stage in range(len(plan.slots)))


def saved_activations(job: Job, plan: SchedulePlan) -> dict[int, ChunkBytes]:
    """Return what one microbatch keeps on each virtual stage."""
    model = LayerModel(job)
    held = {virtual for stage in range(len(plan.slots)) for _, virtual in held_by(plan, stage)}
    return {each: chunk_bytes(model, each) for each in sorted(held)}


def chunk_bytes(model: LayerModel, virtual_stage: int) -> ChunkBytes:
    """Return what one microbatch keeps on a virtual stage, of numbers or arrays."""
    return _chunk(model, virtual_stage)[0]


def _stage(model: LayerModel, plan: SchedulePlan, stage: int, held_Q: Sequence[Held]) -> StageMemory:
    own = [held_Q[virtual_stage] for _, virtual_stage in held_by(plan, stage)]
    state = states(RankState.alone(model.job, rank_parameters(model.job.model, own, model.parts)))
    activations, host = _activations(model, plan, stage)
    lasting = {name: state.gpu.pop(name, 0.0) for name in (PARAMETERS, GRADIENTS, OPTIMIZER)}
    other = _other(model, plan) | state.gpu
    for name, size in state.update.items():
        # The update makes them when activations are gone: the larger of both counts.
        other[name] = max(0.0, size - sum(activations.values()))
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
        host=state.host + host,
    )


def _activations(model: LayerModel, plan: SchedulePlan, stage: int) -> tuple[dict[str, float], float]:
    """Return the activations of a stage at its peak, by part, and the most of them that the host has at a time."""
    found = {virtual_stage: _chunk(model, virtual_stage) for _, virtual_stage in held_by(plan, stage)}
    if not found:
        return {}, 0.0
    chunks = {each: chunk for each, (chunk, _) in found.items()}
    peak, parts = peak_in_flight(plan, stage, chunks), _sum_of(saved for _, saved in found.values())
    flights = f" x {peak.in_flight} in flight" if peak.in_flight > 1 else ""
    whole = sum(parts.values())
    scale = peak.saved_bytes / whole if whole else 0.0
    saved = {f"{name}{flights}": size * scale for name, size in parts.items()}
    host = 0.0
    if any(chunk.host for chunk in chunks.values()):
        waiting = {
            each: ChunkBytes(saved=chunk.host, for_weights=0, forward=0, backward=0) for each, chunk in chunks.items()
        }
        host = peak_in_flight(plan, stage, waiting).saved_bytes
    return saved | {"passing activations": peak.passing_bytes}, host


def _sum_of(parts: Iterable[Mapping[str, Number]]) -> dict[str, Number]:
    """Return the sum of what is saved under each name, without what is nothing."""
    found: dict[str, Number] = {}
    for part in parts:
        for name, size in part.items():
            if isinstance(size, np.ndarray) or size:
                found[name] = found.get(name, 0.0) + size
    return found


def _chunk(model: LayerModel, virtual_stage: int) -> tuple[ChunkBytes, dict[str, Number]]:
    """Return what one microbatch keeps on a virtual stage, and what of it is saved on the GPU, by part."""
    job = model.job
    has_mtp = job.model.mtp_layers > 0 and virtual_stage == job.pipeline.mtp_stage_index
    stage = model.stage(model.layers_Q[virtual_stage], mtp=has_mtp)
    found = kinds(stage.layers)
    parts: list[Mapping[str, Number]] = [
        {name: size * count for name, size in each.saved.items()} for each, count in found
    ]
    for each in stage.extra:
        parts += [model.mtp_projection()] * job.model.mtp_layers
        parts.append({"MTP layers": job.model.mtp_layers * sum(each.saved.values())})
    if virtual_stage == len(job.pipeline.layers_Q) - 1:
        parts.append(model.head())
    elif model.policy.stage_output_copy:
        parts.append({"stage outputs": model.share.residual_bytes * job.hidden_states_after(virtual_stage)})
    passing = [*(each for each, _ in found), *stage.extra]
    forward = most(each.forward for each in passing) + stage.moving
    backward = most(each.backward for each in passing) + stage.moving
    if virtual_stage == len(job.pipeline.layers_Q) - 1:
        forward, backward = _with_logits(model, forward, backward)
    saved = _sum_of(parts)
    total = sum(saved.values())
    # Weight gradients read the GEMMs' inputs; what only the inputs' gradients need (layernorm inputs, inputs of
    # activation functions, scores) is about half.
    return ChunkBytes(saved=total, for_weights=total / 2, forward=forward, backward=backward, host=stage.away), saved


def _with_logits(model: LayerModel, forward: Number, backward: Number) -> tuple[Number, Number]:
    """Return what passes in both passes of the last virtual stage, which has the loss."""
    policy, logits = model.policy, 1.0 * model.share.tokens * model.share.table_rows
    forward = larger(forward, policy.logit_bytes * logits - policy.saved_logit_bytes * logits)
    if policy.fused_loss:
        # The layers' backward passes begin when the logits are gone.
        return forward, larger(backward - policy.saved_logit_bytes * logits, 0.0)
    # The logits' gradient in the GEMMs' type, with the softmax that it is made from. Where the head's weight gradient
    # is not fused, it takes about the room that the logits leave to the layers.
    return forward, larger(backward, model.share.execution.element_bytes * logits)


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
