"""What a virtual stage runs in each pass of a microbatch.

Letters: Q virtual stages in model order.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct

from traincast.job.job import Job
from traincast.job.share import blocks_of_layer, kept_share, rank_share
from traincast.lowering.emit import Emitter
from traincast.lowering.held import Held, held_by_stages
from traincast.lowering.launches import Launches, LayerLaunches, layer_launches
from traincast.lowering.layers import layers_backward, layers_forward
from traincast.lowering.offload import (
    brought_in,
    gradients_out,
    offloaded_bytes,
    offloaded_pieces,
    parameters_in,
    sent_out,
)
from traincast.lowering.plans import plan_of_job
from traincast.lowering.work import Exchange, Pass, Work, work_of
from traincast.model.blocks.part import Elements
from traincast.model.structure import (
    FIRST_BLOCKS,
    MTP_HEAD,
    MTP_PROJECTION,
    Blocks,
    RankParts,
    last_blocks,
    mtp_blocks,
)
from traincast.schedules.plan import SchedulePlan
from traincast.workload.builder import Rows
from traincast.workload.words import STREAM_OF_GROUP, Group, Operation, Phase


class StageParts:
    """What a rank has of every block of a job, and what each does; the same for all stages."""

    def __init__(self, job: Job, ranks_per_node: int, parts: RankParts | None = None) -> None:
        self.job, self.parts = job, parts or RankParts(rank_share(job, ranks_per_node))
        self._kept: RankParts | None = None
        self._works: dict[Blocks, Work] = {}
        self._launches: dict[Blocks, LayerLaunches] = {}
        self.totals: dict[tuple[object, ...], Pass] = {}

    @property
    def kept(self) -> RankParts:
        """The parts with what the framework keeps of them."""
        if self._kept is None:
            self._kept = RankParts(kept_share(self.parts.share, self.job.memory_policy))
        return self._kept

    def work(self, blocks: Blocks) -> Work:
        """Return what some blocks do."""
        if blocks not in self._works:
            self._works[blocks] = work_of(self.parts.of(blocks), self.parts.share)
        return self._works[blocks]

    def launches(self, blocks: Blocks) -> LayerLaunches:
        """Return what the host does for a layer of some blocks."""
        if blocks not in self._launches:
            self._launches[blocks] = layer_launches(blocks, self.parts.share, self.job)
        return self._launches[blocks]


class StageWork(Struct, frozen=True, dict=True):
    """One virtual stage: how many layers of each kind it has, and what each does."""

    job: Job
    index: int
    held: Held
    kinds: Mapping[Blocks, int]
    of_rank: StageParts

    @property
    def first(self) -> bool:
        """Whether it has the embedding."""
        return self.held.first

    @cached_property
    def like(self) -> tuple[object, ...]:
        """What tells stages of a job that do other work apart, whichever layers they have."""
        held = self.held
        return tuple(self.kinds.items()), held.mtp_layers, held.first, held.last, held.copies_table, held.shares_table

    @cached_property
    def layers(self) -> int:
        """Layers of all kinds."""
        return sum(self.kinds.values())

    @cached_property
    def ends(self) -> dict[Blocks, int]:
        """What stands after the last layer, and how often; on the last virtual stage alone."""
        if not self.held.last:
            return {}
        # The head of an MTP layer is as that of the model where both are the embedding's table.
        found = Counter({last_blocks(self.job.model, with_embedding=self.held.shares_table): 1})
        found[MTP_HEAD] += self.job.model.mtp_layers
        return found

    def weights(self) -> Elements:
        """Return the weights that a rank holds of it."""
        model, total = self.job.model, Elements()
        for blocks, count in (*self.held.kinds(model), *self.held.ends(model).items()):
            total += self.of_rank.parts.elements(blocks) * count
        return total

    @cached_property
    def offloaded(self) -> tuple[int, int]:
        """The bytes of activations of a microbatch that go to the host, and of how many layers they are."""
        if not self.job.offload.any_activations:
            return 0, 0
        layers = self.held.layers
        return round(offloaded_bytes(self.job, self.of_rank.kept, layers)), offloaded_pieces(self.job, layers)

    def host(self, phase: Phase) -> Launches:
        """Return what the host does in a forward pass of its layers, or in a backward pass without recomputation."""
        total = Launches()
        for kind, count in self.kinds.items():
            found = self.of_rank.launches(kind)
            total += (found.forward if phase is Phase.FORWARD else found.backward) * count
        return total

    def total(self, blocks: Mapping[Blocks, int], *phases: Phase, share: float = 1.0) -> Pass:
        """Return what some blocks do in some passes: a share of as many as there are; equal stages do equal work."""
        key = (tuple(blocks.items()), phases, share)
        if key not in self.of_rank.totals:
            found = self.of_rank.totals[key] = Pass()
            for each, count in blocks.items():
                for phase in phases:
                    found.add(self.of_rank.work(each).passes[phase], count * share)
        return self.of_rank.totals[key]

    def in_pass(self, phase: Phase) -> Pass:
        """Return what its layers do in a pass."""
        return self.total(self.kinds, phase)

    def at(self, place: str, phase: Phase) -> Pass:
        """Return what its layers run in a pass at a place beside the exchanges of tokens with their experts."""
        key = (tuple(self.kinds.items()), place, phase)
        if key not in self.of_rank.totals:
            found = self.of_rank.totals[key] = Pass()
            for each, count in self.kinds.items():
                found.add(self.of_rank.work(each).places.get((place, phase), Pass()), count)
        return self.of_rank.totals[key]

    def recomputed(self) -> tuple[str, Pass, Launches]:
        """Return what the backward pass recomputes, whole layers or modules of each, and what the host does for it."""
        job = self.job
        if job.recompute.whole_layers:
            share = job.recompute.layers_of(self.layers) / max(1, self.layers)
            again_host = self.host(Phase.FORWARD) * share
            return "layers recompute", self.total(self.kinds, Phase.FORWARD, share=share), again_host
        return "modules recompute", *self._modules_again()

    def _modules_again(self) -> tuple[Pass, Launches]:
        """Return the recomputed modules, and what the host does for them."""
        found, launched = Pass(), Launches()
        for kind, count in self.kinds.items():
            work, host = self.of_rank.work(kind), self.of_rank.launches(kind)
            for module in self.job.recompute.recomputed_modules:
                if module in work.modules:
                    found.add(work.modules[module], count)
                    launched += host.modules.get(module, Launches()) * count
        return found, launched


def stages_of(
    job: Job, ranks_per_node: int, parts: RankParts | None = None, plan: SchedulePlan | None = None
) -> tuple[StageWork, ...]:
    """Return every virtual stage of a job, in model order, [Q].

    `parts` are those of its share, or of arrays; `plan` is its pipeline plan where that is known.
    """
    of_rank, model, stages = StageParts(job, ranks_per_node, parts), job.model, []
    for index, held in enumerate(held_by_stages(job, plan or plan_of_job(job))):
        kinds = Counter(blocks_of_layer(job, layer) for layer in held.layers)
        if held.mtp_layers:
            # MTP layers follow the others.
            kinds[mtp_blocks(model)] += held.mtp_layers
        stages.append(StageWork(job, index, held, kinds, of_rank))
    return tuple(stages)


class Gather(Struct, frozen=True):
    """How the first forward pass of a step meets the parameters that other ranks have updated."""

    following: list[Exchange]
    """Those of the virtual stage that the rank runs next: launched one virtual stage ahead."""
    begins: bool
    """Whether its own are still coming while it runs, layer by layer; else they must be there before."""
    own: list[Exchange]
    """Its own, wherever they were launched."""


class Offloaded(NamedTuple):
    """What a backward pass moves of its state to and from the host: numbers of parameters."""

    gradients: int = 0
    """Those whose gradients leave."""
    parameters: int = 0
    """Those that come for a gather."""


def forward_rows(
    emit: Emitter, stage: StageWork, beside: list[Exchange], gather: Gather | None = None, come: int = 0
) -> Rows:
    """Return the rows of a forward pass.

    `beside` are parameters that each forward pass collects (ZeRO-3), `gather` those of the first pass of a step with a
    distributed optimizer: a virtual stage's parameters are gathered while the one before it runs. Source: Megatron-LM,
    megatron/core/pipeline_parallel/schedules.py (`param_sync_func`). `come` are the parameters that come from the host
    for a gather.
    """
    arrived: Rows = []
    message = [] if stage.first else _message(emit, Phase.FORWARD)
    if gather:
        arrived = emit.builder.wait(*(STREAM_OF_GROUP[each.group] for each in gather.own))
        arrived += emit.all(gather.following, Phase.FORWARD, blocking=False)
    rows = message + (arrived if gather and not gather.begins else [])
    if stage.first:
        lookup = stage.total({FIRST_BLOCKS: 1}, Phase.FORWARD)
        rows = rows + emit.compute("embedding forward", Phase.FORWARD, lookup.calls)
        rows += emit.all(lookup.exchanges, Phase.FORWARD)
    rows = rows + _mtp_projections(emit, stage, Phase.FORWARD)
    passed = sent_out(emit, *stage.offloaded, layers_forward(emit, stage, beside))
    rows += emit.builder.overlapped(parameters_in(emit, come, Phase.FORWARD), passed)
    rows += arrived if gather and gather.begins else []
    return rows + _ends(emit, stage, Phase.FORWARD)


def backward_rows(
    emit: Emitter,
    stage: StageWork,
    beside: list[Exchange],
    reduced: list[Exchange],
    offloaded: Offloaded = Offloaded(),  # noqa: B008 - a constant
) -> Rows:
    """Return the rows of a backward pass.

    `beside` is what each backward pass exchanges of parameters and gradients (ZeRO-3), done when the pass is; `reduced`
    are gradients that are reduced layer by layer while the pass runs, and nothing waits for them here.
    """
    rows = [] if stage.held.last else _message(emit, Phase.BACKWARD)
    rows += _ends(emit, stage, Phase.BACKWARD, Phase.WEIGHT_GRADIENT)
    name, again, launches = stage.recomputed()
    recompute = emit.compute(name, Phase.RECOMPUTE, again.calls)
    # What is recomputed hides parameters on their way, too: layers are recomputed one by one.
    passed = emit.hosted(launches, Phase.RECOMPUTE, emit.beside(again.exchanges, Phase.RECOMPUTE, recompute))
    # All layers but the one that is computed last have their gradients before the pass ends.
    early = 1 - 1 / max(1, stage.layers)
    passed += emit.all(reduced, Phase.WEIGHT_GRADIENT, share=early, blocking=False)
    passed += gradients_out(emit, offloaded.gradients, early)
    passed += emit.hosted(stage.host(Phase.BACKWARD), Phase.BACKWARD, layers_backward(emit, stage))
    size_bytes, count = stage.offloaded
    whole = count == stage.layers and not emit.job.offload.modules
    passed = brought_in(emit, size_bytes, count, passed, whole=whole)
    passed = emit.builder.overlapped(parameters_in(emit, offloaded.parameters, Phase.BACKWARD), passed)
    rows += emit.beside(beside, Phase.BACKWARD, passed)
    rows += _mtp_projections(emit, stage, Phase.BACKWARD, Phase.WEIGHT_GRADIENT)
    if stage.first and stage.of_rank.parts.share.trains_weights:
        lookup = stage.total({FIRST_BLOCKS: 1}, Phase.BACKWARD)
        rows += emit.all(lookup.exchanges, Phase.WEIGHT_GRADIENT)
        rows += emit.compute("embedding backward", Phase.WEIGHT_GRADIENT, lookup.calls)
    rows += gradients_out(emit, offloaded.gradients, 1 - early)
    return rows + emit.all(reduced, Phase.WEIGHT_GRADIENT, share=1 - early, blocking=False)


def _message(emit: Emitter, phase: Phase) -> Rows:
    """Return what makes a message whole of which each tensor parallel rank got its part.

    Sources: Narayanan et al. 2021, arXiv 2104.04473, section 4.1 (scatter/gather optimization); DeepSpeed,
    runtime/pipe/engine.py (is_pipe_partitioned, PartitionedTensor).
    """
    share = emit.share
    if not emit.job.framework.splits_messages or share.splits_sequence or emit.job.parallel.tp == 1:
        return []
    size_bytes = share.activation_bytes * emit.job.model.residual_streams
    return emit.exchange(Exchange(Group.TP, Operation.ALL_GATHER, int(size_bytes)), phase)


def _mtp_projections(emit: Emitter, stage: StageWork, *phases: Phase) -> Rows:
    """Return what joins MTP layers to the model, where the stage has some."""
    if not stage.held.mtp_layers:
        return []
    found = stage.total({MTP_PROJECTION: stage.held.mtp_layers}, *phases)
    rows = emit.compute(f"MTP projections {phases[0].name.lower()}", phases[0], found.calls)
    return rows + emit.all(found.exchanges, phases[0])


def _ends(emit: Emitter, stage: StageWork, *phases: Phase) -> Rows:
    """Return final norm, LM head and loss, of MTP layers, too, with what tensor parallel ranks exchange."""
    found = stage.total(stage.ends, *phases)
    rows = emit.compute(f"LM head {phases[0].name.lower()}", phases[0], found.calls)
    return rows + emit.all(found.exchanges, phases[0])


def stage_layers(job: Job) -> list[tuple[Blocks, ...]]:
    """Return the layers of each pipeline stage of a job, over all its virtual stages."""
    stages: list[tuple[Blocks, ...]] = [()] * job.parallel.pp
    begin = 0
    for stage, layers in zip(plan_of_job(job).placement[0], job.pipeline.layers_Q, strict=True):
        stages[stage] += tuple(blocks_of_layer(job, layer) for layer in range(begin, begin + layers))
        begin += layers
    return stages
