"""What the shapes in a trace say of the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from traincast.formats.echo.lines import SubOp, TraceOp
from traincast.formats.echo.vocabulary import MESSAGES
from traincast.workload.words import Group, Operation

_OF_THE_BATCH = frozenset({"tokens", "labels", "position_ids", "loss_mask"})
_OF_ACTIVATIONS = frozenset({"embedding_fwd", "linear_fwd", "normlinear_bwd", "normlinear_bwd_allreduce"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFacts:
    """Sizes of the model and its batch; None where no shape says them."""

    hidden: int | None
    sequence: int | None
    """Tokens of a sequence; with sequence parallelism and no batch in the trace, its share per rank."""
    micro_batch: int | None
    """Sequences of a microbatch."""
    vocabulary_shard: int | None
    """Rows of the word embedding on a rank: the padded vocabulary over TP."""
    gradient_elements: int | None
    """Elements that data parallelism reduces on this rank."""
    experts: int | None
    """Experts whose token counts the ranks gather from each other."""
    dtype: str | None
    """Element type of the activations."""


def shape_facts(ops: Sequence[TraceOp]) -> ShapeFacts:
    """Collect what shapes say.

    Parameters
    ----------
    ops : sequence of TraceOp
        Operations of one rank.

    Returns
    -------
    ShapeFacts
        A message is [sequence, microbatch, hidden], a batch [microbatch, sequence], the embedding's
        gradient [vocabulary / tp, hidden], an activation [..., hidden].
    """
    messages = [op for op in ops if op.op in MESSAGES and op.shape is not None and len(op.shape) == 3]
    embeddings = [op.shape for op in ops if op.op == "emb_allreduce" and op.shape is not None and len(op.shape) == 2]
    inner = [sub for op in ops for sub in op.sub_ops if sub.shape is not None and len(sub.shape) > 1]
    batches = [sub.shape for sub in inner if sub.func_name in _OF_THE_BATCH and sub.shape is not None]
    activations = [sub for sub in inner if _is_activation(sub)]
    tokens = next(iter(batches), None)
    message = next((op.shape for op in messages if op.shape is not None), None)
    if tokens is None and message is not None:
        tokens = message[1], message[0]
    wide = [message, *embeddings, *(sub.shape for sub in activations)]
    elements = [op.shape[0] for op in ops if op.op in {"dp_allreduce", "edp_allreduce"} and op.shape]
    return ShapeFacts(
        hidden=next((shape[-1] for shape in wide if shape is not None), None),
        sequence=None if tokens is None else tokens[1],
        micro_batch=None if tokens is None else tokens[0],
        vocabulary_shard=embeddings[0][0] if embeddings else None,
        experts=experts_of(ops),
        gradient_elements=sum(elements) if elements else None,
        dtype=next(chain((op.dtype for op in messages), (sub.dtype for sub in activations)), None),
    )


def experts_of(ops: Sequence[TraceOp]) -> int | None:
    """Return the number of experts, None where no gathered token counts tell it."""
    subs = (sub for op in ops for sub in op.sub_ops if sub.group is Group.EP and sub.comm is Operation.ALL_GATHER)
    return max((sub.shape[0] for sub in subs if sub.shape is not None and len(sub.shape) == 1), default=None)


def _is_activation(sub: SubOp) -> bool:
    return sub.func_name in _OF_ACTIVATIONS or sub.comm is Operation.ALL_TO_ALL
