"""What can be read of a ``config.json``, part by part; each returns values for a model's table."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from traincast.model.hugging_face.config import Config

Table = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How configs of one ``model_type`` are read."""

    values: Table = field(default_factory=dict)
    """What all models of the type have in common, over a model like Llama."""
    parts: tuple[Callable[[Config, "Family"], Table], ...] = ()
    """What is read beside the size."""
    tied: bool = False
    """Whether the output head is the embedding where the file does not say."""
    four_times: bool = False
    """Whether the feed-forward width may be left out, and is then four times the hidden size."""
    defaults: dict[str, int] = field(default_factory=dict)
    """Values of the class that published files leave out."""


def head(config: Config, family: Family) -> Table:
    """Read the sizes that every model has."""
    default = family.defaults
    hidden = config.whole("hidden_size", "n_embd", "d_model", "n_embed")
    heads = config.whole("num_attention_heads", "n_head", "n_heads", default=default.get("num_attention_heads"))
    kv_heads = config.whole(
        *("num_key_value_heads", "num_kv_heads", "n_head_kv"), default=default.get("num_key_value_heads", heads)
    )
    attention: Table = {"heads": heads, "kv_heads": kv_heads}
    head_dim = config.whole("head_dim", "kv_channels", "attention_head_dim", default=default.get("head_dim", 0))
    if head_dim:
        attention["head_dim"] = head_dim
    elif heads == 0 or hidden % heads:
        raise config.error(f"{hidden} do not divide into {heads} heads, and there is no head_dim", "hidden_size")
    table: Table = {
        "layers": config.whole("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        "hidden": hidden,
        "vocab": config.whole("vocab_size", "padded_vocab_size", default=default.get("vocab_size")),
        "ffn_hidden": config.whole(
            *("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"),
            default=4 * hidden if family.four_times else None,
        ),
        "tied_embeddings": config.flag("tie_word_embeddings", default=family.tied),
        "attention": attention,
    }
    positions = config.whole("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=0)
    return {**table, "max_positions": positions} if positions else table


def biases(config: Config, _: Family) -> Table:
    """Read ``attention_bias`` and ``mlp_bias`` as Llama has them; the attention output's own is not counted."""
    return {
        "attention": {"qkv_bias": config.flag("attention_bias", default=False)},
        "linear_bias": config.flag("mlp_bias", default=False),
    }


def qkv_biases(config: Config, _: Family) -> Table:
    """Read the biases of queries, keys and values alone."""
    keys = [key for key in ("attention_bias", "add_qkv_bias", "qkv_bias", "bias") if config.has(key)]
    return {"attention": {"qkv_bias": any(config.flag(key, default=False) for key in keys)}}


def windows(config: Config, _: Family) -> Table:
    """Read a sliding window: that of the layers that ``layer_types`` names, or the class's own pattern."""
    window = config.whole("sliding_window", "attention_chunk_size", default=0)
    layers = config.whole("num_hidden_layers")
    # Only the classes of Qwen have this key, and have it false.
    used = config.flag("use_sliding_window", default=not config.word("model_type").startswith("qwen"))
    if not window or not used:
        return {}
    kinds = config.words("layer_types")
    if kinds and len(kinds) != layers:
        raise config.error(f"has {len(kinds)} entries for {layers} layers", "layer_types")
    if kinds:
        local = [kind in ("sliding_attention", "chunked_attention") for kind in kinds]
        return {"attention": {"window": window, **_pattern(config, local, "layer_types")}} if any(local) else {}
    if config.has("max_window_layers"):
        first = config.whole("max_window_layers")
        local = [layer >= first for layer in range(layers)]
        return {"attention": {"window": window, **_pattern(config, local, "max_window_layers")}} if any(local) else {}
    return {"attention": {"window": window, "window_layers": 1, "window_period": 1}}


def windows_of(local: int, period: int) -> Callable[[Config, Family], Table]:
    """Return a reader for classes in which so many layers of each period have a window where nothing is said."""

    def read(config: Config, family: Family) -> Table:
        if config.has("layer_types") or not config.has("sliding_window"):
            return windows(config, family)
        every = config.whole("sliding_window_pattern", default=period)
        of = {"window_layers": every - 1 if config.has("sliding_window_pattern") else local, "window_period": every}
        return {"attention": {"window": config.whole("sliding_window"), **of}}

    return read


def _pattern(config: Config, local: list[bool], key: str) -> Table:
    """Return the shortest period that has its layers with a window first, for a list of which layers have one."""
    for period in range(1, len(local) + 1):
        count = sum(local[:period])
        if all(each == (layer % period < count) for layer, each in enumerate(local)):
            return {"window_layers": count, "window_period": period}
    config.note("window-layers-moved", f"{sum(local)} layers with a window are taken as the first ones", key)
    return {"window_layers": sum(local), "window_period": len(local)}


def query_norm(config: Config, _: Family) -> Table:
    """Read whether queries and keys are normalised."""
    keys = [key for key in ("use_qk_norm", "qk_layernorm") if config.has(key)]
    normalised = any(config.flag(key, default=False) for key in keys)
    return {"attention": {"qk_norm": normalised, "qk_norm_whole": normalised}}


def latent(config: Config, _: Family) -> Table:
    """Read multi-head latent attention."""
    heads = config.whole("num_attention_heads", "n_head")
    parts: Table = {
        "kv_rank": config.whole("kv_lora_rank"),
        "rope_head_dim": config.whole("qk_rope_head_dim"),
        "nope_head_dim": config.whole("qk_nope_head_dim"),
        "v_head_dim": config.whole("v_head_dim"),
    }
    if config.has("q_lora_rank"):
        parts["q_rank"] = config.whole("q_lora_rank")
    width = parts["nope_head_dim"] + parts["rope_head_dim"]
    return {"attention": {"latent": parts, "kv_heads": heads, "head_dim": width}}


def local_experts(config: Config, _: Family) -> Table:
    """Read experts as wide as ``intermediate_size``: Mixtral, gpt-oss, Grok-1, Phi-3.5-MoE."""
    experts = config.whole("num_local_experts", "num_experts")
    topk = config.whole("num_experts_per_tok", "experts_per_token", "num_selected_experts")
    return {"experts": {"experts": experts, "topk": topk, "ffn_hidden": config.whole("intermediate_size")}}


def sparse_experts(config: Config, _: Family) -> Table:
    """Read the experts of Qwen: every so many layers, but for those of ``mlp_only_layers``."""
    dense = sorted(config.wholes("mlp_only_layers"))
    if dense != list(range(len(dense))):
        raise config.error(f"is {dense}; dense layers that are not the first are not described", "mlp_only_layers")
    step = config.whole("decoder_sparse_step", default=1)
    if dense and step != 1:
        raise config.error(f"is {dense} beside a decoder_sparse_step of {step}; not described", "mlp_only_layers")
    experts: Table = {
        "experts": config.whole("num_experts"),
        "topk": config.whole("num_experts_per_tok"),
        "ffn_hidden": config.whole("moe_intermediate_size"),
        "shared_ffn_hidden": config.whole("shared_expert_intermediate_size", default=0),
        "first_dense_layers": len(dense),
        "period": step,
    }
    # A gate of its own multiplies what the shared experts give (Transformers, modeling_qwen2_moe.py).
    return {"experts": {**experts, "shared_gate": experts["shared_ffn_hidden"] > 0}}


def routed_experts(config: Config, _: Family) -> Table:
    """Read the experts of DeepSeek: shared ones as a number, after the first dense layers."""
    if not config.whole("n_routed_experts", default=0):
        return {}
    if config.whole("moe_layer_freq", default=1) != 1:
        raise config.error(
            f"is {config.values['moe_layer_freq']}; only experts in every layer are described", "moe_layer_freq"
        )
    width = config.whole("moe_intermediate_size")
    return {
        "experts": {
            "experts": config.whole("n_routed_experts"),
            "topk": config.whole("num_experts_per_tok"),
            "ffn_hidden": width,
            "shared_ffn_hidden": config.whole("n_shared_experts", default=0) * width,
            "first_dense_layers": config.whole("first_k_dense_replace", default=0),
            **_limited_routing(config),
        },
        "mtp_layers": config.whole("num_nextn_predict_layers", default=0),
    }


def _limited_routing(config: Config) -> Table:
    """Read the groups of node-limited routing; ``topk_method`` greedy has none (DeepSeek, modeling_deepseek.py)."""
    if config.has("topk_method") and config.word("topk_method") == "greedy":
        return {}
    groups, chosen = config.whole("n_group", default=1), config.whole("topk_group", default=1)
    return {"groups": groups, "group_topk": chosen} if groups > 1 else {}


def full_experts(config: Config, _: Family) -> Table:
    """Read a feed-forward part of experts that has one width for all: OLMoE."""
    experts, topk = config.whole("num_experts"), config.whole("num_experts_per_tok")
    return {"experts": {"experts": experts, "topk": topk, "ffn_hidden": config.whole("intermediate_size")}}


def head_bias(config: Config, _: Family) -> Table:
    """Read whether the LM head has a bias."""
    return {"head_bias": config.flag("lm_head_bias", default=False)}


def learned_positions(config: Config, _: Family) -> Table:
    """Read as many learned positions as the model has positions."""
    return {"learned_positions": config.whole("n_positions", "max_position_embeddings")}
