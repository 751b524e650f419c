"""What one rank of a stage holds parameters of, and with how many others it shares their state.

Every size is a number, or an array that broadcasts with the others: one `RankState` then stands for many layouts.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.job.job import Job
from traincast.model.blocks.part import Elements
from traincast.model.numbers import Number


class Where(StrEnum):
    """Where and when a rank keeps something."""

    GPU = "gpu"
    """In the memory of the GPU, the whole step."""
    UPDATE = "update"
    """There, while parameters are updated: activations are gone then."""
    HOST = "host"
    """In the memory of the host."""


class RankParameters(Struct, frozen=True, kw_only=True):
    """Elements on one rank of a stage."""

    total: Elements
    ends: Elements
    """The part of them that is embedding and head."""
    largest_layer: Number
    """Most elements of one layer, dense and experts together."""
    largest_trained: Number
    """Most elements of one layer that are trained."""
    largest_matrix: Number = 0
    """Most elements of one matrix of a layer, or of all experts' that stand in one tensor."""
    largest_end: Number = 0
    """Most elements of the embedding's table or the LM head."""
    largest_pair: Number = 0
    """Most elements of two matrices of a layer."""
    one_of_each: Number = 0
    """Elements of matrices where those of one shape count once; 0 where nothing asks for them."""

    def changed(self, change: Callable[[Number], Number]) -> "RankParameters":
        """Return it with every number changed."""
        return replace(
            self,
            total=self.total.changed(change),
            ends=self.ends.changed(change),
            largest_layer=change(self.largest_layer),
            largest_trained=change(self.largest_trained),
            largest_matrix=change(self.largest_matrix),
            largest_end=change(self.largest_end),
            largest_pair=change(self.largest_pair),
            one_of_each=change(self.one_of_each),
        )


class RankState(Struct, frozen=True, dict=True):
    """The state of training on one rank: its parameters, in how many shares, and how much of them its GPU updates."""

    job: Job
    held: RankParameters
    dense_shards: Number
    """Ranks that share one copy of the state of dense parameters."""
    expert_shards: Number
    """Ranks that share one copy of the state of experts."""
    tp: Number = 1
    """Ranks that have a part of each dense matrix that is split."""
    expert_tp: Number = 1
    """The same of experts' matrices."""

    @classmethod
    def alone(cls, job: Job, held: RankParameters) -> "RankState":
        """Return the state of a rank of the job, in as many shares as the job says."""
        parallel = job.parallel
        shards = (1, 1)
        if job.sharding.zero:
            shards = job.sharing, max(1, parallel.edp * job.sharing // parallel.replicas)
        return cls(job, held, *shards, parallel.tp, parallel.expert_tp)

    @property
    def layers(self) -> Number:
        """Parameters of its layers: all without embedding and head."""
        return self.held.total.total - self.held.ends.total

    @property
    def frozen(self) -> Number:
        """Parameters of its layers that are not trained."""
        return self.layers - self.held.total.trained

    @cached_property
    def share(self) -> Number:
        """Parameters of which it has the state."""
        total = self.held.total
        return total.dense / self.dense_shards + total.experts / self.expert_shards

    @cached_property
    def trained_share(self) -> Number:
        """Parameters that it updates."""
        total = self.held.total
        return total.trained_dense / self.dense_shards + total.trained_experts / self.expert_shards

    @property
    def updated_here(self) -> float:
        """The part of them that its GPU updates; its host updates the rest."""
        return 1 - self.job.offload.optimizer

    @cached_property
    def shards_parameters(self) -> bool:
        """Whether it keeps a share of the parameters alone, and gathers the others for each pass."""
        alone = np.all(self.dense_shards == 1) and np.all(self.expert_shards == 1)
        return self.job.sharding.zero == 3 and not alone

    @property
    def weight_bytes(self) -> int:
        """Bytes of a parameter in the type that GEMMs read, 16 bits where they read 8."""
        return 4 if self.job.precision.dtype in ("fp32", "tf32") else 2

    @property
    def home(self) -> Where:
        """Where parameters are kept that are sharded."""
        return Where.HOST if self.job.offload.parameters and self.shards_parameters else Where.GPU
