"""Memory of every stage of a job: what lasts, what is in flight, and what runs at the peak."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct

from traincast.estimate.memory.activations import ChunkBytes, peak_in_flight
from traincast.estimate.memory.states import States, held_by, rank_parameters, states
from traincast.estimate.memory.waiting import waiting
from traincast.job.frameworks import MemoryPolicy
from traincast.job.job import Job
from traincast.lowering.held import first_alike, held_by_stages
from traincast.mechanisms.activations import LayerModel
from traincast.mechanisms.layers import kinds, most
from traincast.mechanisms.mechanism import GRADIENTS, OPTIMIZER, PARAMETERS
from traincast.mechanisms.rank import RankState
from traincast.model.numbers import Number, larger
from traincast.schedules.plan import SchedulePlan

CONTEXT_BYTES = 0.75 * 2**30
"""CUDA context with PyTorch's kernels and its libraries, which no allocator counts: what the driver shows beyond what
PyTorch holds, 0.749 GiB in each of 23 jobs of one H100 (studies/data, own_machine_jobs; PyTorch 2.11, CUDA 13.0)."""

COMMUNICATOR_BYTES = 0.43 * 2**30
"""Of one NCCL communicator: 16 channels (assumed), which receive from one rank in a ring and from two in a tree, with a
buffer of each protocol for each, 4 MiB simple, 4.7 MiB LL128 (120 x 640 x 8 steps x 8 bytes) and 0.5 MiB LL. Sources:
NCCL, src/include/device.h (sizes); src/init.cc (rings and trees are connected when a communicator is made)."""

WORKSPACE_BYTES = 32 * 2**20
"""Of one workspace of cuBLAS, which PyTorch's allocator counts. Sources: PyTorch, aten/src/ATen/cuda/
CublasHandlePool.cpp (parseChosenWorkspaceSize: 8 on the A100, 32 MiB on Hopper and later, for each handle and stream);
Transformer Engine, pytorch/cpp_extensions/gemm.py (get_cublas_workspace_size_bytes: 4, and 32 MiB from Hopper on)."""

WORKSPACES = 3
"""Of a job: of the threads that run forward and backward passes one each, and one of Transformer Engine."""

EXPERT_WORKSPACES = 3
"""More of them where experts' GEMMs run on four streams (Transformer Engine, multi_stream_cublas.py)."""

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
    model = LayerModel(job)
    return memory_with(model, plan, activations_of_stages(model, plan))


def saved_activations(job: Job, plan: SchedulePlan) -> dict[int, ChunkBytes]:
    """Return what one microbatch keeps on each virtual stage."""
    model = LayerModel(job)
    held = {virtual for stage in range(len(plan.slots)) for _, virtual in held_by(plan, stage)}
    return {each: chunk_bytes(model, each) for each in sorted(held)}


def chunk_bytes(model: LayerModel, virtual_stage: int) -> ChunkBytes:
    """Return what one microbatch keeps on a virtual stage, of numbers or arrays."""
    return _chunk(model, virtual_stage)[0]


_Chunk: TypeAlias = tuple[ChunkBytes, dict[str, Number]]
"""What a virtual stage keeps, and what of it is saved on the GPU, by part."""


class StageActivations(NamedTuple):
    """Activations of a stage at its peak, which no type of gradients changes."""

    parts: Mapping[str, float]
    host_bytes: float
    """The most of them that the host has at a time."""


def memory_with(
    model: LayerModel, plan: SchedulePlan, activations_P: Sequence[StageActivations]
) -> tuple[StageMemory, ...]:
    """Return the memory of each pipeline stage with its activations; what stages that are alike hold is one sum."""
    job = model.job
    held_Q, shared, slack = held_by_stages(job, plan), _other(model, plan), model.policy.slack
    first_Q, known = first_alike(job, held_Q), dict[tuple[int, ...], States]()
    found = []
    for stage, activations in enumerate(activations_P):
        own = tuple(first_Q[virtual_stage] for _, virtual_stage in held_by(plan, stage))
        if own not in known:
            held = rank_parameters(job, [held_Q[virtual_stage] for virtual_stage in own], model.parts)
            known[own] = states(RankState.alone(job, held))
        found.append(_stage(known[own], shared, activations, slack))
    return tuple(found)


def _stage(state: States, shared: Mapping[str, float], activations: StageActivations, slack: float) -> StageMemory:
    """Return the memory of a stage: its state, what every rank has, and its activations."""
    alive = sum(activations.parts.values())
    lasting = {name: state.gpu.get(name, 0.0) for name in (PARAMETERS, GRADIENTS, OPTIMIZER)}
    other = {**shared, **{name: size for name, size in state.gpu.items() if name not in lasting}}
    for name, size in state.update.items():
        # The update makes them when activations are gone: the larger of both counts.
        other[name] = max(0.0, size - alive)
    # State stays where it is; holes are left by what comes and goes, and the update has the room of both.
    other[SLACK_TERM] = max(0.0, slack * alive - sum(other[name] for name in state.update))
    terms = {**lasting, **activations.parts, **other}
    return StageMemory(
        **lasting,
        activations=alive,
        other=sum(other.values()),
        peak=sum(terms.values()),
        terms=tuple((name, size) for name, size in terms.items() if size),
        host=state.host + activations.host_bytes,
    )


def activations_of_stages(model: LayerModel, plan: SchedulePlan) -> tuple[StageActivations, ...]:
    """Return the activations of each pipeline stage; virtual stages that are alike keep the same."""
    first_Q = first_alike(model.job, held_by_stages(model.job, plan))
    chunk_of = {virtual_stage: _chunk(model, virtual_stage) for virtual_stage in dict.fromkeys(first_Q)}
    return tuple(
        _activations(
            plan,
            stage,
            {each: chunk_of[first_Q[each]] for _, each in held_by(plan, stage)},
            together=model.job.experts.pairs_passes,
        )
        for stage in range(len(plan.slots))
    )


def _activations(plan: SchedulePlan, stage: int, found: Mapping[int, _Chunk], *, together: bool) -> StageActivations:
    """Return the activations of a stage, from what its virtual stages keep."""
    if not found:
        return StageActivations({}, 0.0)
    chunks = {each: chunk for each, (chunk, _) in found.items()}
    peak, parts = peak_in_flight(plan, stage, chunks, together=together), _sum_of(saved for _, saved in found.values())
    flights = f" x {peak.in_flight} in flight" if peak.in_flight > 1 else ""
    whole = sum(parts.values())
    scale = peak.saved_bytes / whole if whole else 0.0
    saved = {f"{name}{flights}": size * scale for name, size in parts.items()}
    host = 0.0
    if any(chunk.host for chunk in chunks.values()):
        waiting = {
            each: ChunkBytes(saved=chunk.host, for_weights=0, forward=0, backward=0) for each, chunk in chunks.items()
        }
        host = peak_in_flight(plan, stage, waiting, together=together).saved_bytes
    return StageActivations(saved | {"passing activations": peak.passing_bytes}, host)


def _sum_of(parts: Iterable[Mapping[str, Number]]) -> dict[str, Number]:
    """Return the sum of what is saved under each name, without what is nothing."""
    found: dict[str, Number] = {}
    for part in parts:
        for name, size in part.items():
            if isinstance(size, np.ndarray) or size:
                found[name] = found.get(name, 0.0) + size
    return found


def _chunk(model: LayerModel, virtual_stage: int) -> _Chunk:
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
    saved = _sum_of([*parts, {"waiting outputs": waiting(model, model.layers_Q[virtual_stage], virtual_stage)}])
    total = sum(saved.values())
    # Weight gradients read the GEMMs' inputs; what only the inputs' gradients need (layernorm inputs, inputs of
    # activation functions, scores) is about half.
    return ChunkBytes(saved=total, for_weights=total / 2, forward=forward, backward=backward, host=stage.away), saved


def _with_logits(model: LayerModel, forward: Number, backward: Number) -> tuple[Number, Number]:
    """Return what passes in both passes of the last virtual stage, which has the loss."""
    policy = model.policy
    logits = model.share.tokens * model.share.table_rows / policy.loss_tiles
    forward = larger(forward, policy.logit_bytes * logits - policy.saved_logit_bytes * logits)
    if policy.fused_loss:
        # The layers' backward passes begin when the logits are gone.
        return forward, larger(backward - policy.saved_logit_bytes * logits, 0.0)
    # The logits' gradient in the GEMMs' type, with the softmax that it is made from. Where the head's weight gradient
    # is not fused, it takes about the room that the logits leave to the layers.
    return forward, larger(backward, model.share.execution.element_bytes * logits)


def _other(model: LayerModel, plan: SchedulePlan) -> dict[str, float]:
    parallel = model.job.parallel
    degrees = (parallel.tp, parallel.cp, parallel.dp, parallel.ep, parallel.pp)
    return {
        "cuda context": runtime_bytes(model.policy),
        "nccl buffers": 0.0 if model.policy.runtime_bytes else communicator_bytes(*degrees),
        "pipeline messages": 4 * model.share.residual_bytes if len(plan.slots) > 1 else 0.0,
        "communication buckets": model.policy.buffer_bytes,
        "GEMM workspaces": workspace_bytes(model.job),
    }


def runtime_bytes(policy: MemoryPolicy) -> float:
    """Return what the runtime of an accelerator keeps: the context of CUDA, or all that another one takes."""
    return policy.runtime_bytes or CONTEXT_BYTES


def outside_bytes(policy: MemoryPolicy, *degrees: Number) -> Number:
    """Return what no allocator counts: the runtime and communicators, which other accelerators than GPUs have in it."""
    return runtime_bytes(policy) + (0.0 if policy.runtime_bytes else communicator_bytes(*degrees))


def workspace_bytes(job: Job) -> float:
    """Return the workspaces of GEMMs on one rank; of GPUs alone."""
    if job.memory_policy.runtime_bytes:
        return 0.0
    return (WORKSPACES + (EXPERT_WORKSPACES if job.model.experts is not None else 0)) * WORKSPACE_BYTES


def communicator_bytes(*degrees: Number) -> Number:
    """Return the buffers of a communicator for every degree above one; numbers or arrays."""
    groups: Number = 0
    for degree in degrees:
        groups = groups + (degree > 1)
    # The norm of all gradients is summed in a group of its own, and all ranks wait for each other in one.
    return (groups + 2 * (groups > 1)) * COMMUNICATOR_BYTES
