"""Whole fp32 models on several GPUs: their kernels laid out over ranks, simulated with their collectives.

Layouts are those of NeuSight's labels: ``dp4`` splits the batch, ``tp4`` the layers as Megatron-LM does
(arXiv 1909.08053, figure 3: two all-reduces of the activations each way and layer), ``pp4_1`` the layers
into 4 stages with 1 microbatch. Gradients are reduced in buckets while the backward pass runs, as
PyTorch's DistributedDataParallel does (``DDP_impl torch`` in NeuSight's `collect_label_distributed.py`).
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from eager.graphs import (
    DTYPE,
    EagerLayer,
    EagerModel,
    by_megatron,
    embedding,
    embedding_gradient,
    head,
    head_gradient,
)
from eager.host import host_floor_s
from traincast.estimate.operators import OperatorCall, OperatorConstants, estimate_calls
from traincast.hardware.clusters import cluster_for
from traincast.hardware.dtypes import bytes_per_element
from traincast.hardware.gpu import Gpu
from traincast.job.parallel import Parallel
from traincast.simulation.simulate import simulate
from traincast.simulation.step import Setting
from traincast.workload.builder import Rows, WorkloadBuilder, collective_op, compute_op
from traincast.workload.words import Group, Operation, Phase, Stream
from traincast.workload.workload import Workload

BUCKET_BYTES = 25 * 2**20
"""Gradients that are reduced together (torch.nn.parallel.DistributedDataParallel, bucket_cap_mb)."""
_LAYOUT = re.compile(r"(?P<kind>dp|tp|pp)(?P<ranks>\d{1,4})(?:_(?P<microbatches>\d{1,4}))?")


def layout_named(option: str) -> Parallel | None:
    """Return the layout that ``dp4``, ``tp4`` or ``pp4_1`` (4 stages, 1 microbatch) means; None for another word."""
    match = _LAYOUT.fullmatch(option)
    if match is None or (match["kind"] == "pp") != (match["microbatches"] is not None) or int(match["ranks"]) < 1:
        return None
    degree = {match["kind"]: int(match["ranks"])}
    return replace(Parallel(), **degree, microbatches=max(1, int(match["microbatches"] or 1)))


def misfit(model: EagerModel, batch: int, parallel: Parallel) -> str | None:
    """Return why a model does not fit a layout; None where it does."""
    rules = (
        (model.kind == "gpt2", "only GPT runs on several GPUs are made of these kernels"),
        (batch % (parallel.dp * parallel.microbatches) == 0, f"a batch of {batch} does not divide by the layout"),
        (model.heads % parallel.tp == 0, f"{model.heads} heads do not divide by tp {parallel.tp}"),
        (model.layers % parallel.pp == 0, f"{model.layers} layers do not divide by pp {parallel.pp}"),
    )
    return next((why for holds, why in rules if not holds), None)


def layout_time_s(
    model: EagerModel, batch: int, seq: int, gpu: Gpu, parallel: Parallel, constants: OperatorConstants
) -> float:
    """Return the seconds of forward and backward over a layout, simulated on the cluster that the GPU stands in.

    Parameters
    ----------
    model : EagerModel
        The model as one GPU runs it.
    batch, seq : int
        Sequences of the whole step, and tokens in each.
    gpu : Gpu
        The accelerator.
    parallel : Parallel
        The layout.
    constants : OperatorConstants
        Estimate the kernels.
    """
    each = batch // (parallel.dp * parallel.microbatches)
    builder = WorkloadBuilder(model.kind, parallel, "1f1b")
    step = _Step(by_megatron(model, parallel.tp), each, seq, parallel, _estimated(gpu, constants), builder)
    cluster = cluster_for(gpu.name, gpus_per_node=max(parallel.world_size, 2), gpus=parallel.world_size)
    return simulate(step.workload(), Setting(cluster=cluster)).iteration_time_s


def _estimated(gpu: Gpu, constants: OperatorConstants) -> Callable[[list[OperatorCall], bool], float]:
    """Return the function from kernels to their seconds, no less than the host needs to launch them."""

    def duration_s(calls: list[OperatorCall], backward: bool) -> float:
        return max(float(estimate_calls(calls, gpu, constants).sum()), host_floor_s(len(calls), backward=backward))

    return duration_s


@dataclass(slots=True)
class _Step:
    """Makes the operations of every stage."""

    model: EagerModel
    batch: int
    seq: int
    parallel: Parallel
    duration_s: Callable[[list[OperatorCall], bool], float]
    builder: WorkloadBuilder

    @property
    def tokens(self) -> int:
        return self.batch * self.seq

    @property
    def message_bytes(self) -> int:
        return self.tokens * self.model.hidden * bytes_per_element(DTYPE)

    def workload(self) -> Workload:
        """Return the workload of the whole step."""
        builder, stages = self.builder, range(self.parallel.pp)
        template = builder.template()
        template.forward_QM[:] = [[builder.segment(self._forward(stage))] for stage in stages]
        template.backward_QM[:] = [[builder.segment(self._backward(stage))] for stage in stages]
        template.end_P[:] = builder.segment(builder.wait(Stream.DP))
        return builder.workload(self.message_bytes)

    def _forward(self, stage: int) -> Rows:
        layer = EagerLayer(self.model, self.batch, self.seq, tp=self.parallel.tp)
        rows: Rows = []
        if stage == 0:
            rows += self._compute("embedding", Phase.FORWARD, embedding(self.model, self.tokens)) + self._sum_over_tp()
        for _ in range(self.model.layers // self.parallel.pp):
            rows += self._compute("attention", Phase.FORWARD, layer.attention()) + self._sum_over_tp()
            rows += self._compute("mlp", Phase.FORWARD, layer.mlp()) + self._sum_over_tp()
        if stage == self.parallel.pp - 1:
            rows += self._compute("head", Phase.FORWARD, head(self.model, self.tokens, tp=self.parallel.tp))
        return rows

    def _backward(self, stage: int) -> Rows:
        layer = EagerLayer(self.model, self.batch, self.seq, tp=self.parallel.tp)
        rows: Rows = []
        if stage == self.parallel.pp - 1:
            gradient = head_gradient(self.model, self.tokens, tp=self.parallel.tp)
            rows += self._compute("head", Phase.BACKWARD, gradient) + self._sum_over_tp()
        for _ in range(self.model.layers // self.parallel.pp):
            rows += self._compute("mlp", Phase.BACKWARD, layer.mlp_gradient()) + self._sum_over_tp()
            rows += self._compute("attention", Phase.BACKWARD, layer.attention_gradient()) + self._sum_over_tp()
            rows += self._reduce(layer.parameters)
        if stage == 0:
            rows += self._compute("embedding", Phase.BACKWARD, embedding_gradient(self.model, self.tokens))
            # The head's weight is the embedding's, whose gradient is whole only now.
            rows += self._reduce(self.model.vocabulary * self.model.hidden // self.parallel.tp)
        return rows

    def _compute(self, name: str, phase: Phase, calls: Iterable[OperatorCall]) -> Rows:
        return self.builder.add(compute_op(name, phase, self.duration_s(list(calls), phase is Phase.BACKWARD)))

    def _sum_over_tp(self) -> Rows:
        return [] if self.parallel.tp == 1 else self._all_reduce(Group.TP, self.message_bytes, blocking=True)

    def _reduce(self, parameters: int) -> Rows:
        if self.parallel.dp == 1:
            return []
        size_bytes = parameters * bytes_per_element(DTYPE)
        buckets = -(-size_bytes // BUCKET_BYTES)
        return [
            row for _ in range(buckets) for row in self._all_reduce(Group.DP, size_bytes // buckets, blocking=False)
        ]

    def _all_reduce(self, group: Group, size_bytes: int, *, blocking: bool) -> Rows:
        phase, name = Phase.BACKWARD if group is Group.DP else Phase.FORWARD, f"all_reduce_{group.name.lower()}"
        return self.builder.add(
            collective_op(name, phase, group, Operation.ALL_REDUCE, size_bytes, blocking=blocking, dtype=DTYPE)
        )
