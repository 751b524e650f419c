"""What MaxText's settings in the notes of a row mean as columns: the policy of recomputation, axes, slices, types.

Recipes of TPU runs are told as ``name=value`` of MaxText (AI-Hypercomputer/maxtext, configs/base.yml). What a policy
keeps: layers/decoders.py (get_remat_policy) and utils/maxtext_utils.py (get_save_and_offload_names).
"""

import re
from collections.abc import Mapping

KEPT = {
    "query_proj": "linear_qkv",
    "qkv_proj": "linear_qkv",
    "context": "core_attn",
    "out_proj": "linear_proj",
    "mlpwi": "linear_fc1 expert_fc1",
    "mlpwi_0": "linear_fc1 expert_fc1",
    "mlpwo": "linear_fc2 expert_fc2",
}
"""Name of a saved tensor to outputs that then do not run again (`traincast.model.recompute.RECOMPUTE_KEEPS`). Of
queries, keys and values only the first are large where heads are shared."""

POLICIES = {
    "minimal": ("query_proj", "out_proj", "mlpwi", "mlpwo"),
    "minimal_flash": ("query_proj", "context", "out_proj", "mlpwi", "mlpwo"),
    "minimal_with_context": ("query_proj", "context", "out_proj", "mlpwi", "mlpwo"),
    "minimal_offloaded": ("query_proj", "out_proj", "mlpwi", "mlpwo"),
    "save_dot_with_context_except_mlp": ("query_proj", "context", "out_proj"),
    "save_dot_except_mlpwi": ("query_proj", "out_proj", "mlpwo"),
    "save_dot_except_mlp": ("query_proj", "out_proj"),
    "save_qkv_proj": ("query_proj",),
    "qkv_proj_offloaded": ("query_proj",),
    "save_out_proj": ("out_proj",),
    "custom": (),
    "full": (),
}
"""Tensors that a policy saves; ``custom`` those that are named ``device`` or ``offload``."""

_SETTING = re.compile(r"\b([a-z][a-z0-9_]*)=([\w.,'-]+)")
_SLICES = re.compile(r"(?<![\w.])(\d+)x v\d")
_ALL = "9999"
"""Layers, of which there are fewer."""
_CHIPLETS = 2
"""Devices of a chip of TPU v7x, over which its axes go."""


def maxtext_cells(cells: Mapping[str, str]) -> dict[str, str]:
    """Return the cells that settings of MaxText on TPUs fill in; ``custom`` recomputation in other words."""
    if "maxtext" not in cells.get("framework", "").lower() or not cells.get("gpu", "").startswith("TPU"):
        return {}
    said = {name: value.strip(",'") for name, value in _SETTING.findall(cells.get("notes", ""))}
    policy = cells.get("recompute") or said.get("remat_policy", "")
    found = {**_recomputed(policy, said), **_axes(cells, said), **_types(cells, said)}
    replaced = {"recompute"} if policy in POLICIES else set()
    return {name: value for name, value in found.items() if value and (name not in cells or name in replaced)}


def _recomputed(policy: str, said: Mapping[str, str]) -> dict[str, str]:
    """Return what a policy recomputes and keeps, and whether the memory of the host keeps it."""
    if policy not in POLICIES:
        return {}
    saved = [name for name, value in said.items() if value in ("device", "offload")] if policy == "custom" else []
    kept = dict.fromkeys(each for name in (*POLICIES[policy], *saved) for each in KEPT.get(name, "").split())
    away = policy.endswith("offloaded") or (policy == "custom" and "offload" in said.values())
    return {
        "recompute": "full",
        "recompute_keeps": " ".join(kept),
        "offload_activations": _ALL if away else "",
    }


def _axes(cells: Mapping[str, str], said: Mapping[str, str]) -> dict[str, str]:
    """Return degrees, the chips of a slice, and those that share the parameters where some have copies."""
    devices = _CHIPLETS if "v7x" in cells["gpu"] else 1
    tp, cp = (_axis(said, f"ici_{name}_parallelism") for name in ("tensor", "context"))
    slices = _SLICES.search(cells.get("notes", ""))
    copies = _axis(said, "ici_data_parallelism") * (int(slices[1]) if slices else 1)
    chips = int(cells.get("num_gpus") or 0)
    found = {"tp": str(max(1, tp // devices)), "pp": "1", "cp": str(max(1, cp // devices))}
    if slices and chips:
        found["gpus_per_node"] = str(chips // int(slices[1]))
    if copies > 1 and chips % copies == 0:
        found["zero_or_fsdp"] = f"fsdp-{chips // copies}"
    return found


def _axis(said: Mapping[str, str], name: str) -> int:
    text = said.get(name, "1")
    return int(text) if text.isdigit() else 1


def _types(cells: Mapping[str, str], said: Mapping[str, str]) -> dict[str, str]:
    """Return types of weights and GEMMs, and how tokens are routed.

    Chips without units for fp8 take integers (quantization int8).
    """
    integers = cells.get("precision") in ("fp8", "int8") and re.search(r"v5|v6", cells["gpu"])
    return {
        "fp8_recipe": "aqt_int8" if integers else "",
        "param_gather_bytes": "2" if said.get("weight_dtype") == "bfloat16" else "",
        "moe_routing": "balanced" if said.get("use_random_routing", "").lower() == "true" else "",
    }
