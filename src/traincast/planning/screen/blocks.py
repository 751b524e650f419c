"""The blocks of a family: one for each pipeline of each number of stages, of all its layouts or of those wanted."""

from collections.abc import Callable, Collection, Iterator
from functools import cached_property

from traincast.job.parallel import MAX_SLOTS
from traincast.planning.degrees import Degrees
from traincast.planning.pipelines import takes_microbatches
from traincast.planning.recomputation import Recompute
from traincast.planning.screen.block import LayoutBlock
from traincast.planning.screen.family import FamilyTables, LayoutFamily
from traincast.planning.screen.members import Members
from traincast.planning.screen.shape import Shape
from traincast.planning.sharding import shardings_of

Key = tuple[Degrees, int, str, int]
"""A layout as far as it decides its blocks: degrees, sequences of a microbatch, schedule and virtual stages."""


class FamilyBlocks:
    """A family, whose tables are made when a block is first asked for."""

    def __init__(self, family: LayoutFamily, tables: Callable[[], FamilyTables]) -> None:
        self.family, self._tables, self._members = family, tables, dict[int, Members]()

    @cached_property
    def tables(self) -> FamilyTables:
        """What its layouts cost."""
        return self._tables()

    @property
    def stages(self) -> tuple[int, ...]:
        """The numbers of pipeline stages that its layouts have."""
        return tuple(sorted({pp for pp, _ in self.family.members}))

    def blocks(self, stages: int, wanted: Collection[Key] | None = None) -> Iterator[LayoutBlock]:
        """Yield its blocks of so many pipeline stages, with the layouts that are wanted alone; None: with all."""
        found = list(self._blocks(stages, wanted))
        if found:
            self.tables.expected.update(dict.fromkeys(each for block in found for each in block.timed))
        yield from found

    def _blocks(self, stages: int, wanted: Collection[Key] | None) -> Iterator[LayoutBlock]:
        pipelines = None if wanted is None else {key[2:] for key in wanted if key[0].pp == stages}
        shapes = [] if pipelines == set() else list(self.tables.shapes(stages, pipelines))
        peers = tuple(dict.fromkeys(chunk for shape in shapes for chunk in shape.chunks))
        for shape in shapes:
            members = self._able(shape, wanted)
            recomputes = self._recomputes(shape)
            if recomputes and len(members):
                yield LayoutBlock(self.tables, shape, members, recomputes, peers)

    def _able(self, shape: Shape, wanted: Collection[Key] | None) -> Members:
        """Return the members that a pipeline can have, of those that are wanted."""
        vpp, schedule, pp = shape.job.parallel.vpp, shape.job.pipeline.schedule, shape.job.parallel.pp
        every = self._of(pp)
        counts = {count for count in set(every.microbatches_K.tolist()) if pp * vpp * count <= MAX_SLOTS}
        able = every.with_counts(frozenset(count for count in counts if takes_microbatches(schedule, pp, vpp, count)))
        if wanted is None:
            return able
        shares = able.shares
        return able.only(
            tuple((each.degrees, shares[each.share].micro_batch, schedule, vpp) in wanted for each in able.members)
        )

    def _of(self, pp: int) -> Members:
        """Return the members of so many stages, those with the same ways to shard as neighbours."""
        if pp not in self._members:
            space, found = self.tables.space, self.family.members.items()
            every = sorted((m for (count, _), of in found if count == pp for m in of), key=lambda m: m.degrees.replicas)
            shardings = {each: shardings_of(space, each) for each in {m.degrees.replicas for m in every}}
            sharded = tuple(each for each in every if shardings[each.degrees.replicas])
            shares, batch = list(self.family.shares), space.request.global_batch
            self._members[pp] = Members(sharded, shares, batch, shardings, space.framework.folded_experts)
        return self._members[pp]

    def _recomputes(self, shape: Shape) -> tuple[Recompute, ...]:
        space, variant = self.tables.space, self.family.variant
        return (Recompute(),) if variant.ideal else space.recomputation.choices(shape.job, variant)
