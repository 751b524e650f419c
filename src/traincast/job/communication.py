"""How ranks that work on one layer talk to each other, and which GPUs and switches they use."""

from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import InfeasibleError
from traincast.job.decisions import Decisions, Need
from traincast.job.parallel import Parallel
from traincast.job.request import JobRequest

SHARP_GROUPS = ("dp", "dp_replica")
"""Groups whose collectives the switches of the network may reduce: one of them, as in Megatron-LM."""

NEEDS = (Need("overlap_tp", lambda _, parallel, __: parallel.tp > 1, "with tp 1"),)
"""What its fields need to have an effect."""


class Communication(Struct, frozen=True, kw_only=True):
    """How tensor and context parallel ranks exchange, and what of the network is used."""

    sequence_parallel: bool
    """Whether tensor parallel ranks split norms along the sequence."""
    overlap_tp: bool
    """Whether tensor parallel transfers are overlapped with GEMMs."""
    cp_kind: str
    """How context parallel ranks exchange keys and values: one of `traincast.job.frameworks.CP_KINDS`."""
    sharp: str | None = None
    """One of `SHARP_GROUPS`: its collectives are reduced in the switches of an InfiniBand network."""
    gpus_used_per_node: int | str | None = None
    """GPUs of each node that ranks are placed on: a number, ``auto`` or ``all`` (`traincast.fabric.placement`)."""


def decide_sequence_parallel(request: JobRequest, decided: Decisions, parallel: Parallel) -> bool:
    """Decide whether norms are split along the sequence; refuse it where tp x cp does not divide the sequence."""
    tp, cp = parallel.tp, parallel.cp
    if tp == 1:
        if request.sequence_parallel:
            decided.note("sequence-parallel-unused", "sequence_parallel has no effect with tp 1")
        return False
    divides = request.seq_length % (tp * cp) == 0
    if request.sequence_parallel and not divides:
        raise InfeasibleError(
            f"sequence parallelism needs a sequence that tp x cp divides: {request.seq_length} tokens, {tp} x {cp}"
        )
    if request.sequence_parallel is None and not divides:
        decided.note("assumed-sequence-parallel", f"off: {request.seq_length} tokens do not divide by {tp} x {cp}")
        return False
    return decided.by_framework("sequence_parallel", request.sequence_parallel, decided.framework.sequence_parallel)


def without_nvlink(request: JobRequest, decided: Decisions, parallel: Parallel) -> JobRequest:
    """Return the request with `overlap_tp` off where it is open and GPUs are on PCIe.

    Kernels that overlap tensor parallel transfers with GEMMs write to the memory of their peers, which frameworks do
    over NVLink alone. Source: mlcommons/training_results_v4.0, NVIDIA, llama2_70b_lora, config_L40S_96x4x1xtp4pp1cp2.sh
    (TP_COMM_OVERLAP=False over PCIe, True on DGX H100).
    """
    cluster = decided.cluster
    if parallel.tp == 1 or request.overlap_tp is not None or cluster is None or cluster.intra.kind != "pcie":
        return request
    decided.note("assumed-overlap-tp", "overlap_tp is not given: off, as it needs NVLink, and GPUs are on PCIe")
    return replace(request, overlap_tp=False)


def decide_overlap_tp(request: JobRequest, decided: Decisions, parallel: Parallel) -> bool:
    """Decide whether tensor parallel transfers are overlapped with GEMMs."""
    default = decided.framework.overlap_tp
    return decided.overlap("overlap_tp", request.overlap_tp, default, matters=parallel.tp > 1)


def decide_communication(
    request: JobRequest, decided: Decisions, parallel: Parallel, sequence_parallel: bool, overlap_tp: bool
) -> Communication:
    """Decide how keys and values are exchanged; what was decided before, and what the user alone decides, goes with it.

    Raises
    ------
    InfeasibleError
        If sequences or heads do not divide.
    """
    return Communication(
        sequence_parallel=sequence_parallel,
        overlap_tp=overlap_tp,
        cp_kind=_cp_kind(request, decided, parallel),
        sharp=request.sharp,
        gpus_used_per_node=request.gpus_used_per_node,
    )


def _cp_kind(request: JobRequest, decided: Decisions, parallel: Parallel) -> str:
    """Return how keys and values are exchanged; refuse sequences and heads that do not divide."""
    kind, cp, tp = request.cp_kind or decided.framework.cp_kind, parallel.cp, parallel.tp
    if cp == 1:
        if request.cp_kind is not None:
            decided.note("cp-kind-unused", f"cp_kind {kind} has no effect with cp 1")
        return kind
    if request.cp_kind is None:
        decided.note("assumed-cp-kind", f"cp_kind is not given: {kind}, as {decided.framework.name} does")
    heads = request.model.attention.heads
    if kind == "all_to_all":
        if heads % (cp * tp):
            raise InfeasibleError(f"cp {cp} by all_to_all splits heads: {heads} do not divide by cp {cp} x tp {tp}")
        if request.seq_length % cp:
            raise InfeasibleError(f"cp {cp} splits the sequence: {request.seq_length} tokens do not divide by it")
        return kind
    pieces = 2 * cp if request.model.attention.causal else cp
    if request.seq_length % pieces:
        raise InfeasibleError(
            f"cp {cp} cuts a causal sequence into {pieces} pieces to balance its work: {request.seq_length} tokens do "
            f"not divide; use a multiple of {pieces}"
        )
    return kind
