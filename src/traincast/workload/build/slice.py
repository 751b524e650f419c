"""What one rank holds of a layer and of a microbatch."""

from dataclasses import dataclass

from traincast.model.model import Experts
from traincast.spec.job import Job
from traincast.workload.build.routing import expected_nodes

ACTIVATION_BYTES = 2
"""Activations travel between ranks in 16 bits in every precision but fp32."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A rank's share of the work of one microbatch."""

    job: Job
    ranks_per_node: int = 8
    """Ranks that reach each other without the network (64 where a job uses so many of an NVL72 rack)."""

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch that a tensor parallel group works on: its share of the sequence."""
        return self.job.micro_batch * self.sequence

    @property
    def sequence(self) -> int:
        """Tokens of one sequence on a context parallel rank."""
        return -(-self.job.seq_length // self.job.parallel.cp)

    @property
    def norm_tokens(self) -> int:
        """Tokens that norms and residuals of one rank see: split along the sequence with sequence parallelism."""
        return -(-self.tokens // self.job.parallel.tp) if self.splits_sequence else self.tokens

    @property
    def splits_sequence(self) -> bool:
        """Whether tensor parallel ranks split the sequence where they do not split the matrices."""
        return self.job.sequence_parallel and self.job.parallel.tp > 1

    @property
    def heads(self) -> int:
        """Attention heads of a tensor parallel rank."""
        return -(-self.job.model.attention.heads // self.job.parallel.tp)

    @property
    def kv_heads(self) -> int:
        """Key/value heads of a tensor parallel rank; where there are fewer heads than ranks they are copied."""
        return max(1, -(-self.job.model.attention.kv_heads // self.job.parallel.tp))

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation element."""
        return 4 if self.job.precision in ("fp32", "tf32") else ACTIVATION_BYTES

    @property
    def activation_bytes(self) -> int:
        """Bytes of the hidden state of a microbatch over a tensor parallel group."""
        return self.tokens * self.job.model.hidden * self.element_bytes

    @property
    def linear_dtype(self) -> str:
        """Type of the inputs of a layer's matrix products."""
        return self.job.precision

    @property
    def core_dtype(self) -> str:
        """Type of attention, head and everything that stays in 16 bits under fp8 and fp4."""
        return self.job.precision if self.job.precision in ("bf16", "fp16", "fp32", "tf32") else "bf16"

    def in_one_node(self, span: int) -> bool:
        """Return whether every group within so many consecutive ranks sits inside a node."""
        return self.job.parallel.world_size <= self.ranks_per_node or self.ranks_per_node % span == 0

    def nodes_of_token(self, experts: Experts, *, limited: bool = True) -> float | None:
        """Return the expected nodes that a token's experts are on; None where one node holds all experts.

        Parameters
        ----------
        experts : Experts
            Of the model.
        limited : bool
            Whether groups limit the routing; else as if there were none.
        """
        parallel = self.job.parallel
        each = experts.experts // parallel.ep
        node_E = tuple(at // each * parallel.expert_tp // self.ranks_per_node for at in range(experts.experts))
        if len(set(node_E)) == 1:
            return None
        groups = (experts.groups, experts.group_topk) if limited else (1, 1)
        return expected_nodes(node_E, experts.topk, *groups)
