"""What MaxText's settings in the notes of a row mean as columns: the policy of recomputation, axes, slices, types.

Recipes of TPU runs are told as ``name=value`` of MaxText (AI-Hypercomputer/maxtext, configs/base.yml).
"""

import re
from collections.abc import Mapping

from traincast.dialects.flags import flag_table
from traincast.units import is_number

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
    known = cells.get("recompute") in (None, *flag_table("maxtext").further["remat"])
    replaced = {"precision", *(["recompute"] if known else [])}
    return {name: value for name, value in found.items() if value and (name not in cells or name in replaced)}


def _recomputed(policy: str, said: Mapping[str, str]) -> dict[str, str]:
    """Return what a policy recomputes and keeps, and whether the memory of the host keeps it."""
    policies, saved = (flag_table("maxtext").further[name] for name in ("remat", "saved"))
    if policy not in policies or policy == "none":
        return {}
    tensors = policies[policy].split()
    if policy == "custom":
        tensors = [name for name, value in said.items() if value in ("device", "offload")]
    kept = dict.fromkeys(each for name in tensors for each in saved.get(name, "").split())
    away = policy.endswith("offloaded") or (policy == "custom" and "offload" in said.values())
    return {
        "recompute": "full",
        "recompute_keeps": " ".join(kept),
        "offload_activations": _ALL if away else "",
    }


def _axes(cells: Mapping[str, str], said: Mapping[str, str]) -> dict[str, str]:
    """Return degrees, the chips of a slice, and those that share the parameters where some have copies."""
    devices = _CHIPLETS if "v7x" in cells["gpu"] else 1
    tp, cp, ep = (_axis(said, f"ici_{name}_parallelism") for name in ("tensor", "context", "expert"))
    slices = _SLICES.search(cells.get("notes", ""))
    spans = any(said.get(f"dcn_{name}_parallelism", "1") != "1" for name in ("fsdp", "fsdp_transpose"))
    copies = _axis(said, "ici_data_parallelism") * (int(slices[1]) if slices and not spans else 1)
    chips = int(cells.get("num_gpus") or 0)
    found = {"tp": str(max(1, tp // devices)), "pp": "1", "cp": str(max(1, cp // devices))}
    if ep > devices:
        found["ep"] = str(ep // devices)
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
    capacity = said.get("capacity_factor", "")
    integers = cells.get("precision") in ("fp8", "int8") and re.search(r"v5|v6", cells["gpu"])
    return {
        "precision": "fp8" if cells.get("precision") == "int8" else "",
        "fp8_recipe": "aqt_int8" if integers else "",
        "param_gather_bytes": "2" if said.get("weight_dtype") == "bfloat16" else "",
        "capacity_factor": capacity if is_number(capacity) and float(capacity) > 0 else "",
        "moe_routing": "balanced" if said.get("use_random_routing", "").lower() == "true" else "",
    }
