"""What the exchange and the update of a stage's state take: for every way to shard it, on the groups of some degrees.

Letters: Z ways to shard.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.job.job import Job
from traincast.job.parallel import Parallel
from traincast.lowering.state import StateExchange
from traincast.lowering.step import cast_kernels
from traincast.lowering.work import Exchange, Pass, call_of
from traincast.mechanisms import all as mechanisms
from traincast.model.blocks.part import Elements
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number, added
from traincast.planning.screen.transfers import Links
from traincast.workload.ops import FloatArray, OperatorCall

Sharding = tuple[int, int]
"""Stage of ZeRO, and the ranks that share one copy of the state."""


class StateSeconds(Struct, frozen=True):
    """Of one virtual stage, by way to shard, [Z]."""

    reduced_s: FloatArray
    """Reduction of its gradients."""
    summed_s: FloatArray
    """Their sum over copies of the shares (HSDP)."""
    gathered_s: FloatArray
    """Gather of its parameters."""
    copied_s: FloatArray
    """Sum over the copies of the model that bidirectional schedules have."""
    updated: FloatArray
    """Parameters that the optimizer of a rank updates."""


class StateTable(Struct):
    """Remembers them by degrees."""

    links: Callable[[Parallel], Links]
    """The communications of a layout."""
    seconds: Callable[[OperatorCall], float]
    whole: dict[tuple[object, ...], StateSeconds] = field(default_factory=dict)
    """Those of all degrees of a block together, by kind of virtual stage and stage of ZeRO."""
    _found: dict[tuple[object, ...], StateSeconds] = field(default_factory=dict)
    _known_s: dict[OperatorCall, float] = field(default_factory=dict)

    def seconds_of(
        self, job: Job, parallel: Parallel, weights: Elements, shardings: Sequence[Sharding]
    ) -> StateSeconds:
        """Return what a virtual stage with some weights takes."""
        held = (weights.dense, weights.experts, weights.trained, weights.matrices, weights.tensors)
        key = (parallel, tuple(shardings), job.sharding.param_gather_bytes, *held)
        if key not in self._found:
            self._found[key] = self._made(job, parallel, weights, shardings)
        return self._found[key]

    def update_s(self, job: Job, held: Sequence[Elements], updated: float) -> float:
        """Return the seconds of the update of so many parameters, a share of what some virtual stages hold."""
        update = mechanisms.updated(job, sum(held, Elements()), int(updated))
        exchanges = Pass()
        exchanges.exchange(update.exchanges)
        exchange_s = _total(self.links(job.parallel), exchanges.exchanges) if exchanges.exchanges else 0.0
        return exchange_s + sum(self._run_s(call_of(what), count) for what, count in update.runs)

    def _run_s(self, call: OperatorCall, count: Number) -> float:
        if min(call.shape) <= 0:
            return 0.0
        if call not in self._known_s:
            self._known_s[call] = self.seconds(call)
        return self._known_s[call] * float(count)

    def casts_s(self, job: Job, share: Share, held: Sequence[Elements]) -> float:
        """Return the seconds of what brings the weights of some virtual stages to the type of 8-bit GEMMs."""
        kernels = cast_kernels(job, share, added(each.matrices + each.experts for each in held))
        return sum(self._run_s(call_of(each), 1) for each in kernels)

    def _made(self, job: Job, parallel: Parallel, weights: Elements, shardings: Sequence[Sharding]) -> StateSeconds:
        rows = []
        for sharding in shardings:
            own = sharded(job, parallel, sharding)
            state, links, zero = StateExchange(own, weights), self.links(own.parallel), sharding[0]
            groups = (state.reduced(), state.summed(), state.gathered() if zero else [], state.over_copies())
            rows.append([*(_total(links, each) for each in groups), float(state.updated())])
        return StateSeconds(*np.array(rows).T)


def sharded(job: Job, parallel: Parallel, sharding: Sharding) -> Job:
    """Return a job with some degrees whose state is sharded in some way."""
    zero, shard = sharding
    split = replace(parallel, shard=shard) if zero and shard < parallel.replicas else parallel
    return replace(job, parallel=split, sharding=replace(job.sharding, zero=zero))


def _total(links: Links, exchanges: Mapping[Exchange, float] | Sequence[Exchange]) -> float:
    def seconds(each: Exchange) -> float:
        part_bytes = -(-each.size_bytes // each.messages)
        return each.messages * float(links.seconds(each.group, each.operation, [part_bytes])[0])

    if isinstance(exchanges, Mapping):
        return sum(count * seconds(each) for each, count in exchanges.items())
    return sum(map(seconds, exchanges))
