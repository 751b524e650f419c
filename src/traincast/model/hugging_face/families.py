"""What the model types of Hugging Face are: how their layers are built and where their configs say it.

Source: huggingface/transformers, ``src/transformers/models/*/configuration_*.py`` and ``modeling_*.py``; for
types that are not in it (baichuan, chatglm, grok-1, internlm, kimi_k2) the code beside the published weights.
"""

from typing import Any

from traincast.model.hugging_face.config import Config
from traincast.model.hugging_face.parts import (
    Family,
    Table,
    biases,
    full_experts,
    head_bias,
    latent,
    learned_positions,
    local_experts,
    qkv_biases,
    query_norm,
    routed_experts,
    sparse_experts,
    windows,
    windows_of,
)

PLAIN: dict[str, Any] = {"gated": True, "norm": "rms"}
"""A model like Llama, over which a family's values are laid."""

_LAYER_NORM: Table = {"norm": "layer"}
_GPT: Table = {"gated": False, "norm": "layer", "linear_bias": True, "attention": {"qkv_bias": True}}


def unknown_family(config: Config) -> Family:
    """Return a family by the keys that a config of an unknown type has."""
    parts = [biases, query_norm, windows]
    if config.has("kv_lora_rank"):
        parts.append(latent)
    if config.has("n_routed_experts"):
        parts.append(routed_experts)
    elif config.has("moe_intermediate_size"):
        parts.append(sparse_experts)
    elif config.has("num_local_experts", "num_experts"):
        parts.append(local_experts)
    return Family(parts=tuple(parts))


def _bert(config: Config, _: Family) -> Table:
    """Segments, pooler and the two heads of pretraining: Devlin et al. 2018, arXiv 1810.04805, appendix A.2."""
    hidden, vocab = config.whole("hidden_size"), config.whole("vocab_size")
    pooler = hidden * hidden + hidden
    heads = hidden * hidden + 3 * hidden + vocab + 2 * hidden + 2
    return {"other_params": config.whole("type_vocab_size", default=2) * hidden + pooler + heads}


def _big_code(config: Config, _: Family) -> Table:
    return {"attention": {"kv_heads": 1}} if config.flag("multi_query", default=True) else {}


def _opt(config: Config, _: Family) -> Table:
    hidden = config.whole("hidden_size")
    if config.whole("word_embed_proj_dim", default=hidden) != hidden:
        raise config.error("is not the hidden size; projected embeddings are not described", "word_embed_proj_dim")
    # The class keeps two positions for the padding.
    return {"learned_positions": config.whole("max_position_embeddings") + 2}


def _mpt(config: Config, _: Family) -> Table:
    attention, hidden = config.inner("attn_config"), config.whole("d_model")
    bias = not config.flag("no_bias", default=True)
    elsewhere = attention.flag("alibi", default=False) or attention.flag("rope", default=False)
    learned = config.flag("learned_pos_emb", default=True) and not elsewhere
    heads = config.whole("n_heads")
    one = attention.word("attn_type") == "multiquery_attention"
    return {
        "ffn_hidden": hidden * config.whole("expansion_ratio", default=4),
        "linear_bias": bias,
        "learned_positions": config.whole("max_seq_len") if learned else 0,
        "attention": {"qkv_bias": bias, "kv_heads": 1 if one else attention.whole("kv_n_heads", default=heads)},
    }


def _falcon(config: Config, _: Family) -> Table:
    new = config.flag("new_decoder_architecture", default=False)
    heads = config.whole("num_attention_heads", "n_head")
    many = config.whole("num_kv_heads", "n_head_kv", default=heads)
    one = not new and config.flag("multi_query", default=True)
    beside = not new and config.flag("parallel_attn", default=True)
    norms = config.whole("num_ln_in_parallel_attn", default=2) if new else 1 if beside else 2
    bias = config.flag("bias", default=False)
    return {
        "norms_per_layer": norms,
        "linear_bias": bias,
        "attention": {"kv_heads": 1 if one else many if new else heads, "qkv_bias": bias},
    }


def _chatglm(config: Config, _: Family) -> Table:
    heads = config.whole("num_attention_heads")
    groups = config.whole("multi_query_group_num", default=heads)
    few = config.flag("multi_query_attention", default=False)
    return {
        "norm": "rms" if config.flag("rmsnorm", default=True) else "layer",
        "linear_bias": config.flag("add_bias_linear", default=False),
        "attention": {"kv_heads": groups if few else heads, "qkv_bias": config.flag("add_qkv_bias", default=False)},
    }


def _dbrx(config: Config, _: Family) -> Table:
    attention, ffn = config.inner("attn_config"), config.inner("ffn_config")
    width = ffn.whole("ffn_hidden_size")
    experts = {"experts": ffn.whole("moe_num_experts"), "topk": ffn.whole("moe_top_k"), "ffn_hidden": width}
    return {
        "ffn_hidden": width,
        "experts": experts,
        "attention": {"kv_heads": attention.whole("kv_n_heads", default=config.whole("n_heads"))},
    }


def _llama4(config: Config, _: Family) -> Table:
    """Chunks are taken as a window; a layer without rotary positions sees all tokens."""
    width, step = config.whole("intermediate_size"), config.whole("interleave_moe_layer_step", default=1)
    experts: Table = {
        "experts": config.whole("num_local_experts"),
        "topk": config.whole("num_experts_per_tok"),
        "ffn_hidden": width,
        "shared_ffn_hidden": width,
        "period": step,
    }
    table: Table = {"ffn_hidden": config.whole("intermediate_size_mlp", default=width), "experts": experts}
    if config.has("layer_types") or not config.has("attention_chunk_size"):
        return {**table, **windows(config, Family())}
    every = config.whole("no_rope_layer_interval", default=4)
    window = config.whole("attention_chunk_size")
    return {**table, "attention": {"window": window, "window_layers": every - 1, "window_period": every}}


def _internlm(config: Config, _: Family) -> Table:
    return {"attention": {"qkv_bias": config.flag("bias", default=True)}}


_LLAMA = Family(parts=(biases,))
_MISTRAL = Family(parts=(windows,))
_DEEPSEEK = Family(parts=(biases, latent, routed_experts))
_FALCON = Family(values={"gated": False, "norm": "layer"}, parts=(_falcon,), tied=True, four_times=True)
_GEMMA_DEFAULTS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208}
_NO_BIAS_GPT: Table = {"gated": False, "norm": "layer"}

_QWEN2 = Family(values={"attention": {"qkv_bias": True}}, parts=(windows,))
_QWEN3 = Family(values={"attention": {"qk_norm": True}}, parts=(biases, windows))
_QWEN3_MOE = Family(values={"attention": {"qk_norm": True}}, parts=(biases, windows, sparse_experts))
_GLM4_MOE = Family(parts=(qkv_biases, query_norm, routed_experts))

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "aquila": _LLAMA,
    "granite": _LLAMA,
    "olmo": _LLAMA,
    "yi": _LLAMA,
    "baichuan": Family(),
    "internlm": Family(parts=(_internlm,)),
    "internlm2": Family(parts=(qkv_biases,)),
    "internlm3": Family(parts=(qkv_biases,)),
    "minicpm": Family(tied=True),
    "smollm3": Family(parts=(biases,), tied=True),
    "mistral": _MISTRAL,
    "mixtral": Family(parts=(windows, local_experts)),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_omni": _QWEN2,
    "qwen2_moe": Family(values={"attention": {"qkv_bias": True}}, parts=(windows, sparse_experts)),
    "qwen3": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe": _QWEN3_MOE,
    "deepseek": Family(parts=(biases, routed_experts)),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "glm": Family(parts=(qkv_biases,)),
    "glm4": Family(values={"norms_per_layer": 4}, parts=(qkv_biases,)),
    "glm4v": Family(values={"norms_per_layer": 4, "attention": {"qkv_bias": True}}),
    "glm4_moe": _GLM4_MOE,
    "glm4v_moe": _GLM4_MOE,
    "chatglm": Family(parts=(_chatglm,)),
    "gemma": Family(tied=True, defaults={"head_dim": 256}),
    "gemma2": Family(values={"norms_per_layer": 4}, parts=(windows_of(1, 2),), tied=True, defaults={"head_dim": 256}),
    "gemma3": Family(
        values={"norms_per_layer": 4, "attention": {"qk_norm": True}},
        parts=(windows_of(5, 6),),
        tied=True,
        defaults=_GEMMA_DEFAULTS,
    ),
    "phi": Family(values={**_GPT, "norms_per_layer": 1, "head_bias": True}),
    "phi3": _MISTRAL,
    "phimoe": Family(values=_LAYER_NORM, parts=(qkv_biases, head_bias, windows, local_experts)),
    "olmo2": Family(values={"attention": {"qk_norm": True, "qk_norm_whole": True}}, parts=(biases,)),
    "olmo3": Family(values={"attention": {"qk_norm": True, "qk_norm_whole": True}}, parts=(biases, windows)),
    "olmoe": Family(values={"attention": {"qk_norm": True, "qk_norm_whole": True}}, parts=(biases, full_experts)),
    "gpt_oss": Family(
        values={
            "linear_bias": True,
            "attention": {"qkv_bias": True, "sinks": True},
            "experts": {"router_bias": True},
        },
        parts=(windows_of(1, 2), local_experts),
    ),
    "grok-1": Family(values={"norms_per_layer": 4}, parts=(local_experts,), tied=True),
    "llama4": Family(parts=(_llama4,)),
    "nemotron": Family(values=_NO_BIAS_GPT, parts=(biases,)),
    "cohere": Family(
        values={**_LAYER_NORM, "norms_per_layer": 1, "attention": {"qk_norm_whole": True}},
        parts=(query_norm,),
        tied=True,
    ),
    "cohere2": Family(values={**_LAYER_NORM, "norms_per_layer": 1}, parts=(windows_of(3, 4),), tied=True),
    "dbrx": Family(values=_LAYER_NORM, parts=(_dbrx,), four_times=True),
    "gpt2": Family(values=_GPT, parts=(learned_positions,), tied=True, four_times=True),
    "gpt_bigcode": Family(values=_GPT, parts=(learned_positions, _big_code), tied=True, four_times=True),
    "gpt_neox": Family(values=_GPT),
    "gptj": Family(
        values={"gated": False, "norm": "layer", "linear_bias": True, "norms_per_layer": 1, "head_bias": True},
        four_times=True,
    ),
    "opt": Family(values=_GPT, parts=(_opt,), tied=True),
    "bloom": Family(values={**_GPT, "embedding_norm": True}, tied=True, four_times=True),
    "mpt": Family(values=_NO_BIAS_GPT, parts=(_mpt,), tied=True, four_times=True),
    "falcon": _FALCON,
    "RefinedWeb": _FALCON,
    "RefinedWebModel": _FALCON,
    "starcoder2": Family(values=_GPT, parts=(windows,), tied=True),
    "bert": Family(
        values={**_GPT, "attention": {"qkv_bias": True, "causal": False}}, parts=(learned_positions, _bert), tied=True
    ),
}
"""How a config is read, by its ``model_type`` (that of a language model inside another has ``_text`` after it)."""
