"""Write what a rank runs, in program order, from the few things that it can do.

Lowering says once what a pass runs, exchanges, moves and waits for. What becomes of that is the emitter's: rows of a
workload (`RowEmitter`), or the seconds that it takes on arrays of layouts (`traincast.planning.screen.moments`).

An exchange that a framework hides behind computation is written as two operations: one that is launched
before the computation, and the share that no framework can hide (the first and last piece of a pipelined
transfer), which blocks. What the computation is too short for shows as exposed all the same.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from traincast.job.job import Job
from traincast.lowering.launches import Launches
from traincast.lowering.work import Exchange, Pass, call_of
from traincast.model.blocks.part import Gemm, Kernel
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number, anywhere, ceil_div, choose, larger
from traincast.workload.builder import WorkloadBuilder, collective_op, compute_op, host_op, offload_op, outside_op
from traincast.workload.ops import OperatorCall
from traincast.workload.words import CostClass, Group, Phase, Stream

Rows: TypeAlias = list[Any]
"""Operations in program order, as an emitter tells them: by their rows, or by what they take."""

Exchanges = Mapping[Exchange, Number] | Sequence[Exchange]
"""Exchanges, each once or as often as it is said."""


class Emitter(ABC):
    """Makes operations of what lowering says: first what every emitter has of its own, then what is written with it.

    Sizes and times are numbers or arrays (`traincast.model.numbers`); what is 0 everywhere is not written.
    """

    job: Job
    """The job whose work it is."""
    share: Share
    """What a rank has of it, and how many ranks share its node."""

    @abstractmethod
    def compute(self, name: str, phase: Phase, work: Pass) -> Rows:
        """Return one operation for all calls of a pass, which run one after the other; nothing for none."""

    @abstractmethod
    def runs(self, name: str, phase: Phase, runs: Iterable[tuple[Gemm | Kernel, Number]]) -> Rows:
        """Return one operation for GEMMs and kernels, each so often; nothing for none."""

    @abstractmethod
    def gap(self, name: str, duration_s: Number, cost_class: CostClass, phase: Phase = Phase.STEP) -> Rows:
        """Return host time for which the GPU waits, if there is any."""

    @abstractmethod
    def launched(self, duration_s: Number, phase: Phase) -> Rows:
        """Return the time in which the host launches what follows, which runs meanwhile."""

    @abstractmethod
    def copy(self, name: str, phase: Phase, stream: Stream, size_bytes: Number, *, blocking: bool = False) -> Rows:
        """Return what moves so many bytes between a GPU and its host, or in the memory of the host."""

    @abstractmethod
    def outside(self, name: str, duration_s: Number, *, blocking: bool = True) -> Rows:
        """Return what the host exchanges with others than the ranks of the job, if that takes any time."""

    @abstractmethod
    def exchange(
        self,
        each: Exchange,
        phase: Phase = Phase.STEP,
        count: Number = 1.0,
        *,
        blocking: bool = True,
        cost_class: CostClass = CostClass.NONE,
    ) -> Rows:
        """Return an exchange so many times, perhaps a share that is hidden, or is not; nothing for an empty one."""

    @abstractmethod
    def wait(self, *streams: Stream, where: Number = True) -> Rows:
        """Wait for everything that was launched on each of some streams; `where` says whether that is done at all."""

    @abstractmethod
    def overlapped(self, launched: Rows, hiding: Rows) -> Rows:
        """Return an asynchronous pair around what may hide it: launches, the work, a wait for each stream."""

    @abstractmethod
    def again(self, key: tuple[object, ...], write: Callable[[], Rows]) -> Rows:
        """Return what `write` does; what was written under the same key before may be taken again."""

    def hosted(self, host: Launches, phase: Phase, rows: Rows) -> Rows:
        """Let the host launch some operations while they run: they last at least as long as that takes.

        Where it waits for what they compute, the GPU has nothing to do until it has launched more: of every kernel
        where launches block.
        """
        seconds = host.seconds(self.job.framework)
        if not rows or not anywhere(seconds):
            return rows
        if self.job.kernels.launch_blocking:
            blocking_s = host.blocking_s(self.job.framework)
            return [*self.gap("launches that block", blocking_s, CostClass.HOST_LAYERS, phase), *rows]
        launched = self.launched(seconds, phase)
        waited = self.gap("waits of the host", host.idle_s(self.job.framework), CostClass.HOST_LAYERS, phase)
        return self.overlapped(launched, [*rows, *waited])

    def all(
        self,
        exchanges: Exchanges,
        phase: Phase = Phase.STEP,
        *,
        share: float = 1.0,
        blocking: bool = True,
    ) -> Rows:
        """Return a share of every exchange."""
        rows: Rows = []
        blocking = blocking or self.job.kernels.launch_blocking
        for each, count in _counted(exchanges):
            rows += self.exchange(each, phase, count * share, blocking=blocking)
        return rows

    def alongside(self, exchanges: Exchanges, phase: Phase, compute: Rows) -> Rows:
        """Put exchanges around the computation that they may hide behind."""
        before: Rows = []
        after: Rows = []
        for each, count in _counted(exchanges):
            share = self.unhidden(each.group)
            unhidden = CostClass.UNHIDDEN if anywhere(1 - share) else CostClass.NONE
            before += self.exchange(each, phase, count * (1 - share), blocking=False, cost_class=CostClass.HIDDEN)
            after += self.exchange(each, phase, count * share, cost_class=unhidden)
        return [*self.overlapped(before, compute), *after]

    def unhidden(self, group: Group) -> Number:
        """Return the share of a group's exchanges that cannot be hidden."""
        job, framework = self.job, self.job.framework
        if job.kernels.launch_blocking:
            return 1.0
        if group is Group.TP:
            return choose(self.overlap_tp & self.can_overlap_tp(), framework.unhidden_tp, 1.0)
        if group is Group.CP:
            return unhidden_context(job, self.share.cp)
        if group in (Group.EP, Group.ETP):
            # What hides them is another microbatch, or nothing: no GEMM of an expert is pipelined with what dispatchers
            # gather (Megatron-LM, megatron/core/extensions/transformer_engine.py: explicit_expert_comm).
            return 1.0
        # Other frameworks reduce and gather layer by layer: what stays in sight follows from the simulation.
        fsdp = group in (Group.DP, Group.EDP, Group.SHARD) and job.sharding.zero == 3
        return framework.unhidden_fsdp if fsdp else 1.0

    @property
    def overlap_tp(self) -> Number:
        """Whether tensor parallel exchanges are to be overlapped with GEMMs."""
        return self.job.communication.overlap_tp

    def can_overlap_tp(self) -> Number:
        """Return whether transfers of a tensor parallel group can be pipelined with its GEMMs.

        The kernels that do so write to the memory of their peers, which takes one NVLink domain. Sources:
        NVIDIA/TransformerEngine issue 1071 (userbuffers: tensor parallelism of one node only); PyTorch,
        torch/distributed/_symmetric_memory (async TP: every rank maps the memory of all others).
        """
        ranks = self.share.execution.ranks_per_node
        return (self.job.parallel.world_size <= ranks) | (ranks % self.share.tp == 0)


def unhidden_context(job: Job, cp: Number) -> Number:
    """Return the share of what so many context parallel ranks exchange that cannot be hidden.

    Each step of a ring computes with keys and values while the next ones come and the gradients of the step before go:
    only the last gradients are waited for. A framework says what that is of a ring of two. Source:
    NVIDIA/TransformerEngine, pytorch/attention/dot_product_attention/context_parallel.py (AttnFuncWithCPAndKVP2P).
    """
    share = job.framework.unhidden_cp
    return share * 2 / larger(cp, 2) if job.communication.cp_kind == "ring" else share


def _counted(exchanges: Exchanges) -> Iterable[tuple[Exchange, Number]]:
    return exchanges.items() if isinstance(exchanges, Mapping) else ((each, 1.0) for each in exchanges)


class RowEmitter(Emitter):
    """Adds operations to a workload and returns their rows: equal exchanges and waits have one."""

    def __init__(self, job: Job, share: Share, builder: WorkloadBuilder) -> None:
        self.job, self.share, self.builder = job, share, builder
        self._exchanges: dict[tuple[object, ...], list[int]] = {}
        self._waits: dict[Stream, int] = {}

    def compute(self, name: str, phase: Phase, work: Pass) -> list[int]:
        """Add one operation for all calls of a pass."""
        return self._computed(name, phase, tuple(work.calls.items()))

    def runs(self, name: str, phase: Phase, runs: Iterable[tuple[Gemm | Kernel, float]]) -> list[int]:
        """Add one operation for GEMMs and kernels, but those that have nothing to do."""
        calls = ((call_of(what), float(count)) for what, count in runs)
        return self._computed(name, phase, tuple(each for each in calls if min(each[0].shape) > 0))

    def _computed(self, name: str, phase: Phase, calls: tuple[tuple[OperatorCall, float], ...]) -> list[int]:
        return self.builder.add(compute_op(name, phase, calls=calls, part=name)) if calls else []

    def gap(self, name: str, duration_s: float, cost_class: CostClass, phase: Phase = Phase.STEP) -> list[int]:
        """Add host time for which the GPU waits."""
        if duration_s <= 0:
            return []
        return self.builder.add(host_op(name, phase, duration_s, cost_class=cost_class, part=name))

    def launched(self, duration_s: float, phase: Phase) -> list[int]:
        """Add the host's launches."""
        name, cost_class = "launches of layers", CostClass.HOST_LAYERS
        return self.builder.add(
            host_op(name, phase, duration_s, launches=True, cost_class=cost_class, part="host launches")
        )

    def copy(self, name: str, phase: Phase, stream: Stream, size_bytes: int, *, blocking: bool = False) -> list[int]:
        """Add a copy."""
        if size_bytes <= 0:
            return []
        return self.builder.add(offload_op(name, phase, stream, size_bytes, blocking=blocking, part=name))

    def outside(self, name: str, duration_s: float, *, blocking: bool = True) -> list[int]:
        """Add an exchange that takes so long."""
        return self.builder.add(outside_op(name, duration_s, blocking=blocking)) if duration_s > 0 else []

    def exchange(
        self,
        each: Exchange,
        phase: Phase = Phase.STEP,
        count: float = 1.0,
        *,
        blocking: bool = True,
        cost_class: CostClass = CostClass.NONE,
    ) -> list[int]:
        """Add a collective."""
        if each.size_bytes <= 0 or count <= 0:
            return []
        key = each, phase, count, blocking, cost_class
        if key not in self._exchanges:
            part = f"{each.group.name.lower()} {each.operation.name.lower()}"
            self._exchanges[key] = self.builder.add(
                collective_op(
                    f"{part} (unhidden)" if cost_class is CostClass.UNHIDDEN else part,
                    phase,
                    each.group,
                    each.operation,
                    ceil_div(each.size_bytes, each.messages),
                    blocking=blocking,
                    repeats=count * each.messages,
                    cost_class=cost_class,
                    part=part,
                )
            )
        return self._exchanges[key].copy()

    def wait(self, *streams: Stream, where: bool = True) -> list[int]:
        """Add waits."""
        rows: Rows = []
        for stream in streams if where else ():
            if stream not in self._waits:
                (self._waits[stream],) = self.builder.wait(stream)
            rows.append(self._waits[stream])
        return rows

    def again(self, key: tuple[object, ...], write: Callable[[], Rows]) -> Rows:
        """Add it the first time."""
        return self.builder.again(key, write)

    def overlapped(self, launched: list[int], hiding: list[int]) -> list[int]:
        """Add the waits for what is launched."""
        return [*launched, *hiding, *self.wait(*self.builder.running(launched))]
