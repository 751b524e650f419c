"""The whole space of layouts on arrays: a step time and a memory peak for every one, of which the best are kept.

Layouts of one pipeline, one tensor parallel degree and one way of execution are a block: an array over the shares of
the work, what is recomputed, how state is sharded, and what is overlapped. Nothing is left out of it and nothing is
sampled. The blocks of a model, the operators, the communications and the memory are those of a forecast
(`traincast.planning.screen.chunks`); the length of the pipeline is the closed form of its schedule
(`traincast.schedules.length`), or, without one, its order run on the same arrays.

Letters: K shares, R recomputations, Z ways to shard, P stages, S kinds of stages.
"""

import dataclasses
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from functools import cache, cached_property, partial
from itertools import chain, product

from msgspec import Struct
from msgspec.structs import replace

from traincast.crew import Crew
from traincast.errors import InfeasibleError
from traincast.fabric.placement import place_job
from traincast.hardware.cluster import Cluster
from traincast.job.levels import BEST
from traincast.job.packing import packing_of
from traincast.job.parallel import Parallel
from traincast.planning.degrees import Degrees, degrees_of, micro_batches_of, sequence_parallel_of
from traincast.planning.execution import Variant
from traincast.planning.layout import Layout
from traincast.planning.screen.block import LayoutBlock
from traincast.planning.screen.blocks import FamilyBlocks, Key
from traincast.planning.screen.bounds import SLACK, blocks_of, work_out
from traincast.planning.screen.family import FamilyTables, LayoutFamily, SpaceTables, parallel_of
from traincast.planning.screen.frontier import Frontier
from traincast.planning.screen.members import Member, ShareKey
from traincast.planning.sharding import shardings_of
from traincast.planning.space import Space
from traincast.simulation.step import Setting


class Screened(Struct, frozen=True):
    """What a screen found."""

    evaluated: int
    """Layouts whose step and memory were worked out."""
    feasible: int
    """Those of them that fit into memory."""
    seconds: float
    layouts: tuple[Layout, ...]
    """The best, and the best for less memory, the fastest first."""
    step_s: tuple[float, ...]
    peak_bytes: tuple[float, ...]


@dataclasses.dataclass
class Screen:
    """One space on one cluster."""

    space: Space
    setting: Setting
    limit_bytes: float
    """Memory of a GPU that a layout may need."""
    common: SpaceTables = dataclasses.field(default_factory=SpaceTables)
    """What this space has in common with others of the same request."""

    def run(
        self,
        keep: int = 400,
        *,
        told: Callable[[Frontier], None] | None = None,
        lists: bool = False,
        crew: Crew | None = None,
    ) -> Screened:
        """Work out every layout, and keep the best ones.

        The processes of a crew share the work. `told` is handed, in the first of them, what each part of the space
        has, as soon as it is known; with `lists` that has all layouts that fit.

        Raises
        ------
        InfeasibleError
            If no layout divides the GPUs, the batch and the model.
        """
        begin = time.perf_counter()
        frontier, crew = Frontier(self.limit_bytes, keep, told, lists=lists), crew or Crew()
        if self.space.tuned == BEST:
            work_out(self.families, frontier, self._ideal, self.space.execution.is_usual, crew)
        else:
            frontier.work_out(blocks_of(self.families), crew)
        return self._best(frontier, begin)

    def run_some(self, least_s: Mapping[Key, float], keep: int, longest: float) -> Screened:
        """Work out some layouts alone, none of which takes less than is told of it, and keep the best ones.

        Of pipelines that all take so many times as long as these, or longer, nothing is worked out.

        Raises
        ------
        InfeasibleError
            If there is no such layout.
        """
        begin = time.perf_counter()
        frontier = Frontier(self.limit_bytes, keep)
        families = list(map(self._of, self._families({key[:2] for key in least_s})))
        pipelines = dict[tuple[int, str, int], dict[Key, float]]()
        for key, step_s in least_s.items():
            degrees, _, schedule, vpp = key
            pipelines.setdefault((degrees.pp, schedule, vpp), {})[key] = step_s
        ordered = sorted(pipelines.values(), key=lambda each: min(each.values()))
        # What several of them hold is worked out together if it is known of all.
        blocks = [[block for family in families for block in _some(family, wanted)] for wanted in ordered]
        for wanted, of_pipeline in zip(ordered, blocks, strict=True):
            if min(wanted.values()) > longest * (1 + SLACK) * frontier.last_s:
                break
            for block in of_pipeline:
                frontier.add(block)
        return self._best(frontier, begin)

    def _best(self, frontier: Frontier, begin: float) -> Screened:
        if not frontier.evaluated:
            raise InfeasibleError(self._empty())
        step_s, peak_bytes, layouts = frontier.best()
        seconds = time.perf_counter() - begin
        return Screened(frontier.evaluated, frontier.feasible, seconds, layouts, step_s, peak_bytes)

    def lightest(self, count: int) -> list[tuple[float, Layout]]:
        """Return the layouts that need least memory, with their bytes, of each set of degrees one."""
        found = []
        for block in self.blocks():
            for part in block.untimed():
                place = int(part.peak_bytes.argmin())
                found.append((float(part.peak_bytes.min()), block.layout(part.light(), place)))
        least: dict[tuple[int, ...], tuple[float, Layout]] = {}
        for each in sorted(found, key=lambda each: each[0]):
            layout = each[1]
            least.setdefault((layout.tp, layout.cp, layout.pp, layout.ep, layout.etp), each)
        return list(least.values())[:count]

    def fastest(self) -> tuple[Layout, float, float] | None:
        """Return the fastest layout that fits, with its step and its bytes; None where none does.

        Steps are worked out only where something fits, so that it takes little where hardly anything does.
        """
        frontier = Frontier(self.limit_bytes, keep=1)
        for block in self.blocks():
            for part in block.parts(self.limit_bytes):
                frontier.take(block, part)
        steps, peaks, layouts = frontier.best()
        return (layouts[0], steps[0], peaks[0]) if layouts else None

    def blocks(self) -> Iterator[LayoutBlock]:
        """Yield the whole space block by block, with every choice of software."""
        yield from chain(*blocks_of(self.families))

    @cached_property
    def families(self) -> tuple[FamilyBlocks, ...]:
        """All layouts by way of execution and ranks on a node."""
        return tuple(map(self._of, self._families()))

    def _of(self, family: LayoutFamily) -> FamilyBlocks:
        return FamilyBlocks(family, partial(FamilyTables, self.space, self.setting, family, self.common))

    def _ideal(self, families: Iterable[LayoutFamily]) -> list[FamilyBlocks]:
        """Return all layouts with the software that no choice beats."""
        found: dict[tuple[Variant, int | None], LayoutFamily] = {}
        for family in families:
            for variant in self.space.execution.ideal(family.variant):
                key = variant, family.cluster.ranks_per_node
                found.setdefault(key, LayoutFamily(variant, family.cluster)).take(family)
        return list(map(self._of, found.values()))

    def _empty(self) -> str:
        request, framework = self.space.request, self.space.framework
        text = (
            f"no layout of {request.model.name} divides {request.gpus} GPUs and a global batch of "
            f"{request.global_batch}; fix less, or change the GPUs or the batch"
        )
        if request.model.experts is None or framework.folded_experts:
            return text
        return f"{text} (with {framework.name} ep divides dp, and etp is tp)"

    def _families(self, wanted: Container[tuple[Degrees, int]] | None = None) -> list[LayoutFamily]:
        """Return the layouts by way of execution and ranks on a node, perhaps of some degrees and microbatches only."""
        space, found = self.space, dict[tuple[Variant, int | None], LayoutFamily]()
        for degrees in degrees_of(space):
            micro_batches = [
                each for each in micro_batches_of(space, degrees.dp) if wanted is None or (degrees, each) in wanted
            ]
            if not micro_batches:
                continue
            parallel = parallel_of(degrees, space.framework)
            cluster = self._placed(parallel)
            overlaps = _overlaps_tp(space, degrees, parallel, cluster.ranks_per_node)
            axes = list(product(sequence_parallel_of(space, degrees.tp, degrees.cp), micro_batches, overlaps))
            shares = cache(partial(self._shares, degrees, axes))
            for variant in space.execution.variants(degrees) if axes else ():
                family = found.setdefault((variant, cluster.ranks_per_node), LayoutFamily(variant, cluster))
                members = family.members.setdefault((degrees.pp, degrees.tp), [])
                for share in shares(splits_heads=variant.cp_kind == "all_to_all"):
                    members.append(Member(family.shares.setdefault(share, len(family.shares)), degrees))
        return list(found.values())

    def _shares(
        self, degrees: Degrees, axes: Iterable[tuple[bool, int, bool]], *, splits_heads: bool
    ) -> list[ShareKey]:
        """Return the shares of the work with some degrees: with each split of norms, micro batch and overlap."""
        found = []
        for split, micro_batch, overlap in axes:
            work = self._packed_work(degrees, micro_batch, splits_heads=splits_heads)
            share = ShareKey(degrees.tp, degrees.cp, degrees.ep, degrees.etp, split, micro_batch, work, overlap)
            found.append(share)
        return found

    def _packed_work(self, degrees: Degrees, micro_batch: int, *, splits_heads: bool) -> float:
        """Return the attention of packs of several lengths that a layout waits for (`Sequences.packed_work`)."""
        space = self.space
        if space.request.packed_lengths is None:
            return 0.0
        count = space.request.global_batch // (degrees.dp * micro_batch)
        # One way to shard is as good as another here, unless some share parameters and others do not.
        zero = min((zero for zero, _ in shardings_of(space, degrees.replicas)), default=0)
        return packing_of(
            space.request,
            space.framework,
            replace(parallel_of(degrees, space.framework), microbatches=count),
            micro_batch,
            zero=zero,
            splits_heads=splits_heads,
        ).work

    def _placed(self, parallel: Parallel) -> Cluster:
        asked = self.space.request.gpus_used_per_node
        if self.setting.gpus_used_per_node is not None:
            asked = self.setting.gpus_used_per_node
        return place_job(self.setting.cluster, parallel, asked)[0]


def _some(family: FamilyBlocks, wanted: Collection[Key]) -> Iterator[LayoutBlock]:
    """Return the blocks of a family with some layouts of one pipeline."""
    return family.blocks(next(iter(wanted))[0].pp, wanted)


def _overlaps_tp(space: Space, degrees: Degrees, parallel: Parallel, ranks_per_node: int) -> tuple[bool, ...]:
    """Return whether tensor parallel exchanges may be overlapped; over nodes nothing of them is, whatever is asked."""
    found = space.execution.switches("overlap_tp", able=parallel.tp > 1, degrees=degrees)
    inside = parallel.world_size <= ranks_per_node or ranks_per_node % parallel.tp == 0
    return found if inside else found[-1:]
