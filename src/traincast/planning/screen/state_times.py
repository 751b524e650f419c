"""What the exchange and the update of a stage's state take: for every way to shard it, on the groups of some degrees.

Letters: Z ways to shard.
"""

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.job.job import Job
from traincast.job.parallel import Parallel
from traincast.lowering.state import StateExchange
from traincast.lowering.step import cast_kernels
from traincast.lowering.work import Exchange, call_of
from traincast.mechanisms.all import update_kernels
from traincast.model.blocks.part import Elements, Kernel
from traincast.model.blocks.share import Share
from traincast.model.numbers import added
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
    _updates: dict[tuple[object, ...], float] = field(default_factory=dict)

    def of(self, job: Job, parallel: Parallel, weights: Elements, shardings: Sequence[Sharding]) -> StateSeconds:
        """Return what a virtual stage with some weights takes."""
        held = (weights.dense, weights.experts, weights.trained, weights.matrices, weights.tensors)
        key = (parallel, tuple(shardings), job.sharding.param_gather_bytes, *held)
        if key not in self._found:
            self._found[key] = self._made(job, parallel, weights, shardings)
        return self._found[key]

    def update_s(self, job: Job, updated: float) -> float:
        """Return the seconds of the update of so many parameters."""
        count = int(updated)
        key = job.precision.dtype, job.offload.optimizer, count
        return self._once(key, lambda: update_kernels(job, Elements(), count))

    def casts_s(self, job: Job, share: Share, held: Sequence[Elements]) -> float:
        """Return the seconds of what brings the weights of some virtual stages to the type of 8-bit GEMMs."""
        kernels = cast_kernels(job, share, added(each.matrices + each.experts for each in held))
        return self._once(tuple(map(call_of, kernels)), lambda: kernels)

    def _once(self, key: tuple[object, ...], kernels: Callable[[], Sequence[Kernel]]) -> float:
        if key not in self._updates:
            self._updates[key] = sum(self.seconds(call_of(each)) for each in kernels() if min(each.shape) > 0)
        return self._updates[key]

    def _made(self, job: Job, parallel: Parallel, weights: Elements, shardings: Sequence[Sharding]) -> StateSeconds:
        replicas = parallel.replicas
        rows = []
        for zero, shard in shardings:
            split = replace(parallel, shard=shard) if zero and shard < replicas else parallel
            state = StateExchange(replace(job, parallel=split, sharding=replace(job.sharding, zero=zero)), weights)
            links = self.links(split)
            groups = (state.reduced(), state.summed(), state.gathered() if zero else [], state.over_copies())
            rows.append([*(_total(links, each) for each in groups), float(state.updated())])
        return StateSeconds(*np.array(rows).T)


def _total(links: Links, exchanges: Sequence[Exchange]) -> float:
    def seconds(each: Exchange) -> float:
        part_bytes = -(-each.size_bytes // each.messages)
        return each.messages * float(links.seconds(each.group, each.operation, [part_bytes])[0])

    return sum(map(seconds, exchanges))
