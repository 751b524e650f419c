"""What a block is made of: its parts, each a module of a layer under the name that Megatron Core gives it.

Every size is that of one rank and one microbatch, a number or an array that broadcasts with the others
(`traincast.model.numbers`). Parameters, FLOPs, kernels, saved bytes and communications of a model are sums over the
parts of its blocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from traincast.model.blocks.share import Share
from traincast.model.numbers import Number, choose, smaller

ATTENTION_FAMILIES = ("attention", "unfused_attention")
"""Families of kernels whose shape is (batch, queries, keys, heads, key/value heads, width of a query, of a value)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """A product of tokens with a weight: ``m x k`` by ``k x n``, forward; two more products in the backward pass."""

    m: Number
    """Tokens, of all groups together."""
    n: Number
    k: Number
    dtype: str
    """Type of the inputs."""
    groups: Number = 1
    """Weights of that shape, each for a part of the tokens: experts."""
    elements_of_another: bool = False
    """Whether the weight belongs to another part, as that of a tied LM head does."""

    @property
    def elements(self) -> Number:
        """Elements of its own weight."""
        return 0 * self.n if self.elements_of_another else self.groups * self.n * self.k

    @property
    def flops(self) -> Number:
        """FLOPs of the forward product."""
        return 2.0 * self.m * self.n * self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Work of a part that is no product with a weight: attention's core, norms, pointwise work."""

    family: str
    """Name of the operator model, with the meaning of `shape` that it documents (`traincast.estimate.operators`)."""
    shape: tuple[Number, ...]
    dtype: str
    count: Number = 1
    backward_alike: bool = False
    """Whether the backward pass runs the same kernel again, as pointwise work does; else one of its own."""
    causal: Number = False
    window: int = 0
    """Tokens an attention query sees back; 0: all."""
    options: tuple[tuple[str, str], ...] = ()

    @property
    def flops(self) -> Number:
        """FLOPs of attention's two products, without what the mask removes; 0 for all else."""
        if self.family not in ATTENTION_FAMILIES:
            return 0.0
        batch, queries, keys, heads, _, query, value = self.shape
        met = choose(self.causal, mean_keys(keys, self.window, causal=True), mean_keys(keys, self.window, causal=False))
        return 2.0 * self.count * batch * heads * queries * met * (query + value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A communication of a part in one pass; one of 0 bytes does not take place."""

    group: str
    """``tp``, ``cp``, ``ep`` or ``etp``."""
    operation: str
    """``all_reduce``, ``all_gather``, ``reduce_scatter`` or ``all_to_all``."""
    size_bytes: Number
    count: Number = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A module of a block: what one rank holds, runs, keeps and exchanges for it."""

    name: str
    """As in Megatron Core, below the layer."""
    counts_as: str
    """Which entry of a count of parameters and FLOPs it is in (`traincast.model.counts`)."""
    gemms: tuple[Gemm, ...] = ()
    vectors: Number = 0
    """Parameters that no product reads: biases, scales of norms, sinks, tables that are looked up."""
    kernels: tuple[Kernel, ...] = ()
    forward: tuple[Exchange, ...] = ()
    backward: tuple[Exchange, ...] = ()
    saved: Mapping[str, Number] = field(default_factory=dict)
    """Bytes of what autograd keeps for the backward pass, by name."""
    drops: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Which of the saved tensors the recomputation of which modules drops."""
    modules: tuple[str, ...] = ()
    """Modules that can be recomputed by themselves and that run it again (`traincast.model.recompute`)."""
    passing_forward: Number = 0
    """Bytes that are there only while the block's forward pass runs."""
    passing_backward: Number = 0
    expert: bool = False
    """Whether its parameters are routed experts', split over ep and etp; others are copied on every dp and cp rank."""
    adapter: bool = False
    """Whether it is a low-rank adapter, trained beside frozen weights."""

    @property
    def elements(self) -> Number:
        """Parameters on one rank."""
        return self.vectors + sum(gemm.elements for gemm in self.gemms)

    @property
    def flops(self) -> Number:
        """FLOPs of the forward pass."""
        return sum(gemm.flops for gemm in self.gemms) + sum(kernel.flops for kernel in self.kernels)


class Block(Protocol):
    """A part of a model's list: a layer is a few of them. Equal blocks do equal work."""

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return its parts, in the order of the forward pass, for a rank's share."""
        ...


def mean_keys(seq_length: Number, window: int, *, causal: bool) -> Number:
    """Return the keys that a query meets, on average over a sequence.

    Half of the sequence where attention is causal; w (1 - w / 2s) with a window of w. Without a mask a
    window goes to both sides.

    Parameters
    ----------
    seq_length : int or array
        Tokens of the sequence.
    window : int
        Tokens a query sees back; 0: all.
    causal : bool
        Whether a query meets earlier keys only.
    """
    reach = smaller(window, seq_length) if window else seq_length
    if causal:
        return reach * (1 - reach / (2 * seq_length))
    return 1.0 * (smaller(2 * reach, seq_length) if window else seq_length)
