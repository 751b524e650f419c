"""The model: the shape of every layer, and nothing about how it is run.

A transformer is a list of layers; each is a list of blocks (`traincast.model.blocks`), usually attention and an MLP.
Counts of parameters and FLOPs are in `traincast.model.counts`.
"""

from collections.abc import Iterable
from functools import cached_property

from msgspec import Struct

from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.units import check_given

NORMS = ("rms", "layer")
"""Kinds of normalisation; ``layer`` has a bias."""

_NUMBERS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("", ("layers", "hidden", "vocab", "residual_streams"), 1),
    ("", ("ffn_hidden", "learned_positions", "max_positions", "mtp_layers", "norms_per_layer", "other_params"), 0),
    ("", ("last_wide_layers",), 0),
    ("attention", ("heads", "kv_heads", "head_dim", "window_period"), 1),
    ("attention", ("window", "window_layers"), 0),
    ("latent", ("q_rank", "kv_rank", "rope_head_dim", "nope_head_dim", "v_head_dim"), 1),
    ("experts", ("experts", "topk", "ffn_hidden", "period", "groups", "group_topk"), 1),
    ("experts", ("shared_ffn_hidden", "latent_hidden", "first_dense_layers", "capacity_factor"), 0),
)
"""Part of a model, its numbers, and their least value."""


class Latent(Struct, frozen=True, kw_only=True):
    """Multi-head latent attention: queries and keys/values pass through narrow projections.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    q_rank: int | None
    """Width of the compressed query; None: queries are projected at once."""
    kv_rank: int
    """Width of the compressed keys and values."""
    rope_head_dim: int
    """Part of a query/key head that carries the position; the key's is shared by all heads."""
    nope_head_dim: int
    """Part of a query/key head without position."""
    v_head_dim: int
    """Width of a value head."""


class Attention(Struct, frozen=True, kw_only=True):
    """The attention part of a layer."""

    heads: int
    kv_heads: int
    """Heads of keys and values: `heads` is MHA, 1 is MQA, between is GQA."""
    head_dim: int
    latent: Latent | None = None
    window: int = 0
    """Tokens a query sees back; 0: all."""
    window_layers: int = 0
    """How many of each `window_period` layers use the window."""
    window_period: int = 1
    chunked: bool = False
    """Whether the window starts again every so many tokens, so that sequences fall into chunks (Llama 4)."""
    causal: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    qk_norm_whole: bool = False
    """Whether the norms of queries and keys have a scale for every head (OLMo 2), not one for all heads."""
    rotary: bool = True
    """Whether queries and keys are rotated by their position, where positions are not learned."""
    output_gate: bool = False
    """Whether every head has a gate for its output, projected with the queries (Qwen3-Next)."""
    values_are_keys: bool = False
    """Whether one projection gives both keys and values (Gemma 4's global layers)."""
    keys_of_another: bool = False
    """Whether keys and values are those of a layer before, and only queries are projected (Gemma 3n, Gemma 4 E2B)."""
    sinks: bool = False
    """Whether every head has a learned logit that takes a part of the softmax and attends to nothing (gpt-oss)."""
    scaled_rotary: bool = False
    """Whether what is rotated is multiplied by a factor, too, as YaRN does (gpt-oss; arXiv 2309.00071, section 3.4)."""


class Experts(Struct, frozen=True, kw_only=True):
    """The MLP of a mixture-of-experts layer."""

    experts: int
    topk: int
    ffn_hidden: int
    """Inner width of one expert."""
    shared_ffn_hidden: int = 0
    """Inner width of all shared experts together; 0: none."""
    latent_hidden: int = 0
    """Width to which tokens are projected before they are sent to routed experts, and from which back (LatentMoE,
    Nemotron 3); 0: they are sent as they are."""
    first_dense_layers: int = 0
    """Layers at the start that have a dense MLP."""
    period: int = 1
    """After those, one layer in so many has experts."""
    capacity_factor: float | None = None
    """Tokens an expert takes over the mean, the others dropped; None: dropless."""
    groups: int = 1
    """Groups that the experts form, equal and consecutive; 1: routing is not limited to some of them."""
    group_topk: int = 1
    """Groups that the experts of a token are in (node-limited routing)."""
    router_bias: bool = False
    """Whether the router has a bias for each expert: of its GEMM (gpt-oss), or of the choice alone (DeepSeek-V3)."""
    bias_balanced: bool = False
    """Whether training balances the experts by biases of the choice that no gradient changes (Wang et al. 2024,
    arXiv 2408.15664), and not by an auxiliary loss."""
    router_scales: bool = False
    """Whether the router scales each channel of its input, and the weight of each expert (Gemma 4)."""
    shared_gate: bool = False
    """Whether the shared experts' output is multiplied by a gate of its own (Qwen1.5-MoE)."""

    def check_groups(self) -> None:
        """Refuse groups that do not divide the experts, or are too few for those of a token.

        Raises
        ------
        ConfigError
            With the rule.
        """
        if self.experts % self.groups or self.group_topk > self.groups:
            raise ConfigError(
                f"{self.group_topk} of {self.groups} groups of {self.experts} experts; groups must divide the experts",
                "model.experts.groups",
            )
        reachable = self.group_topk * (self.experts // self.groups)
        if reachable < self.topk:
            raise ConfigError(
                f"{self.group_topk} of {self.groups} groups hold {reachable} experts, fewer than the top-{self.topk}",
                "model.experts.group_topk",
            )


class Model(Struct, frozen=True, kw_only=True, dict=True):
    """A transformer."""

    name: str
    layers: int
    hidden: int
    attention: Attention
    ffn_hidden: int
    """Inner width of the dense MLP."""
    gated: bool
    """Whether it has a gate (SwiGLU, GeGLU): three matrices, not two."""
    vocab: int
    """Entries of the vocabulary, before padding."""
    tied_embeddings: bool = False
    """Whether the output head is the input embedding."""
    experts: Experts | None = None
    norm: str = "rms"
    """``rms`` or ``layer`` (with a bias)."""
    linear_bias: bool = False
    """Whether the matrices of attention output and MLP have biases."""
    embedding_norm: bool = False
    """Whether the embedding has a norm of its own (BLOOM)."""
    head_bias: bool = False
    """Whether the LM head has a bias (GPT-J, Phi-2)."""
    learned_positions: int = 0
    """Positions of a learned position embedding; 0: none (rotary, ALiBi)."""
    max_positions: int | None = None
    """Longest sequence the model is made for, where that is known."""
    mtp_layers: int = 0
    """Extra layers that predict further tokens (DeepSeek-V3)."""
    mtp_in_sixteen_bits: bool = False
    """Whether MTP layers stay in 16 bits where others read fewer (Nemotron 3)."""
    mixed_four_bits: bool = False
    """Whether some linear layers stay wider where GEMMs run in 4 bits (`traincast.model.structure.MixedFourBits`)."""
    last_wide_layers: int = 0
    """Layers at the end that stay in 16 bits where GEMMs run in 4."""
    norms_per_layer: int = 2
    """Norms over the hidden size: 1 where attention and MLP run side by side on one input (PaLM),
    4 where their outputs are normalised, too (Gemma 2)."""
    residual_streams: int = 1
    """Hidden states that pass from layer to layer side by side; above 1, hyper-connections mix them (DeepSeek-V4)."""
    other_params: int = 0
    """Parameters that are in no part above, such as BERT's pooler."""
    blocks: tuple[tuple[str, ...], ...] = ()
    """Names of the blocks of each layer (`traincast.model.blocks.part.BLOCKS`), repeated until all layers have some;
    none: attention or latent attention, then an MLP or experts. A colon and a word behind a name are the variant that
    it is of (``attention:global``)."""
    mtp_blocks: tuple[str, ...] = ()
    """Names of the blocks of an MTP layer; none: those of the last layer."""
    variants: tuple[tuple[str, "Model"], ...] = ()
    """Shapes that some blocks have in place of the model's own, by name: layers that are not all alike."""
    settings: tuple[tuple[str, float], ...] = ()
    """Numbers that blocks of further kinds read, by name."""
    source: str = ""
    """Where the numbers come from."""
    notes: tuple[Note, ...] = ()
    """What had to be taken for granted when the description was read."""

    def __post_init__(self) -> None:
        """Refuse impossible shapes."""
        parts = {"attention": self.attention, "latent": self.attention.latent, "experts": self.experts, "": self}
        for part, names, least in _NUMBERS:
            if parts[part] is not None:
                check_given(parts[part], names, f"model.{part}." if part else "model.", least=least)
        heads, kv_heads = self.attention.heads, self.attention.kv_heads
        if heads % kv_heads:
            raise ConfigError(f"{heads} heads do not share {kv_heads} key/value heads evenly", "model.attention")
        if self.experts and not 1 <= self.experts.topk <= self.experts.experts:
            raise ConfigError(f"top-{self.experts.topk} of {self.experts.experts} experts", "model.experts")
        if self.experts:
            self.experts.check_groups()

    @cached_property
    def kept(self) -> dict[str, object]:
        """What was found out about the model and need not be found out again."""
        return {}

    def names_of(self, layer: int) -> tuple[str, ...]:
        """Return the names of the blocks of the layer at that index (from 0)."""
        if self.blocks:
            return self.blocks[layer % len(self.blocks)]
        attention = "attention" if self.attention.latent is None else "latent_attention"
        return attention, "experts" if self.has_experts(layer) else "mlp"

    def shaped(self, variant: str) -> "Model":
        """Return the model with the shape of a variant; the model itself for an empty name.

        Raises
        ------
        ConfigError
            If the model has no such variant.
        """
        if not variant:
            return self
        found = dict(self.variants)
        if variant not in found:
            known = f"it has {', '.join(found)}" if found else "it has none"
            raise ConfigError(f"{self.name} has no variant {variant!r}; {known}", "model.variants")
        return found[variant]

    def setting(self, name: str) -> float:
        """Return a number that a block reads.

        Raises
        ------
        ConfigError
            If the model does not give it.
        """
        found = dict(self.settings)
        if name not in found:
            raise ConfigError("is missing; a block of the model needs it", f"model.settings.{name}")
        return found[name]

    def sizes(self, prefix: str, names: Iterable[str]) -> dict[str, int]:
        """Return the settings of a block that are sizes, by their names without its prefix.

        Raises
        ------
        ConfigError
            If the model does not give one, or it is not a whole number from 1.
        """
        found = {name: self.setting(f"{prefix}_{name}") for name in names}
        for name, size in found.items():
            if size < 1 or size != int(size):
                raise ConfigError(f"is {size:g}; it must be a whole number from 1", f"model.settings.{prefix}_{name}")
        return {name: int(size) for name, size in found.items()}

    def has_experts(self, layer: int) -> bool:
        """Return whether the layer at that index (from 0) has experts."""
        if self.blocks:
            return any(name.partition(":")[0] == "experts" for name in self.names_of(layer))
        if self.experts is None or layer < self.experts.first_dense_layers:
            return False
        return (layer - self.experts.first_dense_layers) % self.experts.period == self.experts.period - 1

    def window_of(self, layer: int) -> int:
        """Return the attention window of the layer at that index, 0 for none."""
        attention = self.attention
        return attention.window if layer % attention.window_period < attention.window_layers else 0
