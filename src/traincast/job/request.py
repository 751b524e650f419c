"""What the user says of a job, with None for what is left open; `traincast.job.resolve` decides the rest."""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import FieldInfo
from msgspec.structs import fields as fields_of

from traincast.job.frameworks import Framework
from traincast.model.model import Model


class JobRequest(Struct, frozen=True, kw_only=True):
    """What the user says of a job; None is left open.

    Examples
    --------
    >>> import traincast
    >>> (model,) = traincast.models(["llama3-8b"])
    >>> request = traincast.JobRequest(model=model, gpus=8, seq_length=8192, global_batch=64, tp=2)
    >>> traincast.predict(request, cluster="h100").parallel.dp
    4
    """

    model: Model
    gpus: int
    seq_length: int
    global_batch: int
    """Sequences per step."""
    micro_batch: int | None = None
    """Sequences per microbatch and replica."""
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    schedule: str | None = None
    first_stage_layers: int | None = None
    """Layers of the first pipeline stage, over all its virtual stages."""
    last_stage_layers: int | None = None
    stage_layers: tuple[int, ...] | None = None
    """Layers of every virtual stage in model order, where the split is written out."""
    pipeline_layout: str | None = None
    """What every virtual stage holds, as `traincast.job.pipeline_layout` reads it: ``Et*4|(t*4|)*14tmL``."""
    mtp_layers: int | None = None
    """Layers that predict further tokens; it replaces the model's."""
    embedding_as_layer: bool | None = None
    """Whether the embedding counts as a layer when layers are split; the head likewise below."""
    head_as_layer: bool | None = None
    sequence_parallel: bool | None = None
    zero: int | None = None
    """Stage of ZeRO: 0 nothing, 1 optimizer, 2 gradients, 3 parameters (FSDP) sharded over `shard`."""
    shard: int | None = None
    """Ranks that share one copy of sharded state, of the dp x cp that hold equal dense parameters; fewer
    than these is hybrid (HSDP)."""
    overlap_grad_reduce: bool | None = None
    overlap_param_gather: bool | None = None
    overlap_tp: bool | None = None
    overlap_p2p: bool | None = None
    delay_wgrad: bool | None = None
    """Whether weight gradients of experts hide the way of their inputs' gradients back, where exchanges overlap."""
    recompute: str | None = None
    recompute_layers: int | None = None
    """Layers per virtual stage that are recomputed whole, with recompute ``full``; None: all."""
    recompute_method: str | None = None
    """With recompute ``full`` what `recompute_layers` counts: ``block``, as above, or ``uniform``, the layers of each
    group that keeps its first input alone, all of them recomputed."""
    recompute_modules: tuple[str, ...] | None = None
    """Parts of a layer that are recomputed, with recompute ``selective`` (`traincast.model.recompute`)."""
    recompute_keeps: tuple[str, ...] | None = None
    """Outputs of a layer that are kept though it is recomputed, with recompute ``full``: of `RECOMPUTE_KEEPS` there."""
    precision: str | None = None
    attention_kernel: str | None = None
    cuda_graphs: bool | None = None
    """Whether CUDA graphs hold whole layers; `cuda_graph_impl` and `cuda_graph_scope` say it in detail."""
    cuda_graph_impl: str | None = None
    """What captures CUDA graphs: one of `traincast.job.kernels.GRAPH_IMPLS`."""
    cuda_graph_scope: tuple[str, ...] | None = None
    """Modules of a layer that CUDA graphs hold, of `traincast.job.frameworks.GRAPH_SCOPES`; empty: whole layers."""
    moe_dispatcher: str | None = None
    """What sends tokens to experts: one of `traincast.model.dispatch.DISPATCHERS`; it replaces the framework's."""
    moe_a2a_overlap: bool | None = None
    """Whether exchanges of experts are overlapped with the computation of another microbatch."""
    moe_shared_expert_overlap: bool | None = None
    """Whether shared experts compute while tokens are on their way."""
    moe_paged_stash: bool | None = None
    """Whether activations of experts have a fixed place for as many tokens as may come, so that the host need not wait
    for their number."""
    fused_router: bool | None = None
    """Whether routing is a few fused kernels (Megatron-LM, --moe-router-fusion)."""
    fused_permute: bool | None = None
    """Whether permuting tokens is (Megatron-LM, --moe-permute-fusion)."""
    te_op_fuser: bool | None = None
    """Whether the GEMMs of all local experts, their activation and their casts are few fused kernels (Megatron-LM,
    --use-transformer-engine-op-fuser). In MXFP8 the GEMMs compute the activation (SwiGLU or a squared ReLU), add
    biases and cast what they write (Transformer Engine, ops/fused/grouped_mlp.py; Megatron-LM, experts.py,
    _is_fused_impl_supported, with NVTE_CUTEDSL_FUSED_GROUPED_MLP, as recipes of Megatron-Bridge set it). In dense MLPs
    norm and activation do (`traincast.model.blocks.mlp.fuses_casts`), and GEMMs add what adapters would."""
    unfused: tuple[str, ...] | None = None
    """What runs as kernels of its own though the framework fuses it, of `traincast.job.kernels.UNFUSED`."""
    step_checks: tuple[str, ...] | None = None
    """What is computed once a step to be logged, of `traincast.job.kernels.STEP_CHECKS`."""
    launch_blocking: bool | None = None
    """Whether the host waits for every kernel that it launches (CUDA_LAUNCH_BLOCKING=1)."""
    dropout: bool | None = None
    """Whether layers have dropout, whose masks wait for the backward pass."""
    one_hot_embedding: bool | None = None
    """Whether tokens are looked up by a GEMM of one-hot rows with the embedding's table, whose gradient is one, too."""
    loss_kernel: str | None = None
    loss_tiles: int | None = None
    """What computes the loss from the logits: one of `traincast.job.frameworks.LOSS_KERNELS`."""
    fp8_recipe: str | None = None
    """How 8- and 4-bit types are scaled: one of `traincast.job.precision.FP8_RECIPES`."""
    fp8_attention: bool | None = None
    """Whether the core of attention runs in 8 bits, too."""
    fp8_lm_head: bool | None = None
    """Whether the LM head runs in MXFP8 as the layers do (Megatron-LM, --fp8-output-proj)."""
    bf16_first_last: bool | None = None
    """Whether the first and last layers stay in 16 bits."""
    cp_kind: str | None = None
    framework: str | Framework | None = None
    """A framework: its name, the path of a TOML file, or itself."""
    year: int | None = None
    tuned: str | None = None
    """How well the program is set where the job leaves it open: one of `traincast.job.levels.LEVELS`; None: as the
    framework decides."""
    task: str = "pretrain"
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] | None = None
    """Linear layers that get adapters (`traincast.model.blocks.share.LORA_TARGETS`)."""
    local_batch: int | None = None
    """Sequences of a replica that go through the pipeline before it runs empty and the next ones begin; None: all of a
    step's."""
    packed_length: int | None = None
    """Tokens of the sequences that are packed into one and do not attend to each other; None: a sequence is one."""
    packed_lengths: str | None = None
    """Lengths of the sequences that are packed into one: a CSV, or ``512:1000,8k:3``, each with how many there are."""
    cp_splits_packs: bool | None = None
    """Whether context parallel ranks hold a piece of each half of a pack, not of each half of every sequence in it."""
    expert_imbalance: float = 1.0
    """Tokens of the busiest expert rank over the mean, in every exchange; 1 leaves it to `moe_routing`."""
    moe_routing: str | None = None
    """How tokens are spread over experts, of `traincast.model.routing.ROUTINGS`; None: balanced."""
    vocab_multiple: int | None = None
    """The vocabulary is padded to a multiple of this times tp."""
    grad_reduce_bytes: int | None = None
    """Bytes of a gradient element as replicas reduce it; it replaces the framework's."""
    moe_dispatch_dtype: str | None = None
    """Type in which tokens are sent to their experts; they come back in 16 bits."""
    deduplicated_dispatch: bool | None = None
    """What `moe_dispatcher` was once: whether a token crosses to a node of its experts once (DeepEP), or not."""
    sharp: str | None = None
    """One of `traincast.job.communication.SHARP_GROUPS`: its collectives are reduced in the switches of an InfiniBand
    network."""
    reshard_after_forward: bool | None = None
    """Whether FSDP (zero 3) frees gathered parameters after the forward pass and gathers them again."""
    param_gather_bytes: int | None = None
    """Bytes of a GEMM weight's element as sharded ranks gather it: 2, or 1 where GEMMs read 8 bits."""
    optimizer: str | None = None
    """``adam``, or ``muon``: Newton-Schulz steps on every hidden matrix, and Adam for all else."""
    muon_steps: int | None = None
    """Newton-Schulz steps of an update."""
    muon_tp_mode: str | None = None
    """How tensor parallel ranks update a matrix of which each has a part (`traincast.job.optimizer.TP_MODES`)."""
    muon_owned: bool | None = None
    """Whether each matrix is updated whole by one of the ranks that share its state; else those that have a part of it
    gather it whole."""
    precision_aware_optimizer: bool | None = None
    """Whether Adam keeps its state in the types below (Megatron Core); None: where one is other than fp32."""
    main_grads_dtype: str | None = None
    """Types of gradients, main parameters and both moments (`traincast.job.optimizer`)."""
    main_params_dtype: str | None = None
    exp_avg_dtype: str | None = None
    exp_avg_sq_dtype: str | None = None
    local_steps: int | None = None
    """Steps that an island trains by itself between two exchanges of its outer gradient with the cluster's others
    (`traincast.job.optimizer.LocalSteps`); GPUs and batch are then those of one island. None: no other island."""
    outer_bits: int | None = None
    """Bits of an element of the outer gradient as islands exchange it: 32, 16, 8 or 4."""
    outer_fragments: int | None = None
    """Parts of the model whose outer gradients are exchanged in turn, each once in `local_steps`."""
    overlap_outer: bool | None = None
    """Whether their exchange is overlapped with the steps that follow."""
    offload_outer: bool | None = None
    """Whether the host keeps and updates what the outer optimizer needs."""
    offload_optimizer: float | None = None
    """Share of the optimizer's states that the host keeps and updates, 0 to 1 (`traincast.job.offload`)."""
    offload_parameters: bool | None = None
    """Whether sharded parameters (zero 3) stay in the memory of the host, too, and come for each gather."""
    offload_activations: int | None = None
    """Layers of each virtual stage whose activations wait for the backward pass in the memory of the host."""
    offload_modules: tuple[str, ...] | None = None
    """Modules of every layer whose inputs do, instead of whole layers (`traincast.job.offload.OFFLOAD_MODULES`)."""
    overlap_offload: bool | None = None
    """Whether copies to and from the host overlap with the update there (Megatron-LM,
    --overlap-cpu-optimizer-d2h-h2d)."""
    gpus_used_per_node: int | str | None = None
    """GPUs of each node that ranks are placed on: a number, ``auto`` or ``all`` (`traincast.fabric.placement`)."""


JOB_FIELDS: Mapping[str, FieldInfo] = MappingProxyType({each.name: each for each in fields_of(JobRequest)})
"""What a job may say, by name."""
REQUIRED = tuple(name for name, each in JOB_FIELDS.items() if each.required)
"""What every job says: its model, GPUs, sequence length and global batch."""
