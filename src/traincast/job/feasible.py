"""Rules that no job may break, whatever runs it; each message names its rule and what to change."""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.dtypes import ELEMENT_TYPES, FOUR_BIT, PEAK_OF_DTYPE, PRECISIONS
from traincast.hardware.gpu import Gpu
from traincast.job.fields import JOB, fields
from traincast.job.job import SCHEDULES, JobRequest
from traincast.job.optimizer_types import check_types
from traincast.job.parallel import Parallel
from traincast.job.pipeline_layout import check_layout, parse_layout
from traincast.model.model import Model
from traincast.model.recompute import spelled_modules, split_recompute
from traincast.names import find_name
from traincast.registry import known_name
from traincast.units import check_given

_CHOSEN = tuple(each for each in fields(of=JOB) if each.takes in ("choice", "names"))
_NUMBERS = tuple(each for each in fields(of=JOB) if each.is_number)


def check_choices(request: JobRequest) -> JobRequest:
    """Refuse values that are no choice, and counts below one; return the job with every choice in its one spelling.

    Raises
    ------
    ConfigError
        With the field.
    """
    request = _with_modules(request)
    spelled: dict[str, Any] = {}
    for field in _CHOSEN:
        said = getattr(request, field.name)
        if said is None:
            continue
        if field.takes == "choice":
            spelled[field.name] = known_name(field.what, str(said), field.choices)
        elif field.takes == "names" and field.name != "recompute_modules":
            names = (known_name(field.what, each, field.choices) for each in said)
            spelled[field.name] = tuple(dict.fromkeys(names))
    if request.schedule is not None:
        # Plug-ins add schedules, which are looked up where they are.
        spelled["schedule"] = find_name(request.schedule, SCHEDULES) or request.schedule
    if request.recompute_modules is not None:
        spelled["recompute_modules"] = spelled_modules(request.recompute_modules)
    for field in _NUMBERS:
        check_given(request, (field.name,), least=field.least)
    longest = request.model.learned_positions
    if longest and request.seq_length > longest:
        raise InfeasibleError(
            f"{request.model.name} has {longest} learned positions; a sequence of {request.seq_length} has no others"
        )
    found = replace(request, **spelled)
    check_types(found)
    return found


def _with_modules(request: JobRequest) -> JobRequest:
    """Return a request with the modules that its recomputation names (``selective:mlp``) as such."""
    if request.recompute is None:
        return request
    kind, modules = split_recompute(request.recompute)
    if modules is None:
        return request
    said = request.recompute_modules
    if said is not None and spelled_modules(said) != modules:
        text = f"is {request.recompute}, and recompute_modules is {' '.join(said)}; name the modules once"
        raise ConfigError(text, "recompute")
    return replace(request, recompute=kind, recompute_modules=modules)


def check_model(model: Model, *, tp: int, ep: int, etp: int) -> None:
    """Refuse degrees that do not divide the heads, key/value heads, widths or experts of a model and its variants."""
    for _, variant in model.variants:
        check_model(variant, tp=tp, ep=ep, etp=etp)
    attention = model.attention
    if attention.heads % tp:
        raise InfeasibleError(
            f"tp {tp} does not divide the {attention.heads} attention heads of {model.name}; use "
            f"{_divisors(attention.heads)}"
        )
    kv_heads = attention.kv_heads
    if attention.latent is None and kv_heads % tp and tp % kv_heads:
        raise InfeasibleError(
            f"tp {tp} neither divides the {kv_heads} key/value heads of {model.name} nor is a multiple of them; use "
            f"{_divisors(kv_heads)}, or a multiple of {kv_heads}"
        )
    if model.ffn_hidden % tp:
        raise InfeasibleError(f"tp {tp} does not divide the MLP width {model.ffn_hidden} of {model.name}")
    if model.experts is None:
        return
    if model.experts.experts % ep:
        raise InfeasibleError(
            f"ep {ep} does not divide the {model.experts.experts} experts of {model.name}; use "
            f"{_divisors(model.experts.experts)}"
        )
    if model.experts.ffn_hidden % etp:
        raise InfeasibleError(f"etp {etp} does not divide the width {model.experts.ffn_hidden} of an expert")


def check_imbalance(busiest: float, ep: int) -> None:
    """Refuse more tokens for the busiest of the expert ranks than there are."""
    if busiest > ep:
        raise ConfigError(
            f"is {busiest:g}; one of ep {ep} has at most all tokens, {ep} x the mean (give less, or another ep)",
            "expert_imbalance",
        )


def check_pipeline(request: JobRequest, pp: int) -> tuple[int, ...] | None:
    """Refuse virtual stages without a pipeline, schedules that contradict them, and layouts that do not fit.

    Return the layers of every virtual stage where the request says them, else None.
    """
    _check_one_layout(request)
    if request.vpp is not None and request.vpp > 1:
        if pp == 1:
            raise InfeasibleError(f"vpp {request.vpp} needs pp above 1: virtual stages interleave a pipeline")
        if SCHEDULES.get(request.schedule or "") == 1:
            raise ConfigError(
                f"is {request.schedule}, which has no virtual stages, but vpp is {request.vpp}", "schedule"
            )
    if request.pipeline_layout is not None:
        model, layout = request.model, parse_layout(request.pipeline_layout)
        check_layout(layout, name=model.name, layers=model.layers, mtp_layers=model.mtp_layers, pp=pp, vpp=request.vpp)
        if pp == 1 and len(layout.stages) > 1:
            raise InfeasibleError(
                f"pipeline_layout {layout} has {len(layout.stages)} virtual stages, which need pp above 1"
            )
        return layout.layers_Q
    given = request.stage_layers
    if given is None:
        return None
    if len(given) % pp or (request.vpp is not None and len(given) != pp * request.vpp):
        raise ConfigError(f"names {len(given)} virtual stages; pp is {pp}, vpp {request.vpp or 'open'}", "stage_layers")
    if min(given) < 0 or sum(given) != request.model.layers:
        raise ConfigError(
            f"sums to {sum(given)} layers; {request.model.name} has {request.model.layers}", "stage_layers"
        )
    return given


_LAYOUTS = (
    ("pipeline_layout",),
    ("stage_layers",),
    ("first_stage_layers", "last_stage_layers"),
    ("embedding_as_layer", "head_as_layer"),
)
"""Fields that say where layers go, each in another way."""


def _check_one_layout(request: JobRequest) -> None:
    """Refuse two ways of saying where the layers go, as Megatron-LM does."""
    said = [[name for name in names if getattr(request, name)] for names in _LAYOUTS]
    said = [names for names in said if names]
    if len(said) > 1:
        raise ConfigError(f"cannot be combined with {said[1][0]}; give one of them", said[0][0])


def check_sharding(request: JobRequest, zero: int, replicas: int) -> None:
    """Refuse a sharding group that does not divide the replicas."""
    shard = request.shard
    if shard is None:
        return
    if zero == 0 and shard > 1:
        raise ConfigError(f"is {shard}, but zero is 0: nothing is sharded", "shard")
    if replicas % shard:
        raise InfeasibleError(
            f"shard {shard} does not divide the {replicas} ranks (dp x cp) that hold equal parameters; use "
            f"{_divisors(replicas)}"
        )


def precision_on(precision: str, gpu: Gpu | None) -> str:
    """Return the type that a precision stands for on a GPU: of ``fp4`` the one of 4 bits that its matrix units take.

    Raises
    ------
    ConfigError
        If it is ``fp4`` and no GPU is given.
    InfeasibleError
        If the GPU has no such type.
    """
    if precision != FOUR_BIT:
        return precision
    known = [each for each in PRECISIONS if PEAK_OF_DTYPE[each] == FOUR_BIT]
    if gpu is None:
        text = f"is {FOUR_BIT}, and no GPU says which type of 4 bits that is; use {' or '.join(known)}"
        raise ConfigError(text, "precision")
    found = next((each for each in gpu.generation.scaled_blocks if each in known and gpu.has_peak(each)), None)
    if found is None:
        raise InfeasibleError(
            f"{gpu.name} ({gpu.architecture or 'unknown'}) has no matrix units for a type of 4 bits "
            f"({' or '.join(known)}); use {'fp8' if gpu.has_peak('fp8') else 'bf16'}"
        )
    return found


def check_gpu(precision: str, gpu: Gpu | None) -> None:
    """Refuse types that the GPU's matrix units do not have."""
    if gpu is None:
        return
    missing = ""
    if precision == "bf16" and not gpu.generation.bf16:
        missing = "use fp16"
    elif precision in ("fp8", "fp8_block") and not gpu.has_peak("fp8"):
        missing = "use bf16"
    elif ELEMENT_TYPES[precision].small_blocks and precision not in gpu.generation.scaled_blocks:
        others = [each for each in gpu.generation.scaled_blocks if gpu.has_peak(each) and each[-1] == precision[-1]]
        missing = f"use {others[0] if others else 'fp8' if gpu.has_peak('fp8') else 'bf16'}"
    elif ELEMENT_TYPES[precision].small_blocks and not gpu.has_peak(precision):
        missing = "use mxfp8"
    if missing:
        raise InfeasibleError(
            f"{gpu.name} ({gpu.architecture or 'unknown'}) has no matrix units for {precision}; {missing}"
        )


def _has_experts(request: JobRequest, *_: object) -> bool:
    return request.model.experts is not None


def _exchanges_nothing(request: JobRequest, parallel: Parallel, _: int) -> bool:
    return _has_experts(request) and parallel.ep == 1


_OF_EXCHANGES = (
    "moe_dispatcher",
    "moe_dispatch_dtype",
    "deduplicated_dispatch",
    "moe_a2a_overlap",
    "moe_shared_expert_overlap",
    "moe_routing",
)


_NEEDS: tuple[tuple[str, Callable[[JobRequest, Parallel, int], bool], str], ...] = (
    ("overlap_tp", lambda _, parallel, __: parallel.tp > 1, "with tp 1"),
    ("overlap_p2p", lambda _, parallel, __: parallel.pp > 1, "with pp 1"),
    ("embedding_as_layer", lambda _, parallel, __: parallel.pp > 1, "with pp 1"),
    ("head_as_layer", lambda _, parallel, __: parallel.pp > 1, "with pp 1"),
    (
        "overlap_grad_reduce",
        lambda _, parallel, __: max(parallel.dp * parallel.cp, parallel.edp) > 1,
        "with dp 1 and cp 1: no gradients are reduced",
    ),
    ("overlap_param_gather", lambda _, __, zero: zero > 0, "with zero {zero}: no parameters are gathered"),
    ("zero", lambda _, parallel, __: parallel.dp * parallel.cp > 1, "with dp 1 and cp 1: no ranks share state"),
    *((name, _has_experts, "on a model without experts") for name in _OF_EXCHANGES),
    *((name, lambda *job: not _exchanges_nothing(*job), "with ep 1: no tokens are sent") for name in _OF_EXCHANGES),
)
"""Field, what it needs to have an effect (by the request, the degrees and the stage of ZeRO), and why it has none."""


def unused_fields(request: JobRequest, parallel: Parallel, zero: int) -> Iterator[Note]:
    """Yield a note for each field that is turned on and has no effect on this job."""
    for field, holds, why in _NEEDS:
        said = getattr(request, field)
        if said and not holds(request, parallel, zero):
            value = "" if said is True else f" {said}"
            text = f"{field}{value} has no effect {why.format(zero=zero)}"
            yield Note(f"{field.replace('_', '-')}-unused", text)
    if request.schedule not in (None, "1f1b", "gpipe") and parallel.pp == 1:
        yield Note("schedule-unused", f"schedule {request.schedule} has no effect with pp 1: there is no pipeline")


def near_batches(batch: int, multiple: int) -> str:
    """Say which global batches near one are possible."""
    below, above = batch // multiple * multiple, -(-batch // multiple) * multiple
    return f"use {below} or {above}" if below else f"use {above}"


def _divisors(number: int) -> str:
    found = [str(each) for each in range(1, number + 1) if number % each == 0]
    return ", ".join(found[:-1]) + f" or {found[-1]}" if len(found) > 1 else found[0]
