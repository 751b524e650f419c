"""Readers of models whose layers are of several kinds: with states, linear attention or convolutions among them."""

from traincast.model.hugging_face.config import Config
from traincast.model.hugging_face.readers import ConfigFamily, Table, limited_routing, reader


@reader
def _nemotron_h(config: Config, _: ConfigFamily) -> Table:
    """Layers of one block each, by a pattern of letters or a list of names; experts as Nemotron 3 has them."""
    inner = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel")
    names = ("mamba_heads", "mamba_head_dim", "mamba_state", "mamba_groups", "mamba_kernel")
    table: Table = {
        "settings": {name: config.whole(key) for name, key in zip(names, inner, strict=True)},
        "linear_bias": config.flag("mlp_bias", default=False),
        "attention": {"qkv_bias": config.flag("attention_bias", default=False)},
        **_layers_of("hybrid_override_pattern", "layers_block_type", config, "pattern", "blocks"),
    }
    if config.whole("num_nextn_predict_layers", default=0):
        table |= {"mtp_layers": config.whole("num_nextn_predict_layers")}
        table |= _layers_of("mtp_hybrid_override_pattern", "mtp_layers_block_type", config, "mtp_pattern", "mtp_blocks")
    if config.whole("n_routed_experts", default=0):
        table["experts"] = {
            "experts": config.whole("n_routed_experts"),
            "topk": config.whole("num_experts_per_tok"),
            "ffn_hidden": config.whole("moe_intermediate_size"),
            "shared_ffn_hidden": config.whole("n_shared_experts", default=0)
            * config.whole("moe_shared_expert_intermediate_size", default=0),
            "latent_hidden": config.whole("moe_latent_size", default=0),
            "router_bias": True,
            "bias_balanced": True,
            **limited_routing(config),
        }
    return table


_BLOCK_TYPES = {"mamba": "mamba2", "attention": "attention", "moe": "experts", "mlp": "mlp"}
"""Names of ``layers_block_type``, and the block that each is."""


def _layers_of(pattern: str, listed: str, config: Config, as_pattern: str, as_blocks: str) -> Table:
    """Return the blocks of layers from a pattern of letters, or from a list of their names."""
    if config.has(pattern):
        return {as_pattern: config.word(pattern)}
    found = config.words(listed)
    if not found:
        raise config.error(f"is missing, and there is no {pattern}", listed)
    unknown = [each for each in found if each not in _BLOCK_TYPES]
    if unknown:
        raise config.error(f"has {unknown[0]!r}; known: {', '.join(_BLOCK_TYPES)}", listed)
    names = [_BLOCK_TYPES[each] for each in found]
    return {as_blocks: names if as_blocks == "mtp_blocks" else [[name] for name in names]}


@reader
def _linear_layers(config: Config, _: ConfigFamily) -> Table:
    """Layers of linear attention by the gated delta rule, but for those of full attention, which has an output gate."""
    layers, every = config.whole("num_hidden_layers"), config.whole("full_attention_interval", default=4)
    usual = [
        "full_attention" if every and layer % every == every - 1 else "linear_attention" for layer in range(layers)
    ]
    kinds = {"linear_attention": "gated_delta", "full_attention": "attention"}
    found = config.words("layer_types") or usual
    unknown = [each for each in found if each not in kinds]
    if unknown:
        raise config.error(f"has {unknown[0]!r}; known: {', '.join(kinds)}", "layer_types")
    names = ("key_heads", "value_heads", "key_dim", "value_dim", "kernel")
    keys = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    inner = "experts" if config.whole("num_experts", default=0) else "mlp"
    return {
        "blocks": [[kinds[each], inner] for each in found],
        "settings": {f"linear_{name}": config.whole(f"linear_{key}") for name, key in zip(names, keys, strict=True)},
        "attention": {"output_gate": True},
        "mtp_layers": config.whole("mtp_num_hidden_layers", default=0),
    }


@reader
def _kimi_linear(config: Config, _: ConfigFamily) -> Table:
    """Layers of Kimi delta attention and of latent attention, both by number from 1; experts behind dense layers."""
    linear, layers = config.inner("linear_attn_config"), config.whole("num_hidden_layers")
    full, delta = linear.wholes("full_attn_layers"), linear.wholes("kda_layers")
    if sorted((*full, *delta)) != list(range(1, layers + 1)):
        raise linear.error(f"and full_attn_layers do not name each of {layers} layers once", "kda_layers")
    if linear.flag("use_full_rank_gate", default=False):
        raise linear.error("is true; gates that pass through no narrow vectors are not described", "use_full_rank_gate")
    dense = config.whole("first_k_dense_replace", default=0) if config.has("num_experts") else layers
    kinds = ["latent_attention" if layer in full else "kimi_delta" for layer in range(1, layers + 1)]
    head_dim = linear.whole("head_dim")
    table: Table = {
        "blocks": [[kind, "mlp" if layer < dense else "experts"] for layer, kind in enumerate(kinds)],
        "settings": {
            "kimi_heads": linear.whole("num_heads"),
            "kimi_head_dim": head_dim,
            # As wide as a head: moonshotai/Kimi-Linear-48B-A3B-Instruct, modeling_kimi.py.
            "kimi_rank": head_dim,
            "kimi_kernel": linear.whole("short_conv_kernel_size"),
        },
        "attention": {"rotary": not config.flag("mla_use_nope", default=False)},
        "mtp_layers": config.whole("num_nextn_predict_layers", default=0),
    }
    if dense == layers:
        return table
    if config.whole("moe_layer_freq", default=1) != 1:
        raise config.error("is not 1; only experts in every layer are described", "moe_layer_freq")
    width = config.whole("moe_intermediate_size")
    experts = {
        "experts": config.whole("num_experts"),
        "topk": config.whole("num_experts_per_token", "num_experts_per_tok"),
        "ffn_hidden": width,
        "shared_ffn_hidden": config.whole("num_shared_experts", default=0) * width,
    }
    return {**table, "experts": experts}


@reader
def _lfm2(config: Config, _: ConfigFamily) -> Table:
    """Layers of short convolution and of attention, as listed; experts behind some dense layers."""
    layers, kinds = config.whole("num_hidden_layers"), {"conv": "short_conv", "full_attention": "attention"}
    attention = config.wholes("full_attn_idxs") if config.has("full_attn_idxs") else list(range(layers))
    found = config.words("layer_types") or ["full_attention" if at in attention else "conv" for at in range(layers)]
    unknown = [each for each in found if each not in kinds]
    if unknown:
        raise config.error(f"has {unknown[0]!r}; known: {', '.join(kinds)}", "layer_types")
    if config.flag("conv_bias", default=False):
        raise config.error("is true; convolutions with a bias are not described", "conv_bias")
    dense = config.whole("num_dense_layers", default=0) if config.has("num_experts") else layers
    table: Table = {
        "ffn_hidden": _width_of_lfm2(config),
        "tied_embeddings": config.flag("tie_embedding", default=config.flag("tie_word_embeddings", default=True)),
        "blocks": [[kinds[kind], "mlp" if layer < dense else "experts"] for layer, kind in enumerate(found)],
        "settings": {"conv_kernel": config.whole("conv_L_cache", default=3)},
    }
    if dense == layers:
        return table
    experts = {
        "experts": config.whole("num_experts"),
        "topk": config.whole("num_experts_per_tok"),
        "ffn_hidden": config.whole("moe_intermediate_size"),
    }
    return {**table, "experts": experts}


def _width_of_lfm2(config: Config) -> int:
    """Return the width of the MLP: two thirds of what dense models give, rounded up (Lfm2MLP)."""
    width = config.whole("block_ff_dim", "intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim", default=not config.has("num_experts")):
        return width
    if config.values.get("block_ffn_dim_multiplier") not in (None, 1):
        raise config.error("is not 1; widths that are scaled are not described", "block_ffn_dim_multiplier")
    unit = config.whole("block_multiple_of", default=256)
    if unit == 0:
        raise config.error("is 0; it must be a whole number from 1", "block_multiple_of")
    return -(-(2 * width // 3) // unit) * unit


@reader
def _jamba(config: Config, _: ConfigFamily) -> Table:
    """Layers of Mamba-1 and of attention, of MLP and of experts, each by a period and the place in it."""
    layers, hidden = config.whole("num_hidden_layers"), config.whole("hidden_size")
    of_attention, at_attention = _period(config, "attn_layer", 8, 4)
    of_experts, at_experts = _period(config, "expert_layer", 2, 1)
    count = config.whole("num_experts", default=16)
    if not config.flag("mamba_conv_bias", default=True) or config.flag("mamba_proj_bias", default=False):
        raise config.error("is true, or mamba_conv_bias false; neither is described", "mamba_proj_bias")
    rank = config.values.get("mamba_dt_rank", "auto")
    table: Table = {
        "blocks": [
            [
                "attention" if layer % of_attention == at_attention else "mamba1",
                "experts" if count > 1 and layer % of_experts == at_experts else "mlp",
            ]
            for layer in range(layers)
        ],
        "settings": {
            "mamba1_width": hidden * config.whole("mamba_expand", default=2),
            "mamba1_state": config.whole("mamba_d_state", default=16),
            "mamba1_rank": -(-hidden // 16) if rank == "auto" else config.whole("mamba_dt_rank"),
            "mamba1_kernel": config.whole("mamba_d_conv", default=4),
        },
    }
    if not any("experts" in names for names in table["blocks"]):
        return table
    topk, width = config.whole("num_experts_per_tok", default=2), config.whole("intermediate_size")
    return {**table, "experts": {"experts": count, "topk": topk, "ffn_hidden": width}}


def _period(config: Config, name: str, period: int, offset: int) -> tuple[int, int]:
    """Return the period of some layers and the place of one in it, where a config says them or as the class does."""
    found = config.whole(f"{name}_period", default=period)
    if found == 0:
        raise config.error("is 0; it must be a whole number from 1", f"{name}_period")
    return found, config.whole(f"{name}_offset", default=offset)


@reader
def _falcon_h1(config: Config, _: ConfigFamily) -> Table:
    """Attention and Mamba-2 side by side in every layer; multipliers of its parameters change no shape."""
    for key in ("mamba_proj_bias", "projectors_bias", "attention_bias", "mlp_bias"):
        if config.flag(key, default=False):
            raise config.error("is true; projections with a bias are not described", key)
    if not config.flag("mamba_conv_bias", default=True):
        raise config.error("is false; convolutions without a bias are not described", "mamba_conv_bias")
    heads = config.whole("mamba_n_heads", default=128)
    if heads == 0:
        raise config.error("is 0; it must be a whole number from 1", "mamba_n_heads")
    inner = config.whole("mamba_d_ssm", default=config.whole("mamba_expand", default=2) * config.whole("hidden_size"))
    return {
        "blocks": [["parallel_mamba", "mlp"]],
        "settings": {
            "mamba_heads": heads,
            "mamba_head_dim": inner // heads,
            "mamba_state": config.whole("mamba_d_state", default=256),
            "mamba_groups": config.whole("mamba_n_groups", default=1),
            "mamba_kernel": config.whole("mamba_d_conv", default=4),
            "mamba_norm": int(config.flag("mamba_rms_norm", default=False)),
        },
    }


@reader
def _lightning(config: Config, _: ConfigFamily) -> Table:
    """Layers of lightning attention and of softmax attention, as wide as each other, by a list; experts in all."""
    layers = config.whole("num_hidden_layers")
    if config.has("attn_type_list"):
        key, softmax = "attn_type_list", [kind == 1 for kind in config.wholes("attn_type_list")]
    else:
        # Transformers, configuration_minimax.py.
        key, listed = "layer_types", config.words("layer_types")
        usual = ["linear_attention" if layer % 2 else "full_attention" for layer in range(layers)]
        unknown = sorted(set(listed) - {"linear_attention", "full_attention"})
        if unknown:
            raise config.error(f"has {unknown[0]!r}; known: linear_attention, full_attention", key)
        softmax = [kind == "full_attention" for kind in listed or usual]
    if len(softmax) != layers:
        raise config.error(f"has {len(softmax)} entries for {layers} layers", key)
    heads, hidden = config.whole("num_attention_heads"), config.whole("hidden_size")
    if config.whole("shared_intermediate_size", default=0):
        raise config.error("is not 0; shared experts of such models are not described", "shared_intermediate_size")
    sizes = {"lightning_heads": heads, "lightning_head_dim": config.whole("head_dim", default=hidden // max(1, heads))}
    return {
        "blocks": [["attention" if each else "lightning_attention", "experts"] for each in softmax],
        # Settings that no block reads are refused.
        **({} if all(softmax) else {"settings": sizes}),
    }
