"""A training job: a model, how it is laid out, and what runs it.

A `JobRequest` is what the user says, with None for what is left open; `traincast.job.resolve`
decides the rest by framework and year and returns a `Job`, with every decision among its assumptions.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import FieldInfo
from msgspec.structs import fields as fields_of

from traincast.diagnostics import Note
from traincast.hardware.dtypes import EIGHT_BIT
from traincast.job.frameworks import Framework, MemoryPolicy
from traincast.job.optimizer_types import PLAIN, OptimizerTypes
from traincast.job.parallel import Parallel
from traincast.job.pipeline_layout import PipelineLayout, layout_of
from traincast.model.blocks.share import LORA_TARGETS, Execution, Share
from traincast.model.model import Model
from traincast.model.recompute import DEFAULT_MODULES
from traincast.model.structure import Blocks, in_sixteen_bits, layer_blocks

SHARP_GROUPS = ("dp", "dp_replica")
"""Groups whose collectives the switches of the network may reduce: one of them, as in Megatron-LM."""


class JobRequest(Struct, frozen=True, kw_only=True):
    """What the user says of a job; None is left open.

    Examples
    --------
    >>> import traincast
    >>> (model,) = traincast.models(["llama3-8b"])
    >>> request = traincast.JobRequest(model=model, gpus=8, seq_length=8192, global_batch=64, tp=2)
    >>> traincast.predict(request, cluster="h100").parallel["dp"]
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
    """Layers per virtual stage that are computed again whole, with recompute ``full``; None: all."""
    recompute_method: str | None = None
    """With recompute ``full`` what `recompute_layers` counts: ``block``, as above, or ``uniform``, the layers of each
    group that keeps its first input alone, all of them recomputed."""
    recompute_modules: tuple[str, ...] | None = None
    """Parts of a layer that are recomputed, with recompute ``selective`` (`traincast.model.recompute`)."""
    precision: str | None = None
    attention_kernel: str | None = None
    cuda_graphs: bool | None = None
    """Whether CUDA graphs hold whole layers; `cuda_graph_impl` and `cuda_graph_scope` say it in detail."""
    cuda_graph_impl: str | None = None
    """What captures CUDA graphs: one of `traincast.job.software.GRAPH_IMPLS`."""
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
    --use-transformer-engine-op-fuser). In MXFP8, with a gate and without biases, the GEMMs compute the activation and
    cast what they write (Transformer Engine, ops/fused/forward_grouped_mlp.py and backward_grouped_mlp.py). In dense
    MLPs norm and activation do (`traincast.model.blocks.mlp.fuses_casts`), and GEMMs add what adapters would."""
    fp8_recipe: str | None = None
    """How 8- and 4-bit types are scaled: one of `traincast.job.software.FP8_RECIPES`."""
    fp8_attention: bool | None = None
    """Whether the core of attention runs in 8 bits, too."""
    bf16_first_last: bool | None = None
    """Whether the first and last layers stay in 16 bits."""
    cp_kind: str | None = None
    framework: str | Framework | None = None
    """A framework: its name, the path of a TOML file, or itself."""
    year: int | None = None
    task: str = "pretrain"
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] | None = None
    """Linear layers that adapters stand beside (`traincast.model.blocks.share.LORA_TARGETS`)."""
    packed_length: int | None = None
    """Tokens of the sequences that are packed into one and do not attend to each other; None: a sequence is one."""
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
    """One of `SHARP_GROUPS`: its collectives are reduced in the switches of an InfiniBand network."""
    reshard_after_forward: bool | None = None
    """Whether FSDP (zero 3) frees gathered parameters after the forward pass and gathers them again."""
    param_gather_bytes: int | None = None
    """Bytes of a GEMM weight's element as sharded ranks gather it: 2, or 1 where GEMMs read 8 bits."""
    precision_aware_optimizer: bool | None = None
    """Whether Adam keeps its state in the types below (Megatron Core); None: where one is other than fp32."""
    main_grads_dtype: str | None = None
    """Types of gradients, main parameters and both moments (`traincast.job.optimizer_types`)."""
    main_params_dtype: str | None = None
    exp_avg_dtype: str | None = None
    exp_avg_sq_dtype: str | None = None
    offload_optimizer: float | None = None
    """Share of the optimizer's states that the host keeps and updates, 0 to 1 (`traincast.job.offload`)."""
    offload_parameters: bool | None = None
    """Whether sharded parameters (zero 3) stay in the memory of the host, too, and come for each gather."""
    offload_activations: int | None = None
    """Layers of each virtual stage whose activations wait for the backward pass in the memory of the host."""
    offload_modules: tuple[str, ...] | None = None
    """Modules of every layer whose inputs do, instead of whole layers (`traincast.job.kept.OFFLOAD_MODULES`)."""
    overlap_offload: bool | None = None
    """Whether copies to and from the host overlap with the update there (Megatron-LM,
    --overlap-cpu-optimizer-d2h-h2d)."""
    gpus_used_per_node: int | str | None = None
    """GPUs of each node that ranks are placed on: a number, ``auto`` or ``all`` (`traincast.fabric.placement`)."""


JOB_FIELDS: Mapping[str, FieldInfo] = MappingProxyType({each.name: each for each in fields_of(JobRequest)})
"""What a job may say, by name."""


class Job(Struct, frozen=True, kw_only=True):
    """A job with everything decided; the fields are those of `JobRequest`."""

    model: Model
    parallel: Parallel
    schedule: str
    seq_length: int
    micro_batch: int
    global_batch: int
    layers_Q: tuple[int, ...]
    """Layers of each virtual stage, in model order."""
    sequence_parallel: bool
    zero: int
    shard: int
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    overlap_tp: bool
    overlap_p2p: bool
    recompute: str
    recompute_layers: int | None
    precision: str
    attention_kernel: str
    cuda_graphs: bool
    """Whether CUDA graphs hold anything: the modules of `cuda_graph_scope`, or whole layers where that is empty."""
    cp_kind: str
    framework: Framework
    padded_vocab: int
    recompute_group: int = 1
    """Layers that are recomputed together, with recompute ``full``: of their inputs only the first is kept."""
    recompute_modules: tuple[str, ...] = DEFAULT_MODULES
    """What ``selective`` recomputes; without meaning with ``none`` and ``full``."""
    optimizer_types: OptimizerTypes = PLAIN
    task: str = "pretrain"
    lora_rank: int = 16
    lora_targets: tuple[str, ...] = LORA_TARGETS
    packed_length: int | None = None
    expert_imbalance: float = 1.0
    sharp: str | None = None
    reshard_after_forward: bool = True
    param_gather_bytes: int = 2
    offload_optimizer: float = 0.0
    offload_gradients: bool = False
    """Whether gradients leave with them though no ranks share them: ZeRO-2 asked of a single replica."""
    offload_parameters: bool = False
    offload_activations: int = 0
    offload_modules: tuple[str, ...] = ()
    overlap_offload: bool = True
    gpus_used_per_node: int | str | None = None
    cuda_graph_scope: tuple[str, ...] = ()
    moe_dispatcher: str = "alltoall"
    moe_dispatch_dtype: str = "bf16"
    moe_a2a_overlap: bool = False
    delay_wgrad: bool = False
    moe_shared_expert_overlap: bool = False
    moe_paged_stash: bool = False
    fused_router: bool = False
    fused_permute: bool = False
    te_op_fuser: bool = False
    fp8_recipe: str = "none"
    fp8_transposes: bool = False
    """Whether the matrix units of the GPU read 8 bits along the reduction alone (`Generation.fp8_transposes`)."""
    fp8_attention: bool = False
    bf16_first_last: bool = False
    mtp_stage: int | None = None
    """Virtual stage of the MTP layers, in model order; None: the last."""
    assumptions: tuple[Note, ...] = ()

    @property
    def mtp_stage_index(self) -> int:
        """Virtual stage that the MTP layers are on, in model order."""
        return len(self.layers_Q) - 1 if self.mtp_stage is None else self.mtp_stage

    def hidden_states_after(self, virtual_stage: int) -> int:
        """Return how many hidden states of a token a virtual stage hands on: those of MTP layers go to their heads.

        Source: Megatron-LM, megatron/core/transformer/multi_token_prediction.py (MultiTokenPredictionBlock.forward).
        """
        carried = self.mtp_stage_index <= virtual_stage < len(self.layers_Q) - 1
        return 1 + self.model.mtp_layers * carried

    @property
    def layout(self) -> PipelineLayout:
        """What each virtual stage holds."""
        return layout_of(self.layers_Q, self.model.mtp_layers, self.mtp_stage)

    @property
    def reduces_once(self) -> bool:
        """Whether FSDP keeps whole gradients over the microbatches of a pipeline and reduces them after the last."""
        return self.zero == 3 and self.parallel.pp > 1 and self.framework.pipelined_fsdp

    @property
    def offloads(self) -> bool:
        """Whether anything is kept in the memory of the host."""
        return self.offload_optimizer > 0 or self.offload_parameters or self.offloads_activations

    @property
    def offloads_activations(self) -> bool:
        """Whether saved activations are kept in the memory of the host, of layers or of modules."""
        return self.offload_activations > 0 or bool(self.offload_modules)

    @property
    def offloads_gradients(self) -> bool:
        """Whether gradients leave for the host as they are reduced, in every microbatch.

        So they do where the host updates and they are kept in shares, be it one; others leave in the step.
        Sources: DeepSpeed, runtime/zero/stage_1_and_2.py and stage3.py (partition_grads); PyTorch,
        torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (foreach_reduce, offload_to_cpu).
        """
        shared = self.zero >= 2 or self.offload_gradients
        return self.offload_optimizer > 0 and shared and not self.reduces_once

    @property
    def hides_exchanges(self) -> bool:
        """Whether something else is computed while tokens are on their way to experts and back."""
        return self.moe_a2a_overlap or self.moe_shared_expert_overlap

    @property
    def pairs_passes(self) -> bool:
        """Whether a forward and a backward pass run as one, each hiding what the other exchanges with experts."""
        return self.moe_a2a_overlap

    @property
    def keeps_parameters_whole(self) -> bool:
        """Whether gathered parameters of a whole stage are in memory at once, not those of a few layers."""
        return self.zero == 3 and (self.reduces_once or not self.reshard_after_forward)

    @property
    def memory_policy(self) -> MemoryPolicy:
        """What its framework keeps in memory."""
        return self.framework.memory_policy(self.zero)

    @property
    def recomputed_modules(self) -> tuple[str, ...]:
        """Modules that the backward pass of every layer recomputes by themselves."""
        return self.recompute_modules if self.recompute == "selective" else ()

    @property
    def attended_length(self) -> int:
        """Tokens of what attention sees as one sequence."""
        return self.packed_length or self.seq_length

    @property
    def tokens_per_step(self) -> int:
        """Tokens that a step trains on."""
        return self.global_batch * self.seq_length


def blocks_of_layer(job: Job, layer: int) -> Blocks:
    """Return the blocks of the layer of a job at that index, from 0: in 16 bits where the job keeps the ends there.

    Source: Megatron-LM, megatron/core/transformer/transformer_config.py (first_last_layers_bf16: by default one layer
    at the start and one at the end).
    """
    blocks = layer_blocks(job.model, layer)
    kept = job.bf16_first_last and layer in (0, job.model.layers - 1) and job.precision in EIGHT_BIT
    return in_sixteen_bits(blocks) if kept else blocks


def rank_share(job: Job, ranks_per_node: int = 8) -> Share:
    """Return what one rank works on in a microbatch.

    `ranks_per_node` reach each other without the network (64 where a job uses so many of an NVL72 rack).
    """
    parallel, framework = job.parallel, job.framework
    return Share(
        model=job.model,
        seq_length=job.seq_length,
        micro_batch=job.micro_batch,
        tp=parallel.tp,
        cp=parallel.cp,
        ep=parallel.ep,
        etp=parallel.expert_tp,
        sequence_parallel=job.sequence_parallel,
        vocab=job.padded_vocab,
        execution=Execution(
            precision=job.precision,
            recipe="" if job.fp8_recipe == "none" else job.fp8_recipe,
            eight_bit_attention=job.fp8_attention,
            fused_expert_casts=job.te_op_fuser,
            fused_experts=job.te_op_fuser and job.precision == "mxfp8",
            fused_operations=job.te_op_fuser,
            transposes=job.fp8_transposes,
            gathered_weight_bytes=job.param_gather_bytes if job.zero == 3 else 0,
            attention_kernel=job.attention_kernel,
            cp_kind=job.cp_kind,
            lora_rank=job.lora_rank if job.task == "lora" else 0,
            lora_targets=job.lora_targets,
            packed_length=job.packed_length or 0,
            expert_imbalance=job.expert_imbalance,
            ranks_per_node=ranks_per_node,
            fused_elementwise=framework.fused_elementwise,
            fused_expert_bias=framework.fused_expert_bias or job.te_op_fuser,
            gradient_sum=framework.gradient_sum,
            recasts_norms=framework.recasts_norms,
            moe_dispatcher=job.moe_dispatcher,
            moe_dispatch_dtype=job.moe_dispatch_dtype,
        ),
    )
