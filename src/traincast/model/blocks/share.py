"""What one rank works on: its share of a layer and of a microbatch.

Degrees, micro batch and sequence are numbers, or arrays that broadcast: one `Share` then stands for many layouts.
"""

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.hardware.dtypes import EIGHT_BIT
from traincast.model.dispatch import Dispatch
from traincast.model.model import Model
from traincast.model.numbers import Number, ceil_div, choose, larger
from traincast.model.recipes import RECIPES, Recipe, recipes_of

LORA_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "in_proj", "out_proj")
"""Linear layers that can have low-rank adapters, as Megatron Core names them: projections of attention, of the
MLP, and of mixers with a state."""

DELAYED_SCALING = "fp8"
"""The one of them whose scales are those of steps before; the others scale what they cast."""


class Adapters(Struct, frozen=True, kw_only=True):
    """Low-rank adapters, which alone are trained where there are any."""

    rank: int = 0
    """Their width; 0: all weights are trained."""
    targets: tuple[str, ...] = LORA_TARGETS
    """Those of `LORA_TARGETS` that have them."""


class Execution(Struct, frozen=True, kw_only=True):
    """How the work is done, whatever the layout: the same for all layouts of a `Share`."""

    precision: str = "bf16"
    """Type of the inputs of the layers' GEMMs; the LM head mostly stays in 16 bits below that."""
    eight_bit_attention: bool = False
    """Whether the core of attention runs in 8 bits, too, where GEMMs do."""
    eight_bit_head: bool = False
    """Whether the LM head runs as the layers' GEMMs do."""
    recipe: str = ""
    """How tensors come to a type of 8 bits or less (`traincast.model.recipes`); empty: as is usual for `precision`."""
    fused_expert_casts: bool = False
    """Whether one kernel casts the tokens of all local experts, whatever the recipe."""
    fused_experts: bool = False
    """Whether the GEMMs of experts compute their activation and its gradient and cast both as they write them: a gate,
    or a squared ReLU with the router's weights (Transformer Engine, ops/fused/grouped_mlp.py, ScaledSReLU)."""
    grouped_experts: bool = False
    """Whether one kernel computes the GEMMs of all local experts; else each expert has some of its own, which follow
    each other."""
    padded_experts: bool = False
    """Whether the tokens of each expert are copied to where matrix units take them, and what comes of them back."""
    fused_operations: bool = False
    """Whether what stands between the GEMMs of dense MLPs is written cast, and GEMMs add what adapters would: the
    operation fuser of Transformer Engine."""
    transposes: bool = False
    """Whether matrix units read 8 bits along the reduction alone, so that the backward pass needs transposed copies."""
    gathered_weight_bytes: int = 0
    """Bytes of an element of a GEMM's weight as it is gathered for every pass; 0: ranks have them whole."""
    attention_kernel: str = "fa2"
    """Generation of the attention kernel; ``unfused`` writes the scores to memory."""
    cp_kind: str = "ring"
    """How context parallel ranks exchange keys and values."""
    adapters: Adapters = field(default_factory=Adapters)
    dispatch: Dispatch = field(default_factory=Dispatch)
    """How tokens get to their experts."""
    ranks_per_node: int = 8
    """Ranks that reach each other without the network."""
    folded_experts: bool = True
    """Whether groups of experts divide all ranks of a stage, or its replicas (`traincast.job.parallel.Parallel`)."""
    fused_elementwise: bool = True
    """Whether bias and dropout are fused with their neighbours, and a gate with its activation function."""
    score_passes: int = 4
    """How often the scores of unfused attention cross memory forward, in softmax and dropout."""
    eager_layers: bool = False
    """Whether norms, positions, activation functions, sums and the loss are operations of PyTorch, kernel by kernel
    (`traincast.model.blocks.eager`)."""
    loss_kernel: str = "eager"
    """What computes the loss from the logits: ``eager`` operations, ``compiled`` ones, or ``fused`` kernels."""
    loss_code: str = "megatron"
    """Whose loss it is where it is not fused: ``megatron``, ``torch`` or ``xla``."""
    autocast: bool = False
    """Whether weights are fp32, and PyTorch's autocast casts what GEMMs read."""
    fused_expert_bias: bool = False
    """Whether biases of experts are added, and the inputs of their activation clamped, by kernels next to them."""
    gradient_sum: str = "gemm"
    """What adds the weight gradients of a microbatch to those of the step: ``gemm``, ``kernel``, ``cast`` or
    ``autograd`` (`traincast.job.frameworks.GRADIENT_SUMS`)."""
    fuses_pointwise: bool = False
    """Whether pointwise work is a part of the GEMMs around it."""
    fused_rope: bool = True
    """Whether the rotary embedding is one kernel."""
    recasts_norms: bool = False
    """Whether norms read fp32 that is cast for them, and are recomputed in the backward pass."""
    sequence_first: bool = False
    """Whether hidden states have the sequences of a microbatch within each token, which scans read one by one."""
    one_hot_embedding: bool = False
    """Whether GEMMs of one-hot rows look tokens up, and add up the gradients of what they found."""
    dropout: bool = False
    """Whether layers draw random numbers for dropout, and keep its masks."""
    activation_copy: bool = False
    """Whether a gate's output is kept in addition to its product with the other half."""
    core_output_copy: bool = False
    """Whether the output projection keeps a transposed copy of the attention's output."""
    expert_output_copy: bool = False
    """Whether the experts' outputs are kept, for the gradient of the router weights that multiply them."""
    eight_bit_inputs: bool = True
    """Whether GEMMs in 8 bits keep their inputs in 8."""
    saved_logit_bytes: float = 4
    """Bytes per logit that wait for the backward pass."""

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation, and of a parameter that GEMMs read: 16 bits in every precision but fp32 and tf32."""
        return 4 if self.precision in ("fp32", "tf32") else 2

    @property
    def input_bytes(self) -> int:
        """Bytes of an element of a GEMM's input as it is kept."""
        return 1 if self.in_eight_bits and self.eight_bit_inputs else self.element_bytes

    @property
    def in_eight_bits(self) -> bool:
        """Whether the layers' GEMMs read values of 8 bits or less."""
        return self.precision in EIGHT_BIT

    @property
    def scaling(self) -> Recipe | None:
        """How the inputs of the layers' GEMMs are scaled and cast; None where they stay in 16 bits or more."""
        return RECIPES[self.recipe or recipes_of(self.precision)[0]] if self.in_eight_bits else None

    @property
    def core_dtype(self) -> str:
        """Type of the LM head and all that stays in 16 bits under fp8 and fp4, mostly attention, too."""
        return "bf16" if self.in_eight_bits else self.precision

    @property
    def attention_dtype(self) -> str:
        """Type of the core of attention: in 8 bits that of GEMMs in MXFP8, else with a scale for each tensor."""
        if not (self.in_eight_bits and self.eight_bit_attention):
            return self.core_dtype
        return self.precision if self.precision == "mxfp8" else "fp8"

    def in_sixteen_bits(self) -> "Execution":
        """Return how layers work that stay in 16 bits."""
        return replace(self, precision=self.core_dtype, recipe="")


class Sequences(Struct, frozen=True, kw_only=True):
    """The sequences of a microbatch."""

    length: Number
    """Tokens of each."""
    count: Number = 1
    packed_length: int = 0
    """Tokens of the sequences that are packed into one, which do not attend to each other; 0: a sequence is one."""
    packed_work: Number = 0
    """Attention of what is packed into one over that of as many tokens in sequences of `packed_length`; 0: they all
    have that length, and the last one is whole, too."""


class Share(Struct, frozen=True, kw_only=True):
    """A rank's share of the work of one microbatch; by default all of a sequence on one rank."""

    model: Model
    sequences: Sequences
    tp: Number = 1
    cp: Number = 1
    ep: Number = 1
    etp: Number = 1
    sequence_parallel: Number = False
    """Whether tensor parallel ranks split the sequence where they do not split the weights."""
    vocab: Number = 0
    """Entries of the vocabulary with their padding; 0: those of the model."""
    execution: Execution = field(default_factory=Execution)

    @property
    def expert_stride(self) -> Number:
        """Ranks from one member of an `ep` group to the next."""
        folded = self.execution.folded_experts
        return self.etp if folded else choose(self.etp == self.tp, self.tp * self.cp, self.etp)

    @property
    def sequence(self) -> Number:
        """Tokens of one sequence on a context parallel rank."""
        return ceil_div(self.sequences.length, self.cp)

    @property
    def tokens(self) -> Number:
        """Tokens of a microbatch that a tensor parallel group works on."""
        return self.sequences.count * self.sequence

    @property
    def splits_sequence(self) -> Number:
        """Whether norms and residuals of a rank see a part of the tokens of its group."""
        return self.sequence_parallel & (self.tp > 1)

    @property
    def copies_sequence(self) -> Number:
        """Whether every tensor parallel rank sees all tokens of its group, there being several."""
        return (self.tp > 1) & (self.sequence_parallel == 0)

    @property
    def norm_tokens(self) -> Number:
        """Tokens that norms and residuals of one rank see."""
        return choose(self.splits_sequence, ceil_div(self.tokens, self.tp), self.tokens)

    @property
    def heads(self) -> Number:
        """Attention heads of a rank."""
        return ceil_div(self.model.attention.heads, self.tp)

    @property
    def kv_heads(self) -> Number:
        """Key/value heads of a rank; where there are fewer heads than ranks they are copied."""
        return larger(1, ceil_div(self.model.attention.kv_heads, self.tp))

    @property
    def table_rows(self) -> Number:
        """Entries of the vocabulary on a rank."""
        return ceil_div(self.vocabulary, self.tp)

    @property
    def vocabulary(self) -> Number:
        """Entries of the vocabulary with their padding."""
        return choose(self.vocab == 0, self.model.vocab, self.vocab)

    @property
    def trains_weights(self) -> bool:
        """Whether the weights of the model itself are trained, not adapters."""
        return not self.execution.adapters.rank

    @property
    def wide(self) -> bool:
        """Whether the hidden state between layers is fp32 though GEMMs read 16 bits."""
        return self.execution.autocast and self.execution.eager_layers and self.trains_weights

    @property
    def hidden_bytes(self) -> int:
        """Bytes of an element of the hidden state between layers."""
        return 4 if self.wide else self.execution.element_bytes

    @property
    def input_bytes(self) -> int:
        """Bytes of an element of a GEMM's input as it is kept for the gradient of its weight; 0 for a frozen one."""
        return self.execution.input_bytes if self.trains_weights else 0

    @property
    def activation_bytes(self) -> Number:
        """Bytes of the hidden state of a microbatch over a tensor parallel group."""
        return self.tokens * self.model.hidden * self.execution.element_bytes

    @property
    def residual_bytes(self) -> Number:
        """Bytes of what passes from layer to layer of a microbatch, on one rank."""
        return self.norm_bytes * self.model.residual_streams

    @property
    def norm_bytes(self) -> Number:
        """Bytes of the hidden state of a microbatch between blocks, on one rank."""
        return self.norm_tokens * self.model.hidden * self.hidden_bytes
