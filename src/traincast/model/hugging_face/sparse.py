"""Readers of models whose queries meet some keys alone: DeepSeek-V3.2 and DeepSeek-V4."""

from traincast.model.hugging_face.config import Config
from traincast.model.hugging_face.readers import ConfigFamily, Table, reader

_LAYERS = {
    "sliding_attention": "window_attention",
    "compressed_sparse_attention": "compressed_sparse_attention",
    "heavily_compressed_attention": "heavily_compressed_attention",
}
"""Values of ``layer_types`` of DeepSeek-V4, and the block that each is."""

_SPARSE, _HEAVY = 4, 128
"""Tokens that a compressed one of each kind stands for, where a config does not say: Transformers,
configuration_deepseek_v4.py (default_compress_rates)."""

_STREAMS = 4


@reader
def _indexer(config: Config, _: ConfigFamily) -> Table:
    """Attention to keys that an indexer chooses, in every layer; experts but for the first dense ones."""
    layers = config.whole("num_hidden_layers")
    dense = config.whole("first_k_dense_replace", default=0) if config.whole("n_routed_experts", default=0) else layers
    inner = ["mlp" if layer < dense else "experts" for layer in range(layers)]
    table: Table = {"blocks": [["sparse_latent_attention", each] for each in inner], "settings": _index_sizes(config)}
    return table if dense == layers else {**table, "experts": {"first_dense_layers": 0}}


@reader
def _compressed(config: Config, _: ConfigFamily) -> Table:
    """Attention to a window and to compressed tokens, by layer; experts in all, whose width is the only one."""
    rates, groups = config.inner("compress_rates"), config.whole("o_groups")
    width, kinds = config.whole("moe_intermediate_size"), _kinds(config)
    shared = config.whole("n_shared_experts", default=1) * width
    settings: Table = {
        "compressed_window": config.whole("sliding_window"),
        "compressed_query_rank": config.whole("q_lora_rank"),
        "compressed_output_rank": config.whole("o_lora_rank"),
        "compressed_groups": groups,
        "compressed_rope_dim": config.whole("qk_rope_head_dim", default=64),
    }
    blocks = [_LAYERS[kind] for kind in kinds]
    if "compressed_sparse_attention" in kinds:
        ratio = rates.whole("compressed_sparse_attention", default=config.whole("compress_rate_csa", default=_SPARSE))
        settings |= {"compressed_sparse_ratio": ratio, **_index_sizes(config)}
    if "heavily_compressed_attention" in kinds:
        ratio = rates.whole("heavily_compressed_attention", default=config.whole("compress_rate_hca", default=_HEAVY))
        settings |= {"compressed_heavy_ratio": ratio}
    mtp_layers = config.whole("num_nextn_predict_layers", default=0)
    mtp = {"mtp_blocks": ["window_attention", "experts"], "mtp_layers": mtp_layers} if mtp_layers else {}
    return {
        "ffn_hidden": width,
        "blocks": [[name, "experts"] for name in blocks],
        "settings": settings,
        "residual_streams": config.whole("hc_mult", default=_STREAMS),
        "attention": {"sinks": True},
        "experts": {
            "experts": config.whole("n_routed_experts"),
            "topk": config.whole("num_experts_per_tok"),
            "ffn_hidden": width,
            "shared_ffn_hidden": shared,
        },
        **mtp,
    }


def _kinds(config: Config) -> list[str]:
    """Return the kind of each layer, as listed, by the ratios of published files, or as the class has them."""
    layers = config.whole("num_hidden_layers")
    found, key = config.words("layer_types"), "layer_types"
    if not found and config.has("compress_ratios"):
        key, named = "compress_ratios", {0: "sliding_attention", _SPARSE: "compressed_sparse_attention"}
        named |= {_HEAVY: "heavily_compressed_attention"}
        # Published lists have an entry for each MTP layer, too.
        found = [named.get(ratio, str(ratio)) for ratio in config.wholes(key)][:layers]
    if not found:
        heavy, sparse = "heavily_compressed_attention", "compressed_sparse_attention"
        found = [sparse if layer > 1 and layer % 2 else heavy for layer in range(layers)]
    unknown = [each for each in found if each not in _LAYERS]
    if unknown:
        raise config.error(f"has {unknown[0]!r}; known: {', '.join(_LAYERS)}", key)
    if len(found) != layers:
        raise config.error(f"has {len(found)} entries for {layers} layers", key)
    return found


def _index_sizes(config: Config) -> Table:
    """Return the sizes of an indexer."""
    return {
        "index_heads": config.whole("index_n_heads"),
        "index_head_dim": config.whole("index_head_dim"),
        "index_topk": config.whole("index_topk"),
    }
