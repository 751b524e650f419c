"""A training job: a model, a framework, and what was decided about it, in groups.

A `JobRequest` is what the user says; `traincast.job.resolve` decides the rest by framework and year and returns a
`Job`, with every decision among its assumptions. Each group stands in a file of its own, which decides its values,
refuses what cannot be, and answers what is asked of it.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, replace

from traincast.diagnostics import Note
from traincast.job.batch import Batch
from traincast.job.communication import Communication
from traincast.job.experts import ExpertExchange
from traincast.job.finetuning import Finetuning
from traincast.job.frameworks import Framework, MemoryPolicy
from traincast.job.kernels import Kernels
from traincast.job.offload import Offload
from traincast.job.optimizer import OptimizerTypes
from traincast.job.parallel import Parallel
from traincast.job.pipeline import Pipeline
from traincast.job.pipeline_layout import PipelineLayout, layout_of
from traincast.job.precision import Precision
from traincast.job.recompute import Recomputation
from traincast.job.request import JOB_FIELDS
from traincast.job.sharding import Sharding
from traincast.model.model import Model
from traincast.model.structure import Blocks, blocks_of_layers

GROUPS: Mapping[str, type[Struct]] = MappingProxyType(
    {
        "parallel": Parallel,
        "communication": Communication,
        "pipeline": Pipeline,
        "batch": Batch,
        "precision": Precision,
        "sharding": Sharding,
        "recompute": Recomputation,
        "offload": Offload,
        "experts": ExpertExchange,
        "kernels": Kernels,
        "finetuning": Finetuning,
    }
)
"""The groups of a job whose fields are those of a request, by their names in `Job`."""


class Job(Struct, frozen=True, kw_only=True, dict=True):
    """A job with everything decided.

    What a group alone can answer it answers itself; here is what takes several of them, the model or the framework.
    """

    model: Model
    framework: Framework
    parallel: Parallel
    communication: Communication
    pipeline: Pipeline
    batch: Batch
    precision: Precision
    sharding: Sharding
    optimizer: OptimizerTypes
    recompute: Recomputation
    offload: Offload
    experts: ExpertExchange
    kernels: Kernels
    finetuning: Finetuning
    assumptions: tuple[Note, ...] = ()

    @cached_property
    def blocks_L(self) -> tuple[Blocks, ...]:
        """The blocks of each layer of the model, equal ones the very same."""
        return blocks_of_layers(self.model)

    @property
    def memory_policy(self) -> MemoryPolicy:
        """What its framework keeps in memory."""
        kernels = self.kernels
        return self.framework.memory_policy(
            self.sharding.zero,
            loss_kernel=kernels.loss_kernel,
            loss_tiles=kernels.loss_tiles,
            fused_sums="gradient_sums" not in kernels.unfused,
        )

    @property
    def layout(self) -> PipelineLayout:
        """What each virtual stage holds."""
        return layout_of(self.pipeline.layers_Q, self.model.mtp_layers, self.pipeline.mtp_stage)

    def hidden_states_after(self, virtual_stage: int) -> int:
        """Return how many hidden states of a token a virtual stage hands on: those of MTP layers go to their heads.

        Source: Megatron-LM, megatron/core/transformer/multi_token_prediction.py (MultiTokenPredictionBlock.forward).
        """
        carried = self.pipeline.mtp_stage_index <= virtual_stage < len(self.pipeline.layers_Q) - 1
        return 1 + self.model.mtp_layers * carried

    @property
    def sharing(self) -> int:
        """Ranks that share one copy of their state; 1 where nothing is sharded."""
        return self.parallel.sharing if self.sharding.zero > 0 else 1

    @property
    def autocasts(self) -> bool:
        """Whether weights are fp32 and PyTorch's autocast casts what GEMMs read; FSDP gathers them in 16 bits."""
        return self.framework.autocast and self.sharding.zero < 3 and self.precision.dtype not in ("fp32", "tf32")

    @property
    def reduces_once(self) -> bool:
        """Whether FSDP keeps whole gradients over the microbatches of a pipeline and reduces them after the last."""
        return self.sharding.zero == 3 and self.parallel.pp > 1 and self.framework.pipelined_fsdp

    @property
    def keeps_parameters_whole(self) -> bool:
        """Whether gathered parameters of a whole stage are in memory at once, not those of a few layers."""
        return self.sharding.zero == 3 and (self.reduces_once or not self.sharding.reshard_after_forward)

    @property
    def offloads_gradients(self) -> bool:
        """Whether gradients leave for the host as they are reduced, in every microbatch.

        So they do where the host updates and they are kept in shares, be it one; others leave in the step.
        Sources: DeepSpeed, runtime/zero/stage_1_and_2.py and stage3.py (partition_grads); PyTorch,
        torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (foreach_reduce, offload_to_cpu).
        """
        shared = self.sharding.zero >= 2 or self.offload.gradients
        return self.offload.optimizer > 0 and shared and not self.reduces_once

    def decided(self, name: str) -> Any:  # noqa: ANN401
        """Return what was decided of a field of a request, by its name there."""
        if name == "shard":
            return self.sharing
        group, field = DECIDED[name]
        return getattr(getattr(self, group), field)

    def with_values(self, **values: object) -> "Job":
        """Return the job with other values of some fields, by their names in a request; nothing is checked."""
        changed: dict[str, dict[str, object]] = {}
        for name, value in values.items():
            group, field = DECIDED[name]
            changed.setdefault(group, {})[field] = value
        return replace(self, **{group: replace(getattr(self, group), **found) for group, found in changed.items()})


def _decided_fields() -> Iterator[tuple[str, tuple[str, str]]]:
    for group, kind in GROUPS.items():
        for each in fields(kind):
            yield each.encode_name, (group, each.name)
    # Of the optimizer what a request says in the same words: the rest of it is made of several fields.
    yield from ((each, ("optimizer", each)) for each in OptimizerTypes.__struct_fields__ if each in JOB_FIELDS)


DECIDED: Mapping[str, tuple[str, str]] = MappingProxyType(dict(_decided_fields()))
"""Name of a field as requests and results spell it, to the group of a job and the field there that hold it."""
