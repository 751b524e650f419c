"""What a virtual stage runs in each pass of a microbatch.

Letters: Q virtual stages in model order.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from functools import cached_property

from msgspec import Struct

from traincast.job.job import Job
from traincast.job.share import blocks_of_layers, rank_share
from traincast.lowering.emit import Emitter, Rows
from traincast.lowering.gradients import Alongside
from traincast.lowering.held import Held, held_by_stages
from traincast.lowering.launches import Launches, LayerLaunches, layer_launches, message_launches
from traincast.lowering.plans import plan_of_job
from traincast.lowering.work import Pass, Work, work_of
from traincast.mechanisms.activations import LayerModel
from traincast.model.blocks.part import Elements
from traincast.model.numbers import Number, added, larger, rounded
from traincast.model.structure import (
    MTP_HEAD,
    Blocks,
    RankParts,
    last_blocks,
    mtp_blocks,
)
from traincast.schedules.plan import SchedulePlan
from traincast.workload.words import Phase


class Like(Struct, frozen=True, cache_hash=True):
    """What tells virtual stages of a job that do other work apart, whichever layers they have."""

    kinds: tuple[tuple[Blocks, int], ...]
    mtp_layers: int
    first: bool
    last: bool
    copies_table: bool
    shares_table: bool


class StageParts:
    """What a rank has of every block of a job, and what each does; the same for all stages."""

    def __init__(self, job: Job, ranks_per_node: int, parts: RankParts | None = None) -> None:
        self.job, self.parts = job, parts or RankParts(rank_share(job, ranks_per_node))
        self._works: dict[Blocks, Work] = {}
        self._launches: dict[Blocks, LayerLaunches] = {}
        self.totals: dict[tuple[object, ...], Pass] = {}
        self.weights: dict[Hashable, Elements] = {}

    @cached_property
    def kept(self) -> LayerModel:
        """What its layers keep of a microbatch."""
        return LayerModel(self.job, self.parts.share)

    def work(self, blocks: Blocks) -> Work:
        """Return what some blocks do."""
        if blocks not in self._works:
            self._works[blocks] = work_of(self.parts.of_blocks(blocks), self.parts.share)
        return self._works[blocks]

    def nothing(self) -> Pass:
        """Return a pass in which nothing runs."""
        return Pass()

    def launches(self, blocks: Blocks) -> LayerLaunches:
        """Return what the host does for a layer of some blocks."""
        if blocks not in self._launches:
            self._launches[blocks] = layer_launches(blocks, self.parts, self.job)
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
    def like(self) -> Hashable:
        """What it has in common with those that do the same work."""
        held, kinds = self.held, tuple(self.kinds.items())
        return Like(kinds, held.mtp_layers, held.first, held.last, held.copies_table, held.shares_table)

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
        known = self.of_rank.weights
        if self.like not in known:
            held = (*self.held.kinds(self.job), *self.held.ends(self.job).items())
            parts = self.of_rank.parts
            # Muon alone asks for shapes.
            elements = parts.numbers if self.job.optimizer.muon is None else parts.elements
            known[self.like] = sum((elements(blocks) * count for blocks, count in held), Elements())
        return known[self.like]

    def tensors(self) -> Number:
        """Return in how many tensors a rank holds the weights of it."""
        held = (*self.held.kinds(self.job), *self.held.ends(self.job).items())
        return added(self.of_rank.parts.tensors(blocks) * count for blocks, count in held)

    @cached_property
    def offloaded(self) -> tuple[Number, Number]:
        """The bytes of activations of a microbatch that go to the host, and of how many layers they are."""
        if not self.job.offload.any_activations:
            return 0, 0
        kept = self.of_rank.kept.stage(self.held.layers)
        return rounded(kept.away), kept.pieces

    def host(self, phase: Phase) -> Launches:
        """Return what the host does in a forward pass of its layers, or in a backward pass without recomputation."""
        total = Launches()
        for kind, count in self.kinds.items():
            found = self.of_rank.launches(kind)
            total += (found.forward if phase is Phase.FORWARD else found.backward) * count
        return total + message_launches(self.job)

    def total(self, blocks: Mapping[Blocks, int], *phases: Phase, share: float = 1.0) -> Pass:
        """Return what some blocks do in some passes: a share of as many as there are; equal stages do equal work."""
        key = (tuple(blocks.items()), phases, share)
        if key not in self.of_rank.totals:
            self.of_rank.totals[key] = self.summed(blocks, phases, share)
        return self.of_rank.totals[key]

    def summed(self, blocks: Mapping[Blocks, Number], phases: Iterable[Phase], share: Number) -> Pass:
        """Return the same, added up anew."""
        found = self.nothing()
        for each, count in blocks.items():
            for phase in phases:
                found.add(self.of_rank.work(each).passes[phase], count * share)
        return found

    def in_pass(self, phase: Phase) -> Pass:
        """Return what its layers do in a pass."""
        return self.total(self.kinds, phase)

    def at(self, place: str, phase: Phase) -> Pass:
        """Return what its layers run in a pass at a place alongside the exchanges of tokens with their experts."""
        key = (tuple(self.kinds.items()), place, phase)
        if key not in self.of_rank.totals:
            self.of_rank.totals[key] = self.summed_at(place, phase)
        return self.of_rank.totals[key]

    def summed_at(self, place: str, phase: Phase) -> Pass:
        """Return the same, added up anew."""
        found = self.nothing()
        for each, count in self.kinds.items():
            at_place = self.of_rank.work(each).places.get((place, phase))
            if at_place is not None:
                found.add(at_place, count)
        return found

    def alongside(self, without: Collection[str] = ()) -> Alongside:
        """Return what parts exchange in the backward pass alongside their own GEMMs, with these; not at some places."""
        return self.exchanged_with_gemms(self.kinds, without)

    def exchanged_with_gemms(self, blocks: Mapping[Blocks, int], without: Collection[str] = ()) -> Alongside:
        """Return the same of some blocks."""
        found: dict[tuple[str, str], Pass] = {}
        for each, count in blocks.items():
            for (part, direction, place), passed in self.of_rank.work(each).alongside.items():
                if place not in without:
                    found.setdefault((part, direction), self.nothing()).add(passed, count)
        return [(direction, passed) for (_, direction), passed in found.items()]

    def nothing(self) -> Pass:
        """Return a pass in which nothing runs."""
        return self.of_rank.nothing()

    def recompute(self, emit: Emitter) -> Rows:
        """Return what the backward pass recomputes."""
        name, again, launches = self.recomputed()
        recompute = emit.compute(name, Phase.RECOMPUTE, again)
        return emit.hosted(launches, Phase.RECOMPUTE, emit.alongside(again.exchanges, Phase.RECOMPUTE, recompute))

    def recomputed(self) -> tuple[str, Pass, Launches]:
        """Return what the backward pass recomputes, whole layers or modules of each, and what the host does for it."""
        job = self.job
        if job.recompute.whole_layers:
            share = job.recompute.layers_of(self.layers) / larger(1, self.layers)
            again_host = self.host(Phase.FORWARD) * share
            return "layers recompute", self._layers_again(share), again_host
        return "modules recompute", *self._modules_again()

    def _layers_again(self, share: float) -> Pass:
        """Return the forward pass of a share of the layers, without what makes outputs that are kept."""
        whole = self.total(self.kinds, Phase.FORWARD, share=share)
        if not self.job.recompute.keeps:
            return whole
        kept = self.nothing()
        for kind, count in self.kinds.items():
            modules = self.of_rank.work(kind).modules
            for name in self.job.recompute.keeps:
                if name in modules:
                    kept.add(modules[name], count * share)
        return whole.less(kept)

    def _modules_again(self) -> tuple[Pass, Launches]:
        """Return the recomputed modules, and what the host does for them."""
        found, launched = self.nothing(), Launches()
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
        kinds = Counter(blocks_of_layers(job, held.layers))
        if held.mtp_layers:
            # MTP layers follow the others.
            kinds[mtp_blocks(model)] += held.mtp_layers
        stages.append(StageWork(job, index, held, kinds, of_rank))
    return tuple(stages)


def stage_layers(job: Job) -> list[tuple[Blocks, ...]]:
    """Return the layers of each pipeline stage of a job, over all its virtual stages."""
    stages: list[tuple[Blocks, ...]] = [()] * job.parallel.pp
    begin = 0
    for stage, layers in zip(plan_of_job(job).placement[0], job.pipeline.layers_Q, strict=True):
        stages[stage] += blocks_of_layers(job, range(begin, begin + layers))
        begin += layers
    return stages
