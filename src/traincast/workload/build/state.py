"""What data parallel ranks exchange and update: gradients, parameters, optimizer state.

Sources: Rajbhandari et al., arXiv 1910.02054 (ZeRO: a reduce-scatter and an all-gather move what an
all-reduce does); Zhao et al., arXiv 2304.11277 (FSDP: an all-gather in each pass, a reduce-scatter of
gradients after each backward pass).
"""

from dataclasses import dataclass

from traincast.job.job import Job
from traincast.model.blocks.part import Elements
from traincast.model.numbers import ceil_div
from traincast.workload.build.kernels import Exchange
from traincast.workload.words import Group, Operation

PARAMETER_BYTES = 2
"""Parameters are gathered in 16 bits, but for GEMM weights that the job gathers in 8."""


@dataclass(frozen=True, slots=True)
class StateExchange:
    """Exchanges over the replicas of a virtual stage's weights."""

    job: Job
    weights: Elements

    def gathered(self) -> list[Exchange]:
        """Return the all-gathers that bring all parameters of the stage to each rank."""
        trained = self.job.zero < 3
        dense, expert = self._elements(trained=trained)
        spared = PARAMETER_BYTES - self.job.param_gather_bytes
        dense_bytes = dense * PARAMETER_BYTES - min(dense, self.weights.matrices) * spared
        # FSDP2 has 8-bit gathers of linear layers alone; with 8-bit parameters of their own experts have them too.
        expert_bytes = expert * (PARAMETER_BYTES - (spared if self.job.zero < 3 else 0))
        return self._over(Operation.ALL_GATHER, dense_bytes, expert_bytes)

    def reduced(self) -> list[Exchange]:
        """Return the reductions of its gradients, scattered where the optimizer state is."""
        operation = Operation.REDUCE_SCATTER if self.job.zero else Operation.ALL_REDUCE
        dense, expert = self._elements(trained=True)
        element_bytes = self.job.framework.grad_reduce_bytes
        return self._over(operation, dense * element_bytes, expert * element_bytes)

    def summed(self) -> list[Exchange]:
        """Return the sums over ranks that hold the same share of the state, where shares have copies (HSDP)."""
        if not self._hybrid:
            return []
        dense, _ = self._elements(trained=True)
        size = -(-dense // self.job.shard) * self.job.framework.grad_reduce_bytes
        return [Exchange(Group.REPLICA, Operation.ALL_REDUCE, size)]

    @property
    def _hybrid(self) -> bool:
        return self.job.zero > 0 and self.job.shard < self.job.parallel.dp * self.job.parallel.cp

    def _elements(self, *, trained: bool) -> tuple[int, int]:
        weights = self.weights
        if trained:
            return weights.trained_dense, weights.trained_experts
        return weights.dense, weights.experts

    def _over(self, operation: Operation, dense_bytes: int, expert_bytes: int) -> list[Exchange]:
        """Return one exchange of dense and one of expert weights, where there are any to exchange with."""
        parallel = self.job.parallel
        ranks = self.job.shard if self._hybrid else parallel.dp * parallel.cp
        found = []
        if ranks > 1 and dense_bytes:
            found.append(Exchange(Group.SHARD if self._hybrid else Group.DP, operation, dense_bytes))
        # Of each expert a rank holds, edp ranks hold a copy.
        if parallel.edp > 1 and expert_bytes:
            found.append(Exchange(Group.EDP, operation, expert_bytes))
        return found

    def updated(self) -> int:
        """Return the parameters that the optimizer of one rank updates."""
        dense, expert = self.weights.trained_dense, self.weights.trained_experts
        if self.job.zero == 0:
            return int(dense + expert)
        parallel = self.job.parallel
        return int(
            ceil_div(dense, max(1, min(self.job.shard, parallel.dp * parallel.cp))) + ceil_div(expert, parallel.edp)
        )
