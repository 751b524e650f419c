"""What the names of trace files and the shapes in them say of the run and its model.

Source: fwyc0573/Megatron-LM, the tracer's output paths, such as
``wd8_tp2_pp4_numl40_bs2_GPT2BPETokenizer_rank0_20240923205004.txt`` and
``pp1_tp1_exp4_expn8_dp16_nl8_hs2048_sl2048/wd16_tp1_pp1_exp4_expNum8_l8_bs1_rank3_20250301101500.txt``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path

from traincast.formats.echo.lines import SubOp, TraceOp
from traincast.formats.echo.vocabulary import MESSAGES
from traincast.workload.words import Group, Operation

_MARKS = {
    "wd": "world",
    "tp": "tp",
    "pp": "pp",
    "dp": "dp",
    "exp": "ep",
    "ep": "ep",
    "expNum": "experts",
    "expn": "experts",
    "numl": "layers",
    "nl": "layers",
    "l": "layers",
    "bs": "micro_batch",
    "hs": "hidden",
    "sl": "sequence",
    "rank": "rank",
    "stage": "stage",
}
_WORD = re.compile(r"([A-Za-z]+)([0-9]{1,9})", re.ASCII)
_STAMP = re.compile(r"20[0-9]{12}", re.ASCII)
_OF_ONE_RANK = re.compile(r"20[0-9]{12}|(?:rank|stage)[0-9]{1,9}", re.ASCII)
_OF_THE_FILE = ("rank", "stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileName:
    """Facts of a file's name and, where that is silent, of its folder's; None where neither says."""

    prefix: str
    """The name without what differs between the ranks of a run."""
    world: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    experts: int | None = None
    layers: int | None = None
    micro_batch: int | None = None
    hidden: int | None = None
    sequence: int | None = None
    rank: int | None = None
    stage: int | None = None
    stamp: datetime | None = None
    """When the trace was written."""


def parse_name(path: Path) -> FileName:
    """Read a file's name; nothing in a name is an error.

    Parameters
    ----------
    path : Path
        The file; the name of its folder completes it, save rank, stage and stamp.

    Returns
    -------
    FileName
    """
    facts = {key: value for key, value in _facts(path.parent.name).items() if key not in _OF_THE_FILE}
    facts.update(_facts(path.stem))
    words = path.stem.split("_")
    stamp = next((found for word in words if (found := _stamp(word)) is not None), None)
    prefix = "_".join(word for word in words if _OF_ONE_RANK.fullmatch(word) is None)
    return FileName(prefix=prefix, stamp=stamp, **facts)


def _facts(name: str) -> dict[str, int]:
    """Return the numbers of a name by the fields of `FileName`; the first of a kind counts."""
    facts: dict[str, int] = {}
    for word in name.split("_"):
        match = _WORD.fullmatch(word)
        # a degree or size of zero says nothing; ranks and stages count from zero
        if match is not None and match[1] in _MARKS and (int(match[2]) or match[1] in {"rank", "stage"}):
            facts.setdefault(_MARKS[match[1]], int(match[2]))
    return facts


def _stamp(word: str) -> datetime | None:
    if _STAMP.fullmatch(word) is None:
        return None
    try:
        return datetime.strptime(word, "%Y%m%d%H%M%S")  # without a zone: only gaps count
    except ValueError:
        return None


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
