"""What of a job is decided by its framework and its GPU: sharding, overlap, recomputation, kernels.

Each function returns what the request says, or the default of the framework with a note.
"""

from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.attention_kernels import check_kernel, kernel_instead
from traincast.hardware.cluster import Cluster
from traincast.hardware.dtypes import EIGHT_BIT
from traincast.hardware.gpu import Gpu
from traincast.job.feasible import check_gpu, check_sharding, precision_on
from traincast.job.frameworks import Framework
from traincast.job.job import JobRequest
from traincast.job.optimizer_types import OptimizerTypes, optimizer_types
from traincast.job.parallel import Parallel
from traincast.model.dispatch import DISPATCHERS, dispatcher_of
from traincast.model.recompute import modules_of
from traincast.model.routing import POPULARITY_DEVIATION, busiest_rank
from traincast.schedules.schedule import Pairing, schedules_that_pair
from traincast.units import counted

T = TypeVar("T")


class Decisions(Struct):
    """What was decided so far, each with its reason."""

    framework: Framework
    notes: list[Note] = field(default_factory=list)

    def note(self, code: str, text: str, *, brief: str | None = None, effect: float | None = None) -> None:
        """Add an assumption."""
        self.notes.append(Note(code, text, brief=brief, effect=effect))

    def by_framework(self, name: str, said: T | None, default: T) -> T:
        """Return what was said, or the framework's default with a note."""
        if said is not None:
            return said
        shown = {True: "on", False: "off"}.get(default, default) if isinstance(default, bool) else default
        self.note(f"assumed-{name.replace('_', '-')}", f"{name} is not given: {shown}, as {self.framework.name} does")
        return default


def decide_sequence_parallel(request: JobRequest, decided: Decisions, tp: int, cp: int) -> bool:
    """Decide whether norms are split along the sequence; refuse it where tp x cp does not divide the sequence."""
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


def decide_sharding(request: JobRequest, decided: Decisions, parallel: Parallel) -> tuple[int, int]:
    """Return the stage of ZeRO and the ranks that share one copy of the state; refuse a group that cannot be."""
    replicas = parallel.dp * parallel.cp
    framework = decided.framework
    usual = 3 if framework.fsdp else 1 if framework.distributed_optimizer else 0
    zero = decided.by_framework("zero", request.zero, usual) if replicas > 1 else request.zero or 0
    check_sharding(request, zero, replicas)
    if zero > 1 and parallel.pp > 1 and not (zero == 3 and framework.pipelined_fsdp):
        decided.note(
            "zero-with-pipeline",
            f"zero {zero} with pp {parallel.pp}: {'parameters are gathered' if zero == 3 else 'gradients are reduced'} "
            "again for every microbatch; frameworks refuse or discourage it",
        )
    if zero == 0 or replicas == 1:
        return (zero if replicas > 1 else 0), 1
    return zero, request.shard or replicas


def decide_reshard(request: JobRequest, decided: Decisions, parallel: Parallel, zero: int) -> bool:
    """Return whether FSDP frees parameters after the forward pass: unless stages of a pipeline keep them whole.

    Source: torchtitan, torchtitan/distributed/fsdp.py (fsdp_reshard_after_forward "default": off with pipeline
    parallelism, to spare a gather in every microbatch).
    """
    said = request.reshard_after_forward
    if zero < 3:
        if said is not None:
            decided.note("reshard-unused", f"reshard_after_forward has no effect with zero {zero}")
        return True
    whole = parallel.pp > 1 and decided.framework.pipelined_fsdp
    if whole:
        passes = counted(parallel.microbatches, "microbatch", "microbatches")
        decided.note(
            "fsdp-with-pipeline",
            f"zero 3 with pp {parallel.pp}: gradients are kept whole over {passes} and reduced once, after a stage's "
            "last backward pass, as PyTorch's pipeline schedules do",
        )
    if said is not None:
        return said
    if whole:
        text = f"off with pp {parallel.pp}: gathered parameters stay whole from a stage's first pass to its last"
        decided.note("assumed-reshard-after-forward", f"reshard_after_forward is not given: {text}")
    return not whole


def decide_param_gather(request: JobRequest, decided: Decisions, zero: int, precision: str) -> int:
    """Return the bytes of a weight's element as it is gathered: 2, or 1 where GEMMs in 8 bits are asked to get it."""
    said = request.param_gather_bytes
    if said is None or zero == 0:
        if said is not None:
            decided.note("param-gather-unused", "param_gather_bytes has no effect with zero 0: nothing is gathered")
        return 2
    if said == 1 and precision not in EIGHT_BIT:
        raise ConfigError(
            f"is 1, but GEMMs run in {precision}; 8-bit weights need {', '.join(EIGHT_BIT)}", "param_gather_bytes"
        )
    if said not in (1, 2):
        raise ConfigError(f"is {said}; it must be 1 or 2", "param_gather_bytes")
    return said


def decide_overlaps(
    request: JobRequest, decided: Decisions, parallel: Parallel, zero: int, cluster: Cluster | None
) -> dict[str, bool]:
    """Decide what is done beside computation; a note only where it can matter.

    Kernels that overlap tensor parallel transfers with GEMMs write to the memory of their peers, which frameworks do
    over NVLink alone. Source: mlcommons/training_results_v4.0, NVIDIA, llama2_70b_lora, config_L40S_96x4x1xtp4pp1cp2.sh
    (TP_COMM_OVERLAP=False over PCIe, True on DGX H100).
    """
    if parallel.tp > 1 and request.overlap_tp is None and cluster is not None and cluster.intra.kind == "pcie":
        decided.note("assumed-overlap-tp", "overlap_tp is not given: off, as it needs NVLink, and GPUs are on PCIe")
        request = replace(request, overlap_tp=False)
    matters = {
        "overlap_grad_reduce": parallel.dp * parallel.cp > 1,
        "overlap_param_gather": zero > 0,
        "overlap_tp": parallel.tp > 1,
        "overlap_p2p": parallel.pp > 1,
    }
    return {
        name: bool(
            decided.by_framework(name, getattr(request, name), getattr(decided.framework, name))
            if able
            else getattr(request, name)
        )
        for name, able in matters.items()
    }


def decide_exchange(request: JobRequest, decided: Decisions, parallel: Parallel, schedule: str) -> dict[str, Any]:
    """Decide how tokens get to their experts and back, and whether another microbatch's work hides that."""
    framework, matters = decided.framework, request.model.experts is not None and parallel.ep > 1
    dispatcher = _dispatcher(request)
    if matters:
        dispatcher = decided.by_framework("moe_dispatcher", dispatcher, framework.moe_dispatcher)
    overlaps = request.moe_a2a_overlap
    if matters and overlaps is None and schedule in schedules_that_pair(Pairing.ALWAYS):
        overlaps = True
        text = f"moe_a2a_overlap is not given: on, as schedule {schedule} runs two passes at once for just that"
        decided.note("assumed-moe-a2a-overlap", text)
    elif overlaps is None:
        overlaps = framework.moe_a2a_overlap
    if matters and overlaps and schedule not in (pairing := schedules_that_pair(Pairing.POSSIBLE, Pairing.ALWAYS)):
        overlaps = False
        text = (
            f"moe_a2a_overlap has no effect: schedule {schedule} runs no forward pass next to a backward pass that "
            f"could hide its exchanges; {', '.join(pairing)} do"
        )
        decided.note("moe-a2a-overlap-unused", text)
    delays = framework.delay_wgrad if request.delay_wgrad is None else request.delay_wgrad
    if request.delay_wgrad and not (matters and overlaps):
        decided.note("delay-wgrad-unused", "delay_wgrad has no effect where no exchanges with experts are overlapped")
    return {
        "moe_dispatcher": dispatcher or framework.moe_dispatcher,
        "moe_dispatch_dtype": request.moe_dispatch_dtype or framework.moe_dispatch_dtype,
        "moe_a2a_overlap": matters and overlaps,
        "delay_wgrad": matters and overlaps and delays,
        "moe_shared_expert_overlap": matters and _shared_experts_overlap(request, decided, others=bool(overlaps)),
        "expert_imbalance": decide_imbalance(request, decided, parallel.ep),
    }


def _shared_experts_overlap(request: JobRequest, decided: Decisions, *, others: bool) -> bool:
    """Return whether shared experts are computed while tokens are on their way; Megatron-LM refuses both overlaps."""
    asked, experts = request.moe_shared_expert_overlap, request.model.experts
    why = None
    if asked and (experts is None or not experts.shared_ffn_hidden):
        why = f"{request.model.name} has no shared experts"
    elif asked and others:
        why = "another microbatch hides the exchanges with experts already (moe_a2a_overlap)"
    if why is not None:
        decided.note("moe-shared-expert-overlap-unused", f"moe_shared_expert_overlap has no effect: {why}")
    overlaps = decided.framework.moe_shared_expert_overlap if asked is None else asked
    return bool(overlaps and experts is not None and experts.shared_ffn_hidden and not others)


def decide_imbalance(request: JobRequest, decided: Decisions, ep: int) -> float:
    """Decide what the busiest expert rank gets of the tokens over the mean.

    Raises
    ------
    ConfigError
        If both a factor and natural routing are asked for.
    """
    given, experts = request.expert_imbalance, request.model.experts
    if experts is None or ep == 1:
        return given
    natural = busiest_rank(experts.experts, experts.topk, ep)
    if request.moe_routing == "natural":
        if given != 1:
            raise ConfigError(f"is {given:g}, and moe_routing is natural; give one of the two", "expert_imbalance")
        text = (
            f"moe_routing natural: the busiest of ep {ep} expert ranks gets {natural:.2f} x the mean tokens, another "
            f"one in each layer, as {experts.experts} experts at initialisation have log-normal popularities "
            f"(deviation {POPULARITY_DEVIATION:g})"
        )
        brief = f"moe_routing natural: the busiest of ep {ep} expert ranks gets {natural:.2f} x the mean tokens"
        decided.note("natural-routing", text, brief=brief)
        return natural
    if given == 1 and request.moe_routing is None:
        text = (
            "moe_routing is not given: balanced, each expert gets as many tokens, as benchmarks force it; were it "
            f"natural, as at initialisation, the busiest of ep {ep} expert ranks would get {natural:.2f} x the mean"
        )
        brief = f"moe_routing is not given: balanced (natural: the busiest rank gets {natural:.2f} x the mean)"
        decided.note("assumed-moe-routing", text, brief=brief)
    return given


def _dispatcher(request: JobRequest) -> str | None:
    """Return the dispatcher that a request names, or says by whether a token crosses to a node once."""
    once, named = request.deduplicated_dispatch, request.moe_dispatcher
    if once is None:
        return named
    if named is not None and (DISPATCHERS[named].sends == "once") != once:
        shown = "on" if once else "off"
        text = f"is {named}, and deduplicated_dispatch, which says the same, is {shown}; give moe_dispatcher alone"
        raise ConfigError(text, "moe_dispatcher")
    return named or dispatcher_of(once)


def decide_recompute(request: JobRequest, decided: Decisions, most_layers: int) -> dict[str, Any]:
    """Return what is recomputed: nothing, so many layers of a virtual stage, or modules of each layer.

    Refused are a number of layers with anything but ``full``, and modules with anything but ``selective``.
    """
    recompute = request.recompute
    fields = (("recompute_layers", "full"), ("recompute_method", "full"), ("recompute_modules", "selective"))
    for name, needed in fields:
        if recompute is None and getattr(request, name) is not None:
            recompute = needed
            decided.note("assumed-recompute", f"recompute is not given: {needed}, as {name} is given")
    recompute = decided.by_framework("recompute", recompute, decided.framework.recompute)
    for name, needed in fields:
        said = getattr(request, name)
        if said is not None and recompute != needed:
            shown = " ".join(said) if isinstance(said, tuple) else said
            raise ConfigError(f"is {shown}, which has a meaning only with recompute {needed}, not {recompute}", name)
    layers, modules = request.recompute_layers, request.recompute_modules
    if recompute == "selective" and modules is None and decided.framework.selective_share > 0:
        share = decided.framework.selective_share
        layers = max(1, round(share * most_layers))
        decided.note(
            "selective-as-layers",
            f"selective of {decided.framework.name} recomputes {share:g} of each layer: taken as {layers} of "
            f"{most_layers} layers in full",
        )
        recompute = "full"
    if layers is not None and layers > most_layers:
        decided.note(
            "recompute-layers-capped",
            f"recompute_layers {layers}: a virtual stage has at most {most_layers}, all of which are recomputed",
        )
        layers = most_layers
    found = {"recompute": recompute, "recompute_layers": layers}
    if request.recompute_method == "uniform":
        return found | {"recompute_layers": None, "recompute_group": layers or 1}
    if recompute != "selective" or modules is None:
        return found
    return found | {"recompute_modules": _modules(request, modules, decided)}


def _modules(request: JobRequest, modules: tuple[str, ...], decided: Decisions) -> tuple[str, ...]:
    """Return the modules that the model has; those that it has not are noted."""
    found = modules_of(request.model, modules)
    missing = [name for name in dict.fromkeys(modules) if name not in found]
    if missing:
        decided.note(
            "recompute-modules-unused",
            f"recompute_modules {' '.join(missing)}: {request.model.name} has no such module of its own",
        )
    return found


def decide_optimizer(request: JobRequest, decided: Decisions, parallel: Parallel, zero: int) -> OptimizerTypes:
    """Return the types of the optimizer's state; as Megatron-LM refuse others than fp32 where it is not sharded."""
    types = optimizer_types(request)
    if types.precision_aware and zero == 0 and (request.zero == 0 or parallel.dp * parallel.cp > 1):
        raise ConfigError("needs a sharded optimizer (zero 1), as in Megatron-LM", "precision_aware_optimizer")
    if types.precision_aware and request.precision_aware_optimizer is None:
        decided.note(
            "assumed-precision-aware-optimizer",
            "precision_aware_optimizer is not given: on, as the optimizer's state has types other than fp32",
        )
    return types


def decide_precision(request: JobRequest, decided: Decisions, gpu: Gpu | None) -> str:
    """Return the type of the GEMMs, bf16 or on GPUs before Ampere fp16 by default; refuse what the GPU lacks."""
    precision = request.precision
    if precision is None:
        precision = "bf16" if gpu is None or gpu.generation.bf16 else "fp16"
        decided.note("assumed-precision", f"precision is not given: {precision}")
    found = precision_on(precision, gpu)
    if gpu is not None and found != precision:
        decided.note("precision-of-gpu", f"precision {precision}: {found}, the type of 4 bits that {gpu.name} has")
    check_gpu(found, gpu)
    return found


def decide_attention_kernel(request: JobRequest, decided: Decisions, gpu: Gpu | None) -> str:
    """Decide the attention kernel: the framework's, as far as the GPU runs it; refuse one that does not run there."""
    if request.attention_kernel is not None:
        if gpu is not None:
            check_kernel(request.attention_kernel, gpu)
        return request.attention_kernel
    wanted = decided.framework.attention_kernel
    kernel, why = (wanted, None) if gpu is None else kernel_instead(wanted, gpu)
    why = why or f"as {decided.framework.name} does"
    decided.note("assumed-attention-kernel", f"attention_kernel is not given: {kernel}, {why}")
    return kernel


def decide_cp_kind(request: JobRequest, decided: Decisions, cp: int, tp: int) -> str:
    """Return how keys and values are exchanged; refuse sequences and heads that do not divide."""
    kind = request.cp_kind or decided.framework.cp_kind
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


def padded_vocab(request: JobRequest, decided: Decisions, tp: int) -> int:
    """Return the vocabulary rounded up to what tp divides."""
    multiple = (request.vocab_multiple or decided.framework.vocab_multiple) * tp
    padded = -(-request.model.vocab // multiple) * multiple
    if padded != request.model.vocab and request.vocab_multiple is None:
        decided.note(
            "padded-vocab",
            f"vocabulary of {request.model.vocab} padded to {padded}, a multiple of "
            f"{decided.framework.vocab_multiple} x tp {tp}",
            # At most as much longer as the LM head, were that all of the step.
            effect=padded / request.model.vocab - 1,
        )
    return padded
