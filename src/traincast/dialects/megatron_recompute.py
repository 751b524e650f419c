"""Megatron-LM's flags of recomputation: what they ask for, and which combinations it refuses.

Source: Megatron-LM, megatron/core/transformer/transformer_config.py (__post_init__), megatron/training/arguments.py.
"""

from collections.abc import Callable
from typing import Any

from traincast.dialects.pasted import Pasted
from traincast.errors import ConfigError
from traincast.job.frameworks import RECOMPUTE_METHODS


def granularity(pasted: Pasted) -> str:
    """Return what is recomputed: ``full``, ``selective`` or ``none``.

    Raises
    ------
    ConfigError
        If ``--recompute-granularity`` has another value.
    """
    layer = pasted.is_on("moe-layer-recompute")
    if "recompute-granularity" in pasted:
        found = pasted.choice("recompute-granularity", {"full": "full", "selective": "selective"})
        if layer and found == "full":
            raise ConfigError(
                f"cannot stand beside --recompute-granularity full (in {pasted.shown})", "--moe-layer-recompute"
            )
        return found
    return "selective" if layer or pasted.is_on("recompute-activations") else "none"


def recompute_fields(pasted: Pasted) -> dict[str, Any]:
    """Return the fields of a job that the flags set.

    Raises
    ------
    ConfigError
        If Megatron-LM refuses the modules beside the other flags.
    """
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
        _check(pasted, modules)
    overlap = "overlap-moe-expert-parallel-comm"
    if pasted.is_on(overlap) and (recompute == "full" or "moe" in fields.get("recompute_modules", ())):
        what = "--recompute-granularity full" if recompute == "full" else "moe among --recompute-modules"
        raise ConfigError(f"cannot stand beside {what} (in {pasted.shown})", f"--{overlap}")
    return fields


def _delayed(pasted: Pasted) -> bool:
    eight_bit = "fp8-format" in pasted or "fp8" in pasted
    return eight_bit and ("fp8-recipe" not in pasted or pasted.text("fp8-recipe") == "delayed")


_REFUSED: tuple[tuple[tuple[str, ...], Callable[[Pasted], bool], str], ...] = (
    (("moe_act",), lambda pasted: not pasted.is_on("moe-grouped-gemm"), "needs --moe-grouped-gemm"),
    (
        ("mla_up_proj",),
        lambda pasted: "num-layers" in pasted and not pasted.is_on("multi-latent-attention"),
        "needs --multi-latent-attention",
    ),
    (
        ("shared_experts",),
        lambda pasted: "moe-shared-expert-intermediate-size" in pasted and pasted.is_on("moe-shared-expert-overlap"),
        "cannot stand beside --moe-shared-expert-overlap",
    ),
    (("moe_act", "layernorm"), _delayed, "cannot be recomputed with fp8 by delayed scaling; give another --fp8-recipe"),
)
"""Modules, when Megatron-LM refuses them, and its rule."""


def _check(pasted: Pasted, modules: list[str]) -> None:
    for names, breaks, rule in _REFUSED:
        name = next((name for name in names if name in modules), None)
        if name is not None and breaks(pasted):
            raise ConfigError(f"{name} {rule} (in {pasted.shown})", "--recompute-modules")
