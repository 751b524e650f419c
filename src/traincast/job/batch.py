"""The sequences of a step: how long they are, how many a microbatch has, and what is packed into one."""

from msgspec import Struct

from traincast.errors import InfeasibleError
from traincast.job.decisions import Decisions, Need
from traincast.job.request import JobRequest
from traincast.model.blocks.share import Sequences
from traincast.units import counted

NEEDS = (Need("local_batch", lambda _, parallel, __: parallel.pp > 1, "with pp 1"),)
"""What its fields need to have an effect."""


class Packing(Struct, frozen=True, kw_only=True):
    """What it means for attention that the sequences of a data set are packed."""

    met: float
    """Tokens of its own sequence to each token, in the mean: the sum of the squares of all lengths over their sum."""
    filled: float
    """Share of a pack that is not padding."""
    slowest: float = 1.0
    """Attention of the packs that ranks wait for, over the mean of all packs."""

    @property
    def length(self) -> int:
        """Tokens of equally long sequences that stand for all of them."""
        return max(1, round(self.met))

    @property
    def work(self) -> float:
        """Attention that a step waits for, over that of full packs of such sequences."""
        return self.filled * self.slowest * (self.met / self.length)


class Batch(Struct, frozen=True, kw_only=True):
    """What a step trains on."""

    seq_length: int
    """Tokens of a sequence."""
    micro_batch: int
    """Sequences of a microbatch on each replica."""
    global_batch: int
    """Sequences of a step."""
    local_batch: int | None = None
    """Sequences of a replica after which its pipeline runs empty; None: all of them."""
    packed_length: int | None = None
    """Tokens of the sequences that are packed into one and do not attend to each other; None: a sequence is one."""
    packing: Packing | None = None
    """How sequences of several lengths are packed; None: packs are full of sequences of `packed_length`."""

    @property
    def sequences(self) -> Sequences:
        """The sequences of a microbatch as blocks see them."""
        return Sequences(
            length=self.seq_length,
            count=self.micro_batch,
            packed_length=self.packed_length or 0,
            packed_work=self.packing.work if self.packing else 0,
        )

    @property
    def attended_length(self) -> int:
        """Tokens of what attention sees as one sequence."""
        return self.packed_length or self.seq_length

    @property
    def tokens_per_step(self) -> int:
        """Tokens that a step trains on, without padding."""
        tokens = self.global_batch * self.seq_length
        return tokens if self.packing is None else round(tokens * self.packing.filled)


def note_long_sequence(request: JobRequest, decided: Decisions) -> None:
    """Note a sequence that is longer than those that the model is made for."""
    longest = request.model.max_positions
    if longest is not None and request.seq_length > longest:
        decided.note(
            "long-sequence",
            f"a sequence of {request.seq_length} tokens; {request.model.name} is made for at most {longest}",
        )


def decide_batches(request: JobRequest, decided: Decisions, dp: int) -> tuple[int, int]:
    """Return sequences per microbatch, and microbatches per step."""
    micro_batch = request.micro_batch
    if micro_batch is None:
        micro_batch = 1
        decided.note("assumed-micro-batch", "micro_batch is not given: 1 sequence")
    if request.global_batch % (dp * micro_batch):
        raise InfeasibleError(
            f"a global batch of {counted(request.global_batch, 'sequence')} does not divide into dp {dp} x micro_batch "
            f"{micro_batch} = {dp * micro_batch}; {_near_batches(request.global_batch, dp * micro_batch)}"
        )
    microbatches = request.global_batch // (dp * micro_batch)
    decided.note(
        "microbatches-from-batch",
        f"microbatches = {request.global_batch} sequences / (dp {dp} x micro_batch {micro_batch}) = {microbatches}",
    )
    return micro_batch, microbatches


def decide_drained_after(
    request: JobRequest, decided: Decisions, pp: int, micro_batch: int, microbatches: int
) -> int | None:
    """Return the microbatches after which a pipeline runs empty; None: after all of a step.

    A loop that accumulates gradients over calls of PyTorch's schedules fills the pipeline and empties it in every call.
    Sources: PyTorch, torch/distributed/pipelining/schedules.py (step); pytorch/torchtitan, torchtitan/train.py
    (train_step, forward_backward_step); NVIDIA-NeMo/Automodel, recipes/llm/train_ft.py (_forward_backward_step).
    """
    local = request.local_batch
    if local is None or pp == 1:
        return None
    if local % micro_batch:
        raise InfeasibleError(
            f"a local batch of {counted(local, 'sequence')} does not divide into microbatches of {micro_batch}; "
            f"{_near_batches(local, micro_batch)}"
        )
    count = local // micro_batch
    if count >= microbatches:
        return None
    times = -(-microbatches // count)
    decided.note(
        "pipeline-drains",
        f"local_batch {local}: the pipeline runs empty after each {counted(count, 'microbatch', 'microbatches')}, "
        f"{times} times a step",
    )
    return count


def _near_batches(batch: int, multiple: int) -> str:
    """Say which global batches near one are possible."""
    below, above = batch // multiple * multiple, -(-batch // multiple) * multiple
    return f"use {below} or {above}" if below else f"use {above}"
