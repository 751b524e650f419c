"""Frameworks: what the training software of some year does where a job does not say, and what it costs.

A framework is a TOML file of `data/frameworks`, or one of a user's own, with the fields of `Framework`. A file that
builds on another (``base``) changes only what it says. Its few numbers are physical and stand next to their source::

    base = "megatron-core-2025"         # everything else is as in this framework

    cuda_graphs = true
    host_layer_s = { value = "180us", source = "our profile of May" }

    [memory]
    logit_bytes = 6

``[out_of_the_box]`` and ``[[habits]]`` say how it comes and how its recipes set it (`traincast.job.levels`).

A source that begins with "prior" is a fit of a small closed-form model to published runs, shared by all frameworks of
the generation, which a calibration may replace.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.errors import UnknownNameError
from traincast.hardware.attention_kernels import ATTENTION_KERNELS
from traincast.job.fields import FIELDS
from traincast.job.levels import Habit, read_habits, read_plain
from traincast.model.dispatch import dispatcher_of
from traincast.model.recipes import RECIPES
from traincast.schedules.schedule import USUAL
from traincast.shipped import constant
from traincast.tables import Shelf, Value, built, read_table
from traincast.units import check_given

RECOMPUTE_METHODS = ("block", "uniform")
"""Which layers ``full`` recomputes where a number is given: so many of each virtual stage one by one, or all in groups
of so many (Megatron-LM, --recompute-method)."""

UNEVEN_SPLITS = ("short_last", "balanced")
"""How layers that do not divide fall on virtual stages: rounded up with what remains on the last
(Megatron-DeepSpeed, pipeline layouts of Megatron Core), or one more on the first ones."""

FULL_ITERATION = "full_iteration"

GRAPH_SCOPES = ("attn", "mlp", "mamba", "moe", "moe_router", "moe_preprocess", FULL_ITERATION)
"""Modules that CUDA graphs may hold. ``moe_router`` is routing with shared experts that are not overlapped,
``moe_preprocess`` what the dispatcher does before it sends, ``moe`` the whole block of experts, ``full_iteration`` all
of the step. Source: Megatron-LM, megatron/core/transformer/transformer_config.py (cuda_graph_scope)."""

GRADIENT_SUMS = ("gemm", "kernel", "cast", "autograd")
"""What adds the gradients of the weights of each microbatch to those of the step: the GEMM that makes them, a kernel
that reads what the GEMM wrote in 16 bits, such a kernel after a cast to fp32, or PyTorch's autograd, which adds
them in their own type (all but the first of a step, which is counted as the others are)."""

LOSS_KERNELS = ("unfused", "compiled", "fused")
"""What computes the loss from the logits: operators of PyTorch, its compiler's kernels, or one kernel with the gradient
(Megatron-LM, --cross-entropy-fusion-impl native and te)."""

LOSS_CODES = ("megatron", "torch", "xla")
"""Whose loss it is: Megatron's over a vocabulary split over ranks, PyTorch's cross-entropy, or a part of a program that
XLA compiles."""

COMPILED_LOGIT_BYTES = 10
"""Bytes per logit while compiled kernels compute the loss: 16-bit logits, their fp32 copy, and a buffer as large that
the compiler makes of its sums (Megatron-LM of August 2026, megatron/core/fusions/fused_cross_entropy.py, which says why
and no longer does)."""

OFFLOADED = ("optimizer", "activations")
"""What the memory of the host can keep instead of the GPU's, each by itself (`traincast.job.offload`)."""

CP_KINDS = ("ring", "all_gather", "all_to_all")
"""How context parallel ranks exchange keys and values."""


class MemoryPolicy(Struct, frozen=True, kw_only=True):
    """What a framework keeps in memory, and for how long."""

    gradient_bytes: int = 0
    """Bytes per parameter of the gradients that are kept from the first microbatch to the optimizer; 0: as reduced."""
    passing_gradient_bytes: int = 0
    """Bytes per parameter of gradients that only pass through but have a place of their own: none where gradients are
    kept as the backward pass makes them."""
    main_gradients_up_to_zero: int = 2
    """Largest stage of ZeRO with which the optimizer's step makes fp32 gradients of those in 16 bits; -1: never.
    Source: Megatron-LM, docs on the distributed optimizer (18 bytes per parameter with fp32 gradients, 20 with others).
    """
    main_gradient_bytes: int = 0
    """Bytes per parameter of these; sharded with the optimizer, and freed before the next forward pass."""
    dropout: bool = False
    """Whether layers have dropout, where a job does not say."""
    logit_bytes: int = 6
    """Bytes per logit while the loss is computed."""
    fused_logit_bytes: int = 4
    """The same where one kernel computes the loss and its gradient."""
    saved_logit_bytes: int = 4
    """Those of them that wait for the backward pass."""
    loss_tiles: int = 1
    """Parts of the sequences whose logits are there one after another (`Kernels.loss_tiles`)."""
    fused_loss: bool = False
    """Whether `logit_bytes` has the logits' gradient; else that is made in addition to what was saved."""
    activation_copy: bool = False
    """Whether a gate's output is kept in addition to its multiplication by the other half."""
    core_output_copy: bool = False
    """Whether the output projection keeps a transposed copy of the attention's output."""
    expert_output_copy: bool = False
    """Whether the experts' outputs are kept, for the gradient of the router weights that multiply them."""
    waiting_tensors: int = 0
    """Whole outputs of a layer that tensor parallel ranks reduce into shards and that are not free before the GPU is
    through with them: as many of every layer as the host launches ahead of it. Those that wait are of all layers of the
    forward passes that follow each other, which are all but the last two in flight in a pipeline."""
    gradient_placeholders: bool = False
    """Whether weight gradients leave an unused tensor of each shape of weight (`Framework.gradient_placeholders`)."""
    stage_output_copy: bool = False
    """Whether a pipeline stage keeps its output, which the next one holds as its input, until its backward pass."""
    weight_copies: bool = True
    """Whether 8-bit copies of the weights outlive a microbatch."""
    mxfp8_alone: bool = False
    """Whether MXFP8 weights with a sharded optimizer have no 16-bit ones next to them, though these are gathered: they
    pass through the buffer of the gradients, and are cast from there."""
    frozen_eight_bits: bool = False
    """Whether frozen weights that GEMMs read in 8 bits or less are kept in that type alone."""
    buffer_bytes: float = 0.0
    """Buckets that gradients and parameters pass through."""
    gathers_matrices: bool = False
    """Whether of sharded parameters single matrices are whole at a time, each for the GEMMs that read it: two of a
    layer, as the next one is gathered ahead, or embedding or LM head; else those of two layers, and both of these."""
    casts_shards: bool = False
    """Whether sharded fp32 parameters have copies in the type that GEMMs read, as shards, before they are gathered."""
    runtime_bytes: float = 0.0
    """What the runtime of other accelerators keeps, with buffers of its communication; 0: CUDA, NCCL and cuBLAS, which
    are counted one by one."""
    slack: float = 0.13
    """What PyTorch's allocator holds beyond what it has given out at most, as a share of the activations, which come
    and go; state is allocated once and leaves no holes. Source of the default: the median of 23 jobs of one H100 that
    print both, four of five from 6 to 40 % (studies/data, own_machine_jobs)."""


class Framework(Struct, frozen=True, kw_only=True):
    """A framework at one time."""

    name: str
    description: str
    year: int
    attention_kernel: str
    """What attention runs as, where the GPU runs that."""
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
    """Whether layers are CUDA graphs where the job does not say."""
    interleave: bool
    """Whether a pipeline is interleaved where the layers allow it and the job does not say."""
    recompute: str
    """Default of `traincast.model.recompute.RECOMPUTE`."""
    host_layer_s: float
    """Time in which an x86 server launches the forward pass of a dense layer in 16 bits; from that of one launch
    follows the time of every layer (`traincast.lowering.launches`)."""
    step_fixed_s: float
    """Per step: data loading, clip, logging, synchronisation."""
    unhidden_tp: float
    """Share of a tensor parallel transfer that cannot be hidden behind its GEMM (1: not overlapped)."""
    unhidden_cp: float
    """That of what two context parallel ranks exchange; of a ring of more the less, the longer it is."""
    unhidden_fsdp: float
    p2p_handover_s: float
    """Host time per message between pipeline stages (blocking implementations that send shapes first)."""
    compute_factor: float
    """Time of all computation over that of the operator models; 1 where nothing is known."""
    attention_kernel_amd: str = ""
    """What attention runs as on AMD's GPUs; empty: as on others."""
    module_launches: float = 1.0
    """Time of a module with a GEMM or attention in it over that of a plain kernel, as the host launches them: a linear
    layer of Transformer Engine keeps its own books in Python."""
    grace_slowdown: float = 1.0
    """How much longer a launch of its modules takes on Grace than `Gpu.host_slowdown` says, with its builds of Python
    and PyTorch."""
    steady_gpus: int = 0
    """GPUs of a job whose step has `step_fixed_s`; ranks wait for the slowest of them, so that on fewer it is shorter
    with the logarithm of their number (`traincast.lowering.launches.step_fixed_s`). 0: it is the same for all jobs."""
    eager_layers: bool = False
    """Whether norms, positions, activation functions, sums and the loss are operations of PyTorch, each a kernel."""
    loss_code: str = "megatron"
    """Whose loss it computes, one of `LOSS_CODES`."""
    autocast: bool = False
    """Whether weights are fp32 where they are not sharded, and PyTorch's autocast casts what GEMMs read."""
    host_peer_s: float = 0.0
    """Host time that a tensor parallel collective takes for each rank of its group where the messages of a pipeline
    cross nodes."""
    kin: str = "megatron"
    """Whose code it shares: what runs of one framework teach holds for its kin more than for others."""
    on_google: str = ""
    """Framework that it is on TPUs, where that is another one: the same program in the hands of another compiler."""
    fitted_as: str = ""
    """Framework whose published runs its factors are fitted to, where that is another one."""
    grad_reduce_bytes: int = 4
    """Bytes of a gradient element as replicas reduce it: 4, or 2 where gradients stay in 16 bits."""
    gathers_main_weights: bool = False
    """Whether sharded weights are gathered in fp32 and cast after, where the job does not say their bytes."""
    gradient_sum: str = "gemm"
    """One of `GRADIENT_SUMS`."""
    fuses_pointwise: bool = False
    """Whether its compiler makes pointwise work a part of the GEMMs around it, and not a way through memory."""
    recasts_norms: bool = False
    """Whether norms read fp32, which a kernel of its own makes of their inputs in 16 bits, and are recomputed in
    the backward pass rather than keep it."""
    grouped_experts: bool = False
    """Whether one kernel computes the GEMMs of all local experts; else a library launches them expert by expert."""
    pads_experts: bool = False
    """Whether GEMMs of experts in 8 bits and less copy their tokens to where each expert's begin at a multiple of 16 or
    32, and back, unless the dispatcher puts them there."""
    sequence_first: bool = False
    """Whether hidden states are laid out by token, then by sequence of the microbatch; else by sequence first."""
    state_by_tensor: bool = False
    """Whether gradients and parameters are exchanged over the replicas tensor by tensor, and not in large buffers."""
    owns_tensors: bool = False
    """Whether a distributed optimizer has tensors whole, each on one rank, which broadcasts it when it is updated, and
    gradients are reduced on all ranks; else each rank has a part of every tensor."""
    reduces_whole: bool = False
    """Whether gradients are reduced on all ranks though a distributed optimizer has a part of every tensor on each."""
    splits_messages: bool = False
    """Whether of a hidden state that all ranks of tensor parallelism have each sends its part to the next stage, whose
    ranks gather it."""
    gradient_placeholders: bool = False
    """Whether GEMMs that add to the main gradients themselves leave an unused 16-bit tensor of each shape of weight."""
    fsdp: bool = False
    """Whether parameters are sharded over the data parallel ranks (ZeRO-3) where the job does not say."""
    reshard_choice: bool = False
    """Whether a job may say if sharded parameters are freed after the forward pass (PyTorch's FSDP), or always are."""
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
    folded_experts: bool = True
    """Whether groups of experts divide all ranks of a stage, or its replicas (`traincast.job.parallel.Parallel`)."""
    fused_router: bool = False
    """Whether routing is a few fused kernels where the job does not say."""
    fused_permute: bool = False
    """Whether tokens are permuted by fused kernels where the job does not say."""
    overlaps_tp_gradients: bool = False
    """Whether layers whose outputs are split over tensor parallel ranks gather their inputs and sum up the gradients of
    these while a GEMM of their backward pass runs, whether `overlap_tp` is on or off."""
    fused_softmax_dropout: bool = False
    """Whether one kernel computes the softmax and the dropout of attention that is not fused."""
    te_op_fuser: bool = False
    """Whether Transformer Engine fuses operations where the job does not say."""
    fused_scaled_rotary: bool = True
    """Whether its fused kernel of rotary positions also takes a factor, as YaRN has one."""
    fp8_attention: bool = False
    """Whether attention is computed in 8 bits where linear layers are and the job does not say."""
    cuda_graph_scope: tuple[str, ...] = ()
    """Modules that its CUDA graphs hold in a dense model, of `GRAPH_SCOPES`; empty: whole layers."""
    moe_cuda_graph_scope: tuple[str, ...] = ()
    """Modules that such graphs hold in a model with experts, of `GRAPH_SCOPES`; empty: whole layers."""
    moe_dispatcher: str = "alltoall"
    """How tokens get to their experts (`traincast.model.dispatch.DISPATCHERS`)."""
    sends_router_weights: bool = False
    """Whether an all-to-all of their own takes the router's weights to the experts, which multiply by them."""
    moe_dispatch_dtype: str = "bf16"
    """Type in which tokens are sent to their experts, one of `traincast.model.dispatch.DISPATCH_DTYPES`."""
    moe_a2a_overlap: bool = False
    """Whether exchanges with experts are overlapped with the work of another microbatch."""
    moe_shared_expert_overlap: bool = False
    """Whether shared experts are computed while tokens are on their way to the others and back."""
    delay_wgrad: bool = False
    """Whether weight gradients of experts then hide the way of their inputs' gradients back."""
    fp8_recipe: str = "delayed"
    """How 8 bits with a scale for each tensor are scaled where the job does not say (`traincast.model.recipes`)."""
    cp_kind: str = "ring"
    """How context parallel ranks exchange keys and values where the job does not say."""
    vocab_multiple: int = 1
    """The vocabulary is padded to a multiple of this times tp; 1: only so that tp divides it."""
    selective_share: float = 0.0
    """Share of each layer's work that ``selective`` recomputes, where it is more than the attention core."""
    recompute_keeps: tuple[str, ...] = ()
    """Outputs of layers that are recomputed whole which it does not make again, as nothing of the backward pass needs
    them (`traincast.model.recompute.RECOMPUTE_KEEPS`)."""
    recomputes_halves: bool = False
    """Whether attention and the MLP of a layer without experts are checkpoints of their own where layers are recomputed
    whole, so that the projection of attention and what ranks exchange of it are not made again either."""
    selective_operators: bool = False
    """Whether that is of the operators of every layer: attention and every other GEMM keep their outputs."""
    recomputes_modules: bool = False
    """Whether it can recompute single modules of a layer, so that doing so is proposed where memory lacks."""
    recomputes_some_layers: bool = True
    """Whether it can recompute some layers of a stage whole and others not, so that a plan proposes it."""
    offloads: tuple[str, ...] = ("optimizer", "activations")
    """What it can keep by itself in the memory of the host, so that a plan proposes it: of `OFFLOADED`."""
    pipeline_schedules: tuple[str, ...] = USUAL
    """Schedules of a pipeline that a plan proposes."""
    lora_rank: int = 16
    """Rank of adapters where the job does not say. Source: MLPerf Training, LoRA fine-tuning of Llama 2 70B."""
    lora_targets: tuple[str, ...] = ("linear_qkv", "linear_proj", "in_proj", "out_proj")
    """Linear layers with adapters where the job does not say: projections of attention. Source: as above."""
    finetuning_length: int = 0
    """Tokens of the examples that fine-tuning packs into a sequence where the job does not say; 0: packs none."""
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    """What it keeps in memory; the table ``[memory]`` of a file."""
    out_of_the_box: Habit | None = None
    """Fields of a job as the program has them where no flag is given; the table ``[out_of_the_box]`` of a file."""
    habits: tuple[Habit, ...] = ()
    """What its published recipes set, and when; the tables ``[[habits]]`` of a file."""
    usual_as: str = ""
    """Framework whose recipes say what is usual for it, where it has none of its own."""
    sources: tuple[tuple[str, str], ...] = ()
    """(field, where its value comes from)."""

    def __post_init__(self) -> None:
        """Refuse zeros where a number divides."""
        check_given(self, ("layers_per_chunk", "vocab_multiple"), least=1)

    def memory_policy(
        self,
        zero: int,
        *,
        loss_kernel: str = "",
        loss_tiles: int = 1,
        fused_sums: bool = True,
    ) -> MemoryPolicy:
        """Return what it keeps in memory with a stage of ZeRO; 3 is FSDP, which reduces into shards.

        A job may say of the loss what is not as usual, and that GEMMs do not add up gradients.
        """
        fused = loss_kernel == "fused" if loss_kernel else self.memory.fused_loss
        logit_bytes = COMPILED_LOGIT_BYTES if loss_kernel == "compiled" else self.memory.logit_bytes
        kept_bytes, passing = self.memory.gradient_bytes or self.grad_reduce_bytes, self.memory.passing_gradient_bytes
        narrow = self.grad_reduce_bytes == 2 and zero <= self.memory.main_gradients_up_to_zero
        return replace(
            self.memory,
            gradient_bytes=kept_bytes,
            passing_gradient_bytes=passing if kept_bytes > passing else 0,
            main_gradient_bytes=4 if narrow else 0,
            fused_loss=fused,
            logit_bytes=self.memory.fused_logit_bytes if fused else logit_bytes,
            loss_tiles=loss_tiles,
            activation_copy=not self.fused_elementwise,
            gradient_placeholders=self.gradient_placeholders and zero < 3 and fused_sums,
        )


_DECIDED = ("activation_copy", "gradient_placeholders", "loss_tiles", "main_gradient_bytes")
"""What `Framework.memory_policy` decides, and no file says."""

_LEVELS: Mapping[str, Callable[[object, str], Any]] = {"out_of_the_box": read_plain, "habits": read_habits}
"""Tables of a file that say what a job gets of a level of effort."""

_SHELF = Shelf("framework", "frameworks")
_GONE = ("deduplicated_dispatch", "unhidden_ep", "fused_expert_bias")
"""Fields that a framework had once."""

_CHOICES = {
    "attention_kernel_amd": ATTENTION_KERNELS,
    "uneven_split": UNEVEN_SPLITS,
    "cuda_graph_scope": GRAPH_SCOPES,
    "moe_cuda_graph_scope": GRAPH_SCOPES,
    "gradient_sum": GRADIENT_SUMS,
    "loss_code": LOSS_CODES,
    "offloads": OFFLOADED,
    "fp8_recipe": tuple(RECIPES),
}
"""Names that fields may have of which a job has none, or others."""

DEFAULT_FRAMEWORK = "megatron-core-2026"
"""What runs a job that names neither framework nor year: the newest, which users run today."""

_BY_YEAR = (
    (2021, "megatron-2021"),
    (2023, "megatron-2022"),
    (2024, "megatron-core-2024"),
    (2025, "megatron-core-2025"),
)
"""Last year and framework; after it the newest. Source: releases of Megatron-LM and NeMo."""


def framework_names() -> list[str]:
    """Return the names of the shipped frameworks, sorted."""
    return _SHELF.names()


def framework_of_year(year: int | None) -> str:
    """Return the name of the Megatron framework of a year; `DEFAULT_FRAMEWORK` where none is given."""
    if year is None:
        return DEFAULT_FRAMEWORK
    return next((name for last, name in _BY_YEAR if year <= last), DEFAULT_FRAMEWORK)


def load_framework(name_or_path: str) -> Framework:
    """Return a framework by its name, or the one that a TOML file describes, with a source for every number.

    Raises
    ------
    FormatError
        If the file cannot be read or is not TOML.
    ConfigError
        If a field is unknown or missing, or its value is not allowed.
    UnknownNameError
        If it is neither a file nor the name of a framework.
    """
    found = _SHELF.find(name_or_path)
    if found is None:
        raise UnknownNameError("framework", name_or_path, framework_names())
    return constant(_named, found) if isinstance(found, str) else _built(found.stem, _read(found), name_or_path)


def framework_from_table(table: Mapping[str, Any], shown: str) -> Framework:
    """Return the framework that a table describes in full, with its name, in the words of a file.

    Raises
    ------
    ConfigError
        If a field is unknown or missing, or its value is not allowed.
    """
    own = {key: value for key, value in table.items() if key != "name"}
    return _built(str(table.get("name", "own")), _values(own, shown), shown)


def _named(name: str) -> Framework:
    return _built(name, _read(name), name)


def _read(given: str | Path) -> dict[str, Value]:
    """Return the values of a file over those of its base, by field path."""
    table, base = _SHELF.read(given)
    own = _values(table, str(given))
    below = {} if base is None else _read(base)
    # How a program comes, what its recipes set and how it groups ranks are its own, whatever a file of another kin
    # builds on.
    kept = (*_LEVELS, "usual_as", "folded_experts") if "kin" in own else ()
    return {name: value for name, value in below.items() if name not in kept} | own


def under_new_fields(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a framework's table with what its fields were once under those of today.

    A share of expert exchanges that stays in sight has no successor, as what hides them follows from the simulation,
    nor has whether biases of experts are fused: the fuser of Transformer Engine decides that.
    """
    found = {key: value for key, value in table.items() if key not in _GONE}
    once = table.get("deduplicated_dispatch")
    if once is not None and "moe_dispatcher" not in found:
        found["moe_dispatcher"] = dispatcher_of(once["value"] if isinstance(once, Mapping) else once)
    return found


def _choices() -> Mapping[str, Iterable[str]]:
    """Return the names that fields may have: those of a job's field of that name, and `_CHOICES`."""
    from traincast.job.choices import choices_of  # it asks the groups of a job, which know frameworks

    of_job = (FIELDS[name] for name in Framework.__struct_fields__ if name in FIELDS)
    return {each.name: choices_of(each) for each in of_job if each.choices} | _CHOICES


def _values(table: dict[str, Any], shown: str) -> dict[str, Value]:
    table = under_new_fields(table)
    memory = read_table(MemoryPolicy, table.pop("memory", {}), shown, "memory.", without=_DECIDED, positive=False)
    levels = {name: Value(_LEVELS[name](table.pop(name), shown)) for name in _LEVELS if name in table}
    own = read_table(
        Framework,
        table,
        shown,
        without=("name", "memory", "sources", *_LEVELS),
        also=("base", "memory", *_LEVELS),
        choices=_choices(),
        positive=False,
    )
    return own | memory | levels


def _built(name: str, values: dict[str, Value], shown: str) -> Framework:
    found = {
        "name": Value(name),
        "memory": Value(built(MemoryPolicy, values, shown, "memory.")),
        "sources": Value(tuple((path, value.source) for path, value in values.items() if value.source)),
    }
    return built(Framework, values | found, shown, remedy="give it, or a base")
