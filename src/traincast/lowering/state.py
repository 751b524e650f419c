"""What data parallel ranks exchange and update: gradients, parameters, optimizer state; and when, under FSDP.

Sources: Rajbhandari et al., arXiv 1910.02054 (ZeRO: a reduce-scatter and an all-gather move what an
all-reduce does); Zhao et al., arXiv 2304.11277 (FSDP: an all-gather in each pass, a reduce-scatter of
gradients after each backward pass).

Letters: Q virtual stages in model order, M microbatches.
"""

from typing import Protocol

import numpy as np
from msgspec import Struct

from traincast.job.job import Job
from traincast.lowering.work import Exchange
from traincast.model.blocks.part import Elements
from traincast.model.numbers import Number, ceil_div
from traincast.schedules.plan import SchedulePlan
from traincast.schedules.slots import SlotKind
from traincast.workload.ops import BoolArray, IntArray
from traincast.workload.words import Group, Operation

PARAMETER_BYTES = 2
"""Parameters are gathered in 16 bits, but for GEMM weights that the job gathers in 8."""


class State(Protocol):
    """What ranks exchange and update of a virtual stage's state, of numbers or arrays."""

    def gathered(self) -> list[Exchange]:
        """Return what brings all parameters of the stage to each rank."""

    def reduced(self) -> list[Exchange]:
        """Return the reductions of its gradients."""

    def summed(self) -> list[Exchange]:
        """Return the sums over ranks that hold the same share of the state."""

    def all_reduced(self) -> list[Exchange]:
        """Return the reductions and then the sums."""

    def over_copies(self) -> list[Exchange]:
        """Return the sum over the copies of the model, of what the rank updates."""

    def updated(self) -> Number:
        """Return the parameters that the optimizer of one rank updates."""

    def held(self) -> Number:
        """Return the parameters of which one rank holds the state."""

    def cast(self) -> Number:
        """Return the weights that are brought to the type of 8-bit GEMMs once a step, as if there were such."""


class StateExchange(Struct, frozen=True):
    """Exchanges over the replicas of a virtual stage's weights, of numbers."""

    job: Job
    weights: Elements

    def _elements(self, *, trained: bool) -> tuple[int, int]:
        weights = self.weights
        if trained:
            return weights.trained_dense, weights.trained_experts
        return weights.dense, weights.experts

    def gathered(self) -> list[Exchange]:
        """Return the all-gathers that bring all parameters of the stage to each rank."""
        trained = self.job.sharding.zero < 3
        dense, expert = self._elements(trained=trained)
        spared = PARAMETER_BYTES - self.job.sharding.param_gather_bytes
        dense_bytes = dense * PARAMETER_BYTES - min(dense, self.weights.matrices) * spared
        # FSDP2 has 8-bit gathers of linear layers alone; with 8-bit parameters of their own experts have them too.
        expert_bytes = expert * (PARAMETER_BYTES - (spared if self.job.sharding.zero < 3 else min(spared, 0)))
        if self.job.framework.owns_tensors and trained:
            return list(map(self._broadcast, self._over(Operation.BROADCAST, dense_bytes, expert_bytes)))
        return self._over(Operation.ALL_GATHER, dense_bytes, expert_bytes)

    def _broadcast(self, all_tensors: Exchange) -> Exchange:
        """Return the broadcasts of the ranks that own tensors, at most one for each tensor, one after another."""
        parallel = self.job.parallel
        ranks = self.job.sharing if self._hybrid else parallel.replicas
        return all_tensors._replace(messages=max(1, min(ranks, int(self.weights.tensors))))

    def reduced(self) -> list[Exchange]:
        """Return the reductions of its gradients, scattered where the optimizer state is."""
        dense, expert = self._elements(trained=True)
        element_bytes = self.job.framework.grad_reduce_bytes
        scatters = self.job.sharding.zero > 0 and not self._reduces_whole
        operation = Operation.REDUCE_SCATTER if scatters else Operation.ALL_REDUCE
        return self._over(operation, dense * element_bytes, expert * element_bytes, shards=scatters)

    def summed(self) -> list[Exchange]:
        """Return the sums over ranks that hold the same share of the state, where shares have copies (HSDP)."""
        if not self._hybrid or self._reduces_whole:
            return []
        dense, _ = self._elements(trained=True)
        size = -(-dense // self.job.sharing) * self.job.framework.grad_reduce_bytes
        return [Exchange(Group.REPLICA, Operation.ALL_REDUCE, size)]

    @property
    def _hybrid(self) -> bool:
        return self.job.sharding.zero > 0 and self.job.sharing < self.job.parallel.replicas

    @property
    def _reduces_whole(self) -> bool:
        """Whether every replica gets all sums of gradients, copies of shares or not, though it updates a part."""
        framework = self.job.framework
        return (framework.owns_tensors or framework.reduces_whole) and 0 < self.job.sharding.zero < 3

    def _over(
        self, operation: Operation, dense_bytes: int, expert_bytes: int, *, shards: bool = True
    ) -> list[Exchange]:
        """Return one exchange of dense and one of expert weights, where there are any to exchange with.

        They are among the ranks that hold one copy of the state (`shards`), or among all replicas.
        """
        parallel = self.job.parallel
        hybrid = shards and self._hybrid
        ranks = self.job.sharing if hybrid else parallel.replicas
        found = []
        if ranks > 1 and dense_bytes:
            messages = max(1, int(self.weights.tensors)) if self.job.framework.state_by_tensor else 1
            group = Group.SHARD if hybrid else Group.DP
            found.append(Exchange(group, operation, dense_bytes, messages=messages))
        # Of each expert a rank holds, edp ranks hold a copy.
        if parallel.edp > 1 and expert_bytes:
            found.append(Exchange(Group.EDP, operation, expert_bytes))
        return found

    def over_copies(self) -> list[Exchange]:
        """Return the sum over the copies of the model: of the parameters that the rank updates."""
        size = self.updated() * self.job.framework.grad_reduce_bytes
        return [Exchange(Group.COPY, Operation.ALL_REDUCE, size)] if size else []

    def all_reduced(self) -> list[Exchange]:
        """Return the reductions and then the sums."""
        return [*self.reduced(), *self.summed()]

    def updated(self) -> int:
        """Return the parameters that the optimizer of one rank updates."""
        return self._of_rank(trained=True)

    def held(self) -> int:
        """Return the parameters of which one rank holds the state."""
        return self._of_rank(trained=False)

    def cast(self) -> Number:
        """Return the weights that GEMMs read."""
        return self.weights.matrices + self.weights.experts

    def _of_rank(self, *, trained: bool) -> int:
        dense, expert = self._elements(trained=trained)
        if self.job.sharding.zero == 0:
            return int(dense + expert)
        return int(ceil_div(dense, self.job.sharing) + ceil_div(expert, self.job.parallel.edp))


class Residency(Struct, frozen=True):
    """What each pass of each virtual stage does to its sharded parameters and gradients."""

    forward_gathers_QM: BoolArray
    """Whether a forward pass gathers its parameters."""
    backward_gathers_QM: BoolArray
    last_backward_Q: IntArray
    """The microbatch whose weight gradients are computed last."""
    ends_rank_Q: BoolArray
    """Whether that is the last that its rank computes in a step."""


def residency(plan: SchedulePlan, microbatches: int, *, reshard_after_forward: bool, pipelined: bool) -> Residency:
    """Follow the parameters of every virtual stage through a step.

    A virtual stage's parameters are whole or sharded when a pass begins; a pass gathers them where they are sharded,
    and what happens after it is the framework's choice. Sources: PyTorch, torch/distributed/fsdp
    (`reshard_after_forward`: kept whole from the forward to the backward pass where it is off) and
    torch/distributed/pipelining/stage.py (`backward_maybe_with_nosync` keeps parameters whole and does not reduce
    after a backward pass; `perform_reduce_grad`, before 2.9 `run_post_backward`, reduces and shards after the last).

    Parameters
    ----------
    plan : SchedulePlan
        The order of every stage.
    microbatches : int
        M.
    reshard_after_forward : bool
        Whether a forward pass leaves its parameters sharded.
    pipelined : bool
        Whether a backward pass leaves them whole, as PyTorch's pipeline schedules do; else sharded.
    """
    virtual_stages = len(plan.placement[0])
    gathers = {kind: np.zeros((virtual_stages, microbatches), dtype=np.bool_) for kind in (SlotKind.F, SlotKind.B)}
    last_Q, ends_Q = np.zeros(virtual_stages, dtype=np.int64), np.zeros(virtual_stages, dtype=np.bool_)
    for slots in plan.slots:
        whole: set[tuple[int, int]] = set()
        final = 0
        for slot in slots:
            held = (slot.copy, slot.virtual_stage)
            kind = SlotKind.F if slot.kind is SlotKind.F else SlotKind.B
            if slot.kind is not SlotKind.W:
                gathers[kind][slot.virtual_stage, slot.microbatch] |= held not in whole
                stays = not reshard_after_forward if kind is SlotKind.F else pipelined
                whole = whole | {held} if stays else whole - {held}
            if slot.kind in (SlotKind.W, SlotKind.BW):
                last_Q[slot.virtual_stage] = slot.microbatch
                final = slot.virtual_stage
        ends_Q[final] = True
    return Residency(gathers[SlotKind.F], gathers[SlotKind.B], last_Q, ends_Q)
