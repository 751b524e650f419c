"""Counts of a model: its parameters by part and by layer, and the FLOPs of training it: sums over its blocks' parts.

GEMMs are counted at two FLOPs a multiply-add; norms, activations, softmax, biases and the embedding lookup are not
counted. Of causal attention only the half is counted that the mask leaves. Source: Narayanan et al. 2021, arXiv
2104.04473, appendix (without its recomputation and without the half of attention that the mask removes); Hoffmann et
al. 2022, arXiv 2203.15556, appendix F.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import ConfigError
from traincast.model.blocks.part import Part
from traincast.model.blocks.share import Sequences, Share
from traincast.model.model import Model
from traincast.model.numbers import Summed
from traincast.model.recompute import DEFAULT_MODULES, RECOMPUTE
from traincast.model.structure import FIRST_BLOCKS, Blocks, last_blocks, layer_kinds, mtp_layer, parts_of

TASKS = ("pretrain", "sft", "lora")
"""What is trained: everything, everything on packed dialogues, or low-rank adapters alongside frozen weights."""

_ENDS = ("embedding", "positions", "final_norm", "head", "other", "mtp_projections")
"""What parts count as that are in no layer; what is neither here nor a field of a layer's counts is `others` there."""


Computing: TypeAlias = list[tuple[list[Part], int]]
"""Parts of blocks, and how often they are there."""


class LayerParameters(Summed, frozen=True, kw_only=True):
    """Parameters of one layer, or of several together."""

    attention: int = 0
    """Projections of queries, keys, values and output, with their biases and inner norms."""
    mlp: int = 0
    router: int = 0
    experts: int = 0
    """All routed experts."""
    active_experts: int = 0
    """The part of `experts` that one token passes through."""
    shared_experts: int = 0
    norms: int = 0
    tables: int = 0
    """Rows that are looked up for each token (Gemma 4's inputs of each layer)."""
    others: int = 0
    """Blocks of further kinds."""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(int(getattr(self, each)) for each in self.__struct_fields__) - self.active_experts

    @property
    def active(self) -> int:
        """Those that one token passes through."""
        return self.total - self.experts + self.active_experts


class Parameters(Struct, frozen=True, kw_only=True):
    """Parameters of a model by part."""

    embedding: int
    """Table of the tokens."""
    positions: int
    """Table of the positions."""
    layers: LayerParameters
    """All layers together, without MTP layers."""
    final_norm: int
    head: int
    """LM head; 0 where it is the embedding."""
    other: int
    mtp: LayerParameters
    """MTP layers."""
    mtp_projections: int
    """What joins MTP layers to the model: a matrix and three norms each."""

    @property
    def total(self) -> int:
        """All but the MTP layers, as models are called by."""
        return self.embedding + self.positions + self.layers.total + self.final_norm + self.head + self.other

    @property
    def active(self) -> int:
        """Those of `total` that one token passes through, both embeddings among them."""
        return self.total - self.layers.experts + self.layers.active_experts

    @property
    def computed(self) -> int:
        """Those of `active` that a token is multiplied with: without tables that are only looked up."""
        tables = self.positions + self.layers.tables
        return self.active - tables - (self.embedding if self.head else 0)

    @property
    def trained(self) -> int:
        """`total` and the MTP layers."""
        return self.total + self.mtp.total + self.mtp_projections


class TokenFlops(Summed, frozen=True, kw_only=True):
    """FLOPs of the forward pass for one token, by part; a mean over the tokens of a sequence."""

    attention_projections: float = 0.0
    attention_core: float = 0.0
    """Queries times keys, and weights times values."""
    scan: float = 0.0
    """Scans of state-space layers: their states, over the sequence."""
    mlp: float = 0.0
    router: float = 0.0
    experts: float = 0.0
    """Those of the routed experts that a token is sent to."""
    shared_experts: float = 0.0
    head: float = 0.0
    mtp_projections: float = 0.0
    others: float = 0.0
    """Blocks of further kinds."""

    @property
    def forward(self) -> float:
        """All of them."""
        return self.matrices + self.core

    @property
    def core(self) -> float:
        """What has no parameters: attention's GEMMs and scans."""
        return self.attention_core + self.scan

    @property
    def matrices(self) -> float:
        """GEMMs with parameters, which are all but `core`."""
        names = (each for each in self.__struct_fields__ if each not in ("attention_core", "scan"))
        return sum((float(getattr(self, name)) for name in names), 0.0)


def parameters(model: Model, vocab: int | None = None) -> Parameters:
    """Return the parameters of a model by part; `vocab` has the padding of the vocabulary, where there is any.

    Raises
    ------
    ConfigError
        If the vocabulary is empty.
    """
    entries = model.vocab if vocab is None else vocab
    if entries < 1:
        raise ConfigError(f"is {entries}; it must be at least 1", "vocab")
    layers = LayerParameters()
    for blocks, count in layer_kinds(model, range(model.layers)).items():
        layers += _layer_parameters(model, blocks) * count
    ends: Counter[str] = Counter()
    whole = Share(model=model, sequences=Sequences(length=1), vocab=entries)
    for part in parts_of((*FIRST_BLOCKS, *last_blocks(model, with_embedding=True)), whole):
        ends[part.counts_as] += part.elements
    mtp = mtp_layer(model)
    joins = sum(part.elements for part in _parts(model, mtp) if part.counts_as in _ENDS)
    return Parameters(
        **{name: ends[name] for name in _ENDS[:-1]},
        layers=layers,
        mtp=_layer_parameters(model, mtp) * model.mtp_layers,
        mtp_projections=model.mtp_layers * joins,
    )


def token_flops(model: Model, seq_length: int, vocab: int | None = None) -> TokenFlops:
    """Return the forward FLOPs of the model for one token, with MTP layers; a mean over the tokens of a sequence.

    Raises
    ------
    ConfigError
        If the sequence has no tokens.
    """
    return _summed(_computing(model, seq_length, vocab), seq_length)


def _summed(computing: Computing, seq_length: int) -> TokenFlops:
    total = TokenFlops()
    for parts, count in computing:
        total += _flops_of(parts, seq_length, count)
    return total


class FurtherBlocks(Struct, frozen=True):
    """What blocks of a further kind have in a model: state-space mixers, linear attention and so on."""

    kind: str
    """What their parts count as."""
    parameters: int
    """Parameters in all layers, without MTP layers."""
    forward_flops: float
    """For one token, with MTP layers."""


def further_blocks(model: Model, seq_length: int) -> tuple[FurtherBlocks, ...]:
    """Return the blocks that are `others` in the counts, by kind, in the order in which they come first."""
    entries, flops = Counter[str](), Counter[str]()
    own = _further(LayerParameters)
    for blocks, count in layer_kinds(model, range(model.layers)).items():
        for part in _parts(model, blocks):
            entries[part.counts_as] += count * int(part.elements) if own(part) else 0
    own = _further(TokenFlops)
    for parts, count in _computing(model, seq_length):
        for part in parts:
            flops[part.counts_as] += count * part.flops / seq_length if own(part) else 0
    kinds = dict.fromkeys(kind for found in (entries, flops) for kind, amount in found.items() if amount)
    return tuple(FurtherBlocks(kind, entries[kind], flops[kind]) for kind in kinds)


def _further(counted: type[LayerParameters] | type[TokenFlops]) -> Callable[[Part], bool]:
    """Return what tells the parts that are `others` in a count."""
    elsewhere = (*_ENDS, "attention_core") if counted is LayerParameters else ("attention",)
    known = {*elsewhere, *counted.__struct_fields__}
    return lambda part: part.counts_as not in known


def model_flops_per_token(model: Model, seq_length: int, task: str = "pretrain") -> float:
    """Return the FLOPs that training on one token needs, whatever is recomputed.

    The backward pass of a GEMM needs twice its forward pass. With low-rank adapters (``lora``) the gradient of the
    frozen matrices is not needed, so that they are counted 4 N instead of 6 N; the adapters' own work is not counted.

    Raises
    ------
    ConfigError
        If the task is unknown.
    """
    return flops_per_token(model, seq_length, task=task)[0]


def hardware_flops_per_token(
    model: Model,
    seq_length: int,
    recompute: str = "none",
    task: str = "pretrain",
    recompute_share: float = 1.0,
    modules: Sequence[str] = DEFAULT_MODULES,
    keeps: Sequence[str] = (),
) -> float:
    """Return the FLOPs per token with those of recomputation.

    Full recomputation adds the forward pass of the layers (not of the head, nor of what makes the outputs in `keeps`),
    selective recomputation that of its modules, by default of the attention core; `recompute_share` of the layers
    recompute, 0 to 1. Source: Korthikanti et al. 2022, arXiv 2205.05198, appendix A.

    Raises
    ------
    ConfigError
        If the task or the kind of recomputation is unknown, or the share is none.
    """
    return flops_per_token(model, seq_length, recompute, task, recompute_share, modules, keeps)[1]


def flops_per_token(
    model: Model,
    seq_length: int,
    recompute: str = "none",
    task: str = "pretrain",
    recompute_share: float = 1.0,
    modules: Sequence[str] = DEFAULT_MODULES,
    keeps: Sequence[str] = (),
) -> tuple[float, float]:
    """Return `model_flops_per_token` and `hardware_flops_per_token` (with its parameters and errors)."""
    if recompute not in RECOMPUTE:
        raise ConfigError(f"is {recompute!r}; it must be one of {', '.join(RECOMPUTE)}", "recompute")
    if not 0 <= recompute_share <= 1:
        raise ConfigError(f"is {recompute_share}; it must be a share from 0 to 1", "recompute_share")
    if task not in TASKS:
        raise ConfigError(f"is {task!r}; it must be one of {', '.join(TASKS)}", "task")
    computing = _computing(model, seq_length)
    flops, again = _summed(computing, seq_length), 0.0
    if recompute == "selective":
        again = sum(_module_flops(computing, seq_length, module) for module in modules)
    elif recompute == "full":
        kept = sum(_module_flops(computing, seq_length, name) for name in keeps)
        again = _module_flops(computing, seq_length, None) - kept
    needed = (2 if task == "lora" else 3) * flops.matrices + 3 * flops.core
    return needed, needed + recompute_share * again


def _module_flops(computing: Computing, seq_length: int, module: str | None) -> float:
    """Return the FLOPs for one token of a module of all layers, or of whole layers; pointwise work counts none."""
    total = 0.0
    for parts, count in computing:
        for part in parts:
            if (part.counts_as not in _ENDS) if module is None else (module in part.modules):
                total += count * part.flops / seq_length
    return total


def _computing(model: Model, seq_length: int, vocab: int | None = None) -> Computing:
    """Return the parts of all blocks that compute, each kind of layer once, and how often they are there."""
    if seq_length < 1:
        raise ConfigError(f"is {seq_length}; it must be at least 1", "seq_length")
    share = _whole(model, seq_length, vocab)
    found = [*layer_kinds(model, range(model.layers)).items(), (last_blocks(model, with_embedding=False), 1)]
    if model.mtp_layers:
        found.append((mtp_layer(model), model.mtp_layers))
    return [(parts_of(blocks, share), count) for blocks, count in found]


def _whole(model: Model, seq_length: int, vocab: int | None = None) -> Share:
    """Return one sequence of a model on one rank; no token is dropped, whatever experts have room for."""
    return Share(model=_dropless(model), sequences=Sequences(length=seq_length), vocab=vocab or model.vocab)


def _dropless(model: Model) -> Model:
    """Return a model whose experts, and those of its variants, have room for all tokens."""
    experts = None if model.experts is None else replace(model.experts, capacity_factor=None)
    variants = tuple((name, _dropless(variant)) for name, variant in model.variants)
    return replace(model, experts=experts, variants=variants)


def _flops_of(parts: Iterable[Part], tokens: int, count: int = 1) -> TokenFlops:
    """Return the FLOPs of some parts for one of their tokens."""
    known, found = set(TokenFlops.__struct_fields__), Counter[str]()
    for part in parts:
        kind = "attention_projections" if part.counts_as == "attention" else part.counts_as
        found[kind if kind in known else "others"] += count * part.flops / tokens
    return TokenFlops(**found)


def _parts(model: Model, blocks: Blocks) -> list[Part]:
    return parts_of(blocks, Share(model=model, sequences=Sequences(length=1)))


def _layer_parameters(model: Model, blocks: Blocks) -> LayerParameters:
    """Return the parameters of a layer; what joins an MTP layer to the model is not among them."""
    known, found = set(LayerParameters.__struct_fields__), Counter[str]()
    for part in _parts(model, blocks):
        kind = "attention" if part.counts_as == "attention_core" else part.counts_as
        if kind not in _ENDS:
            found[kind if kind in known else "others"] += part.elements
    if model.experts is not None:
        found["active_experts"] = found["experts"] // model.experts.experts * model.experts.topk
    return LayerParameters(**found)
