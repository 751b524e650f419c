"""Activations of one microbatch on one rank, tensor by tensor.

Per layer: what autograd keeps from the forward to the backward pass. With plain attention and dropout the sum is
the s b h (34 + 5 a s / h) of Korthikanti et al. 2022, arXiv 2205.05198, equation 1, and its division by tensor and
sequence parallelism (equations 2 to 4) follows from where each tensor is split.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from traincast.estimate.memory.habits import Habits
from traincast.estimate.memory.optimizer import is_eight_bit, parameter_bytes
from traincast.model.model import Attention, Experts, Latent
from traincast.spec.job import Job

_MASK_BYTES = 1
_SUM_BYTES = 4
"""Flash attention keeps one fp32 sum per query and head (Dao et al. 2022, arXiv 2205.14135, algorithm 2)."""

RING_CHUNKS = 2
"""Keys and values of two other ranks, one in use and one on its way (Liu et al. 2023, arXiv 2310.01889)."""


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """What one layer keeps of one microbatch, and what passes while it runs.

    Parameters
    ----------
    tensors : mapping
        Bytes saved with nothing recomputed, by part.
    dropped : mapping
        The part of them that the recomputation of modules drops.
    recomputed : float
        Most of the dropped bytes that are there again at a time while the layer's backward pass runs.
    input_bytes : float
        The layer's input, all that full recomputation keeps.
    forward, backward : float
        Gathered inputs, and gradients of the widest part, while the layer runs.
    """

    tensors: Mapping[str, float]
    dropped: Mapping[str, float]
    recomputed: float
    input_bytes: float
    forward: float
    backward: float

    @property
    def all_bytes(self) -> float:
        """Everything that is saved with nothing recomputed."""
        return sum(self.tensors.values())

    @property
    def saved(self) -> dict[str, float]:
        """What is saved by part, without what the recomputation of modules drops."""
        return {name: size for name, size in self.tensors.items() if name not in self.dropped}


class LayerModel:
    """Sizes of the activations of a job's layers; layers of a kind are alike."""

    def __init__(self, job: Job, habits: Habits) -> None:
        self.job, self.habits = job, habits
        parallel = job.parallel
        self.tokens = job.micro_batch * job.seq_length / parallel.cp
        self.tp = parallel.tp
        self.sequence_tp = parallel.tp if job.sequence_parallel else 1
        self.width = parameter_bytes(job.precision)
        self.input_width = 1 if is_eight_bit(job.precision) and habits.weight_copies else self.width
        self.of_kind = cache(self._of_kind)

    def layer(self, index: int) -> LayerBytes:
        """Return the activations of the layer at that index."""
        return self.of_kind(self.job.model.has_experts(index))

    def _of_kind(self, with_experts: bool) -> LayerBytes:
        model, tokens = self.job.model, self.tokens
        hidden = tokens * model.hidden
        norms = {"norm inputs": 2 * self.width * hidden / self.sequence_tp}
        masks = 2 * _MASK_BYTES * hidden / self.sequence_tp if self.habits.dropout else 0.0
        attention = self._attention(hidden)
        if with_experts and model.experts is not None:
            feed_forward, passing = self._experts(model.experts, hidden)
        else:
            feed_forward, passing = self._dense(model.ffn_hidden, hidden)
        gathered = 2 * self.width * hidden if self.sequence_tp > 1 else self.width * hidden
        keys = self._exchanged_keys()
        tensors = norms | attention | feed_forward | ({"dropout masks": masks} if masks else {})
        halves = [
            {name: tensors[name] for name in names if name in tensors}
            for names in dropped_tensors(self.job, with_experts=with_experts)
        ]
        return LayerBytes(
            tensors=tensors,
            dropped=halves[0] | halves[1],
            recomputed=max(sum(half.values()) for half in halves),
            input_bytes=self.width * hidden / self.sequence_tp,
            forward=gathered + keys,
            backward=gathered + max(passing, 2 * keys),
        )

    def _attention(self, hidden: float) -> dict[str, float]:
        """Return what attention saves."""
        attention, tokens, width = self.job.model.attention, self.tokens, self.width
        heads = attention.heads / self.tp
        core = query_key_value_width(attention, self.tp) * tokens * width
        output = heads * value_dim(attention) * tokens * width * (2 if self.habits.core_output_copy else 1)
        found = {
            "attention inputs": self.input_width * hidden / self.sequence_tp,
            "queries, keys, values": core,
            "attention outputs": output,
        }
        if attention.latent is not None:
            found["latent vectors"] = _latent(attention.latent) * tokens * width
        if self.job.attention_kernel != "unfused":
            return found | {"attention sums": _SUM_BYTES * heads * tokens}
        # The softmax, and with dropout its mask and its outcome, all over every pair of tokens.
        per_pair = width + (width + _MASK_BYTES if self.habits.dropout else 0)
        return found | {"attention scores": per_pair * heads * self.job.seq_length * tokens}

    def _dense(self, inner: int, hidden: float) -> tuple[dict[str, float], float]:
        """Return what a feed-forward part saves, and the gradients that pass through it."""
        before, after, passing = self._inner(inner / self.tp * self.tokens)
        found = {
            "feed-forward inputs": self.input_width * hidden / self.sequence_tp,
            "feed-forward inner": before + after,
        }
        return found, passing

    def _inner(self, elements: float) -> tuple[float, float, float]:
        """Return what is saved before and after an activation function, and the gradients that pass through it."""
        up = 2 if self.job.model.gated else 1
        copy = 1 if self.job.model.gated and self.habits.activation_copy else 0
        return (
            self.width * up * elements,
            (self.width * copy + self.input_width) * elements,
            (self.width * (up + 1) * elements),
        )

    def _experts(self, experts: Experts, hidden: float) -> tuple[dict[str, float], float]:
        """Return what routed and shared experts save: each token is there once for each of its experts."""
        parallel, model = self.job.parallel, self.job.model
        spread = self.job.expert_imbalance
        if experts.capacity_factor is not None:
            spread = min(spread, experts.capacity_factor) if spread > 1 else experts.capacity_factor
        # All tokens of a tp group reach each of its expert ranks once per expert tensor parallel rank.
        copies = self.tokens / self.tp * parallel.expert_tp * experts.topk * spread
        before, after, passing = self._inner(copies * experts.ffn_hidden / parallel.expert_tp)
        shared = sum(self._inner(experts.shared_ffn_hidden / self.tp * self.tokens)[:2])
        routed = copies * model.hidden
        found = {
            "feed-forward inputs": self.width * hidden / self.sequence_tp,
            "routing": 2 * _SUM_BYTES * experts.experts * self.tokens / self.sequence_tp,
            "expert inputs": self.input_width * routed,
            "expert inner": before,
            "expert activations": after,
        }
        if self.habits.expert_output_copy:
            found["expert outputs"] = self.width * routed
        if shared:
            found["shared experts"] = shared
        return found, passing + 2 * self.width * routed

    def _exchanged_keys(self) -> float:
        """Return the keys and values of other context parallel ranks that are there at a time."""
        cp, attention = self.job.parallel.cp, self.job.model.attention
        if cp == 1 or self.job.cp_kind == "all_to_all":
            return 0.0
        heads = max(attention.kv_heads / self.tp, 1)
        own = 2 * heads * attention.head_dim * self.tokens * self.width
        return own * (cp - 1 if self.job.cp_kind == "all_gather" else min(cp - 1, RING_CHUNKS))


def query_key_value_width(attention: Attention, tp: int) -> float:
    """Return the elements of queries, keys and values per token on a rank."""
    heads = attention.heads / tp
    latent = attention.latent
    if latent is not None:
        return heads * (2 * (latent.nope_head_dim + latent.rope_head_dim) + latent.v_head_dim)
    return (heads + 2 * max(attention.kv_heads / tp, 1)) * attention.head_dim


def value_dim(attention: Attention) -> int:
    """Return the width of a value head."""
    return attention.head_dim if attention.latent is None else attention.latent.v_head_dim


def dropped_tensors(job: Job, *, with_experts: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tensors that recomputed modules do not save, those of attention and those of what follows.

    The backward pass has those of one half there again at a time. What is kept in their place is saved anyway:
    `traincast.model.recompute` says why.
    """
    modules = job.recomputed_modules
    attention: dict[str, tuple[str, ...]] = {
        "core_attn": ("attention scores", "attention sums"),
        "mla_up_proj": ("queries, keys, values",),
    }
    if job.model.attention.latent is not None:
        attention["layernorm"] = ("attention inputs",)
    rest: dict[str, tuple[str, ...]] = {"mlp": ("feed-forward inputs", "feed-forward inner")}
    if with_experts:
        rest = {
            "layernorm": ("feed-forward inputs",),
            "moe": (
                *("routing", "expert inputs", "expert inner", "expert activations", "expert outputs"),
                "shared experts",
            ),
            "moe_act": ("expert activations",),
            "shared_experts": ("shared experts",),
        }
    first, second = (
        tuple(dict.fromkeys(name for module in modules for name in of_module.get(module, ())))
        for of_module in (attention, rest)
    )
    return first, second


def _latent(latent: Latent) -> float:
    """Return the elements per token of compressed queries, keys and values, before and after their norms."""
    return 2.0 * ((latent.q_rank or 0) + latent.kv_rank) + latent.rope_head_dim
