"""Seconds of the transfers of a pass on many shares, and what an overlap with its computation leaves of them.

Letters: K shares.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field

from traincast.estimate.contention import OVERLAP_SLOWDOWN
from traincast.job.frameworks import Framework
from traincast.job.parallel import Parallel
from traincast.model.numbers import Number, added
from traincast.planning.screen.costs import PassCosts, Transfer
from traincast.planning.screen.transfers import Links
from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.words import Group

Way = tuple[Group, str]
"""A kind of group, and whether tokens go out to their experts over it or come back."""


class Timed(Struct, frozen=True):
    """A pass with the seconds of its transfers by kind of group and way of tokens, [K]."""

    compute_s: FloatArray
    slowed_s: FloatArray
    """What the computation takes longer where all of it is overlapped."""
    transfer_s: Mapping[Way, FloatArray]

    @property
    def alone_s(self) -> FloatArray:
        """Everything one after the other."""
        total_s = self.compute_s
        for each in self.transfer_s.values():
            total_s = total_s + each
        return total_s

    def going(self, *goes: str) -> Number:
        """Return the seconds of its transfers of some ways of tokens."""
        return added(time_s for (_, way), time_s in self.transfer_s.items() if way in goes)

    def without(self, *some: "Timed") -> "Timed":
        """Return it without some parts of its computation, and without the exchanges of tokens with experts."""
        compute_s, slowed_s = self.compute_s, self.slowed_s
        for each in some:
            compute_s, slowed_s = compute_s - each.compute_s, slowed_s - each.slowed_s
        left = {way: time_s for way, time_s in self.transfer_s.items() if not way[1]}
        return Timed(np.maximum(compute_s, 0.0), np.maximum(slowed_s, 0.0), left)

    def times(self, share: float) -> "Timed":
        """Return a share of it."""
        transfers = {kind: each * share for kind, each in self.transfer_s.items()}
        return Timed(self.compute_s * share, self.slowed_s * share, transfers)


class Pricer(Struct):
    """What the groups of the innermost degrees take, which sit alike in all layouts of a world with these degrees."""

    framework: Framework
    links_J: tuple[Links, ...]
    """Communications of each distinct set of degrees."""
    which_K: IntArray
    """The set of each share."""
    _known: dict[tuple[object, ...], FloatArray] = field(default_factory=dict)

    def timed(self, costs: PassCosts) -> Timed:
        """Return a pass with the seconds of its transfers."""
        found: dict[Way, FloatArray] = {}
        for each in costs.transfers:
            way, time_s_K = (each.group, each.goes), self._one(each) * each.count
            found[way] = found[way] + time_s_K if way in found else time_s_K
        return Timed(costs.compute_s_K, costs.slowed_s_K, found)

    def _one(self, transfer: Transfer) -> FloatArray:
        key = (transfer.group, transfer.operation, transfer.size_bytes_K.tobytes())
        if key not in self._known:
            time_s_K = np.zeros(len(self.which_K))
            for place, links in enumerate(self.links_J):
                at = np.flatnonzero((self.which_K == place) & (transfer.size_bytes_K > 0))
                if len(at):
                    time_s_K[at] = links.seconds(transfer.group, transfer.operation, transfer.size_bytes_K[at])
            self._known[key] = time_s_K
        return self._known[key]

    def unhidden(self, group: Group, *, overlap_tp: Number) -> Number:
        """Return the share of a group's transfers that cannot be hidden (`traincast.lowering.emit`)."""
        if group is Group.CP:
            return self.framework.unhidden_cp
        if group is Group.EP:
            return 1.0  # what hides them is another microbatch, or nothing
        if not np.any(overlap_tp):
            return 1.0
        able_J = [inside(links.parallel, group, links.cluster.ranks_per_node) for links in self.links_J]
        return np.where(np.array(able_J)[self.which_K] & overlap_tp, self.framework.unhidden_tp, 1.0)


def inside(parallel: Parallel, group: Group, ranks_per_node: int) -> bool:
    """Return whether transfers of a tensor parallel group can be pipelined with its GEMMs: inside a node alone."""
    span = parallel.tp if group is Group.TP else parallel.expert_tp
    return parallel.world_size <= ranks_per_node or ranks_per_node % span == 0


def overlapped(compute_s: FloatArray, slowed_s: FloatArray, transfer_s: FloatArray) -> FloatArray:
    """Return the seconds of a computation and of transfers that run at the same time and slow each other down."""
    together_s = np.minimum(compute_s, transfer_s)
    of_compute = np.divide(together_s, compute_s, out=np.zeros_like(together_s), where=compute_s > 0)
    longer_s = transfer_s + OVERLAP_SLOWDOWN["communication"] * together_s
    found: FloatArray = np.maximum(compute_s + slowed_s * of_compute, longer_s)
    return found


def with_exchanges(compute_s: FloatArray, transfer_s: FloatArray, share: float) -> FloatArray:
    """Return the seconds of passes with exchanges of which a share cannot be hidden; nothing slows the passes down."""
    hidden_s, slowed = transfer_s * (1 - share), OVERLAP_SLOWDOWN["communication"]
    # Of what both take part in at the same time there is as much as the shorter one has.
    found: FloatArray = hidden_s + slowed * compute_s
    np.minimum(found, hidden_s * (1 + slowed), out=found)
    np.maximum(found, compute_s, out=found)
    found += transfer_s * share
    return found
