"""Memory of every stage of a job: what lasts, what is in flight, what runs beside it."""

from collections.abc import Iterator
from dataclasses import dataclass

from traincast.estimate.memory.activations import LayerBytes, LayerModel
from traincast.estimate.memory.in_flight import ChunkBytes, peak_in_flight
from traincast.estimate.memory.optimizer import parameter_bytes, states
from traincast.estimate.memory.parameters import held_by, layers_of, one_of_each_matrix, rank_parameters
from traincast.job.frameworks import MemoryPolicy
from traincast.job.job import Job
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of the worst rank of one stage, at its peak.

    Parameters
    ----------
    parameters, gradients, optimizer, activations, other : float
        Bytes; their sum is `peak`.
    peak : float
        Bytes of device memory.
    terms : tuple of (str, float)
        The same sum in explained pieces.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    other: float
    peak: float
    terms: tuple[tuple[str, float], ...]

    @property
    def reserved(self) -> float:
        """Bytes that PyTorch's allocator holds (``max_memory_reserved``)."""
        return self.peak - sum(size for name, size in self.terms if name in OUTSIDE_ALLOCATOR)

    @property
    def allocated(self) -> float:
        """Bytes in use by tensors (``max_memory_allocated``)."""
        return self.reserved - sum(size for name, size in self.terms if name == SLACK_TERM)


def stage_memory(job: Job, plan: SchedulePlan) -> tuple[StageMemory, ...]:
    """Return the memory of each pipeline stage.

    Parameters
    ----------
    job : Job
        The job.
    plan : SchedulePlan
        In which order every stage runs, which says what is in flight.

    Returns
    -------
    tuple of StageMemory
        By stage.
    """
    policy = job.memory_policy
    model = LayerModel(job, policy)
    return tuple(_stage(job, plan, stage, policy, model) for stage in range(len(plan.slots)))


def _stage(job: Job, plan: SchedulePlan, stage: int, policy: MemoryPolicy, model: LayerModel) -> StageMemory:
    held, trained = rank_parameters(job, plan, stage, model.parts)
    state = states(job, policy, held, trained)
    activations = _activations(job, plan, stage, policy, model)
    other = _other(job, plan, policy, model)
    if state.copies:
        other["8-bit copies of weights"] = state.copies
    # The step makes them when activations are gone: the larger of both counts.
    beyond = state.step_gradients - sum(activations.values())
    if beyond > 0:
        other["fp32 gradients of the step"] = beyond
    if policy.gradient_placeholders and job.task != "lora":
        other["unused weight gradients"] = parameter_bytes(job.precision) * one_of_each_matrix(
            job, plan, stage, model.parts
        )
    if state.gathered:
        other["gathered layers"] = state.gathered
    lasting = {"parameters": state.parameters, "gradients": state.gradients, "optimizer": state.optimizer}
    outside = sum(other.get(name, 0.0) for name in OUTSIDE_ALLOCATOR)
    allocated = sum(lasting.values()) + sum(activations.values()) + sum(other.values()) - outside
    other[SLACK_TERM] = SLACK * allocated
    terms = lasting | activations | other
    return StageMemory(
        **lasting,
        activations=sum(activations.values()),
        other=sum(other.values()),
        peak=sum(terms.values()),
        terms=tuple((name, size) for name, size in terms.items() if size),
    )


def _activations(job: Job, plan: SchedulePlan, stage: int, policy: MemoryPolicy, model: LayerModel) -> dict[str, float]:
    """Return the activations of a stage at its peak, by part."""
    chunks: dict[int, ChunkBytes] = {}
    parts: dict[int, dict[str, float]] = {}
    for _, virtual_stage in held_by(plan, stage):
        parts[virtual_stage] = _parts(job, virtual_stage, policy, model)
        chunks[virtual_stage] = _chunk(job, virtual_stage, policy, model, sum(parts[virtual_stage].values()))
    if not chunks:
        return {}
    peak = peak_in_flight(plan, stage, chunks)
    found: dict[str, float] = {}
    for part in parts.values():
        for name, size in part.items():
            found[name] = found.get(name, 0.0) + size
    whole = sum(found.values())
    flights = f" x {peak.in_flight} in flight" if peak.in_flight > 1 else ""
    scale = peak.saved_bytes / whole if whole else 0.0
    return {f"{name}{flights}": size * scale for name, size in found.items()} | {
        "passing activations": peak.passing_bytes
    }


def _recomputed(job: Job, count: int) -> int:
    """Return how many layers of a virtual stage are computed again whole."""
    if job.recompute != "full":
        return 0
    return count if job.recompute_layers is None else min(count, job.recompute_layers)


def _parts(job: Job, virtual_stage: int, policy: MemoryPolicy, model: LayerModel) -> dict[str, float]:
    """Return what one microbatch saves on a virtual stage, by part."""
    layers = layers_of(job)[virtual_stage]
    again = _recomputed(job, len(layers))
    found: dict[str, float] = {}

    def add(name: str, size: float) -> None:
        if size:
            found[name] = found.get(name, 0.0) + size

    for position, index in enumerate(layers):
        layer = model.layer(index)
        if position < again:
            add("layer inputs", layer.input_bytes if position % job.recompute_group == 0 else 0.0)
            continue
        for name, size in layer.saved.items():
            add(name, size)
    if virtual_stage == len(job.layers_Q) - 1:
        for name, size in model.head().items():
            add(name, size)
        add("MTP layers", job.model.mtp_layers * _mtp_layer(job, model))
    elif policy.stage_output_copy:
        add("stage outputs", model.share.norm_bytes)
    return found


def _mtp_layer(job: Job, model: LayerModel) -> float:
    """Return what a layer for further tokens, which is like the last one, saves without its ends."""
    extra = model.layer(job.model.layers - 1)
    return extra.input_bytes if job.recompute == "full" else sum(extra.saved.values())


def _logits(model: LayerModel) -> float:
    """Return the logits of one microbatch on a rank."""
    return float(model.share.tokens * model.share.table_rows)


def _chunk(job: Job, virtual_stage: int, policy: MemoryPolicy, model: LayerModel, saved: float) -> ChunkBytes:
    layers = [model.layer(index) for index in layers_of(job)[virtual_stage]]
    again = _recomputed(job, len(layers))
    forward = max((layer.forward for layer in layers), default=0.0)
    backward = max((*_groups_again(layers[:again], job.recompute_group), *_modules_again(layers[again:])), default=0.0)
    if virtual_stage == len(job.layers_Q) - 1:
        logits, saved_logits = (each * _logits(model) for each in (policy.logit_bytes, policy.saved_logit_bytes))
        forward = max(forward, logits - saved_logits)
        if policy.fused_loss:
            # The layers' backward passes begin when the logits are gone.
            backward = max(backward - saved_logits, 0.0)
        else:
            # The logits' gradient in the products' type, with the softmax that it is made from. Where the head's weight
            # gradient is not fused, it takes about the room that the logits leave to the layers.
            backward = max(backward, parameter_bytes(job.precision) * _logits(model))
    # Weight gradients read the products' inputs; what only the inputs' gradients need (layernorm inputs,
    # inputs of activation functions, scores) is about half.
    return ChunkBytes(saved=saved, for_weights=saved / 2, forward=forward, backward=backward)


def _groups_again(layers: list[LayerBytes], group: int) -> Iterator[float]:
    """Yield what the backward pass adds for each group of layers that are recomputed together from their first input.

    It has gradients of one layer, and all that the group saves.
    """
    for first in range(0, len(layers), group):
        members = layers[first : first + group]
        saved = sum(layer.all_bytes for layer in members) - members[0].input_bytes
        yield max(layer.backward for layer in members) + saved


def _modules_again(layers: list[LayerBytes]) -> Iterator[float]:
    """Yield what the backward pass of each layer adds: gradients, and what its modules recompute."""
    for layer in layers:
        yield layer.backward + layer.recomputed


def _other(job: Job, plan: SchedulePlan, policy: MemoryPolicy, model: LayerModel) -> dict[str, float]:
    parallel = job.parallel
    degrees = (parallel.tp, parallel.cp, parallel.dp, parallel.pp, parallel.ep)
    groups = sum(degree > 1 for degree in degrees)
    # The norm of all gradients is summed in a group of its own.
    groups += groups > 1
    found = {"cuda context": CONTEXT_BYTES, "nccl buffers": groups * COMMUNICATOR_BYTES}
    if len(plan.slots) > 1:
        found["pipeline messages"] = 4 * model.share.norm_bytes
    if policy.buffer_bytes:
        found["communication buckets"] = policy.buffer_bytes
    return found
