"""The state of a block's virtual stages, by the degrees that share parameters alike: cp counts as dp.

Letters: A degrees that share parameters alike, U pairs of such degrees and a way to shard, J pairs of a share and a way
to shard.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from traincast.job.parallel import Parallel
from traincast.lowering.step import OfStage
from traincast.model.blocks.part import Elements
from traincast.model.numbers import Number
from traincast.planning.degrees import Degrees
from traincast.planning.screen.array_stage import Chunk
from traincast.planning.screen.chunks import on_rows
from traincast.planning.screen.moments import MomentEmitter
from traincast.planning.screen.shape import StageKind
from traincast.planning.screen.state_times import Sharding, StateArrays, StateSeconds, sharded
from traincast.planning.screen.tables import BlockTables
from traincast.planning.screen.ways import Ways
from traincast.workload.ops import IntArray


class ManyDegrees(Parallel, frozen=True, kw_only=True):
    """Degrees of layouts that divide the same GPUs into as many stages: columns of what differs, [U, 1]."""

    def __post_init__(self) -> None:
        """Check nothing: each of them was."""

    @property
    def world_size(self) -> int:
        """All ranks of any of them."""
        return int(np.max(super().world_size, initial=0))


class StateTimes:
    """What exchanging it takes, and the ranks that do so as an emitter of rows has them."""

    def __init__(self, block: BlockTables) -> None:
        self.block = block
        self._found: dict[int, tuple[list[StateSeconds], IntArray]] = {}

    def seconds_of(self, ways: Ways) -> tuple[list[StateSeconds], IntArray]:
        """Return the seconds of each kind of virtual stage, [C] of [U], and the place of each pair in them, [J]."""
        if ways.zero not in self._found:
            ways_A, at_J = self._places(ways)
            self._found[ways.zero] = [self._seconds(each, ways.zero, ways_A) for each in self.block.shape.chunks], at_J
        return self._found[ways.zero]

    def on_ranks(self, ways: Ways) -> MomentEmitter:
        """Return what makes seconds of the rows that ranks run once a step, of arrays [U, 1]."""
        return self.block.members.once(("ranks", ways.zero), lambda: self._on_ranks(ways))

    def own(self, ways: Ways, kind: StageKind) -> list[OfStage]:
        """Return the virtual stages of a kind of stage with their state, of arrays [U, 1]."""
        chunks, state_C = self.block.shape.chunks, self.seconds_of(ways)[0]
        found = []
        for each in kind.held:
            key = ("own", ways.zero, self.block.numbers_C[each])
            found.append(self.block.members.once(key, partial(self._own, ways, chunks[each], state_C[each])))
        return found

    def _on_ranks(self, ways: Ways) -> MomentEmitter:
        filled, members, job = self.block.filled, self.block.members, self.block.job
        jobs = [sharded(job, filled.alike(members.degrees[place]), way) for place, way in self._pairs(ways)]
        degrees = (name for name in Degrees.__struct_fields__ if name != "pp")
        columns: dict[str, Any] = {name: _column([getattr(each.parallel, name) for each in jobs]) for name in degrees}
        columns["shard"] = _column([each.parallel.sharing for each in jobs])
        parallel = ManyDegrees(pp=job.parallel.pp, **columns)
        links = tuple(filled.links(each.parallel) for each in jobs)
        rates = replace(filled.rates, links_J=links, which_K=np.arange(len(links)), _known={}, _alike={})
        share = on_rows(filled.costs.share, self._rows_U(ways))
        return MomentEmitter(replace(job.with_values(zero=ways.zero), parallel=parallel), share, rates, False)

    def _own(self, ways: Ways, chunk: Chunk, seconds: StateSeconds) -> OfStage:
        stage = self.block.filled.chunks.stage(chunk, ()).on(self._rows_U(ways))
        return OfStage(stage, StateArrays(seconds, np.arange(len(seconds.updated))[:, None], stage.weights()))

    def _rows_U(self, ways: Ways) -> IntArray:
        """Return a row of the family's tables of each pair of degrees and a way."""
        share_K = self.block.members.share_K
        return np.array([share_K[place] for place, _ in self._pairs(ways)], dtype=np.int64)

    def _pairs(self, ways: Ways) -> list[tuple[int, Sharding]]:
        """Return the first share of each pair of degrees and a way, and how that shards the state, [U]."""
        zero, ways_A = ways.zero, self._places(ways)[0]
        return [
            (place, (zero, way)) for place, own in zip(self.block.members.places_A, ways_A, strict=True) for way in own
        ]

    def _places(self, ways: Ways) -> tuple[tuple[tuple[int, ...], ...], IntArray]:
        """Return the ways to shard of each of these degrees, [A], and the place of each pair in all of them, [J]."""
        members = self.block.members

        def places() -> tuple[tuple[tuple[int, ...], ...], IntArray]:
            ways_K = {place: rows.ways_Z for rows in ways.rows for place in range(rows.shares.start, rows.shares.stop)}
            ways_A = tuple(ways_K.get(place, ()) for place in members.places_A)
            begin_A = np.cumsum([0, *map(len, ways_A)])[:-1]
            return ways_A, begin_A[members.alike_K[ways.share_J]] + ways.way_J

        return members.once(("state", ways.zero), places)

    def _seconds(self, chunk: Chunk, zero: int, ways_A: tuple[tuple[int, ...], ...]) -> StateSeconds:
        filled, members, job = self.block.filled, self.block.members, self.block.job
        known, of = filled.states.whole, (zero, members.alike, ways_A, job.sharding.param_gather_bytes)
        if (filled.number_of(chunk), *of) not in known:
            # Those of other pipelines of as many stages along with it, which exchange over the same groups.
            new = [each for each in self.block.peers if (filled.number_of(each), *of) not in known]
            weights_AC = zip(*map(self._weights, new), strict=True)
            found = [
                filled.state_of(job, members.degrees[place], own_C, tuple((zero, way) for way in ways))
                for place, own_C, ways in zip(members.places_A, weights_AC, ways_A, strict=True)
                if ways
            ]
            for place, each in enumerate(new):
                # Of a block in which no way is left there are none.
                known[filled.number_of(each), *of] = StateSeconds(
                    *(
                        np.concatenate([np.zeros(0), *(getattr(one[place], name) for one in found)])
                        for name in StateSeconds.__struct_fields__
                    )
                )
        return known[filled.number_of(chunk), *of]

    def _weights(self, chunk: Chunk) -> list[Elements]:
        """Return the parameters of a kind of virtual stage by these degrees."""
        members, filled = self.block.members, self.block.filled
        known = filled.common.weights.setdefault(filled.number_of(chunk), {})
        new = {key: place for key, place in zip(members.alike, members.places_A, strict=True) if key not in known}
        if new:
            rows = members.share_K[list(new.values())]
            weights = chunk.stage.weights().without_shapes
            known.update(zip(new, _each(weights, rows, filled.costs.shares), strict=True))
        return [known[key] for key in members.alike]


def _column(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64).reshape(-1, 1)


def _each(weights: Elements, rows: IntArray, shares: int) -> Iterator[Elements]:
    """Yield the parameters of some shares."""
    of_rows = weights.changed(lambda value: np.broadcast_to(np.asarray(value), shares)[rows])
    for place in range(len(rows)):
        yield of_rows.changed(partial(_number, place))


def _number(place: int, values: Number) -> Number:
    """Return one of several numbers."""
    found: Number = np.asarray(values)[place].item()
    return found
