"""What can be read of a ``config.json``, and of which ``model_type``; a reader returns values for a model's table."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from traincast.model.hugging_face.config import Config
from traincast.model.table import merged
from traincast.registry import Registry
from traincast.shipped import constant, shipped_toml

Table = dict[str, Any]

PLAIN: Table = {"gated": True, "norm": "rms"}
"""A model like Llama, over which a family's values are laid."""


class ConfigFamily(Struct, frozen=True, kw_only=True):
    """How configs of some model types are read; fields as in ``data/hugging_face/families.toml``."""

    types: tuple[str, ...] = ()
    values: Table = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    window_pattern: tuple[int, int] | None = None
    tied: bool = False
    four_times: bool = False
    defaults: dict[str, int] = field(default_factory=dict)

    def table(self, config: Config) -> Table:
        """Return the values that a config says."""
        table, declared = merged(merged(PLAIN, self.values), _head(config, self)), known().reads
        for name in self.reads:
            found = _declared(config, declared[name]) if name in declared else READERS.get(name)(config, self)
            table = merged(table, found)
        return table


class ConfigField(Struct, frozen=True, kw_only=True):
    """Where a config says a field of a model: a number, or switches one of which is on."""

    whole: tuple[str, ...] = ()
    """Keys, the first of which counts that is there; those of an object after its own key and a dot."""
    flags: tuple[str, ...] = ()
    usual: bool = False
    """What the switches are where none of them is there."""
    optional: bool = False
    """Whether the number may be left out."""

    def value_in(self, config: Config) -> int | bool | None:
        """Return the value; None where an optional one is left out."""
        if self.flags:
            said = [config.flag(key, default=False) for key in self.flags if config.has(key)]
            return any(said) if said else self.usual
        inner, _, _ = self.whole[0].rpartition(".")
        owner, keys = config.inner(inner) if inner else config, [key.rpartition(".")[2] for key in self.whole]
        return None if self.optional and not owner.has(*keys) else owner.whole(*keys)


class Refused(Struct, frozen=True, kw_only=True):
    """Keys of models that are not described, and why."""

    models: str
    keys: tuple[str, ...]
    why: str


class Known(Struct, frozen=True, kw_only=True):
    """What is known of model types."""

    family: tuple[ConfigFamily, ...]
    refused: tuple[Refused, ...]
    reads: dict[str, dict[str, ConfigField]]
    """Readers that only say where fields stand, by dotted path of the field."""

    def types(self) -> dict[str, ConfigFamily]:
        """Return the family of each model type."""
        return {name: family for family in self.family for name in family.types}


def known() -> Known:
    """Return all families and refused keys."""
    return constant(shipped_toml, "hugging_face/families.toml", Known)


def unknown_family(config: Config) -> ConfigFamily:
    """Return a family by the keys that a config of an unknown type has."""
    reads = ["biases", "query_norm", "windows"]
    if config.has("kv_lora_rank"):
        reads.append("latent")
    if config.has("n_routed_experts"):
        reads.append("routed_experts")
    elif config.has("moe_intermediate_size"):
        reads.append("sparse_experts")
    elif config.has("num_local_experts", "num_experts"):
        reads.append("local_experts")
    return ConfigFamily(reads=tuple(reads))


_Reader = Callable[[Config, ConfigFamily], Table]
READERS: Registry[_Reader] = Registry("reader of a config.json", "traincast.model.hugging_face")
"""What families read, by name."""


def reader(read: _Reader) -> _Reader:
    """Enter a reader under its name, without what marks it as private."""
    return READERS.register(read.__name__.lstrip("_"))(read)


def _declared(config: Config, fields: dict[str, ConfigField]) -> Table:
    table: Table = {}
    for path, read in fields.items():
        *outer, name = path.split(".")
        found: Table = {} if (value := read.value_in(config)) is None else {name: value}
        for each in reversed(outer):
            found = {each: found}
        table = merged(table, found)
    return table


def _head(config: Config, family: ConfigFamily) -> Table:
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


@reader
def _windows(config: Config, family: ConfigFamily) -> Table:
    """Read a sliding window: that of the layers that ``layer_types`` names, or the class's own pattern."""
    if family.window_pattern and config.has("sliding_window") and not config.has("layer_types"):
        few, every = family.window_pattern
        if config.has("sliding_window_pattern"):
            every = config.whole("sliding_window_pattern")
            few = every - 1
        return {"attention": {"window": config.whole("sliding_window"), "window_layers": few, "window_period": every}}
    window = config.whole("sliding_window", "attention_chunk_size", default=0)
    size: Table = {"window": window, "chunked": not config.has("sliding_window")}
    layers = config.whole("num_hidden_layers")
    # Only the classes of Qwen have this key, and have it false.
    used = config.flag("use_sliding_window", default=not config.word("model_type").startswith("qwen"))
    if not window or not used:
        return {}
    kinds = config.words("layer_types")
    if kinds and len(kinds) != layers:
        raise config.error(f"has {len(kinds)} entries for {layers} layers", "layer_types")
    if kinds:
        key, local = "layer_types", [kind in ("sliding_attention", "chunked_attention") for kind in kinds]
    elif config.has("max_window_layers"):
        first = config.whole("max_window_layers")
        key, local = "max_window_layers", [layer >= first for layer in range(layers)]
    else:
        return {"attention": {**size, "window_layers": 1, "window_period": 1}}
    return {"attention": {**size, **_pattern(config, local, key)}} if any(local) else {}


def _pattern(config: Config, local: list[bool], key: str) -> Table:
    """Return the shortest period that has its layers with a window first, for a list of which layers have one."""
    for period in range(1, len(local) + 1):
        count = sum(local[:period])
        if all(each == (layer % period < count) for layer, each in enumerate(local)):
            return {"window_layers": count, "window_period": period}
    config.note("window-layers-moved", f"{sum(local)} layers with a window are taken as the first ones", key)
    return {"window_layers": sum(local), "window_period": len(local)}


@reader
def _latent(config: Config, _: ConfigFamily) -> Table:
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


@reader
def _sparse_experts(config: Config, _: ConfigFamily) -> Table:
    """Read the experts of Qwen: every so many layers, but for those of ``mlp_only_layers``."""
    dense = sorted(config.wholes("mlp_only_layers"))
    if dense != list(range(len(dense))):
        raise config.error(f"is {dense}; dense layers that are not the first are not described", "mlp_only_layers")
    step = config.whole("decoder_sparse_step", default=1)
    if dense and step != 1:
        raise config.error(f"is {dense} with a decoder_sparse_step of {step}; not described", "mlp_only_layers")
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


@reader
def _routed_experts(config: Config, _: ConfigFamily) -> Table:
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
            "bias_balanced": config.has("topk_method") and config.word("topk_method") == "noaux_tc",
            **limited_routing(config),
        },
        "mtp_layers": config.whole("num_nextn_predict_layers", default=0),
    }


def limited_routing(config: Config) -> Table:
    """Read the groups of node-limited routing; ``topk_method`` greedy has none (DeepSeek, modeling_deepseek.py)."""
    if config.has("topk_method") and config.word("topk_method") == "greedy":
        return {}
    groups, chosen = config.whole("n_group", default=1), config.whole("topk_group", default=1)
    return {"groups": groups, "group_topk": chosen} if groups > 1 else {}


@reader
def _bert(config: Config, _: ConfigFamily) -> Table:
    """Segments, pooler and the two heads of pretraining: Devlin et al. 2018, arXiv 1810.04805, appendix A.2."""
    hidden, vocab = config.whole("hidden_size"), config.whole("vocab_size")
    pooler = hidden * hidden + hidden
    heads = hidden * hidden + 3 * hidden + vocab + 2 * hidden + 2
    return {"other_params": config.whole("type_vocab_size", default=2) * hidden + pooler + heads}


@reader
def _big_code(config: Config, _: ConfigFamily) -> Table:
    return {"attention": {"kv_heads": 1}} if config.flag("multi_query", default=True) else {}


@reader
def _opt(config: Config, _: ConfigFamily) -> Table:
    hidden = config.whole("hidden_size")
    if config.whole("word_embed_proj_dim", default=hidden) != hidden:
        raise config.error("is not the hidden size; projected embeddings are not described", "word_embed_proj_dim")
    # The class keeps two positions for the padding.
    return {"learned_positions": config.whole("max_position_embeddings") + 2}


@reader
def _mpt(config: Config, _: ConfigFamily) -> Table:
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


@reader
def _falcon(config: Config, _: ConfigFamily) -> Table:
    new = config.flag("new_decoder_architecture", default=False)
    heads = config.whole("num_attention_heads", "n_head")
    many = config.whole("num_kv_heads", "n_head_kv", default=heads)
    one = not new and config.flag("multi_query", default=True)
    parallel = not new and config.flag("parallel_attn", default=True)
    norms = config.whole("num_ln_in_parallel_attn", default=2) if new else 1 if parallel else 2
    bias = config.flag("bias", default=False)
    return {
        "norms_per_layer": norms,
        "linear_bias": bias,
        "attention": {"kv_heads": 1 if one else many if new else heads, "qkv_bias": bias},
    }


@reader
def _chatglm(config: Config, _: ConfigFamily) -> Table:
    heads = config.whole("num_attention_heads")
    groups = config.whole("multi_query_group_num", default=heads)
    few = config.flag("multi_query_attention", default=False)
    return {
        "norm": "rms" if config.flag("rmsnorm", default=True) else "layer",
        "linear_bias": config.flag("add_bias_linear", default=False),
        "attention": {"kv_heads": groups if few else heads, "qkv_bias": config.flag("add_qkv_bias", default=False)},
    }


@reader
def _llama4(config: Config, _: ConfigFamily) -> Table:
    """Layers with rotary positions see the tokens of a chunk, those without see all."""
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
        return {**table, **_windows(config, ConfigFamily())}
    every = config.whole("no_rope_layer_interval", default=4)
    window = config.whole("attention_chunk_size")
    shape = {"window": window, "chunked": True, "window_layers": every - 1, "window_period": every}
    return {**table, "attention": shape}
