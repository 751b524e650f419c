"""A model as a list of blocks: embedding, the blocks of every layer, head, and MTP layers."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.errors import ConfigError
from traincast.hardware.dtypes import FOUR_BIT, PEAK_OF_DTYPE
from traincast.model.blocks.ends import Embedding, EmbeddingCopy, LmHead, MtpProjection, OtherParameters
from traincast.model.blocks.part import BLOCKS, Block, BlockKind, Elements, Part
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.numbers import Number, added

T = TypeVar("T")

Blocks = tuple[Block, ...]
"""Blocks in the order of the forward pass; layers with equal blocks are alike."""

FIRST_BLOCKS: Blocks = (Embedding(),)
"""What stands before the first layer."""

MTP_PROJECTION: Blocks = (MtpProjection(),)
"""What stands before the layer itself in an MTP layer."""

MTP_HEAD: Blocks = (LmHead(shared_table=True),)
"""What stands after it, in addition to the LM head of the model: its norm, GEMM and loss."""

EMBEDDING_COPY: Blocks = (EmbeddingCopy(),)
"""What MTP layers read where no other table of the embedding is on their rank."""


class Shaped(Struct, frozen=True):
    """A block of a layer whose shape is that of a variant of the model."""

    block: Block
    variant: str

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the parts that the block has of a model with that shape."""
        return self.block.parts(replace(share, model=share.model.shaped(self.variant)))


class InSixteenBits(Struct, frozen=True):
    """A block whose GEMMs stay in 16 bits where those of others read fewer."""

    block: Block

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the parts that the block has in 16 bits."""
        return self.block.parts(replace(share, execution=share.execution.in_sixteen_bits()))


class MixedFourBits(Struct, frozen=True):
    """A block of which, where GEMMs run in 4 bits, some stay wider.

    Projections of attention and to and from latent tokens stay in 16 bits, those behind mixers with a state run in
    MXFP8. Source: NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/perf_recipes/nemotronh/te_quant.cfg.
    """

    block: Block

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the parts of the block, some of them with GEMMs of another type."""
        parts = self.block.parts(share)
        if PEAK_OF_DTYPE[share.execution.precision] != FOUR_BIT:
            return parts
        wide = dict.fromkeys(_SIXTEEN_BITS, share.execution.core_dtype) | dict.fromkeys(_EIGHT_BITS, "mxfp8")
        return tuple(_with_dtype(part, wide.get(part.name.rpartition(".")[2])) for part in parts)


_SIXTEEN_BITS = ("linear_qkv", "linear_proj", "fc1_latent_proj", "fc2_latent_proj")
_EIGHT_BITS = ("out_proj",)


def _with_dtype(part: Part, dtype: str | None) -> Part:
    if dtype is None:
        return part
    return replace(part, gemms=tuple(replace(gemm, dtype=dtype) for gemm in part.gemms))


def in_sixteen_bits(blocks: Blocks) -> Blocks:
    """Return blocks that stay in 16 bits, whatever the type of other layers' GEMMs."""
    return tuple(map(InSixteenBits, blocks))


def layer_blocks(model: Model, layer: int) -> Blocks:
    """Return the blocks of the layer at that index, from 0."""
    return _made(model, layer, _kinds(model.names_of(layer)))


def blocks_of_layers(model: Model) -> tuple[Blocks, ...]:
    """Return the blocks of each layer, equal ones the very same; they are made once a model."""
    kept: dict[str, Any] = model.kept
    if "blocks_of_layers" not in kept:
        kept["blocks_of_layers"] = _blocks_of_layers(model)
    found: tuple[Blocks, ...] = kept["blocks_of_layers"]
    return found


def _blocks_of_layers(model: Model) -> tuple[Blocks, ...]:
    names_L = [model.names_of(layer) for layer in range(model.layers)]
    kinds, once = {names: _kinds(names) for names in dict.fromkeys(names_L)}, dict[Blocks, Blocks]()
    every = (_made(model, layer, kinds[names]) for layer, names in enumerate(names_L))
    return tuple(once.setdefault(blocks, blocks) for blocks in every)


def _made(model: Model, layer: int, kinds: Iterable[tuple[BlockKind, str]]) -> Blocks:
    """Return the blocks of some kinds and variants for the layer at that index."""
    made = (
        Shaped(kind.make(model.shaped(variant), layer), variant) if variant else kind.make(model, layer)
        for kind, variant in kinds
    )
    return tuple(map(MixedFourBits, made)) if model.mixed_four_bits else tuple(made)


def _kinds(names: tuple[str, ...]) -> tuple[tuple[BlockKind, str], ...]:
    """Return the kinds of blocks that names mean, and the variants that they are of."""
    split = (name.partition(":") for name in names)
    return tuple((BLOCKS.get(kind), variant) for kind, _, variant in split)


def check_blocks(model: Model) -> None:
    """Refuse a model whose layers have unknown blocks or lack what these need, or with what none of them uses.

    Raises
    ------
    ConfigError, UnknownNameError
        With the field, and what is known.
    """
    names = dict.fromkeys(name for layer in range(model.layers) for name in model.names_of(layer))
    names |= dict.fromkeys(model.mtp_blocks)
    kinds = _kinds(tuple(names))
    read = {setting for kind, _ in kinds for setting in kind.settings}
    blocks_of_layers(model)
    mtp_blocks(model)
    used = {variant for _, variant in kinds}
    unused = [name for name, _ in model.variants if name not in used]
    if unused:
        raise ConfigError(
            f"is not a variant of any block of {model.name}; name it behind a colon", f"variants.{unused[0]}"
        )
    unread = [name for name, _ in model.settings if name not in read]
    if unread:
        known = ", ".join(sorted(read)) or "nothing"
        raise ConfigError(f"is not read by any block of {model.name}; its blocks read {known}", f"settings.{unread[0]}")


def last_blocks(model: Model, *, with_embedding: bool) -> Blocks:
    """Return what stands after the last layer.

    Where the embedding is on the same rank, a tied head is the same table, else a copy of it.
    """
    head = LmHead(shared_table=model.tied_embeddings and with_embedding)
    return (head, OtherParameters()) if model.other_params else (head,)


def mtp_layer(model: Model) -> Blocks:
    """Return the blocks of one MTP layer, with what joins it to the model, and its head."""
    return (*mtp_body(model), *MTP_HEAD)


def mtp_body(model: Model) -> Blocks:
    """Return the blocks of one MTP layer, without its head."""
    return (*MTP_PROJECTION, *mtp_blocks(model))


def mtp_blocks(model: Model) -> Blocks:
    """Return the blocks of an MTP layer itself: those that the model names, else those of the last layer."""
    last = model.layers - 1
    blocks = _made(model, last, _kinds(model.mtp_blocks)) if model.mtp_blocks else layer_blocks(model, last)
    return in_sixteen_bits(blocks) if model.mtp_in_sixteen_bits else blocks


def layer_kinds(model: Model, layers: Iterable[int]) -> dict[Blocks, int]:
    """Return how many of some layers are of each kind, in the order of their first."""
    every = blocks_of_layers(model)
    return dict(Counter(every[layer] for layer in layers))


class RankParts(Struct, frozen=True, eq=False):
    """The parts that one rank has of blocks, worked out once for equal ones."""

    share: Share
    _parts: dict[Block, tuple[Part, ...]] = field(default_factory=dict)
    _elements: dict[Blocks, Elements] = field(default_factory=dict)
    _tensors: dict[Blocks, Number] = field(default_factory=dict)
    _known: dict[Hashable, Any] = field(default_factory=dict)

    def of_blocks(self, blocks: Blocks) -> list[Part]:
        """Return the parts of some blocks."""
        return [part for block in blocks for part in self.of_block(block)]

    def of_block(self, block: Block) -> tuple[Part, ...]:
        """Return the parts of one block."""
        if block not in self._parts:
            self._parts[block] = block.parts(self.share)
        return self._parts[block]

    def elements(self, blocks: Blocks) -> Elements:
        """Return the parameters of some blocks."""
        if blocks not in self._elements:
            self._elements[blocks] = Elements.from_parts(
                self.of_blocks(blocks), trains_weights=self.share.trains_weights
            )
        return self._elements[blocks]

    def numbers(self, blocks: Blocks) -> Elements:
        """Return the parameters of some blocks without the shapes of their matrices."""
        return self.once(("numbers", blocks), lambda: self.elements(blocks).without_shapes)

    def once(self, key: Hashable, made: Callable[[], T]) -> T:
        """Return something of these parts alone: made once for a key."""
        if key not in self._known:
            self._known[key] = made()
        found: T = self._known[key]
        return found

    def tensors(self, blocks: Blocks) -> Number:
        """Return in how many tensors the parameters of some blocks are: a weight of each GEMM, one of all vectors."""
        if blocks not in self._tensors:
            parts = self.of_blocks(blocks)
            weights = (gemm.groups for part in parts for gemm in part.gemms if not gemm.elements_of_another)
            self._tensors[blocks] = added(weights) + added((part.vectors > 0) * 1 for part in parts)
        return self._tensors[blocks]


def parts_of(blocks: Blocks, share: Share) -> list[Part]:
    """Return the parts of some blocks for a rank's share."""
    return [part for block in blocks for part in block.parts(share)]
