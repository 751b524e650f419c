"""What a virtual stage runs in each pass of a microbatch.

Letters: Q virtual stages in model order.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from traincast.job.job import Job, rank_share
from traincast.model.blocks.part import Elements
from traincast.model.structure import (
    FIRST_BLOCKS,
    MTP_ENDS,
    Blocks,
    RankParts,
    last_blocks,
    layer_blocks,
    layer_kinds,
)
from traincast.workload.build.emit import Emitter, Host
from traincast.workload.build.ends import embedding, exchanged, head_rows, merged, times
from traincast.workload.build.kernels import Counted, Exchange, Work, work_of
from traincast.workload.words import STREAM_OF_GROUP, Phase

BACKWARD_HOST = 1.6
"""Host time of a layer's backward pass over its forward: two products for each one, and autograd's own
bookkeeping (docs/measured.md)."""


GRAPH_HOST = 0.3
"""Host time of a layer in a CUDA graph over that of launching its kernels one by one: 1.5 us each (1-2 us between the
kernels of a replayed graph: NVIDIA blog, Constant-time launch for straight-line CUDA graphs, 2024) against 5 us
(PyTorch eager: Python, dispatcher and driver)."""


UNSYNCHRONISED = 0.3
"""Host time of a layer whose experts take a fixed number of tokens over that of one whose host waits for their
counts: what is left is launching (Qwen3-30B at micro batch 1: 4.7 ms a layer with dropped tokens, 8.8 ms without)."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """One virtual stage: how many layers of each kind it has, and what each does."""

    job: Job
    index: int
    kinds: tuple[tuple[Blocks, int], ...]
    parts: RankParts
    """What a rank has of every block; the same for all stages."""
    works: Mapping[Blocks, Work]
    """What a layer of each kind does; the same for all stages."""

    @property
    def first(self) -> bool:
        """Whether it has the embedding."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether it has the output head."""
        return self.index == len(self.job.layers_Q) - 1

    @property
    def layers(self) -> int:
        """Layers of all kinds."""
        return sum(count for _, count in self.kinds)

    def work(self, kind: Blocks) -> Work:
        """Return what a layer of a kind does."""
        return self.works[kind]

    def host(self) -> Host:
        """Return what the host needs to launch a forward pass."""
        framework = self.job.framework
        experts = sum(count for kind, count in self.kinds if any(part.expert for part in self.parts.of(kind)))
        waits = self.job.model.experts is not None and self.job.model.experts.capacity_factor is None
        experts_s = framework.host_expert_s * experts * (1.0 if waits else UNSYNCHRONISED)
        seconds = Host(framework.host_layer_s * self.layers, experts_s)
        return seconds * GRAPH_HOST if self.job.cuda_graphs else seconds

    def weights(self) -> Elements:
        """Return the weights that a rank holds of it."""
        model = self.job.model
        held = [*self.kinds]
        if self.first:
            held.append((FIRST_BLOCKS, 1))
        if self.last:
            held.append((last_blocks(model, with_embedding=self.job.parallel.pp == 1), 1))
            held.append((MTP_ENDS, model.mtp_layers))
        total = Elements()
        for blocks, count in held:
            total = total + self.parts.elements(blocks) * count
        return total


def stages_of(job: Job, ranks_per_node: int) -> tuple[StageWork, ...]:
    """Return every virtual stage of a job, in model order, [Q]."""
    parts, model = RankParts(rank_share(job, ranks_per_node)), job.model
    works = {
        blocks: work_of(parts.of(blocks), trains_weights=parts.share.trains_weights)
        for blocks in layer_kinds(model, range(model.layers))
    }
    stages, begin = [], 0
    for index, layers in enumerate(job.layers_Q):
        of_stage = Counter(layer_kinds(model, range(begin, begin + layers)))
        if index == len(job.layers_Q) - 1 and model.mtp_layers:
            # Layers that predict further tokens follow the last one and are like it.
            of_stage[layer_blocks(model, model.layers - 1)] += model.mtp_layers
        stages.append(StageWork(job, index, tuple(of_stage.items()), parts, works))
        begin += layers
    return tuple(stages)


@dataclass(frozen=True, slots=True)
class Gather:
    """How the first forward pass of a step meets the parameters that other ranks have updated."""

    following: list[Exchange]
    """Those of the virtual stage that the rank runs next: launched one virtual stage ahead."""
    begins: bool
    """Whether its own are still coming while it runs, layer by layer; else they must be there before."""
    own: list[Exchange]
    """Its own, wherever they were launched."""


def forward_rows(emit: Emitter, stage: StageWork, beside: list[Exchange], gather: Gather | None = None) -> list[int]:
    """Return the rows of a forward pass.

    Parameters
    ----------
    emit : Emitter
        Receives the operations.
    stage : StageWork
        The virtual stage.
    beside : list of Exchange
        Parameters that each forward pass collects (ZeRO-3).
    gather : Gather, optional
        In the first pass of a step with a distributed optimizer.

    Returns
    -------
    list of int

    Notes
    -----
    A virtual stage's parameters are gathered while the one before it runs. Source: Megatron-LM,
    megatron/core/pipeline_parallel/schedules.py (`param_sync_func`).
    """
    rows: list[int] = []
    arrived = [] if gather is None else [emit.wait(STREAM_OF_GROUP[each.group]) for each in gather.own]
    launched = [
        row
        for each in (gather.following if gather else [])
        for row in emit.exchange(each, Phase.FORWARD, blocking=False)
    ]
    if gather and not gather.begins:
        rows += [*arrived, *launched]
    if stage.first:
        lookup = embedding(emit)
        rows += emit.compute("embedding forward", Phase.FORWARD, lookup.forward)
        rows += [row for each in lookup.forward_exchanges for row in emit.exchange(each, Phase.FORWARD)]
    calls, exchanges, host = _forward(stage)
    layers = emit.compute("layers forward", Phase.FORWARD, calls)
    passed = emit.overlapped(beside, Phase.FORWARD, emit.overlapped(exchanges, Phase.FORWARD, layers))
    rows += emit.hosted(host, Phase.FORWARD, passed)
    if gather and gather.begins:
        rows += [*arrived, *launched]
    if stage.last:
        rows += head_rows(emit, backward=False)
    return rows


def backward_rows(emit: Emitter, stage: StageWork, beside: list[Exchange], reduced: list[Exchange]) -> list[int]:
    """Return the rows of a backward pass.

    Parameters
    ----------
    emit : Emitter
        Receives the operations.
    stage : StageWork
        The virtual stage.
    beside : list of Exchange
        What each backward pass exchanges of parameters and gradients (ZeRO-3), done when the pass is.
    reduced : list of Exchange
        Gradients that are reduced layer by layer while the pass runs; nothing waits for them here.

    Returns
    -------
    list of int
    """
    rows: list[int] = []
    if stage.last:
        rows += head_rows(emit, backward=True)
    calls: list[Counted] = []
    weights: list[Counted] = []
    exchanges: list[Exchange] = []
    for kind, count in stage.kinds:
        work = stage.work(kind)
        calls += times(work.backward, count)
        weights += times(work.weight, count)
        exchanges += exchanged(work.backward_exchanges, count)
    # What is recomputed hides parameters on their way, too: layers are recomputed one by one.
    passed = _recomputed(emit, stage)
    # All layers but the one that is computed last have their gradients before the pass ends.
    early = 1 - 1 / max(1, stage.layers)
    for each in reduced:
        passed += emit.exchange(each, Phase.WEIGHT_GRADIENT, share=early, blocking=False)
    compute = emit.compute("layers backward", Phase.BACKWARD, calls)
    compute += emit.compute("layers weight gradient", Phase.WEIGHT_GRADIENT, weights)
    layers = emit.overlapped(merged(exchanges), Phase.BACKWARD, compute)
    passed += emit.hosted(stage.host() * BACKWARD_HOST, Phase.BACKWARD, layers)
    rows += emit.overlapped(beside, Phase.BACKWARD, passed)
    if stage.first and stage.parts.share.trains_weights:
        lookup = embedding(emit)
        rows += [row for each in lookup.backward_exchanges for row in emit.exchange(each, Phase.WEIGHT_GRADIENT)]
        rows += emit.compute("embedding backward", Phase.WEIGHT_GRADIENT, lookup.backward)
    for each in reduced:
        rows += emit.exchange(each, Phase.WEIGHT_GRADIENT, share=1 - early, blocking=False)
    return rows


def _forward(stage: StageWork, share: float = 1.0) -> tuple[list[Counted], list[Exchange], Host]:
    """Return calls and exchanges of the forward pass of a share of the layers, and what the host needs for it."""
    calls: list[Counted] = []
    exchanges: list[Exchange] = []
    for kind, count in stage.kinds:
        work = stage.work(kind)
        calls += times(work.forward, count * share)
        exchanges += exchanged(work.forward_exchanges, count * share)
    return calls, merged(exchanges), stage.host() * share


def _recomputed(emit: Emitter, stage: StageWork) -> list[int]:
    """Return what the backward pass recomputes: whole layers with their exchanges, or modules of each layer."""
    share = _recomputed_share(stage)
    if share > 0:
        calls, exchanges, host = _forward(stage, share)
        name = "layers recompute"
    elif stage.job.recomputed_modules:
        calls, exchanges, host = _modules_again(stage)
        name = "modules recompute"
    else:
        return []
    again = emit.compute(name, Phase.RECOMPUTE, calls)
    return emit.hosted(host, Phase.RECOMPUTE, emit.overlapped(exchanges, Phase.RECOMPUTE, again))


def _modules_again(stage: StageWork) -> tuple[list[Counted], list[Exchange], Host]:
    """Return calls and exchanges of the recomputed modules, and what the host needs to launch them.

    A layer's launches are taken as equally long; routing is relaunched with the experts alone.
    """
    calls: list[Counted] = []
    exchanges: list[Exchange] = []
    launched = 0.0
    for kind, count in stage.kinds:
        work = stage.work(kind)
        for module in stage.job.recomputed_modules:
            if module in work.modules:
                again = work.modules[module]
                calls += times(again.calls, count)
                exchanges += exchanged(again.exchanges, count)
                launched += count * _launches(again.calls) / _launches(work.forward)
    whole = stage.host()
    routed = whole.experts_s if "moe" in stage.job.recomputed_modules else 0.0
    return calls, merged(exchanges), Host(whole.layers_s * launched / max(1, stage.layers), routed)


def _launches(calls: list[Counted]) -> float:
    return sum(often for _, often in calls)


def _recomputed_share(stage: StageWork) -> float:
    """Return which share of the layers' forward work is done again."""
    job = stage.job
    if job.recompute != "full" or not stage.layers:
        return 0.0
    again = stage.layers if job.recompute_layers is None else min(job.recompute_layers, stage.layers)
    return again / stage.layers
