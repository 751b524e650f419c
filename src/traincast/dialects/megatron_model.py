"""The model that Megatron-LM's flags describe, and a notation of theirs: layers with experts.

Source: Megatron-LM, megatron/training/arguments.py (validate_args, moe_freq_type).
"""

import ast
import re
from typing import Any

from traincast.diagnostics import Note
from traincast.dialects.flags import Pasted, flag_table
from traincast.errors import ConfigError
from traincast.model.model import Model
from traincast.model.table import model_from_table
from traincast.units import count_of, quoted

_DEFAULT_VOCABULARY = 50257
_NORMS = {"RMSNorm": "rms", "LayerNorm": "layer"}
_FREQUENCY = re.compile(r"\(\[([01](?:,[01])*)\]\*(\d{1,9})\)|\[([01](?:,[01])*)\](?:\*(\d{1,9}))?")
_LONGEST = 1 << 16


def described_model(pasted: Pasted, notes: list[Note]) -> Model | None:
    """Return the model of the flags; None where they do not describe one."""
    if "num-layers" not in pasted:
        return None
    for flag in ("hidden-size", "num-attention-heads"):
        if flag not in pasted:
            raise pasted.wrong(flag, "is missing; --num-layers needs it")
    hidden, heads = pasted.count("hidden-size", 1), pasted.count("num-attention-heads", 1)
    gated = pasted.is_on("swiglu") or pasted.is_on("quick-geglu")
    # Source: arguments.py, validate_args: 4 h, or for a gated layer 8 h / 3 rounded to 64.
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    ffn = pasted.count("ffn-hidden-size", 1, usual=usual)
    positions = _position_type(pasted)
    table: dict[str, Any] = {
        "name": "megatron model",
        "layers": pasted.count("num-layers", 1),
        "hidden": hidden,
        "ffn_hidden": ffn,
        "gated": gated,
        "vocab": _vocabulary(pasted, notes),
        "tied_embeddings": not pasted.is_on("untie-embeddings-and-output-weights"),
        "norm": pasted.choice("normalization", _NORMS) if "normalization" in pasted else "layer",
        "linear_bias": not pasted.is_on("disable-bias-linear"),
        "learned_positions": _positions(pasted) if positions == "learned_absolute" else 0,
        "mtp_layers": pasted.count("mtp-num-layers", usual=0),
        "attention": _attention(pasted, hidden, heads),
        "source": "pasted Megatron-LM flags",
    }
    if "num-experts" in pasted:
        table["experts"] = _experts(pasted, table["layers"], ffn)
    return model_from_table(table, pasted.shown)


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
    if "window-size" in pasted:
        attention |= {"window": _window(pasted), **_window_layers(pasted)}
    return attention


def _window(pasted: Pasted) -> int:
    """Read ``(4095, 0)`` or ``4095,0`` as the tokens a query sees back."""
    text = pasted.words("window-size")
    try:
        value = ast.literal_eval(text)
        return int(value[0]) + 1
    except (ValueError, SyntaxError, TypeError, IndexError):
        raise pasted.wrong("window-size", f"is {quoted(text)}; write it like (4095,0)") from None


def _window_layers(pasted: Pasted) -> dict[str, int]:
    """Return which layers have the window: all, or all but the last of every so many.

    Source: Megatron-LM, megatron/core/transformer/utils.py (is_layer_window_attention).
    """
    flag = "window-attn-skip-freq"
    if flag not in pasted:
        return {"window_layers": 1}
    text = "".join(pasted.flags[flag])
    period = count_of(text)
    if period is None or period < 2:
        raise pasted.wrong(flag, f"is {quoted(text)}; only a period of 2 or more can be described")
    return {"window_layers": period - 1, "window_period": period}


def _experts(pasted: Pasted, layers: int, ffn: int) -> dict[str, Any]:
    experts: dict[str, Any] = {
        "experts": pasted.count("num-experts", 1),
        "topk": pasted.count("moe-router-topk", 1, usual=2),
        "ffn_hidden": pasted.count("moe-ffn-hidden-size", 1, usual=ffn),
    }
    experts |= _expert_groups(pasted)
    if "moe-shared-expert-intermediate-size" in pasted:
        experts["shared_ffn_hidden"] = pasted.count("moe-shared-expert-intermediate-size", 1)
    if "moe-expert-capacity-factor" in pasted:
        experts["capacity_factor"] = pasted.number("moe-expert-capacity-factor")
    if "moe-layer-freq" in pasted:
        experts["first_dense_layers"], experts["period"] = moe_layers(pasted.words("moe-layer-freq"), layers)
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


def moe_layers(text: str, layers: int) -> tuple[int, int]:
    """Read ``2`` or ``([0]*3+[1]*58)`` as plain layers at the start, and one layer in how many has experts.

    Raises
    ------
    ConfigError
        If it is neither, does not cover the layers, or is a pattern that cannot be described so.
    """
    flag = "--moe-layer-freq"
    bare = re.sub(r"[\s'\"]", "", text)
    if (period := count_of(bare)) is not None:
        return 0, period
    if bare.startswith("([") and bare.endswith(")") and _FREQUENCY.sub("", bare[1:-1]).strip("+") == "":
        bare = bare[1:-1]
    if not bare or _FREQUENCY.sub("", bare).strip("+*0123456789") not in ("", "()"):
        raise ConfigError(f"is {quoted(text)}; write a number, or a list like ([0]*3+[1]*58)", flag)
    pattern: list[int] = []
    for grouped, group_times, single, times in _FREQUENCY.findall(bare):
        numbers = [int(each) for each in (grouped or single).split(",")]
        pattern += numbers * min(int(group_times or times or 1), _LONGEST)
    if len(pattern) != layers or 1 not in pattern:
        raise ConfigError(f"covers {len(pattern)} layers, {sum(pattern)} with experts; the model has {layers}", flag)
    first = pattern.index(1)
    rest = pattern[first:]
    period = next((gap for gap in range(1, len(rest)) if rest[gap]), len(rest))
    # One in `period`, counted from the end of each period: the first of them comes after period - 1 plain ones.
    dense = first - (period - 1)
    regular = all((index - dense) % period == period - 1 for index, each in enumerate(pattern) if each)
    if dense < 0 or not regular or sum(pattern) != (layers - dense) // period:
        raise ConfigError(f"is {quoted(text)}, a pattern that is not one layer in so many after some plain ones", flag)
    return dense, period
