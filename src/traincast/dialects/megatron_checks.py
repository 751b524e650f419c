"""Megatron-LM's flags together: recomputation, what it refuses, and flags that need another to have an effect.

Source: Megatron-LM, megatron/training/arguments.py (validate_args) and megatron/core/transformer/transformer_config.py
(__post_init__), core 0.12 to 0.15.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from traincast.diagnostics import Note
from traincast.dialects.flags import Pasted, flag_table
from traincast.dialects.writing import flags_of_fields
from traincast.job.frameworks import RECOMPUTE_METHODS
from traincast.job.recompute import Recomputation
from traincast.model.dispatch import DISPATCHERS

DISPATCHER = "moe-token-dispatcher-type"
"""Flag of how tokens travel to their experts."""
UNUSED = "flag-unused"
"""Code of the notes on flags that have no effect given the others."""


def granularity(pasted: Pasted) -> str:
    """Return what is recomputed: ``full``, ``selective`` or ``none``."""
    layer = pasted.is_on("moe-layer-recompute")
    if "recompute-granularity" in pasted:
        found = pasted.choice("recompute-granularity", {"full": "full", "selective": "selective"})
        if layer and found == "full":
            raise pasted.wrong("moe-layer-recompute", "cannot be combined with --recompute-granularity full")
        return found
    return "selective" if layer or pasted.is_on("recompute-activations") else "none"


def recompute_fields(pasted: Pasted) -> dict[str, Any]:
    """Return the fields of a job that the flags set; refuse modules that Megatron-LM refuses with the other flags."""
    recompute = granularity(pasted)
    fields: dict[str, Any] = {"recompute": recompute}
    if recompute == "full" and "recompute-method" in pasted:
        fields["recompute_method"] = pasted.choice("recompute-method", {name: name for name in RECOMPUTE_METHODS})
        if "recompute-num-layers" in pasted:
            fields["recompute_layers"] = pasted.count("recompute-num-layers", 1)
    modules = list(pasted.flags.get("recompute-modules", ("core_attn",)))
    if pasted.is_on("moe-layer-recompute") and "moe" not in modules:
        modules.append("moe")
    if recompute == "selective":
        fields["recompute_modules"] = tuple(modules)
        _check_modules(pasted, modules)
    overlap = "overlap-moe-expert-parallel-comm"
    if pasted.is_on(overlap) and (recompute == "full" or "moe" in fields.get("recompute_modules", ())):
        what = "--recompute-granularity full" if recompute == "full" else "moe among --recompute-modules"
        raise pasted.wrong(overlap, f"cannot be combined with {what}")
    return fields


def recompute_flags(recompute: Recomputation) -> dict[str, Any]:
    """Return the flags that say what is recomputed, as `recompute_fields` reads them."""
    if recompute.granularity == "none":
        return {}
    found: dict[str, Any] = {"recompute-granularity": recompute.granularity}
    if recompute.granularity == "selective":
        return found | {"recompute-modules": [*(recompute.recomputed_modules or ("core_attn",))]}
    if recompute.group > 1 or recompute.layers is None:
        return found | {"recompute-method": "uniform", "recompute-num-layers": recompute.group}
    return found | {"recompute-method": "block", "recompute-num-layers": recompute.layers}


def _delayed(pasted: Pasted) -> bool:
    eight_bit = "fp8-format" in pasted or "fp8" in pasted
    return eight_bit and ("fp8-recipe" not in pasted or pasted.text("fp8-recipe") == "delayed")


def _has_gated_delta(pasted: Pasted) -> bool:
    said = set(map(pasted.words, ("experimental-attention-variant", "linear-attention-type")))
    return bool(said & {"gdn", "gated_delta_net"}) or "G" in pasted.words("hybrid-layer-pattern")


_REFUSED: tuple[tuple[tuple[str, ...], Callable[[Pasted], bool], str], ...] = (
    (("moe_act",), lambda pasted: not pasted.is_on("moe-grouped-gemm"), "needs --moe-grouped-gemm"),
    (
        ("mla_up_proj",),
        lambda pasted: "num-layers" in pasted and not pasted.is_on("multi-latent-attention"),
        "needs --multi-latent-attention",
    ),
    (
        ("gdn_norm_out",),
        lambda pasted: "num-layers" in pasted and not _has_gated_delta(pasted),
        "needs --experimental-attention-variant gdn",
    ),
    (
        ("shared_experts",),
        lambda pasted: "moe-shared-expert-intermediate-size" in pasted and pasted.is_on("moe-shared-expert-overlap"),
        "cannot be combined with --moe-shared-expert-overlap",
    ),
    (("moe_act", "layernorm"), _delayed, "cannot be recomputed with fp8 by delayed scaling; give another --fp8-recipe"),
)
"""Modules, when Megatron-LM refuses them, and its rule."""


def _check_modules(pasted: Pasted, modules: list[str]) -> None:
    for names, breaks, rule in _REFUSED:
        name = next((name for name in names if name in modules), None)
        if name is not None and breaks(pasted):
            raise pasted.wrong("recompute-modules", f"{name} {rule}")


_KINDS = {"allgather": "allgather", "alltoall": "alltoall", "flex": "deepep"}
_BACKEND, _BACKENDS = "moe-flex-dispatcher-backend", {"deepep": "deepep", "hybridep": "hybridep"}


def dispatcher(pasted: Pasted) -> str:
    """Return how tokens get to their experts.

    Source: Megatron-LM, megatron/training/arguments.py (--moe-token-dispatcher-type, by default allgather;
    --moe-flex-dispatcher-backend, by default deepep).
    """
    found = pasted.choice(DISPATCHER, _KINDS) if DISPATCHER in pasted else "allgather"
    return pasted.choice(_BACKEND, _BACKENDS) if found == "deepep" and _BACKEND in pasted else found


def dispatcher_flags(kind: str) -> dict[str, Any]:
    """Return the flags that say how tokens get to their experts, as `dispatcher` reads them."""
    found = next((name for name, means in _KINDS.items() if means == kind), "flex")
    return {DISPATCHER: found} | ({_BACKEND: kind} if kind in _BACKENDS else {})


def sends_once_to_a_node(pasted: Pasted) -> bool:
    """Return whether the flexible dispatcher sends, whose back-ends send a token once to each node of its experts."""
    return DISPATCHERS[dispatcher(pasted)].sends == "once"


def _lacks(pasted: Pasted, need: Mapping[str, Any]) -> str | None:
    """Return what flags need to have an effect, where it is not there."""
    if "given" in need:
        return None if any(flag in pasted for flag in need["given"]) else f"--{need['given'][0]}"
    if "on" in need:
        return None if pasted.is_on(need["on"]) else f"--{need['on']}"
    if "recompute" in need:
        return None if granularity(pasted) == need["recompute"] else f"--recompute-granularity {need['recompute']}"
    return None if sends_once_to_a_node(pasted) else f"--{DISPATCHER} flex"


def check_combinations(pasted: Pasted, fields: Mapping[str, Any], described: bool) -> Iterator[Note]:
    """Refuse what Megatron-LM asserts against; yield a note for each flag that has no effect given the others.

    Where the flags do not describe the model, its experts and attention are not known here.
    """
    if pasted.is_on("fp16") and pasted.is_on("bf16"):
        raise pasted.wrong("fp16", "cannot be combined with --bf16; give one of them")
    _check_distributed_optimizer(pasted, fields["zero"])
    _check_types(pasted, fields["zero"])
    if pasted.is_on("moe-enable-deepep") and not sends_once_to_a_node(pasted):
        raise pasted.wrong("moe-enable-deepep", f"needs --{DISPATCHER} flex")
    if granularity(pasted) == "selective":
        for flag in ("recompute-method", "recompute-num-layers"):
            if flag in pasted:
                raise pasted.wrong(flag, "needs --recompute-granularity full, not selective")
    table = flag_table("megatron").further
    unread = [] if described else [f"--{flag}" for flag in table["model"]["flags"].split() if flag in pasted]
    if unread:
        text = f"without --num-layers the flags do not describe the model; without effect are {', '.join(unread)}"
        yield Note("model-flags-unused", text)
    for need in table["needs"]:
        lacking = None if need.get("of_model") and not described else _lacks(pasted, need)
        if lacking is not None:
            yield from (_unused(flag, f"it needs {lacking}") for flag in need["flags"].split() if flag in pasted)


def _check_distributed_optimizer(pasted: Pasted, zero: int) -> None:
    """Refuse flags of the distributed optimizer without it."""
    several = "num-distributed-optimizer-instances"
    if several in pasted and pasted.count(several, 1) > 1 and zero == 0:
        raise pasted.wrong(several, "needs --use-distributed-optimizer")
    if not pasted.is_on("overlap-param-gather"):
        return
    if zero == 0:
        raise pasted.wrong("overlap-param-gather", "needs --use-distributed-optimizer")
    if zero < 2 and not pasted.is_on("overlap-grad-reduce"):
        # Sharding strategies of gradients and parameters turn it on by themselves.
        raise pasted.wrong("overlap-param-gather", "needs --overlap-grad-reduce")


def _check_types(pasted: Pasted, zero: int) -> None:
    """Refuse types of the optimizer's state that need another flag.

    Source: megatron/core/optimizer/optimizer_config.py (__post_init__) and __init__.py.
    """
    aware = "use-precision-aware-optimizer"
    if pasted.is_on(aware) and zero == 0:
        raise pasted.wrong(aware, "needs --use-distributed-optimizer")
    for flag in ("main-grads-dtype", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype"):
        if flag in pasted and pasted.text(flag) != "fp32" and not pasted.is_on(aware):
            raise pasted.wrong(flag, f"is {pasted.text(flag)}, which needs --{aware}")
    in_fp32 = "accumulate-allreduce-grads-in-fp32"
    if pasted.is_on("bf16") and pasted.is_on(in_fp32) and pasted.flags.get("main-grads-dtype") == ("bf16",):
        raise pasted.wrong("main-grads-dtype", f"is bf16, but --{in_fp32} is given too")


def _unused(flag: str, why: str) -> Note:
    return Note(UNUSED, f"--{flag} has no effect: {why}", f"--{flag}")


def gradient_bytes(pasted: Pasted) -> int:
    """Return the bytes of a gradient element as replicas reduce it.

    With bf16 they are accumulated and reduced in fp32, unless ``--grad-reduce-in-bf16`` or
    ``--main-grads-dtype bf16`` says otherwise; with fp16 in fp16, unless
    ``--accumulate-allreduce-grads-in-fp32`` stands there; else parameters and gradients are fp32.
    Source: megatron/training/arguments.py (validate_args, "Parameters dtype").
    """
    in_fp32 = pasted.is_on("accumulate-allreduce-grads-in-fp32")
    if pasted.is_on("bf16"):
        if pasted.is_on("grad-reduce-in-bf16"):
            return 2
        main = pasted.text("main-grads-dtype") if "main-grads-dtype" in pasted else "fp32"
        return 4 if in_fp32 or main == "fp32" else 2
    if pasted.is_on("fp16"):
        return 4 if in_fp32 else 2
    return 4


def gradient_flags(dtype: str, size_bytes: int) -> dict[str, Any]:
    """Return the flags that say in which type gradients are reduced, as `gradient_bytes` reads them.

    Neither is what Megatron-LM does by itself: bf16 is reduced in fp32, and fp16 as it is.
    """
    return {
        "grad-reduce-in-bf16": size_bytes == 2 and dtype not in ("fp16", "fp32", "tf32"),
        "accumulate-allreduce-grads-in-fp32": size_bytes == 4 and dtype == "fp16",
    }


def precision_of(pasted: Pasted, fp8_recipe: str) -> str:
    """Return the type of GEMMs; `fp8_recipe` is that of 8 bits."""
    if "fp4-format" in pasted or "fp4" in pasted:
        return "nvfp4"
    if "fp8-format" in pasted or "fp8" in pasted:
        return fp8_recipe
    return "bf16" if pasted.is_on("bf16") else "fp16" if pasted.is_on("fp16") else "fp32"


def precision_flags(dtype: str) -> dict[str, Any]:
    """Return the flags that say the type of GEMMs, as `precision_of` reads them; 8 and 4 bits stand over bf16."""
    eight = flags_of_fields(flag_table("megatron"), {"precision": dtype})
    return {
        "bf16": dtype not in ("fp16", "fp32", "tf32"),
        "fp16": dtype == "fp16",
        "fp8-format": "hybrid" if eight else None,
        **eight,
        "fp4-format": "e2m1" if dtype == "nvfp4" else None,
    }
