"""Settle a timeline: times say what overlaps, overlap says how long things take, and so on.

Every round starts from the same durations, those of operations that run alone, and lengthens them by
what the times of the round before say: transfers of two kinds that share links, then computation
overlapped with communication. Nothing gets shorter than alone, and nothing longer than with a full overlap, so
the step lies between these two whatever the rounds do. Letters: N operations, I those of a selection.
"""

from collections.abc import Callable, Mapping
from itertools import islice

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.engine import run
from traincast.engine.graph import Graph
from traincast.estimate.contention import SharedNetwork
from traincast.hardware.cluster import Cluster
from traincast.simulation.overlap import ComputeAndTransfers, Finder, KindsOfTransfers, finder_of
from traincast.workload.ops import BoolArray, FloatArray
from traincast.workload.program import Timeline
from traincast.workload.words import Group

MAX_ROUNDS = 8
"""Rounds after the first run of the engine."""
SETTLED = 1e-4
"""Relative change of the step below which no further round is made; measured steps repeat within 1 %."""
_DAMPED_FROM = 5
"""From this round on a duration is the mean of the old and the new one: what overlaps only every other
round then comes to rest."""


class SharedLinks(Struct, frozen=True):
    """Transfers of one kind that share links with those of another while both run."""

    kind: Group
    other: Group
    share: float
    """Of the transfer time between nodes of `kind` while `other` runs too, on the rank where it is largest."""
    factor: float
    """Slowdown of `kind` while both run."""
    bottleneck: str | None


class Settled(Struct, frozen=True):
    """What the loop ended with."""

    timeline: Timeline
    alone_step_s: float
    """The step if nothing that overlaps slowed anything else down."""
    rounds: int
    """0 where nothing overlaps."""
    residual: float
    """Relative change of the step in the last round."""
    shared: tuple[SharedLinks, ...]


class Loop(Struct):
    """What lengthens the durations of a program."""

    alone_s_N: FloatArray
    """Durations of operations that nothing else is overlapped with."""
    slowdown_N: Callable[[np.ndarray], FloatArray]
    """Slowdown of the operations at some numbers, at full overlap."""
    compute: ComputeAndTransfers | None
    """None where overlap slows nothing down."""
    kinds: KindsOfTransfers | None
    """None where kinds share no link."""
    exchanges: ComputeAndTransfers | None
    """Exchanges with experts that hold multiprocessors; None where none are known of."""
    held_N: Callable[[np.ndarray], FloatArray]
    """Slowdown of the computations at some numbers while such an exchange runs."""
    network: SharedNetwork
    """What kinds that share links do to each other."""
    cost: Callable[[Mapping[Group, Cluster]], FloatArray]
    """Durations where groups of some kinds see another cluster: of their transfers at least."""
    _extra: dict[tuple[Group, Group], FloatArray] = field(default_factory=dict)

    def settle(self, graph: Graph, engine: str) -> Settled:
        """Run the engine until its step no longer changes.

        Raises
        ------
        DeadlockError
            If operations wait for each other for ever.
        """
        duration_N = self.alone_s_N
        shared: tuple[SharedLinks, ...] = ()
        times = run(graph, duration_N, engine)
        alone_step_s = step_s = float(times[2].max(initial=0.0))
        rounds, residual, find = 0, 0.0, finder_of(engine, graph)
        while rounds < MAX_ROUNDS:
            longer_N, shared = self._lengthened(times[1], times[2], find)
            if rounds + 1 >= _DAMPED_FROM:
                longer_N = 0.5 * (longer_N + duration_N)
            if np.array_equal(longer_N, duration_N):
                residual = 0.0
                break
            before_s, duration_N = step_s, longer_N
            times = run(graph, duration_N, engine)
            step_s = float(times[2].max(initial=0.0))
            rounds, residual = rounds + 1, abs(step_s - before_s) / step_s
            if residual < SETTLED:
                break
        ready_N, start_N, end_N = times
        if rounds:
            duration_N = _as_long_as_its_rendezvous(graph, duration_N, self.alone_s_N)
        timeline = Timeline(ready_s_N=ready_N, start_s_N=start_N, end_s_N=end_N, duration_s_N=duration_N)
        return Settled(timeline, alone_step_s, rounds, residual, shared)

    def step_without(self, graph: Graph, engine: str, settled: Settled, gone_N: BoolArray) -> float:
        """Return the step in seconds if some transfers took no time, and slowed nothing down.

        What else is overlapped is settled again, for one round.
        """
        duration_N = np.where(gone_N, 0.0, settled.timeline.duration_s_N)
        _, start_N, end_N = run(graph, duration_N, engine)
        if settled.rounds:
            longer_N, _ = replace(self, alone_s_N=np.where(gone_N, 0.0, self.alone_s_N))._lengthened(
                start_N, end_N, finder_of(engine, graph)
            )
            _, _, end_N = run(graph, np.where(gone_N, 0.0, longer_N), engine)
        return float(end_N.max(initial=0.0))

    def _lengthened(
        self, start_N: FloatArray, end_N: FloatArray, find: Finder
    ) -> tuple[FloatArray, tuple[SharedLinks, ...]]:
        """Return the durations that some times ask for, and which kinds share links in them."""
        duration_N = self.alone_s_N.copy()
        shared = self._share_links(duration_N, start_N, end_N, find)
        if self.compute is not None:
            for at_I, share_I in self.compute.shares(start_N, end_N, find):
                overlapped = np.flatnonzero(share_I)
                at = at_I[overlapped]
                duration_N[at] *= 1.0 + self.slowdown_N(at) * share_I[overlapped]
        if self.exchanges is not None:
            for at_I, share_I in islice(self.exchanges.shares(start_N, end_N, find), 1):
                duration_N[at_I] *= 1.0 + self.held_N(at_I) * share_I
        return duration_N, shared

    def _share_links(
        self, duration_N: FloatArray, start_N: FloatArray, end_N: FloatArray, find: Finder
    ) -> tuple[SharedLinks, ...]:
        """Lengthen transfers by what other kinds take from their links while both run."""
        if self.kinds is None:
            return ()
        found = []
        for kind, other, share_I, largest in self.kinds.shares(start_N, end_N, find):
            both = self.network.while_both_run(kind, other)
            if both.bottleneck is not None:
                duration_N[self.kinds.of_kind[kind].at_I] += share_I * self._extra_s(kind, other, self.kinds)
                found.append(SharedLinks(kind, other, largest, both.factor, both.bottleneck))
        return tuple(found)

    def _extra_s(self, kind: Group, other: Group, kinds: KindsOfTransfers) -> FloatArray:
        """Return what each transfer of a kind takes longer if another kind runs all the while, [I]."""
        if (kind, other) not in self._extra:
            pair = {kind: self.network.while_both_run(kind, other), other: self.network.while_both_run(other, kind)}
            both_N = self.cost({each: met.cluster for each, met in pair.items()})
            for one, two in ((kind, other), (other, kind)):
                at_I = kinds.of_kind[one].at_I
                self._extra[one, two] = np.maximum(both_N[at_I] - self.alone_s_N[at_I], 0.0)
        return self._extra[kind, other]


def _as_long_as_its_rendezvous(graph: Graph, duration_N: FloatArray, alone_s_N: FloatArray) -> FloatArray:
    """Return durations in which what one member of a rendezvous was lengthened by is the duration of all of them.

    The engine takes the longest of them in any case.
    """
    pointers, member_I = graph.rendezvous_ptr_J1, graph.rendezvous_member_I
    if not len(member_I):
        return duration_N
    longest_J = np.maximum.reduceat(duration_N[member_I], pointers[:-1])
    lengthened_J = np.logical_or.reduceat(duration_N[member_I] > alone_s_N[member_I], pointers[:-1])
    sizes_J = np.diff(pointers)
    shared_I = np.repeat(lengthened_J, sizes_J)
    same_N = duration_N.copy()
    same_N[member_I[shared_I]] = np.repeat(longest_J, sizes_J)[shared_I]
    return same_N
