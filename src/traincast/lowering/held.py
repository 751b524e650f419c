"""What each virtual stage holds of a model: layers, MTP layers, and the model's ends.

The embedding is on the first virtual stage, the LM head with the loss on the last; MTP layers are where the job has
them, and their heads besides the LM head. Whoever reads the embedding's table and does not share a rank with another
reader has a copy of it: a tied LM head, and MTP layers. Sources: Megatron-LM, megatron/core/models/gpt/gpt_model.py
(``pre_process``, ``mtp_process``, ``post_process``) and pretrain_gpt.py (get_embedding_ranks); DeepSeek-AI 2024,
arXiv:2412.19437, section 3.2.1 (with DualPipe the first and the last layers share a rank, and so these tables).

Letters: Q virtual stages in model order.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from traincast.job.job import Job
from traincast.job.share import blocks_of_layers
from traincast.model.structure import (
    EMBEDDING_COPY,
    FIRST_BLOCKS,
    MTP_HEAD,
    Blocks,
    last_blocks,
    mtp_body,
)
from traincast.schedules.plan import SchedulePlan


class Held(Struct, frozen=True):
    """What one virtual stage holds."""

    layers: range
    """Layers by index in the model."""
    mtp_layers: int
    """MTP layers, which follow them."""
    first: bool
    """Whether it has the embedding."""
    last: bool
    """Whether it has the LM head with the loss, and those of MTP layers."""
    copies_table: bool
    """Whether its MTP layers have a copy of the embedding's table."""
    shares_table: bool
    """Whether its LM head is on the same rank as the embedding."""

    def ends(self, job: Job) -> dict[Blocks, int]:
        """Return the ends of the model that it holds, without the heads of MTP layers, and how often."""
        found: dict[Blocks, int] = {FIRST_BLOCKS: 1} if self.first else {}
        if self.copies_table:
            found[EMBEDDING_COPY] = 1
        if self.last:
            found[last_blocks(job.model, with_embedding=self.shares_table)] = 1
        return found

    def kinds(self, job: Job) -> Iterator[tuple[Blocks, int]]:
        """Yield its layers and MTP layers by kind, and the heads of MTP layers, and how often it has each."""
        yield from Counter(job.blocks_L[self.layers.start : self.layers.stop]).items()
        if self.mtp_layers:
            yield mtp_body(job.model), self.mtp_layers
        if self.last and job.model.mtp_layers:
            yield MTP_HEAD, job.model.mtp_layers


def held_by_stages(job: Job, plan: SchedulePlan) -> tuple[Held, ...]:
    """Return what each virtual stage of a job holds, in model order, [Q]."""
    model, last, mtp = job.model, len(job.pipeline.layers_Q) - 1, job.pipeline.mtp_stage_index
    reads_another = plan.share_rank(0, mtp) or (model.tied_embeddings and plan.share_rank(last, mtp))
    copies_table = model.mtp_layers > 0 and not reads_another
    layers_Q, shares_table = job.pipeline.layers_Q, plan.share_rank(0, last)
    return tuple(
        Held(
            layers=range(end - count, end),
            mtp_layers=model.mtp_layers if index == mtp else 0,
            first=index == 0,
            last=index == len(layers_Q) - 1,
            copies_table=index == mtp and copies_table,
            shares_table=shares_table,
        )
        for index, (count, end) in enumerate(zip(layers_Q, accumulate(layers_Q), strict=True))
    )


def first_alike(job: Job, held_Q: Sequence[Held]) -> list[int]:
    """Return for each virtual stage the first that does and keeps the same, itself or one before it, [Q]."""
    found: dict[tuple[object, ...], int] = {}
    return [
        found.setdefault(
            (
                replace(held, layers=range(0)),
                blocks_of_layers(job, held.layers),
                job.hidden_states_after(index),
            ),
            index,
        )
        for index, held in enumerate(held_Q)
    ]


def table_stages(job: Job, plan: SchedulePlan) -> tuple[int, ...]:
    """Return the stages whose copies of the embedding's table each have a part of its gradient; none if there is one.

    Where all readers share their ranks, as the ends of two copies of the model do, these sum it with all they have.
    """
    model, last, mtp = job.model, len(job.pipeline.layers_Q) - 1, job.pipeline.mtp_stage_index
    readers = [0, *([last] if model.tied_embeddings else []), *([mtp] if model.mtp_layers else [])]
    if all(plan.share_rank(0, reader) for reader in readers):
        return ()
    return tuple(sorted({placement[reader] for placement in plan.placement for reader in readers}))
