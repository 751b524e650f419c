"""The model that Megatron-LM's flags describe; what its layers are says `traincast.dialects.megatron_layers`.

Source: Megatron-LM, megatron/training/arguments.py (validate_args).
"""

import re
from typing import Any

from traincast.diagnostics import Note
from traincast.dialects.flags import Pasted, flag_table
from traincast.dialects.megatron_hybrid import Hybrid
from traincast.dialects.megatron_layers import Decoder, layer_fields
from traincast.model.model import Model
from traincast.model.table import merged, model_from_table

_DEFAULT_VOCABULARY = 50257
_NORMS = {"RMSNorm": "rms", "LayerNorm": "layer"}


def described_model(
    pasted: Pasted, hybrid: Hybrid | None, notes: list[Note], decoder: Decoder | None = None, *, causal: bool = True
) -> Model | None:
    """Return the model of the flags, whose tokens see earlier ones alone where it is causal; None for no model."""
    if "num-layers" not in pasted and hybrid is None:
        return None
    for flag in ("hidden-size", "num-attention-heads"):
        if flag not in pasted:
            said = "num-layers" if "num-layers" in pasted else "hybrid-layer-pattern"
            raise pasted.wrong(flag, f"is missing; --{said} needs it")
    hidden, heads = pasted.count("hidden-size", 1), pasted.count("num-attention-heads", 1)
    gated = pasted.is_on("swiglu") or pasted.is_on("quick-geglu")
    # Source: arguments.py, validate_args: 4 h, or for a gated layer 8 h / 3 rounded to 64.
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    ffn = pasted.count("ffn-hidden-size", 1, usual=usual)
    positions = _position_type(pasted)
    table: dict[str, Any] = {
        "name": "megatron model",
        "hidden": hidden,
        "ffn_hidden": ffn,
        "gated": gated,
        "vocab": _vocabulary(pasted, notes),
        "tied_embeddings": not pasted.is_on("untie-embeddings-and-output-weights"),
        "norm": pasted.choice("normalization", _NORMS) if "normalization" in pasted else "layer",
        "linear_bias": not pasted.is_on("disable-bias-linear"),
        "learned_positions": _positions(pasted) if positions == "learned_absolute" else 0,
        "attention": _attention(pasted, hidden, heads)
        | {"rotary": positions != "none", "scaled_rotary": positions == "yarn", "causal": causal},
        "source": "pasted Megatron-LM flags",
    }
    if pasted.is_on("enable-mhc-connections"):
        table["residual_streams"] = pasted.count("mhc-num-residual-streams", 1, usual=4)
    layers = layer_fields(pasted, hybrid, decoder)
    if "num-experts" in pasted:
        table["experts"] = _experts(pasted, ffn)
    else:
        del layers["experts"]
    return model_from_table(merged(table, layers), pasted.shown)


def _position_type(pasted: Pasted) -> str:
    if pasted.is_on("use-rotary-position-embeddings"):
        return "rope"
    if pasted.is_on("no-position-embedding"):
        return "none"
    return pasted.text("position-embedding-type") if "position-embedding-type" in pasted else "learned_absolute"


def _positions(pasted: Pasted) -> int:
    """Return the learned positions: the longest position, or the sequence."""
    for flag in ("max-position-embeddings", "seq-length"):
        if flag in pasted:
            return pasted.tokens(flag)
    return 0


def _vocabulary(pasted: Pasted, notes: list[Note]) -> int:
    """Return the vocabulary: given, of a tokenizer that has one, or GPT-2's as an assumption."""
    if "vocab-size" in pasted:
        return pasted.count("vocab-size", 1)
    words = f"{pasted.words('tokenizer-type')} {pasted.words('tokenizer-model')}"
    sizes: dict[str, int] = flag_table("megatron").further["tokenizers"]
    found = next((size for name, size in sizes.items() if name in words), None)
    if found is None and re.search(r"llama-?_?3", words, re.IGNORECASE):
        found = sizes["Llama3Tokenizer"]
    if found is not None:
        return found
    notes.append(
        Note("assumed-vocabulary", f"the tokenizer does not tell its size: {_DEFAULT_VOCABULARY}; give --vocab-size")
    )
    return _DEFAULT_VOCABULARY


def _attention(pasted: Pasted, hidden: int, heads: int) -> dict[str, Any]:
    attention: dict[str, Any] = {
        "heads": heads,
        "kv_heads": heads,
        "qkv_bias": pasted.is_on("add-qkv-bias") or not pasted.is_on("disable-bias-linear"),
        "qk_norm": pasted.is_on("qk-layernorm"),
        "output_gate": pasted.is_on("attention-output-gate"),
        "sinks": "softmax-type" in pasted and pasted.text("softmax-type") == "learnable",
    }
    if pasted.is_on("group-query-attention"):
        attention["kv_heads"] = pasted.count("num-query-groups", 1, usual=1)
    if pasted.is_on("multi-latent-attention"):
        sizes = {"kv-lora-rank": 512, "qk-head-dim": 128, "qk-pos-emb-head-dim": 64, "v-head-dim": 128}
        found = {flag: pasted.count(flag, 1, usual=usual) for flag, usual in sizes.items()}
        attention["latent"] = {
            "kv_rank": found["kv-lora-rank"],
            "nope_head_dim": found["qk-head-dim"],
            "rope_head_dim": found["qk-pos-emb-head-dim"],
            "v_head_dim": found["v-head-dim"],
        }
        if "q-lora-rank" in pasted:
            attention["latent"]["q_rank"] = pasted.count("q-lora-rank", 1)
        return attention
    attention["head_dim"] = pasted.count("kv-channels", 1, usual=hidden // heads)
    return attention


def _experts(pasted: Pasted, ffn: int) -> dict[str, Any]:
    experts: dict[str, Any] = {
        "experts": pasted.count("num-experts", 1),
        "topk": pasted.count("moe-router-topk", 1, usual=2),
        "ffn_hidden": pasted.count("moe-ffn-hidden-size", 1, usual=ffn),
        "latent_hidden": pasted.count("moe-latent-size", 1, usual=0),
        "router_bias": pasted.is_on("moe-router-enable-expert-bias"),
        "bias_balanced": pasted.is_on("moe-router-enable-expert-bias"),
        "shared_gate": pasted.is_on("moe-shared-expert-gate"),
    }
    experts |= _expert_groups(pasted)
    if "moe-shared-expert-intermediate-size" in pasted:
        experts["shared_ffn_hidden"] = pasted.count("moe-shared-expert-intermediate-size", 1)
    if "moe-expert-capacity-factor" in pasted:
        experts["capacity_factor"] = pasted.number("moe-expert-capacity-factor")
    return experts


def _expert_groups(pasted: Pasted) -> dict[str, int]:
    """Return the groups of node-limited routing, and those of a token.

    Source: Megatron-LM, arguments.py: --moe-router-topk-limited-devices stands for a group for each EP rank.
    """
    devices = "moe-router-topk-limited-devices"
    if devices in pasted:
        ranks = "expert-model-parallel-size"
        return {"groups": pasted.count(ranks, 1, usual=1), "group_topk": pasted.count(devices, 1)}
    names = ("moe-router-num-groups", "moe-router-group-topk")
    given = [name for name in names if name in pasted]
    if len(given) == 1:
        missing = next(name for name in names if name not in given)
        raise pasted.wrong(given[0], f"needs --{missing}")
    return {"groups": pasted.count(names[0], 1), "group_topk": pasted.count(names[1], 1)} if given else {}
