"""The framework: what the training software of some year does, and what it costs the host.

A framework says which kernels run and what overlaps; its few numbers are physical and have a source
(`data/frameworks/*.toml`). What a job leaves open is decided by its framework.
"""

from dataclasses import dataclass

RECOMPUTE_METHODS = ("block", "uniform")
"""Which layers ``full`` recomputes where a number is given: so many of each virtual stage one by one, or all in groups
of so many (Megatron-LM, --recompute-method)."""

UNEVEN_SPLITS = ("short_last", "balanced")
"""How layers that do not divide fall on virtual stages: rounded up with what remains on the last
(Megatron-DeepSpeed, pipeline layouts of Megatron Core), or one more on the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A framework at one time."""

    name: str
    description: str
    year: int
    attention_kernel: str
    fused_elementwise: bool
    """Whether bias, activation, dropout and norm neighbours are fused into few kernels."""
    sequence_parallel: bool
    """Whether tensor parallelism splits norms along the sequence."""
    distributed_optimizer: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    overlap_p2p: bool
    overlap_tp: bool
    cuda_graphs: bool
    interleave: bool
    """Whether a pipeline is interleaved where the layers allow it and the job does not say."""
    recompute: str
    """Default of `traincast.model.recompute.RECOMPUTE`."""
    host_layer_s: float
    """Least time in which the host launches the kernels of one layer's forward pass (backward: 1.6 x)."""
    host_expert_s: float
    """Further host time per layer with experts, forward: routing, permutation, synchronisation."""
    step_fixed_s: float
    """Per step: data loading, clip, logging, synchronisation."""
    unhidden_tp: float
    """Share of a tensor parallel transfer that cannot be hidden behind its matrix product (1: not overlapped)."""
    unhidden_cp: float
    unhidden_ep: float
    unhidden_fsdp: float
    p2p_handover_s: float
    """Host time per message between pipeline stages (blocking implementations that send shapes first)."""
    compute_factor: float
    """Time of all computation over that of the operator models; 1 where nothing is known."""
    grad_reduce_bytes: int = 4
    """Bytes of a gradient element as replicas reduce it: 4, or 2 where gradients stay in 16 bits."""
    gradient_placeholders: bool = False
    """Whether products that add to the main gradients themselves leave an unused tensor of each shape of weight."""
    fsdp: bool = False
    """Whether parameters are sharded over the data parallel ranks (ZeRO-3) where the job does not say."""
    pipelined_fsdp: bool = False
    """Whether sharded parameters stay whole over the microbatches of a pipeline, and their gradients are kept whole
    and reduced once (FSDP2 under PyTorch's pipeline schedules)."""
    layers_per_chunk: int = 1
    """Fewest layers of a virtual stage where the pipeline is interleaved and the job does not say how."""
    uneven_split: str = "short_last"
    """One of `UNEVEN_SPLITS`."""
    counts_embedding: bool = False
    """Whether embedding and head count as a layer each where that makes the layers divide."""
    expert_tp: bool = True
    """Whether tensor parallelism also splits the experts where the job does not say (etp = tp, else 1)."""
    fused_expert_bias: bool = False
    """Whether experts with biases have them fused with their activation."""
    deduplicated_dispatch: bool = False
    """Whether a token that goes to several experts of one node crosses the network once (DeepEP, HybridEP)."""
    cp_kind: str = "ring"
    """How context parallel ranks exchange keys and values where the job does not say."""
    vocab_multiple: int = 1
    """The vocabulary is padded to a multiple of this times tp; 1: only so that tp divides it."""
    selective_share: float = 0.0
    """Share of each layer's work that ``selective`` computes again, where it is more than the attention core."""
    sources: tuple[tuple[str, str], ...] = ()
    """(field, where its value comes from)."""
