"""The rows that AICB writes for a job: names, communications and sizes; the times come from elsewhere.

Source: aliyun/aicb, ``workload_generator/SimAI_training_workload_generator.py`` (``workload_generate_aiob``). Every
column of a tensor parallel pair gathers, every row of one scatters; the reduce-scatter of a column's input gradient is
written with 0 bytes, because AICB takes it as overlapped.
"""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from traincast.formats.aicb.conventions import (
    FP8_SHARE,
    PARAMETER_BYTES,
    Conventions,
    attention_row,
    has_experts,
)
from traincast.formats.aicb.times import ComputeTimes, Times
from traincast.model.structure import Blocks

_PROCESS_NS = 100
_NONE = "NONE"
_NOTHING = (_NONE, 0)
_FLAG_BYTES = 4
"""Bytes of what the optimizer's ranks agree on, and of each token in the loss."""

Communication = tuple[str, int]
"""Token and bytes."""


class Line(NamedTuple):
    """One row, as it is written."""

    name: str
    times: Times
    forward: Communication = _NOTHING
    input_grad: Communication = _NOTHING
    weight_grad: Communication = _NOTHING

    def text(self) -> str:
        """Return its twelve fields."""
        columns = zip(self.times, (self.forward, self.input_grad, self.weight_grad), strict=True)
        fields = [field for time_ns, (token, size) in columns for field in (time_ns, token, size)]
        return "\t".join(map(str, (self.name, -1, *fields, _PROCESS_NS)))


class RowWriter(Struct, frozen=True):
    """Makes the rows of a job."""

    conventions: Conventions
    times: ComputeTimes
    head: Blocks
    """What stands after the last layer."""

    def parts(self) -> list[list[Line]]:
        """Return all rows: once per step, the stage for every microbatch, the loss and the optimizer."""
        first = self._microbatch(None)
        following = self._microbatch(first[-1].name)
        count = self.conventions.job.parallel.microbatches
        return [list(self._opening()), first, *[following] * (count - 1), list(self._closing())]

    def _opening(self) -> Iterator[Line]:
        """Return what is exchanged of gradients and parameters, and the update."""
        conventions, once = self.conventions, Times()
        parallel, elements = conventions.job.parallel, conventions.elements
        dense = elements.all - elements.experts
        yield Line("grad_gather", once, weight_grad=("ALLGATHER", PARAMETER_BYTES * dense))
        yield Line("grad_param_comm", once, weight_grad=("REDUCESCATTER", conventions.gradient_bytes * dense))
        yield Line("grad_param_compute", once._replace(input_grad=self.times.update_ns()))
        if not conventions.sequence_parallel:
            yield Line("layernorm", once, input_grad=("ALLREDUCE", PARAMETER_BYTES * elements.all))
        yield Line("embedding_grads", once, input_grad=self._tp("ALLREDUCE", conventions.activation_bytes))
        # Where every replica has experts of its own there is nobody to reduce their gradients with.
        if parallel.ep != parallel.replicas and conventions.generation.says_degrees:
            gathered, reduced = PARAMETER_BYTES * elements.experts, conventions.gradient_bytes * elements.experts
            yield Line("moe_grad_norm1", once, weight_grad=("ALLGATHER_DP_EP", gathered))
            yield Line("moe_grad_norm2", once, weight_grad=("REDUCESCATTER_DP_EP", reduced))

    def _microbatch(self, before: str | None) -> list[Line]:
        """Return the rows of one microbatch, which follows a row of that name."""
        activation = self.conventions.activation_bytes
        lines = [Line("embedding_layer", self.times.embedding(before), self._tp("ALLREDUCE", activation))]
        for layer in self.conventions.layers:
            lines += self._attention(layer)
            lines += self._experts(layer) if has_experts(layer) else self._mlp(layer)
        if self.times.has_head():
            split = self.conventions.sequence_parallel
            lines += [self._column("final_column", self.head) if split else self._alone("final_layer", self.head)]
        return lines

    def _attention(self, layer: Blocks) -> list[Line]:
        latent = self.conventions.latent
        if not self.conventions.sequence_parallel:
            return [self._reduced(attention_row(latent), layer)]
        if latent is None:
            return [self._column("attention_column", layer), self._row("attention_row", layer)]
        queries = [self._alone("attention_linear_q_lora", layer)] if latent.q_rank else []
        return [
            *queries,
            self._column("attention_q_column", layer),
            self._alone("attention_linear_kv_lora", layer),
            self._column("attention_kv_column", layer),
            self._row("attention_o_row", layer),
        ]

    def _mlp(self, layer: Blocks) -> list[Line]:
        if not self.conventions.sequence_parallel:
            return [self._reduced("mlp_layer", layer)]
        return [self._column("mlp_column", layer), self._row("mlp_row", layer)]

    def _alone(self, name: str, layer: Blocks) -> Line:
        """Return a row that communicates nothing."""
        return Line(name, self.times.row_times(name, layer))

    def _reduced(self, name: str, layer: Blocks) -> Line:
        """Return half a layer whose output is reduced; AICB writes nothing for its input gradient."""
        return Line(name, self.times.row_times(name, layer), self._tp("ALLREDUCE", self.conventions.activation_bytes))

    def _column(self, name: str, layer: Blocks) -> Line:
        gathered = self._tp("ALLGATHER", self.conventions.activation_bytes)
        return Line(name, self.times.row_times(name, layer), gathered, self._tp("REDUCESCATTER", 0))

    def _row(self, name: str, layer: Blocks) -> Line:
        size = self.conventions.activation_bytes
        return Line(
            name, self.times.row_times(name, layer), self._tp("REDUCESCATTER", size), self._tp("ALLGATHER", size)
        )

    def _experts(self, layer: Blocks) -> list[Line]:
        """Return the rows of experts, the first of which has their whole computation, and shared ones after them."""
        five = self.conventions.generation.dispatch_rows < 7
        exchanges = list(self._dispatched() if five else self._dispatched_before_2025())
        times = [self.times.row_times("mlp_moelayer", layer), *[Times()] * (len(exchanges) - 1)]
        lines = [Line("mlp_moelayer", each, *pair) for each, pair in zip(times, exchanges, strict=True)]
        return lines + (self._mlp(layer) if self.conventions.experts.shared_ffn_hidden else [])

    def _dispatched(self) -> Iterator[tuple[Communication, Communication]]:
        """Return forward and input gradient of the rows: counts of tokens, dispatch, gather, scatter, combine."""
        conventions, parallel, experts = self.conventions, self.conventions.job.parallel, self.conventions.experts
        routed = conventions.activation_bytes * experts.topk
        own = routed // parallel.tp
        sent = own if conventions.latent is None else int(own * FP8_SHARE)
        alone = parallel.tp == parallel.ep == 1
        counts = 2 * parallel.ep * experts.experts * parallel.tp
        yield self._said(_NONE if alone else "ALLGATHER", counts), _NOTHING
        yield self._ep(sent), self._ep(own)
        yield self._tp("ALLGATHER", routed), self._tp("REDUCESCATTER", routed)
        yield self._tp("REDUCESCATTER", routed), self._tp("ALLGATHER", routed)
        yield self._ep(own), self._ep(own)

    def _dispatched_before_2025(self) -> Iterator[tuple[Communication, Communication]]:
        """Return those of Megatron Core before 0.13; with one expert rank AICB writes exchanges of 1 byte."""
        job, experts = self.conventions.job, self.conventions.experts
        parallel, activation = job.parallel, self.conventions.activation_bytes
        routed, tp = activation * experts.topk, self._tp
        scores = tp("ALLGATHER", 2 * job.batch.micro_batch * job.batch.seq_length * experts.experts)
        shared = tp("ALLTOALL", activation // parallel.tp)
        sent = "ALLTOALL_EP", routed // parallel.tp if parallel.ep > 1 else 1
        yield scores, scores
        yield shared, shared
        yield sent, sent
        yield tp("ALLGATHER", routed), tp("REDUCESCATTER" if parallel.ep > 1 else "ALLGATHER", routed)
        yield tp("REDUCESCATTER", routed), tp("ALLGATHER", routed)
        yield sent, sent
        yield shared, shared

    def _closing(self) -> Iterator[Line]:
        job, nothing = self.conventions.job, Times(0, 0, 0)
        size = _FLAG_BYTES * job.batch.seq_length * job.batch.micro_batch
        yield from (Line(f"cross_entropy{each}", nothing, ("ALLREDUCE", size)) for each in (1, 2, 3))
        yield from (Line(f"optimizer{each}", nothing, ("ALLREDUCE", _FLAG_BYTES)) for each in (1, 2, 3, 4))

    def _tp(self, token: str, size: int) -> Communication:
        return self._said(token if self.conventions.tp > 1 else _NONE, size)

    def _ep(self, size: int) -> Communication:
        return self._said("ALLTOALL_EP" if self.conventions.job.parallel.ep > 1 else _NONE, size)

    def _said(self, token: str, size: int) -> Communication:
        generation = self.conventions.generation
        if not size and not generation.says_degrees:
            return _NOTHING
        return token, size if token != _NONE or generation.sizes_without_group else 0
