"""Turn calls and exchanges into operations of a table.

An exchange that a framework hides behind computation is written as two operations: one that is launched
before the computation, and the share that no framework can hide (the first and last piece of a pipelined
transfer), which blocks. What the computation is too short for shows as exposed all the same.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from traincast.job.job import Job
from traincast.lowering.launches import Launches
from traincast.lowering.work import Exchange
from traincast.model.blocks.share import Share
from traincast.workload.builder import Rows, WorkloadBuilder, collective_op, compute_op, host_op
from traincast.workload.ops import OperatorCall
from traincast.workload.words import CostClass, Group, Phase

Exchanges = Mapping[Exchange, float] | list[Exchange]
"""Exchanges, each once or as often as it is said."""


class Emitter(Struct):
    """Adds operations to a workload and returns their rows."""

    job: Job
    """The job whose work it is."""
    share: Share
    """What a rank has of it, and how many ranks share its node."""
    builder: WorkloadBuilder

    def compute(self, name: str, phase: Phase, calls: Mapping[OperatorCall, float]) -> Rows:
        """Add one operation for all calls that run one after the other; nothing for none."""
        return self.builder.add(compute_op(name, phase, calls=tuple(calls.items()), part=name)) if calls else []

    def gap(self, name: str, duration_s: float, cost_class: CostClass, phase: Phase = Phase.STEP) -> Rows:
        """Add host time for which the GPU waits, if there is any."""
        if duration_s <= 0:
            return []
        return self.builder.add(host_op(name, phase, duration_s, cost_class=cost_class, part=name))

    def hosted(self, host: Launches, phase: Phase, rows: Rows) -> Rows:
        """Let the host launch some operations while they run: they last at least as long as that takes.

        Where it waits for what they compute, the GPU has nothing to do until it has launched more.
        """
        seconds = host.seconds(self.job.framework)
        if not rows or seconds <= 0:
            return rows
        name, cost_class = "launches of layers", CostClass.HOST_LAYERS
        launched = self.builder.add(
            host_op(name, phase, seconds, launches=True, cost_class=cost_class, part="host launches")
        )
        waited = self.gap("waits of the host", host.idle_s(self.job.framework), cost_class, phase)
        return self.builder.overlapped(launched, [*rows, *waited])

    def all(
        self,
        exchanges: Exchanges,
        phase: Phase = Phase.STEP,
        *,
        share: float = 1.0,
        blocking: bool = True,
    ) -> Rows:
        """Add a share of every exchange."""
        rows: Rows = []
        for each, count in _counted(exchanges):
            rows += self.exchange(each, phase, count * share, blocking=blocking)
        return rows

    def exchange(
        self,
        each: Exchange,
        phase: Phase = Phase.STEP,
        count: float = 1.0,
        *,
        blocking: bool = True,
        unhidden: bool = False,
    ) -> Rows:
        """Add an exchange so many times, perhaps the share of it that nothing hides; nothing for an empty one."""
        if each.size_bytes <= 0 or count <= 0:
            return []
        part = f"{each.group.name.lower()} {each.operation.name.lower()}"
        return self.builder.add(
            collective_op(
                f"{part} (unhidden)" if unhidden else part,
                phase,
                each.group,
                each.operation,
                -(-each.size_bytes // each.messages),
                blocking=blocking,
                repeats=count * each.messages,
                cost_class=CostClass.UNHIDDEN if unhidden else CostClass.NONE,
                part=part,
            )
        )

    def beside(self, exchanges: Exchanges, phase: Phase, compute: Rows) -> Rows:
        """Put exchanges around the computation that they may hide behind."""
        before: Rows = []
        after: Rows = []
        for each, count in _counted(exchanges):
            share = self.unhidden(each.group)
            before += self.exchange(each, phase, count * (1 - share), blocking=False)
            after += self.exchange(each, phase, count * share, unhidden=share < 1)
        return [*self.builder.overlapped(before, compute), *after]

    def unhidden(self, group: Group) -> float:
        """Return the share of a group's exchanges that cannot be hidden."""
        job, framework = self.job, self.job.framework
        if group in (Group.TP, Group.ETP):
            return framework.unhidden_tp if job.communication.overlap_tp and self.can_overlap(group) else 1.0
        if group is Group.CP:
            return framework.unhidden_cp
        if group is Group.EP:
            return 1.0  # what hides them is another microbatch, or nothing
        # Other frameworks reduce and gather layer by layer: what stays in sight follows from the simulation.
        fsdp = group in (Group.DP, Group.EDP, Group.SHARD) and job.sharding.zero == 3
        return framework.unhidden_fsdp if fsdp else 1.0

    def can_overlap(self, group: Group) -> bool:
        """Return whether transfers of a tensor parallel group can be pipelined with its GEMMs.

        The kernels that do so write to the memory of their peers, which takes one NVLink domain. Sources:
        NVIDIA/TransformerEngine issue 1071 (userbuffers: tensor parallelism of one node only); PyTorch,
        torch/distributed/_symmetric_memory (async TP: every rank maps the memory of all others).
        """
        parallel = self.job.parallel
        span = parallel.tp if group is Group.TP else parallel.expert_tp
        ranks = self.share.execution.ranks_per_node
        return parallel.world_size <= ranks or ranks % span == 0


def _counted(exchanges: Exchanges) -> Iterable[tuple[Exchange, float]]:
    return exchanges.items() if isinstance(exchanges, Mapping) else ((each, 1.0) for each in exchanges)
