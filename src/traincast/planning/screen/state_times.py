"""What ranks exchange of a virtual stage's state, in seconds: of every way to shard it, on the groups of some degrees.

Letters: Z ways to shard, U pairs of degrees and a way, C virtual stages.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.job.job import Job
from traincast.job.parallel import Parallel
from traincast.lowering.state import StateExchange
from traincast.lowering.work import Exchange
from traincast.model.blocks.part import Elements
from traincast.model.numbers import Number
from traincast.planning.screen.timed import TimedExchange
from traincast.planning.screen.transfers import Links
from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.words import Group, Operation

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
    kept: FloatArray
    """Parameters of which a rank has the state, trained or not."""


class StateTable(Struct):
    """Remembers them by degrees."""

    links: Callable[[Parallel], Links]
    """The communications of a layout."""
    whole: dict[tuple[object, ...], StateSeconds] = field(default_factory=dict)
    """Those of all degrees of a block together, by kind of virtual stage and stage of ZeRO."""
    _found: dict[tuple[object, ...], StateSeconds] = field(default_factory=dict)

    def seconds_of(
        self, job: Job, parallel: Parallel, weights_C: Sequence[Elements], shardings: Sequence[Sharding]
    ) -> list[StateSeconds]:
        """Return what virtual stages with some weights take, [C]."""
        of = (parallel, tuple(shardings), job.sharding.param_gather_bytes)
        keys = [(*of, each.dense, each.experts, each.trained, each.matrices, each.tensors) for each in weights_C]
        new = {key: each for key, each in zip(keys, weights_C, strict=True) if key not in self._found}
        if new:
            self._found.update(zip(new, self._made(job, parallel, list(new.values()), shardings), strict=True))
        return [self._found[key] for key in keys]

    def _made(
        self, job: Job, parallel: Parallel, weights_C: Sequence[Elements], shardings: Sequence[Sharding]
    ) -> Iterator[StateSeconds]:
        rows_ZC = []
        for sharding in shardings:
            own = sharded(job, parallel, sharding)
            states_C, links = [StateExchange(own, each) for each in weights_C], self.links(own.parallel)
            groups = [
                [each.reduced(), each.summed(), each.gathered() if sharding[0] else [], each.over_copies()]
                for each in states_C
            ]
            exchanged_C = np.reshape(links.together_s([each for of in groups for each in of]), (len(states_C), -1))
            others_C = [[float(each.updated()), float(each.held())] for each in states_C]
            rows_ZC.append(np.hstack([exchanged_C, others_C]))
        yield from (StateSeconds(*of_stage.T) for of_stage in np.stack(rows_ZC, axis=1))


class StateArrays(Struct):
    """The state of a virtual stage on some of its ways to shard, [L, 1]: what is exchanged is as long as was found."""

    seconds: StateSeconds
    at_U: IntArray
    weights: Elements = Elements()
    """What its ranks hold, where they bring it to the type of 8-bit GEMMs."""

    def _exchange(self, group: Group, operation: Operation, time_s_U: FloatArray) -> list[Exchange]:
        return [TimedExchange(group, operation, time_s_U[self.at_U])]

    def gathered(self) -> list[Exchange]:
        """Return the gather of its parameters."""
        return self._exchange(Group.DP, Operation.ALL_GATHER, self.seconds.gathered_s)

    def reduced(self) -> list[Exchange]:
        """Return the reduction of its gradients."""
        return self._exchange(Group.DP, Operation.REDUCE_SCATTER, self.seconds.reduced_s)

    def summed(self) -> list[Exchange]:
        """Return their sum over copies of the shares."""
        return self._exchange(Group.REPLICA, Operation.ALL_REDUCE, self.seconds.summed_s)

    def all_reduced(self) -> list[Exchange]:
        """Return both."""
        return [*self.reduced(), *self.summed()]

    def over_copies(self) -> list[Exchange]:
        """Return the sum over the copies of the model."""
        return self._exchange(Group.COPY, Operation.ALL_REDUCE, self.seconds.copied_s)

    def updated(self) -> Number:
        """Return the parameters that the optimizer of a rank updates."""
        return self.seconds.updated[self.at_U]

    def held(self) -> Number:
        """Return the parameters of which a rank has the state."""
        return self.seconds.kept[self.at_U]

    def cast(self) -> Number:
        """Return the weights that GEMMs read."""
        return self.weights.matrices + self.weights.experts


def sharded(job: Job, parallel: Parallel, sharding: Sharding) -> Job:
    """Return a job with some degrees whose state is sharded in some way."""
    zero, shard = sharding
    split = replace(parallel, shard=shard) if zero and shard < parallel.replicas else parallel
    return replace(job, parallel=split, sharding=replace(job.sharding, zero=zero))
