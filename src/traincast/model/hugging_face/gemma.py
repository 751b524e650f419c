"""Reader of Gemma 4, whose layers have shapes of their own: huggingface/transformers, models/gemma4."""

from traincast.model.hugging_face.config import Config
from traincast.model.hugging_face.readers import ConfigFamily, Table, reader

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_PERIOD = 6
"""Layers in a period, the last of which sees all tokens, where a config does not say."""


@reader
def _gemma4(config: Config, _: ConfigFamily) -> Table:
    """Layers with a window and without, late ones with the keys of layers before; inputs of a layer's own; experts."""
    layers, hidden = config.whole("num_hidden_layers"), config.whole("hidden_size")
    own = layers - min(layers, config.whole("num_kv_shared_layers", default=0))
    width, narrow = config.whole("intermediate_size"), config.whole("hidden_size_per_layer_input", default=256)
    routed = config.flag("enable_moe_block", default=False)
    wide = config.flag("use_double_wide_mlp", default=False)
    if narrow and config.whole("vocab_size_per_layer_input", default=262144) != config.whole("vocab_size"):
        raise config.error("is not vocab_size; other tables of layers are not described", "vocab_size_per_layer_input")
    blocks = []
    for layer, kind in enumerate(_kinds(config, layers)):
        late, everywhere = layer >= own, kind == _GLOBAL
        shape = "_".join(["late"] * late + ["global"] * everywhere)
        names = [f"attention:{shape}" if shape else "attention", "mlp:wide" if late and wide else "mlp"]
        blocks.append([*names, *["experts"] * routed, *["per_layer_input"] * (narrow > 0)])
    variants = {f"late{each}": {"attention": {"keys_of_another": True, **shape}} for each, shape in _shapes(config)}
    variants |= {each.removeprefix("_"): {"attention": shape} for each, shape in _shapes(config) if each}
    used = {name.partition(":")[2] for names in blocks for name in names}
    table: Table = {
        "attention": {"window": config.whole("sliding_window", default=512), "window_layers": 1},
        "blocks": blocks,
        "variants": {name: variants[name] for name in ("global", "late", "late_global") if name in used},
        # A norm more in layers with experts, and one of the inputs of all layers.
        "other_params": layers * hidden * routed + narrow,
    }
    if "wide" in used:
        table["variants"]["wide"] = {"ffn_hidden": 2 * width}
    if narrow:
        table["settings"] = {"per_layer_input_width": narrow}
    if routed:
        table["experts"] = {
            "experts": config.whole("num_experts"),
            "topk": config.whole("top_k_experts"),
            "ffn_hidden": config.whole("moe_intermediate_size"),
            "router_scales": True,
        }
    return table


def _kinds(config: Config, layers: int) -> list[str]:
    """Return the kind of each layer; the last sees all tokens whatever a config says."""
    usual = [_LOCAL if (layer + 1) % _PERIOD else _GLOBAL for layer in range(layers)]
    found = config.words("layer_types") or usual
    unknown = sorted(set(found) - {_GLOBAL, _LOCAL})
    if unknown:
        raise config.error(f"has {unknown[0]!r}; known: {_GLOBAL}, {_LOCAL}", "layer_types")
    if len(found) != layers:
        raise config.error(f"has {len(found)} entries for {layers} layers", "layer_types")
    return [*found[:-1], _GLOBAL]


def _shapes(config: Config) -> tuple[tuple[str, Table], ...]:
    """Return what attention of layers with a window has of its own, nothing, and that of the others."""
    shape: Table = {"head_dim": config.whole("global_head_dim", default=512), "window_layers": 0}
    if config.flag("attention_k_eq_v", default=False):
        shape["values_are_keys"] = True
        if config.has("num_global_key_value_heads"):
            shape["kv_heads"] = config.whole("num_global_key_value_heads")
    return ("", {}), ("_global", shape)
