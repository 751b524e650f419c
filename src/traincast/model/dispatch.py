"""How tokens get to their experts and back: what each kind of dispatcher sends, and which part of a GPU that takes.

Sources: Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py (allgather, alltoall, flex) and
megatron/core/transformer/transformer_config.py (moe_deepep_num_sms, moe_hybridep_num_sms); deepseek-ai/DeepEP,
legacy documentation (a token crosses the network once for each node and is forwarded over NVLink, once to each rank).
"""

from typing import Literal

from msgspec import Struct

from traincast.model.numbers import Number

DISPATCH_DTYPES = ("bf16", "fp8")
"""Types that tokens can be sent out in; what experts made of them comes back in 16 bits."""

SCALE_SHARE = 4 / 128
"""Bytes of scales for each byte of tokens in 8 bits: one of fp32 for 128 values (arXiv 2412.19437, section 3.3.2)."""


class Dispatcher(Struct, frozen=True):
    """A kind of dispatcher."""

    sends: Literal["all", "copies", "once"]
    """What leaves a rank: its tokens to ``all`` ranks, a copy for each expert, or each token ``once`` to each node of
    its experts, and there to each of their ranks."""
    sms: int
    """Streaming multiprocessors that its kernels hold while they run."""
    prepares: int
    """Kernels that it launches to know which tokens go where, besides those that permute and send them."""
    dense_routing: bool = False
    """Whether every rank gathers which experts all tokens go to, a byte for each token and expert, and tokens go out
    with fp32 weights of all experts in reach of NVLink, not of their own alone."""
    pads: bool = False
    """Whether it puts the tokens of each expert where GEMMs of 8 bits take them."""
    sorts_chunks: bool = False
    """Whether what arrives lies rank by rank and is put in the order of the experts by kernels of its own."""


DISPATCHERS: dict[str, Dispatcher] = {
    # NCCL runs a block for each channel: 16 for collectives and 16 for messages on 8 H800 (NVIDIA/nccl issue 892).
    # What is prepared: the local experts' part of the map and of the probabilities, and its sums; for all-to-all counts
    # of tokens by expert, their sums over ranks, copies to the host (token_dispatcher.py, preprocess).
    "allgather": Dispatcher("all", sms=16, prepares=5),
    "alltoall": Dispatcher("copies", sms=16, prepares=15, sorts_chunks=True),
    # DeepSeek-V3 gives 20 to it (arXiv 2412.19437, section 3.2.2), as does moe_deepep_num_sms. It prepares the top k
    # and a layout, then a map of what came in one kernel of Triton or in some 20 of PyTorch, as --enable-experimental
    # says (_DeepepManager): in between is assumed.
    "deepep": Dispatcher("once", sms=20, prepares=15),
    # moe_hybridep_num_sms.
    # Its maps and weights: deepseek-ai/DeepEP, hybrid-ep branch, csrc/hybrid_ep/executor/executor.cu (dispatched_probs)
    # and extension/allgather.cu. That it pads: Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py
    # (_HybridEPManager, pad_multiple). It makes its maps itself: two kernels, one before it permutes, and a sum.
    "hybridep": Dispatcher("once", sms=24, prepares=4, dense_routing=True, pads=True),
}
"""Kinds by name."""


class Dispatch(Struct, frozen=True, kw_only=True):
    """How the tokens of a microbatch are sent."""

    dispatcher: str = "alltoall"
    """One of `DISPATCHERS`."""
    dtype: str = "bf16"
    """Type in which they are sent out, one of `DISPATCH_DTYPES`; they come back in 16 bits."""
    imbalance: Number = 1.0
    """Tokens of the busiest expert rank over the mean."""
    router_weights: bool = False
    """Whether the router's weights follow copies of tokens by an exchange of their own."""
    permutation: Literal["fused", "single", "weighted"] = "fused"
    """What permutes tokens: a fused kernel, PyTorch's own ones, or these and the router's weights by another one."""
    consecutive: bool = False
    """Whether a token's experts are those after the experts of the token before (`traincast.model.routing`)."""

    @property
    def kind(self) -> Dispatcher:
        """What its dispatcher does."""
        return DISPATCHERS[self.dispatcher]

    def sent_bytes(self, element_bytes: int) -> float:
        """Return the bytes of an element of a token as it is sent out, scales included."""
        return element_bytes if self.dtype == "bf16" else 1 + SCALE_SHARE


def dispatcher_of(deduplicated: bool) -> str:
    """Return the kind of dispatcher that sends a token once to a node of its experts, or the one that does not."""
    return "deepep" if deduplicated else "alltoall"
