"""From what the user says of a job to a job with everything decided.

What is left open is decided by the framework, its year, and the GPU; each decision is a `Note` among the
job's assumptions. Every rule that a combination may break is checked here or in
`traincast.job.feasible`, and the message names it.
"""

from typing import Any

from msgspec.structs import replace

from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.cluster import Cluster
from traincast.job.decide import (
    Decisions,
    decide_attention_kernel,
    decide_cp_kind,
    decide_exchange,
    decide_optimizer,
    decide_overlaps,
    decide_param_gather,
    decide_precision,
    decide_recompute,
    decide_reshard,
    decide_sequence_parallel,
    decide_sharding,
    padded_vocab,
)
from traincast.job.feasible import (
    check_choices,
    check_imbalance,
    check_model,
    check_pipeline,
    near_batches,
    unused_fields,
)
from traincast.job.finetuning import decide_finetuning
from traincast.job.frameworks import Framework, framework_of_year, load_framework
from traincast.job.job import Job, JobRequest
from traincast.job.layers import Split, even_split, split_layers
from traincast.job.offload import decide_offload
from traincast.job.optimizer_types import GRADIENT_TYPE, MAIN_GRADIENT_TYPES, STATE_TYPES, TYPE_CHOICES
from traincast.job.parallel import Parallel
from traincast.job.pipeline_layout import parse_layout
from traincast.job.software import decide_software
from traincast.schedules.schedule import SCHEDULES, fixed_virtual_stages, usual_schedule
from traincast.units import check_given, counted

_AS_SAID = ("model", "seq_length", "global_batch", "task", "sharp", "gpus_used_per_node")
"""Fields of a request that a job has as they are."""


def resolve_job(request: JobRequest, cluster: Cluster | None = None) -> Job:
    """Decide everything that a request leaves open, with a note for every decision among the assumptions.

    Where the cluster is given, its GPU must be able to run the job's types, and it chooses the attention kernel and the
    default precision.

    Raises
    ------
    ConfigError
        If a value is no choice, or two of them contradict each other.
    InfeasibleError
        If the combination cannot be run; the message names the rule that it breaks.
    UnknownNameError
        If the framework is not known.
    """
    request = check_choices(_with_mtp_layers(request))
    decided, gpu = _start(request), None if cluster is None else cluster.gpu
    parallel, laid = _layout(request, decided)
    zero, shard = decide_sharding(request, decided, parallel)
    if zero and shard < parallel.dp * parallel.cp:
        parallel = replace(parallel, shard=shard)
    again = decide_recompute(request, decided, max(laid["layers_Q"]))
    all_again = again["recompute"] == "full" and again["recompute_layers"] is None
    precision = decide_precision(request, decided, gpu)
    reshard = decide_reshard(request, decided, parallel, zero)
    decided.notes += unused_fields(request, parallel, zero)
    decisions: dict[str, Any] = {
        "sequence_parallel": decide_sequence_parallel(request, decided, parallel.tp, parallel.cp),
        **decide_overlaps(request, decided, parallel, zero, cluster),
        **decide_exchange(request, decided, parallel, laid["schedule"]),
        "optimizer_types": decide_optimizer(request, decided, parallel, zero),
        **decide_offload(request, decided, zero, max(laid["layers_Q"]), recomputes_all=all_again),
        "attention_kernel": decide_attention_kernel(request, decided, gpu),
        "cp_kind": decide_cp_kind(request, decided, parallel.cp, parallel.tp),
        "padded_vocab": padded_vocab(request, decided, parallel.tp),
        **decide_finetuning(request, decided),
        "param_gather_bytes": decide_param_gather(request, decided, zero, precision),
        **decide_software(request, decided.framework, precision),
        "fp8_transposes": gpu is not None and gpu.generation.fp8_transposes,
    }
    return Job(
        **{name: getattr(request, name) for name in _AS_SAID},
        **laid,
        **again,
        **decisions,
        framework=decided.framework,
        parallel=parallel,
        zero=zero,
        shard=shard,
        reshard_after_forward=reshard,
        precision=precision,
        assumptions=tuple(decided.notes),
    )


def _layout(request: JobRequest, decided: Decisions) -> tuple[Parallel, dict[str, Any]]:
    """Decide the degrees, and as fields of the job the pipeline and the sequences of a microbatch."""
    tp, pp, cp, dp = _degrees(request, decided)
    ep, etp = _expert_degrees(request, decided, tp, dp * cp)
    check_model(request.model, tp=tp, ep=ep, etp=etp)
    micro_batch, microbatches = _batches(request, decided, dp)
    vpp, pipeline = _pipeline(request, decided, pp, microbatches)
    parallel = Parallel(tp=tp, cp=cp, dp=dp, pp=pp, vpp=vpp, ep=ep, etp=etp, microbatches=microbatches)
    return parallel, {**pipeline, "micro_batch": micro_batch}


def _with_mtp_layers(request: JobRequest) -> JobRequest:
    """Return the request with as many MTP layers in its model as it asks for."""
    if request.mtp_layers is None:
        return request
    check_given(request, ("mtp_layers",))
    return replace(request, model=replace(request.model, mtp_layers=request.mtp_layers))


def _start(request: JobRequest) -> Decisions:
    """Choose the framework."""
    named = framework_of_year(request.year) if request.framework is None else request.framework
    framework = named if isinstance(named, Framework) else load_framework(named)
    decided = Decisions(framework, list(request.model.notes))
    if request.framework is None:
        when = (
            "framework is not given" if request.year is None else f"framework is not given, the year is {request.year}"
        )
        brief = f"{when}: {framework.name}"
        decided.note("assumed-framework", f"{brief} ({framework.description})", brief=brief)
    elif request.year not in (None, framework.year):
        decided.note("year-unused", f"year {request.year} has no effect: the framework {framework.name} is named")
    reduced = request.grad_reduce_bytes
    if request.main_grads_dtype is not None:
        reduced = MAIN_GRADIENT_TYPES[request.main_grads_dtype]
    if reduced is not None:
        decided.framework = replace(decided.framework, grad_reduce_bytes=reduced)
    elif not decided.framework.memory.gradient_bytes:
        kept = f"gradients are kept and reduced in {decided.framework.grad_reduce_bytes} bytes"
        decided.note(GRADIENT_TYPE, f"grad_reduce_bytes is not given: {kept}, as {framework.name} does")
    if all(getattr(request, name) is None for name in TYPE_CHOICES if name != "main_grads_dtype"):
        text = "types of the optimizer's state are not given: main parameters and both moments in fp32"
        decided.note(STATE_TYPES, text)
    longest = request.model.max_positions
    if longest is not None and request.seq_length > longest:
        decided.note(
            "long-sequence", f"a sequence of {request.seq_length} tokens; {request.model.name} is made for {longest}"
        )
    return decided


def _degrees(request: JobRequest, decided: Decisions) -> tuple[int, int, int, int]:
    """Return tp, pp, cp and dp."""
    open_ones = [name for name in ("tp", "pp", "cp") if getattr(request, name) is None]
    tp, pp, cp = request.tp or 1, request.pp or 1, request.cp or 1
    if open_ones:
        decided.note("assumed-degrees", f"{', '.join(open_ones)} {'is' if len(open_ones) == 1 else 'are'} not given: 1")
    model_parallel = tp * pp * cp
    if request.gpus % model_parallel:
        raise InfeasibleError(
            f"{counted(request.gpus, 'GPU')} do not divide into tp {tp} x pp {pp} x cp {cp} = {model_parallel}; use a "
            f"multiple of {model_parallel} GPUs, or other degrees"
        )
    dp = request.gpus // model_parallel
    decided.note("dp-from-gpus", f"dp = {request.gpus} GPUs / (tp {tp} x pp {pp} x cp {cp}) = {dp}")
    return tp, pp, cp, dp


def _expert_degrees(request: JobRequest, decided: Decisions, tp: int, replicas: int) -> tuple[int, int]:
    """Return ep and etp."""
    if request.model.experts is None:
        if request.expert_imbalance != 1:
            raise ConfigError(
                f"is {request.expert_imbalance:g}, but {request.model.name} has no experts", "expert_imbalance"
            )
        # Results and plans say the degree of experts as it follows: that of the other layers.
        for name, fits in (("ep", (None, 1)), ("etp", (None, 1, tp))):
            if getattr(request, name) not in fits:
                raise ConfigError(f"is {getattr(request, name)}, but {request.model.name} has no experts", name)
        return 1, tp
    ep = request.ep
    if ep is None:
        decided.note("assumed-ep", "ep is not given: 1, every rank holds all experts")
        ep = 1
    check_imbalance(request.expert_imbalance, ep)
    if request.etp is not None:
        return ep, request.etp
    etp = tp if decided.framework.expert_tp else 1
    if tp * replicas % (etp * ep) and tp * replicas % ep == 0:
        etp = 1
    if tp > 1:
        why = "as tp" if etp == tp else "experts are not split"
        decided.note("assumed-etp", f"etp is not given: {etp} ({why}), as {decided.framework.name} does")
    return ep, etp


def _batches(request: JobRequest, decided: Decisions, dp: int) -> tuple[int, int]:
    """Return sequences per microbatch, and microbatches per step."""
    micro_batch = request.micro_batch
    if micro_batch is None:
        micro_batch = 1
        decided.note("assumed-micro-batch", "micro_batch is not given: 1 sequence")
    if request.global_batch % (dp * micro_batch):
        raise InfeasibleError(
            f"a global batch of {counted(request.global_batch, 'sequence')} does not divide into dp {dp} x micro_batch "
            f"{micro_batch} = {dp * micro_batch}; {near_batches(request.global_batch, dp * micro_batch)}"
        )
    microbatches = request.global_batch // (dp * micro_batch)
    decided.note(
        "microbatches-from-batch",
        f"microbatches = {request.global_batch} sequences / (dp {dp} x micro_batch {micro_batch}) = {microbatches}",
    )
    return micro_batch, microbatches


def _pipeline(request: JobRequest, decided: Decisions, pp: int, microbatches: int) -> tuple[int, dict[str, Any]]:
    """Decide the virtual stages of each stage; and as fields of the job schedule, layers and place of MTP layers."""
    given, mtp_stage = check_pipeline(request, pp), None
    if given is not None:
        vpp = len(given) // pp
        mtp_stage = None if request.pipeline_layout is None else parse_layout(request.pipeline_layout).mtp_stage
    else:
        vpp = request.vpp or _default_vpp(request, decided, pp, microbatches)
    schedule = request.schedule
    if schedule is None:
        schedule = usual_schedule(vpp)
    if pp == 1 and fixed_virtual_stages(schedule) is not None and not SCHEDULES.get(schedule).orders_one_stage:
        schedule = usual_schedule()
    if given is None:
        given, rule = split_layers(_split(request, decided.framework, pp, vpp))
        if len(set(given)) > 1 and request.first_stage_layers is None and request.last_stage_layers is None:
            decided.note("uneven-layers", rule)
    # What is on the last virtual stage is where it always is: equal jobs are equal.
    mtp_stage = None if mtp_stage == len(given) - 1 else mtp_stage
    return vpp, {"schedule": schedule, "layers_Q": given, "mtp_stage": mtp_stage}


def _split(request: JobRequest, framework: Framework, pp: int, vpp: int) -> Split:
    return Split(
        layers=request.model.layers,
        pp=pp,
        vpp=vpp,
        uneven=framework.uneven_split,
        counts_embedding=framework.counts_embedding
        and request.embedding_as_layer is None
        and request.head_as_layer is None,
        first=request.first_stage_layers,
        last=request.last_stage_layers,
        embedding=bool(request.embedding_as_layer),
        head=bool(request.head_as_layer),
    )


def _default_vpp(request: JobRequest, decided: Decisions, pp: int, microbatches: int) -> int:
    """Interleave as far as the framework does, where layers and microbatches allow it."""
    framework, fixed = decided.framework, fixed_virtual_stages(request.schedule)
    if pp == 1:
        return 1
    if fixed is not None and fixed > 1:
        decided.note("assumed-vpp", f"vpp is not given: {fixed}, as schedule {request.schedule} has it")
        return fixed
    ends = (request.first_stage_layers, request.last_stage_layers)
    why = None
    if not framework.interleave or request.schedule not in (None, usual_schedule(2)):
        why = f"{framework.name} does not interleave by itself"
    elif microbatches % pp:
        why = f"{microbatches} microbatches are no multiple of pp {pp}"
    elif ends != (None, None):
        why = "the first or last stage has its own number of layers"
    if why is not None:
        decided.note("assumed-vpp", f"vpp is not given: 1, as {why}")
        return 1
    most = (request.model.layers + 2) // (pp * framework.layers_per_chunk)
    for vpp in range(most, 1, -1):
        found = even_split(_split(request, framework, pp, vpp))
        if found is not None:
            decided.note(
                "assumed-vpp",
                f"vpp is not given: {vpp} ({found[1]}; {framework.name} interleaves down to "
                f"{counted(framework.layers_per_chunk, 'layer')})",
                brief=f"vpp is not given: {vpp} ({found[1]})",
            )
            return vpp
    decided.note("assumed-vpp", f"vpp is not given: 1, as the layers divide into no smaller pieces over pp {pp}")
    return 1
