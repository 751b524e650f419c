"""What a block is made of: its parts, each a module of a layer under the name that Megatron Core gives it.

Every size is that of one rank and one microbatch, a number or an array that broadcasts with the others
(`traincast.model.numbers`). Parameters, FLOPs, kernels, saved bytes and communications of a model are sums over the
parts of its blocks.
"""

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, NamedTuple, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.numbers import Number, Summed, choose, smaller
from traincast.registry import Registry

ATTENTION_FAMILIES = ("attention", "unfused_attention")
"""Families of kernels whose shape is (batch, queries, keys, heads, key/value heads, width of a query, of a value)."""

INDEX_FAMILY = "index_scores"
"""Family of kernels that choose keys, of the shape (batch, queries, keys, heads, width, chosen keys)."""

SCAN_FLOPS = {"state_space": 7.0, "delta_rule": 8.0, "selective_scan": 9.0}
"""FLOPs of a scan for each element of the state: Megatron-LM, megatron/training/training.py (mamba_layer_flops,
gdn_layer_flops); of Mamba-1's MzeroMiko/VMamba, classification/models/csms6s.py (flops_selective_scan_fn)."""

_SIZES_OF_STATE = 4
"""A scan's shape begins with tokens and the sizes of a state, at most three."""


class Gemm(Struct, frozen=True, kw_only=True):
    """A GEMM of tokens with a weight: ``m x k`` by ``k x n``, forward; two more GEMMs in the backward pass."""

    m: Number
    """Tokens, of all groups together."""
    n: Number
    k: Number
    dtype: str
    """Type of the inputs."""
    groups: Number = 1
    """Weights of that shape, each for a part of the tokens: experts."""
    in_one_kernel: bool = False
    """Whether one kernel computes the GEMMs of all groups; else each has its own, and they follow each other."""
    equal_groups: bool = False
    """Whether all groups have the same number of tokens, filled up to it, whatever the router says."""
    split: str = ""
    """What tensor parallel ranks have a part of, and gather the tokens of all for: ``outputs``, whose inputs are split
    along the sequence before they are gathered, or ``inputs``, with the gradients of its outputs; empty: neither."""
    fused_casts: tuple[str, ...] = ()
    """What an adjacent kernel casts as it writes it, so that nothing casts it again: ``inputs``, ``gradients`` of its
    outputs, or both."""
    sums_gradients: bool = True
    """Whether the GEMM that makes the weight's gradient adds it to those of earlier microbatches, in fp32."""
    elements_of_another: bool = False
    """Whether the weight belongs to another part, as that of a tied LM head does."""

    @property
    def elements(self) -> Number:
        """Elements of its own weight."""
        return 0 * self.n if self.elements_of_another else self.groups * self.n * self.k

    @property
    def flops(self) -> Number:
        """FLOPs of the forward GEMM."""
        return 2.0 * self.m * self.n * self.k


class Kernel(Struct, frozen=True, kw_only=True):
    """Work of a part that is not a GEMM with a weight: attention's core, norms, pointwise work."""

    family: str
    """Name of the operator model, with the meaning of `shape` that it documents (`traincast.estimate.operators`)."""
    shape: tuple[Number, ...]
    dtype: str
    count: Number = 1
    backward_alike: bool = False
    """Whether the backward pass runs the same kernel again, as pointwise work does; else one of its own."""
    has_backward: bool = True
    """Whether it runs in the backward pass at all."""
    has_forward: bool = True
    """Whether it runs in the forward pass: a sum of gradients does not."""
    causal: Number = False
    window: int = 0
    """Tokens an attention query sees back; 0: all."""
    options: tuple[tuple[str, str], ...] = ()

    @property
    def flops(self) -> Number:
        """FLOPs of attention's two GEMMs, without what the mask removes, of indexers and scans; 0 for all else.

        An indexer counts its GEMM of queries and keys, a scan `SCAN_FLOPS` for each channel and width of its state,
        whatever a kernel computes for it.
        """
        if self.family in SCAN_FLOPS:
            return SCAN_FLOPS[self.family] * self.count * prod(self.shape[:_SIZES_OF_STATE])
        if self.family == INDEX_FAMILY:
            batch, queries, keys, heads, width, _ = self.shape
            return 2.0 * self.count * batch * queries * keys * heads * width
        if self.family not in ATTENTION_FAMILIES:
            return 0.0
        batch, queries, keys, heads, _, query, value = self.shape
        met = choose(self.causal, mean_keys(keys, self.window, causal=True), mean_keys(keys, self.window, causal=False))
        return 2.0 * self.count * batch * heads * queries * met * (query + value)


class Exchange(Struct, frozen=True, kw_only=True):
    """A communication of a part in one pass; one of 0 bytes does not take place."""

    group: str
    """``tp``, ``cp``, ``ep`` or ``etp``."""
    operation: str
    """``all_reduce``, ``all_gather``, ``reduce_scatter`` or ``all_to_all``."""
    size_bytes: Number
    count: Number = 1
    goes: str = ""
    """``out`` with tokens to their experts, ``back`` with what these made of them; empty for all else."""
    alongside: str = ""
    """Which GEMMs of its part frameworks run meanwhile in the backward pass: ``dgrad``, those that make gradients of
    inputs, or ``wgrad``, those of weights; empty: none."""


class Part(Struct, frozen=True, kw_only=True):
    """A module of a block: what one rank holds, runs, keeps and exchanges for it."""

    name: str
    """As in Megatron Core, below the layer."""
    counts_as: str
    """Which entry of a count of parameters and FLOPs it is in (`traincast.model.counts`)."""
    gemms: tuple[Gemm, ...] = ()
    vectors: Number = 0
    """Parameters that no GEMM reads: biases, scales of norms, sinks, tables that are looked up."""
    kernels: tuple[Kernel, ...] = ()
    forward: tuple[Exchange, ...] = ()
    backward: tuple[Exchange, ...] = ()
    saved: Mapping[str, Number] = field(default_factory=dict)
    """Bytes of what autograd keeps for the backward pass, by name."""
    drops: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Which modules' recomputation drops which of the saved tensors."""
    modules: tuple[str, ...] = ()
    """Modules that can be recomputed by themselves and that run it again (`traincast.model.recompute`)."""
    passing_forward: Number = 0
    """Bytes that are there only while the block's forward pass runs."""
    passing_backward: Number = 0
    expert: bool = False
    """Whether its parameters are routed experts', split over ep and etp; others are copied on every dp and cp rank."""
    place: str = ""
    """``experts``: it runs between the exchanges that bring tokens to their experts and back; ``with dispatch`` and
    ``with combine``: it needs neither, so that it can run while these are on their way; empty for all else."""
    adapter: bool = False
    """Whether it is a low-rank adapter, trained alongside frozen weights."""

    @property
    def elements(self) -> Number:
        """Parameters on one rank."""
        return self.vectors + sum(gemm.elements for gemm in self.gemms)

    @property
    def flops(self) -> Number:
        """FLOPs of the forward pass."""
        return sum(gemm.flops for gemm in self.gemms) + sum(kernel.flops for kernel in self.kernels)


class Block(Protocol):
    """A part of a model's list: a layer is a few of them. Equal blocks do equal work, and hash alike."""

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return its parts, in the order of the forward pass, for a rank's share."""
        ...


class BlockKind(Struct, frozen=True):
    """A kind of block that layers can have, by its name in `Model.blocks`."""

    make: Callable[[Model, int], Block]
    """Makes the block of a model's layer at some index, from 0."""
    settings: tuple[str, ...] = ()
    """Numbers that it reads of `Model.settings`."""
    modules: tuple[str, ...] = ()
    """Its modules that can be recomputed by themselves, in addition to those of Megatron Core."""


BLOCKS: Registry[BlockKind] = Registry("block", "traincast.model.blocks")


def block(
    name: str, *, settings: tuple[str, ...] = (), modules: tuple[str, ...] = ()
) -> Callable[[Callable[[Model, int], Block]], Callable[[Model, int], Block]]:
    """Return a decorator that registers what makes a kind of block; `settings` and `modules` as in `BlockKind`."""

    def register(make: Callable[[Model, int], Block]) -> Callable[[Model, int], Block]:
        BLOCKS.register(name)(BlockKind(make, settings, modules))
        return make

    return register


class Matrix(NamedTuple):
    """Weights of one shape that a rank holds, each read by GEMMs of its own."""

    rows: Number
    """Outputs of a GEMM with it."""
    columns: Number
    """Inputs."""
    count: Number
    """How many there are: layers, and in each of them experts."""
    part: str
    """What they count as (`Part.counts_as`)."""
    split: str
    """What tensor parallel ranks have a part of (`Gemm.split`)."""
    expert: bool
    """Whether they are routed experts'."""
    trained: bool


class Matrices(tuple[Matrix, ...]):
    """Weights by shape, which add up as elements do."""

    __slots__ = ()

    def __add__(self, other: tuple[Any, ...]) -> "Matrices":
        """Return both together."""
        return Matrices((*self, *other))

    def __mul__(self, count: Number) -> "Matrices":
        """Return so many times as many."""
        return Matrices(each._replace(count=each.count * count) for each in self)


class Elements(Summed, frozen=True, kw_only=True):
    """How many parameters one rank holds."""

    dense: Number = 0
    """Replicated over dp x cp: all but routed experts."""
    experts: Number = 0
    """Replicated over edp."""
    trained_dense: Number = 0
    trained_experts: Number = 0
    matrices: Number = 0
    """The dense ones that the layers' GEMMs read: without embedding, LM head and norms."""
    tensors: Number = 0
    """Dense weights of GEMMs, and tables: those that are not small."""
    shapes: Matrices = Matrices()
    """All weights of GEMMs, with those of the LM head; a tied one is the embedding's table."""

    @classmethod
    def from_parts(cls, parts: Iterable[Part], *, trains_weights: bool = True) -> "Elements":
        """Return the parameters of some parts, of which adapters alone are trained where weights are not."""
        dense = experts = adapters = matrices = tensors = 0
        shapes: list[Matrix] = []
        for part in parts:
            trained = trains_weights or part.adapter
            shapes += (_matrix(part, gemm, trained=trained) for gemm in part.gemms)
            if part.expert:
                experts = experts + part.elements
                continue
            dense = dense + part.elements
            tensors = tensors + len(part.gemms) + (part.counts_as == "embedding")
            adapters = adapters + (part.elements if part.adapter else 0)
            matrices = matrices + (0 if part.counts_as == "head" else sum(gemm.elements for gemm in part.gemms))
        return cls(
            dense=dense,
            experts=experts,
            trained_dense=dense if trains_weights else adapters,
            trained_experts=experts if trains_weights else 0,
            matrices=matrices,
            tensors=tensors,
            shapes=Matrices(shapes),
        )

    def changed(self, change: Callable[[Number], Number]) -> "Elements":
        """Return them with every number changed."""
        shapes = Matrices(
            each._replace(rows=change(each.rows), columns=change(each.columns), count=change(each.count))
            for each in self.shapes
        )
        numbers = {name: change(getattr(self, name)) for name in self.__struct_fields__ if name != "shapes"}
        return Elements(**numbers, shapes=shapes)

    @property
    def without_shapes(self) -> "Elements":
        """The numbers alone."""
        return replace(self, shapes=Matrices())

    @property
    def total(self) -> Number:
        """All of them."""
        return self.dense + self.experts

    @property
    def trained(self) -> Number:
        """All that are trained."""
        return self.trained_dense + self.trained_experts


def _matrix(part: Part, gemm: Gemm, *, trained: bool) -> Matrix:
    return Matrix(gemm.n, gemm.k, gemm.groups, part.counts_as, gemm.split, part.expert, trained)


def mean_keys(seq_length: Number, window: int, *, causal: bool) -> Number:
    """Return the keys that a query meets, on average over a sequence.

    Half of the sequence where attention is causal; w (1 - w / 2s) with a window of w tokens (0: none). Without a mask
    a window goes to both sides.
    """
    reach = smaller(window, seq_length) if window else seq_length
    if causal:
        return reach * (1 - reach / (2 * seq_length))
    return 1.0 * (smaller(2 * reach, seq_length) if window else seq_length)
