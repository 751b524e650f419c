"""What AICB takes for granted when it writes a job: its generations, its sizes, its counts of parameters.

An AICB file has the rows of one stage that is the first and the last at once. Letters, as in AICB: h hidden size, f
inner width of an MLP, s sequence, b micro batch, t tensor parallel degree, E experts, e expert parallel degree, k
experts of a token, A = 2 b s h bytes of an activation.

Source: aliyun/aicb, ``workload_generator/SimAI_training_workload_generator.py`` (until 2025-09
``AIOB_simAI_workload_generator.py``), ``mocked_model/training/MockedMegatron.py`` and ``MockedDeepSeek.py`` next to it,
and ``utils/utils.py``; the commits are named where they matter.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct

from traincast.errors import ConfigError
from traincast.job.job import Job
from traincast.model.blocks.attention import AttentionBlock
from traincast.model.blocks.experts import MoeMlp
from traincast.model.blocks.latent_attention import LatentAttention
from traincast.model.blocks.mlp import Mlp
from traincast.model.model import Experts, Latent
from traincast.model.structure import Blocks

ACTIVATION_BYTES = 2
"""Bytes of an element, whatever the precision."""
GRADIENT_BYTES, PARAMETER_BYTES = 4, 2
FP8_SHARE = (1 + 4 / 128) / 2
"""Bytes of a dispatched element with its scales over two (``FP8_FACTOR`` in ``MockedDeepSeek.py``, after DeepEP)."""


class Generation(Struct, frozen=True, kw_only=True):
    """What AICB wrote for some time."""

    says_degrees: bool = True
    """Whether the header has more degrees than tp, and the rows suffixes of groups and communications of 0 bytes."""
    says_vpp: bool = False
    says_messages: bool = False
    """Whether the header has ``pp_comm``."""
    embedding_copies: int = 4
    """How often the embedding's table counts among the parameters."""
    doubles_flash: bool = True
    """Whether recomputation doubles the time of the attention kernel itself, in both passes."""
    sizes_without_group: bool = True
    """Whether a communication that does not take place (``NONE``) keeps its size."""
    dispatch_rows: int = 7
    """Rows of a layer with experts."""


GENERATIONS = {
    "astra-sim-1.0": Generation(says_degrees=False, sizes_without_group=False),
    "v1.1": Generation(embedding_copies=2, doubles_flash=False),
    "vpp": Generation(says_vpp=True),
    "pp_comm": Generation(says_vpp=True, says_messages=True, sizes_without_group=False, dispatch_rows=5),
}
"""Generations by name: b9d142e (2024-09), e0dab52 with af5cf2b (2024-11), and what followed cf516c0 (2024-12) as it is
since 92a99f8 (2025-09): experts as Megatron Core 0.13 dispatches to them. The first one is for ASTRA-sim 1.0, which has
no pipelines and no experts (its ``Workload.cc``, ``initialize_workload``)."""


class Elements(NamedTuple):
    """Parameters of one rank as AICB counts them."""

    all: int
    experts: int
    """Those of layers with experts, among all."""


class Conventions(Struct, frozen=True, dict=True):
    """A job as AICB is told of it."""

    job: Job
    generation: Generation
    layers: Sequence[Blocks]
    """The layers of the stage."""
    own: Elements | None = None
    """Parameters that are exchanged instead of those that AICB counts: the job's own."""

    @property
    def sequence_parallel(self) -> bool:
        """Whether its rows are those of sequence parallelism; without tensor parallel ranks these say more."""
        return self.job.communication.sequence_parallel or self.tp == 1

    @property
    def tp(self) -> int:
        """Tensor parallel degree."""
        return self.job.parallel.tp

    @property
    def activation_bytes(self) -> int:
        """Bytes of an activation (A in AICB's formulas)."""
        return ACTIVATION_BYTES * self.job.batch.micro_batch * self.job.batch.seq_length * self.job.model.hidden

    @property
    def latent(self) -> Latent | None:
        """Widths of latent attention; a model that has it is one of AICB's frame ``DeepSeek``."""
        return self.job.model.attention.latent

    @property
    def experts(self) -> Experts:
        """The experts of a model that has some."""
        if self.job.model.experts is None:
            raise ConfigError("has no experts", "model")
        return self.job.model.experts

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a gradient as it is reduced."""
        return GRADIENT_BYTES if self.own is None else self.job.framework.grad_reduce_bytes

    @cached_property
    def elements(self) -> Elements:
        """Parameters of a rank: of the listed modules only, without gates, and with all heads of keys and values.

        With sequence parallelism the listed modules are the linear ones, the norms before MLPs and those of narrow
        vectors, with a gain and a bias, and the LM head; without it attention, MLP and embedding as a whole. Shared
        experts count in the experts and again on their own.
        """
        if self.own is not None:
            return self.own
        model = self.job.model
        table = self.job.kernels.padded_vocab // self.tp
        total = (self.generation.embedding_copies * table + self.job.batch.seq_length) * model.hidden
        routed = 0
        for layer in self.layers:
            experts, shared = self._expert_elements() if has_experts(layer) else (0, 0)
            routed += experts
            total += self._attention_elements() + experts + shared
            total += 0 if has_experts(layer) else self._mlp_elements(model.ffn_hidden)
            total += 2 * model.hidden if self.sequence_parallel else 0
        return Elements(total + (table * model.hidden if self.sequence_parallel else 0), routed)

    def _attention_elements(self) -> int:
        model, heads, tp = self.job.model, self.job.model.attention.heads, self.tp
        if self.latent is None:
            width = model.hidden // heads * heads
            return model.hidden * (3 * width // tp) + model.hidden * (width // tp)
        latent, hidden = self.latent, model.hidden
        query = latent.nope_head_dim + latent.rope_head_dim
        narrow = latent.q_rank or 0
        queries = (latent.q_rank or hidden) * (heads * query // tp)
        keys_values = latent.kv_rank * (heads * (latent.nope_head_dim + latent.v_head_dim) // tp)
        down = hidden * (narrow + latent.kv_rank + latent.rope_head_dim)
        return down + queries + keys_values + hidden * (heads * latent.v_head_dim // tp) + 2 * (narrow + latent.kv_rank)

    def _mlp_elements(self, width: int) -> int:
        return 2 * self.job.model.hidden * (width // self.tp)

    def _expert_elements(self) -> tuple[int, int]:
        """Return those that are counted as experts, and those of shared ones, which are among them."""
        experts = self.experts
        width = experts.ffn_hidden * (experts.experts // self.job.parallel.ep) // self.tp
        shared = self._mlp_elements(experts.shared_ffn_hidden)
        return (2 if self.latent is None else 3) * self.job.model.hidden * width + shared, shared


_AFTER_SCORES = ("core_attention", "linear_proj", "self_attn_bda", "post_self_attn_layernorm")
"""Modules of attention that the row of its output stands for, by the end of their names."""
_LATENT_ROWS = {
    "input_layernorm": "attention_linear_q_lora",
    "linear_q_down_proj": "attention_linear_q_lora",
    "linear_q_up_proj": "attention_q_column",
    "linear_q_proj": "attention_q_column",
    "linear_kv_down_proj": "attention_linear_kv_lora",
}
_MLP_OUT = ("linear_fc2", "mlp_bda", "post_mlp_layernorm")


def row_of(module: str, conventions: Conventions, layer: Blocks) -> str:
    """Return the row that stands for a module of a layer, which has the name that Megatron Core gives it."""
    end, split = module.rpartition(".")[2], conventions.sequence_parallel
    if module.startswith("self_att") or "attn" in end or end == "input_layernorm":
        return _row_of_attention(end, conventions.latent) if split else attention_row(conventions.latent)
    if has_experts(layer) and "shared_experts" not in module:
        return "mlp_moelayer"
    if not split:
        return "mlp_layer"
    return "mlp_row" if end in _MLP_OUT else "mlp_column"


def _row_of_attention(end: str, latent: Latent | None) -> str:
    if end in _AFTER_SCORES:
        return "attention_row" if latent is None else "attention_o_row"
    if latent is None:
        return "attention_column"
    # Queries that are not compressed have the norm of the input in their own row.
    first = "attention_linear_q_lora" if latent.q_rank else "attention_q_column"
    row = _LATENT_ROWS.get(end, "attention_kv_column")
    return first if row == "attention_linear_q_lora" else row


def attention_row(latent: Latent | None) -> str:
    """Return the one row of attention without sequence parallelism."""
    return "attention_layer" if latent is None else "attention_layer_mla"


def has_experts(layer: Blocks) -> bool:
    """Tell whether a layer has routed experts."""
    return any(isinstance(block, MoeMlp) for block in layer)


def is_transformer(layer: Blocks) -> bool:
    """Tell whether a layer is attention and then an MLP or experts, all that AICB has rows for."""
    kinds = [type(block) in (AttentionBlock, LatentAttention) for block in layer]
    return kinds == [True, False] and isinstance(layer[1], (Mlp, MoeMlp))
