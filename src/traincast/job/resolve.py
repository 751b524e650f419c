"""From what the user says of a job to a job with everything decided: the one order in which groups decide.

What is left open is decided by the framework, its year, and the GPU; each decision is a `Note` among the job's
assumptions, in this order, and the first rule that is broken is the one that is told. Each group checks its own rules.
"""

from msgspec.structs import replace

from traincast.hardware.cluster import Cluster
from traincast.job import communication, experts, pipeline, sharding
from traincast.job.batch import NEEDS as BATCH_NEEDS
from traincast.job.batch import Batch, decide_batches, decide_drained_after, note_long_sequence
from traincast.job.decisions import Decisions, choose_framework, unused_fields
from traincast.job.degrees import check_model, decide_degrees, decide_expert_degrees, decide_folding
from traincast.job.feasible import check_choices
from traincast.job.finetuning import decide_finetuning
from traincast.job.habits import as_tuned
from traincast.job.job import Job
from traincast.job.kernels import decide_attention_kernel, decide_kernels, decide_padded_vocab
from traincast.job.offload import decide_offload
from traincast.job.optimizer import decide_gradient_type, decide_optimizer
from traincast.job.packing import decide_packed_length, decide_packing
from traincast.job.parallel import Parallel
from traincast.job.precision import decide_dtype, decide_precision
from traincast.job.recompute import decide_recompute
from traincast.job.request import JobRequest
from traincast.units import check_given

_NEEDS = (*BATCH_NEEDS, *communication.NEEDS, *pipeline.NEEDS, *sharding.NEEDS, *experts.NEEDS)


def resolve_job(request: JobRequest, cluster: Cluster | None = None) -> Job:
    """Decide everything that a request leaves open, with a note for every decision among the assumptions.

    Where the cluster is given, its GPU must be able to run the job's types, and it chooses the attention kernel and the
    default precision.

    Raises
    ------
    ConfigError
        If a value is not a choice, or two of them contradict each other.
    InfeasibleError
        If the combination cannot be run; the message names the rule that it breaks.
    UnknownNameError
        If the framework is not known.
    """
    request = check_choices(_with_mtp_layers(request))
    decided, request = _start(request, cluster)
    parallel, stages, batch = _layout(request, decided)
    # Whether parameters are sharded decides what recomputation, overlaps, the optimizer and offloading may be.
    zero, parallel = sharding.decide_zero(request, decided, parallel)
    recompute = decide_recompute(request, decided, stages.most_layers)
    dtype = decide_dtype(request, decided)
    reshard = sharding.decide_reshard(request, decided, parallel, zero)
    _note_unused(request, decided, parallel, zero)
    sequence_parallel = communication.decide_sequence_parallel(request, decided, parallel)
    # The overlaps, of replicas first; before all of them what the links of a node cannot do.
    request = communication.without_nvlink(request, decided, parallel)
    sharded = sharding.decide_data_overlaps(request, decided, parallel, zero, reshard=reshard)
    overlap_tp = communication.decide_overlap_tp(request, decided, parallel)
    stages = replace(stages, overlap_p2p=pipeline.decide_overlap_p2p(request, decided, parallel))
    exchange = experts.decide_experts(request, decided, parallel, stages.schedule)
    optimizer = decide_optimizer(request, decided, parallel, zero)
    offload = decide_offload(request, decided, zero, stages.most_layers, recomputes_all=recompute.all_layers)
    # What a layer is computed with.
    attention = decide_attention_kernel(request, decided)
    spoken = communication.decide_communication(request, decided, parallel, sequence_parallel, overlap_tp)
    padded_vocab = decide_padded_vocab(request, decided, parallel.tp)
    heads = spoken.cp_kind == "all_to_all"
    batch = decide_packing(request, decided, batch, parallel, zero=zero, splits_heads=heads)
    finetuning = decide_finetuning(request, decided)
    gathered_bytes = sharding.decide_param_gather(request, decided, zero, dtype)
    kernels = decide_kernels(request, decided.framework, attention=attention, padded_vocab=padded_vocab)
    return Job(
        model=request.model,
        framework=decided.framework,
        parallel=parallel,
        communication=spoken,
        pipeline=stages,
        batch=batch,
        precision=decide_precision(request, decided, dtype),
        sharding=replace(sharded, param_gather_bytes=gathered_bytes),
        optimizer=optimizer,
        recompute=recompute,
        offload=offload,
        experts=exchange,
        kernels=kernels,
        finetuning=finetuning,
        assumptions=tuple(decided.notes),
    )


def _start(request: JobRequest, cluster: Cluster | None) -> tuple[Decisions, JobRequest]:
    """Choose the framework, which says what all others leave open, and note what follows from model and types alone.

    The request comes back with what its level of effort sets.
    """
    decided = choose_framework(request, cluster)
    request = as_tuned(request, decided)
    decide_gradient_type(request, decided)
    note_long_sequence(request, decided)
    return decided, request


def _note_unused(request: JobRequest, decided: Decisions, parallel: Parallel, zero: int) -> None:
    """Note what is turned on and has no effect with these degrees and this stage of ZeRO."""
    decided.notes += unused_fields(_NEEDS, request, parallel, zero)
    pipeline.note_unused_schedule(request, decided, parallel)


def _layout(request: JobRequest, decided: Decisions) -> tuple[Parallel, pipeline.Pipeline, Batch]:
    """Decide the degrees, then what of the batch a replica gets, and from both the pipeline."""
    tp, pp, cp, dp = decide_degrees(request, decided)
    ep, etp = decide_expert_degrees(request, decided, tp, dp * cp)
    check_model(request.model, tp=tp, ep=ep, etp=etp)
    micro_batch, microbatches = decide_batches(request, decided, dp)
    stages = pipeline.decide_pipeline(request, decided, pp, microbatches)
    vpp = len(stages.layers_Q) // pp
    drained_after = decide_drained_after(request, decided, pp, micro_batch, microbatches)
    folded = decide_folding(request, decided, tp=tp, dp=dp, ep=ep, etp=etp)
    parallel = Parallel(tp=tp, cp=cp, dp=dp, pp=pp, vpp=vpp, ep=ep, etp=etp, microbatches=microbatches)
    parallel = replace(parallel, folded_experts=folded, drained_after=drained_after)
    batch = Batch(
        seq_length=request.seq_length,
        micro_batch=micro_batch,
        global_batch=request.global_batch,
        local_batch=request.local_batch if pp > 1 else None,
        packed_length=decide_packed_length(request, decided),
    )
    return parallel, stages, batch


def _with_mtp_layers(request: JobRequest) -> JobRequest:
    """Return the request with as many MTP layers in its model as it asks for."""
    if request.mtp_layers is None:
        return request
    check_given(request, ("mtp_layers",))
    return replace(request, model=replace(request.model, mtp_layers=request.mtp_layers))
