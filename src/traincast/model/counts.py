"""Counts of a model: its parameters by part and by layer, and the FLOPs of training it.

Matrix products are counted at two FLOPs a multiply-add; norms, activations, softmax, biases and the
embedding's look-up are not counted. Of causal attention only the half is counted that the mask leaves.
Source: Narayanan et al. 2021, arXiv 2104.04473, appendix (without its recomputation and without the half of
attention that the mask removes); Hoffmann et al. 2022, arXiv 2203.15556, appendix F.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from traincast.errors import ConfigError
from traincast.model.model import Model
from traincast.model.recompute import DEFAULT_MODULES, RECOMPUTE

TASKS = ("pretrain", "sft", "lora")
"""What is trained: everything, everything on packed dialogues, or low-rank adapters beside frozen weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """Parameters of one layer, or of several together."""

    attention: int = 0
    """Projections of queries, keys, values and output, with their biases and inner norms."""
    mlp: int = 0
    """Plain feed-forward part."""
    router: int = 0
    experts: int = 0
    """All routed experts."""
    active_experts: int = 0
    """The part of `experts` that one token passes through."""
    shared_experts: int = 0
    norms: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.attention + self.mlp + self.router + self.experts + self.shared_experts + self.norms

    @property
    def active(self) -> int:
        """Those that one token passes through."""
        return self.total - self.experts + self.active_experts

    def times(self, count: int) -> "LayerParameters":
        """Return the parameters of so many such layers."""
        return LayerParameters(**{each.name: count * getattr(self, each.name) for each in fields(self)})

    def plus(self, other: "LayerParameters") -> "LayerParameters":
        """Return both together."""
        return LayerParameters(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters of a model by part."""

    embedding: int
    """Table of the tokens."""
    positions: int
    """Table of the positions."""
    layers: LayerParameters
    """All layers together, without those that predict further tokens."""
    final_norm: int
    head: int
    """Output matrix; 0 where it is the embedding."""
    other: int
    mtp: LayerParameters
    """Layers that predict further tokens."""
    mtp_projections: int
    """What joins those layers to the model: a matrix and three norms each."""

    @property
    def total(self) -> int:
        """All but the layers that predict further tokens, as models are called by."""
        return self.embedding + self.positions + self.layers.total + self.final_norm + self.head + self.other

    @property
    def active(self) -> int:
        """Those of `total` that one token passes through, both embeddings among them."""
        return self.total - self.layers.experts + self.layers.active_experts

    @property
    def computed(self) -> int:
        """Those of `active` that a token is multiplied with: without tables that are only looked up."""
        return self.active - self.positions - (self.embedding if self.head else 0)

    @property
    def trained(self) -> int:
        """`total` and the layers that predict further tokens."""
        return self.total + self.mtp.total + self.mtp_projections


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFlops:
    """FLOPs of the forward pass for one token, by part; a mean over the tokens of a sequence."""

    attention_projections: float = 0.0
    attention_core: float = 0.0
    """Queries times keys, and weights times values."""
    mlp: float = 0.0
    router: float = 0.0
    experts: float = 0.0
    """Those of the routed experts that a token is sent to."""
    shared_experts: float = 0.0
    head: float = 0.0
    mtp_projections: float = 0.0

    @property
    def forward(self) -> float:
        """All of them."""
        return self.matrices + self.attention_core

    @property
    def matrices(self) -> float:
        """Products with parameters, which are all but `attention_core`."""
        return (
            self.attention_projections
            + self.mlp
            + self.router
            + self.experts
            + self.shared_experts
            + self.head
            + self.mtp_projections
        )

    def plus(self, other: "TokenFlops") -> "TokenFlops":
        """Return both together."""
        return TokenFlops(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


def layer_parameters(model: Model, layer: int) -> LayerParameters:
    """Return the parameters of the layer at that index (from 0).

    Raises
    ------
    ConfigError
        If the model has no such layer.
    """
    if not 0 <= layer < model.layers:
        raise ConfigError(f"{model.name} has no layer {layer}; it has {model.layers}", "layer")
    return _layer_parameters(model, model.has_experts(layer))


def parameters(model: Model, vocab: int | None = None) -> Parameters:
    """Return the parameters of a model by part.

    Parameters
    ----------
    model : Model
        The model.
    vocab : int, optional
        Entries of the vocabulary with their padding; those of the model by default.

    Raises
    ------
    ConfigError
        If the vocabulary is empty.
    """
    entries = model.vocab if vocab is None else vocab
    if entries < 1:
        raise ConfigError(f"is {entries}; it must be at least 1", "vocab")
    with_experts = sum(model.has_experts(layer) for layer in range(model.layers))
    layers = _layer_parameters(model, True).times(with_experts) if with_experts else LayerParameters()
    layers = layers.plus(_layer_parameters(model, False).times(model.layers - with_experts))
    return Parameters(
        embedding=entries * model.hidden,
        positions=model.learned_positions * model.hidden,
        layers=layers,
        final_norm=_norm(model),
        head=0 if model.tied_embeddings else entries * model.hidden,
        other=model.other_params,
        mtp=_layer_parameters(model, model.experts is not None).times(model.mtp_layers),
        mtp_projections=model.mtp_layers * (2 * model.hidden**2 + 3 * _norm(model)),
    )


def adapter_parameters(model: Model, rank: int, *, mlp: bool = True) -> int:
    """Return the parameters of low-rank adapters beside the projections of every layer.

    Queries, keys and values share one adapter, as do the two matrices of a gated feed-forward part; experts
    and latent attention have one for each matrix. Source: Hu et al. 2021, arXiv 2106.09685, section 4.1, with
    the fused matrices of NeMo (``nemo/collections/llm/peft/lora.py``: linear_qkv, linear_proj, linear_fc1,
    linear_fc2).

    Parameters
    ----------
    model : Model
        The frozen model.
    rank : int
        Width of the adapters.
    mlp : bool
        Whether the feed-forward parts have adapters beside the attention.
    """
    attention = sum(rows + columns for rows, columns in attention_matrices(model))
    total = model.layers * attention
    for layer in range(model.layers if mlp else 0):
        widths = [(1, model.ffn_hidden)]
        if model.experts is not None and model.has_experts(layer):
            widths = [(model.experts.experts, model.experts.ffn_hidden), (1, model.experts.shared_ffn_hidden)]
        total += sum(count * (2 * model.hidden + (_up_matrices(model) + 1) * width) for count, width in widths if width)
    return rank * total


def attention_matrices(model: Model) -> tuple[tuple[int, int], ...]:
    """Return the (rows, columns) of the matrices of one layer's attention, inputs first.

    Two where heads are plain (fused queries, keys and values; output), four or five with latent attention.
    """
    attention, hidden = model.attention, model.hidden
    latent = attention.latent
    if latent is None:
        width = attention.heads * attention.head_dim
        return ((hidden, width + 2 * attention.kv_heads * attention.head_dim), (width, hidden))
    queries = attention.heads * (latent.nope_head_dim + latent.rope_head_dim)
    down = ((hidden, queries),) if latent.q_rank is None else ((hidden, latent.q_rank), (latent.q_rank, queries))
    return (
        *down,
        (hidden, latent.kv_rank + latent.rope_head_dim),
        (latent.kv_rank, attention.heads * (latent.nope_head_dim + latent.v_head_dim)),
        (attention.heads * latent.v_head_dim, hidden),
    )


def mean_keys(seq_length: int, window: int, *, causal: bool) -> float:
    """Return the keys that a query meets, on average over a sequence.

    Half of the sequence where attention is causal; w (1 - w / 2s) with a window of w. Without a mask a
    window goes to both sides.

    Parameters
    ----------
    seq_length : int
        Tokens of the sequence.
    window : int
        Tokens a query sees back; 0: all.
    causal : bool
        Whether a query meets earlier keys only.
    """
    reach = min(window, seq_length) if window else seq_length
    if causal:
        return reach * (1 - reach / (2 * seq_length))
    return float(min(2 * reach, seq_length)) if window else float(seq_length)


def layer_flops(model: Model, layer: int, seq_length: int) -> TokenFlops:
    """Return the forward FLOPs of one layer for one token.

    Parameters
    ----------
    model : Model
        The model.
    layer : int
        Index of the layer, from 0.
    seq_length : int
        Tokens of a sequence, over which attention is averaged.
    """
    if not 0 <= layer < model.layers:
        raise ConfigError(f"{model.name} has no layer {layer}; it has {model.layers}", "layer")
    return _layer_flops(model, model.has_experts(layer), model.window_of(layer), seq_length)


def token_flops(model: Model, seq_length: int, vocab: int | None = None) -> TokenFlops:
    """Return the forward FLOPs of the model for one token, with the layers that predict further tokens.

    Parameters
    ----------
    model : Model
        The model.
    seq_length : int
        Tokens of a sequence, over which attention is averaged.
    vocab : int, optional
        Entries of the vocabulary with their padding; those of the model by default.

    Returns
    -------
    TokenFlops
        FLOPs by part.

    Raises
    ------
    ConfigError
        If the sequence has no tokens.
    """
    if seq_length < 1:
        raise ConfigError(f"is {seq_length}; it must be at least 1", "seq_length")
    head = 2.0 * model.hidden * (model.vocab if vocab is None else vocab)
    total = TokenFlops(head=(1 + model.mtp_layers) * head, mtp_projections=4.0 * model.hidden**2 * model.mtp_layers)
    for layer in range(model.layers):
        total = total.plus(layer_flops(model, layer, seq_length))
    for _ in range(model.mtp_layers):
        total = total.plus(_layer_flops(model, model.experts is not None, 0, seq_length))
    return total


def model_flops_per_token(model: Model, seq_length: int, task: str = "pretrain") -> float:
    """Return the FLOPs that training on one token needs, whatever is computed again.

    The backward pass of a product needs twice its forward pass. With low-rank adapters the gradient of the
    frozen matrices is not needed, so that they are counted 4 N instead of 6 N; the adapters' own work is not
    counted.

    Parameters
    ----------
    model : Model
        The model.
    seq_length : int
        Tokens of a sequence.
    task : str
        One of `traincast.model.counts.TASKS`.

    Returns
    -------
    float
        FLOPs per token.

    Raises
    ------
    ConfigError
        If the task is unknown.
    """
    if task not in TASKS:
        raise ConfigError(f"is {task!r}; it must be one of {', '.join(TASKS)}", "task")
    flops = token_flops(model, seq_length)
    return (2 if task == "lora" else 3) * flops.matrices + 3 * flops.attention_core


def model_flops_per_step(model: Model, seq_length: int, global_batch: int, task: str = "pretrain") -> float:
    """Return the FLOPs of a step of `global_batch` sequences; see `model_flops_per_token`."""
    return global_batch * seq_length * model_flops_per_token(model, seq_length, task)


def hardware_flops_per_token(
    model: Model,
    seq_length: int,
    recompute: str = "none",
    task: str = "pretrain",
    recompute_share: float = 1.0,
    modules: Sequence[str] = DEFAULT_MODULES,
) -> float:
    """Return the FLOPs per token with those of recomputation.

    Full recomputation adds the forward pass of the layers (not of the head), selective recomputation that of
    its modules, by default of the attention core. Source: Korthikanti et al. 2022, arXiv 2205.05198, appendix A.

    Parameters
    ----------
    model : Model
        The model.
    seq_length : int
        Tokens of a sequence.
    recompute : str
        One of `traincast.model.recompute.RECOMPUTE`.
    task : str
        One of `traincast.model.counts.TASKS`.
    recompute_share : float
        Share of the layers that recompute, 0 to 1.
    modules : sequence of str
        What ``selective`` recomputes, of `traincast.model.recompute.RECOMPUTE_MODULES`.

    Returns
    -------
    float
        FLOPs per token.

    Raises
    ------
    ConfigError
        If the task or the kind of recomputation is unknown, or the share is none.
    """
    if recompute not in RECOMPUTE:
        raise ConfigError(f"is {recompute!r}; it must be one of {', '.join(RECOMPUTE)}", "recompute")
    if not 0 <= recompute_share <= 1:
        raise ConfigError(f"is {recompute_share}; it must be a share from 0 to 1", "recompute_share")
    flops = token_flops(model, seq_length)
    again = {
        "none": 0.0,
        "selective": sum(_module_flops(model, flops, module) for module in modules),
        "full": flops.forward - flops.head - flops.mtp_projections,
    }[recompute]
    return model_flops_per_token(model, seq_length, task) + recompute_share * again


def _module_flops(model: Model, flops: TokenFlops, module: str) -> float:
    """Return the FLOPs for one token of a part of all layers; pointwise work counts none."""
    latent = model.attention.latent
    if module == "mla_up_proj" and latent is not None:
        queries = (latent.q_rank or model.hidden) * (latent.nope_head_dim + latent.rope_head_dim)
        keys_values = latent.kv_rank * (latent.nope_head_dim + latent.v_head_dim)
        return 2.0 * (model.layers + model.mtp_layers) * model.attention.heads * (queries + keys_values)
    return {
        "core_attn": flops.attention_core,
        "mlp": flops.mlp,
        "moe": flops.router + flops.experts + flops.shared_experts,
        "shared_experts": flops.shared_experts,
    }.get(module, 0.0)


def _layer_parameters(model: Model, with_experts: bool) -> LayerParameters:
    attention, latent = model.attention, model.attention.latent
    projections = sum(rows * columns for rows, columns in attention_matrices(model))
    if latent is not None:
        projections += latent.kv_rank + (latent.q_rank or 0)
    if attention.qkv_bias:
        projections += (attention.heads + 2 * attention.kv_heads) * attention.head_dim
    if attention.qk_norm:
        projections += 2 * attention.head_dim
    if model.linear_bias:
        projections += model.hidden
    norms = model.norms_per_layer * _norm(model)
    if not with_experts or model.experts is None:
        return LayerParameters(attention=projections, mlp=_ffn(model, model.ffn_hidden), norms=norms)
    experts = model.experts
    one = _ffn(model, experts.ffn_hidden)
    return LayerParameters(
        attention=projections,
        router=model.hidden * experts.experts,
        experts=experts.experts * one,
        active_experts=experts.topk * one,
        shared_experts=_ffn(model, experts.shared_ffn_hidden) if experts.shared_ffn_hidden else 0,
        norms=norms,
    )


def _layer_flops(model: Model, with_experts: bool, window: int, seq_length: int) -> TokenFlops:
    attention, latent = model.attention, model.attention.latent
    keys = mean_keys(seq_length, window, causal=attention.causal)
    key_and_value = 2 * attention.head_dim
    if latent is not None:
        key_and_value = latent.nope_head_dim + latent.rope_head_dim + latent.v_head_dim
    projections = 2.0 * sum(rows * columns for rows, columns in attention_matrices(model))
    core = 2.0 * attention.heads * key_and_value * keys
    per_width = 2.0 * (_up_matrices(model) + 1) * model.hidden
    experts = model.experts
    if not with_experts or experts is None:
        return TokenFlops(attention_projections=projections, attention_core=core, mlp=per_width * model.ffn_hidden)
    return TokenFlops(
        attention_projections=projections,
        attention_core=core,
        router=2.0 * model.hidden * experts.experts,
        experts=per_width * experts.topk * experts.ffn_hidden,
        shared_experts=per_width * experts.shared_ffn_hidden,
    )


def _up_matrices(model: Model) -> int:
    return 2 if model.gated else 1


def _ffn(model: Model, width: int) -> int:
    """Return the parameters of a feed-forward part with that inner width."""
    up = _up_matrices(model)
    biases = up * width + model.hidden if model.linear_bias else 0
    return (up + 1) * model.hidden * width + biases


def _norm(model: Model) -> int:
    return model.hidden * (2 if model.norm == "layer" else 1)
