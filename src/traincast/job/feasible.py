"""What the fields of a job may be: their choices and their ranges."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.attention_kernels import ATTENTION_KERNELS
from traincast.hardware.dtypes import FOUR_BIT, PRECISIONS
from traincast.job.communication import SHARP_GROUPS
from traincast.job.frameworks import CP_KINDS, GRAPH_SCOPES, RECOMPUTE_METHODS
from traincast.job.kernels import GRAPH_IMPLS
from traincast.job.offload import OFFLOAD_MODULES
from traincast.job.optimizer import TYPE_CHOICES, check_types
from traincast.job.precision import FP8_RECIPES
from traincast.job.request import JobRequest
from traincast.model.blocks.share import LORA_TARGETS
from traincast.model.counts import TASKS
from traincast.model.dispatch import DISPATCH_DTYPES, DISPATCHERS
from traincast.model.recompute import RECOMPUTE, spelled_modules, split_recompute
from traincast.model.routing import ROUTINGS
from traincast.registry import known_name
from traincast.schedules.schedule import SCHEDULES
from traincast.units import check_given

CHOICES: Mapping[str, tuple[str, Iterable[str]]] = {
    "precision": ("precision", (*PRECISIONS, FOUR_BIT)),
    "recompute": ("recomputation", RECOMPUTE),
    "recompute_method": ("method of recomputation", RECOMPUTE_METHODS),
    "attention_kernel": ("attention kernel", ATTENTION_KERNELS),
    "cp_kind": ("way of context parallelism", CP_KINDS),
    "moe_dispatcher": ("dispatcher of tokens", DISPATCHERS),
    "moe_routing": ("routing of tokens", ROUTINGS),
    "moe_dispatch_dtype": ("type of dispatched tokens", DISPATCH_DTYPES),
    "sharp": ("group that switches reduce for", SHARP_GROUPS),
    "task": ("task", TASKS),
    "cuda_graph_impl": ("way to capture CUDA graphs", GRAPH_IMPLS),
    "fp8_recipe": ("recipe of 8 bits", FP8_RECIPES),
    **{field: (f"type of {field.removesuffix('_dtype')}", known) for field, known in TYPE_CHOICES.items()},
}
"""Field of a job to what it is, in the words of a message, and the names that it may have."""

_COUNTS = (
    *("gpus", "seq_length", "global_batch", "micro_batch", "tp", "pp", "vpp", "cp", "ep", "etp", "shard", "lora_rank"),
    *("packed_length",),
    *("recompute_layers", "vocab_multiple", "grad_reduce_bytes", "first_stage_layers", "last_stage_layers"),
)


def check_choices(request: JobRequest) -> JobRequest:
    """Refuse values that are no choice, and counts below one; return the job with every choice in its one spelling.

    Raises
    ------
    ConfigError
        With the field.
    """
    request = _with_modules(request)
    spelled: dict[str, Any] = {
        field: known_name(kind, str(getattr(request, field)), known)
        for field, (kind, known) in CHOICES.items()
        if getattr(request, field) is not None
    }
    if request.schedule is not None:
        spelled["schedule"] = SCHEDULES.get(request.schedule).name
    if request.recompute_modules is not None:
        spelled["recompute_modules"] = spelled_modules(request.recompute_modules)
    if request.offload_modules is not None:
        offloaded = (known_name("module to offload", name, OFFLOAD_MODULES) for name in request.offload_modules)
        spelled["offload_modules"] = tuple(dict.fromkeys(offloaded))
    if request.cuda_graph_scope is not None:
        scope = (known_name("module of a CUDA graph", name, GRAPH_SCOPES) for name in request.cuda_graph_scope)
        spelled["cuda_graph_scope"] = tuple(dict.fromkeys(scope))
    if request.lora_targets is not None:
        targets = (known_name("target of adapters", name, LORA_TARGETS) for name in request.lora_targets)
        spelled["lora_targets"] = tuple(dict.fromkeys(targets))
    check_given(request, _COUNTS, least=1)
    check_given(request, ("zero", "year", "stage_layers", "offload_optimizer", "offload_activations"))
    check_given(request, ("expert_imbalance",), least=1)
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
