"""What one rank's trace gives away of the layout of its run, each with its arithmetic."""

from collections.abc import Sequence

from traincast.diagnostics import Notebook
from traincast.formats.echo.lines import TraceOp

_VOCABULARIES = {"GPT-2": 50257, "Llama 2": 32000, "Llama 3": 128256, "Qwen 2": 151936, "Mistral": 32768}
"""Vocabulary sizes whose shards give away the tensor parallel degree (model cards)."""

_PAD = 128
"""Megatron-LM pads a vocabulary to a multiple of 128 x tp (make-vocab-size-divisible-by)."""

_MEMORY_SPEED_BYTES_PER_S = 0.6e12
"""A reduction faster than this moved through memory: above any network, below any HBM (V100: 0.9e12)."""


def tp_of_vocabulary(embeddings: Sequence[TraceOp], communicates: bool, notes: Notebook) -> int | None:
    """Infer tp from the shard of the vocabulary in the embedding's gradient.

    Parameters
    ----------
    embeddings : sequence of TraceOp
        Reductions of the embedding's gradient.
    communicates : bool
        Whether the rank communicates over tp.
    notes : Notebook
        Receives the assumption.

    Returns
    -------
    int or None
        None where the shard fits no known vocabulary.
    """
    for op in embeddings:
        for model, vocabulary in _VOCABULARIES.items():
            for tp in (1, 2, 4, 8, 16):
                padded = -(-vocabulary // (_PAD * tp)) * _PAD * tp
                if op.shape and op.shape[0] * tp == padded and (tp == 1) == (not communicates):
                    notes.assume(
                        "tp-from-vocabulary",
                        f"tp {tp}: the vocabulary shard of {op.shape[0]} rows x {tp} = {padded}, the {vocabulary} of "
                        f"{model} padded to a multiple of {_PAD} x tp",
                        op.line,
                    )
                    return tp
    return None


def tp_of_communication(communicates: bool, notes: Notebook) -> int:
    """Take tp from whether the rank communicates over it at all; an assumption in `notes`."""
    tp = 2 if communicates else 1
    shown = (
        "tp communication but not its degree; taken as tp 2" if communicates else "no tp communication; taken as tp 1"
    )
    notes.assume("tp-from-trace", f"the trace shows {shown} (give --tp)", None)
    return tp


def pp_of_first_wait(ops: Sequence[TraceOp], stage: int, notes: Notebook) -> int:
    """Infer pp from how long the first gradient was awaited, in units of one stage's work.

    Parameters
    ----------
    ops : sequence of TraceOp
        One rank's operations.
    stage : int
        Its stage.
    notes : Notebook
        Receives the assumption.

    Returns
    -------
    int
    """
    named = {name: [op for op in ops if op.op == name] for name in ("forward_step", "backward_step", "recv_backward")}
    wait_s = next((op.duration_s or 0.0 for op in named["recv_backward"]), 0.0)
    sends = any(op.op == "send_forward" for op in ops)
    work = [op.op for op in ops if op.op in ("forward_step", "backward_step")]
    if not wait_s:
        pp = max(stage + 1, 2 if sends else 1)
        if stage or sends:
            notes.warn("pp-unknown", f"no wait for a gradient gives pp away; taken as pp {pp} (give --pp)", None)
        return pp
    if len(named["forward_step"]) > 1:
        warmup = work.index("backward_step") if "backward_step" in work else len(work)
        text = f"pp {stage + warmup}: stage {stage} ran {warmup} forward(s) before its first backward"
        notes.assume("pp-from-warmup", text, None)
        return stage + warmup
    own_s = sum(each[0].duration_s or 0.0 for each in (named["forward_step"], named["backward_step"]) if each)
    further = max(1, round(wait_s / own_s)) if own_s else 1
    notes.assume(
        "pp-from-wait",
        f"pp {stage + 1 + further}: the first gradient came after {1e3 * wait_s:.1f} ms, and a stage works "
        f"{1e3 * own_s:.1f} ms forward and backward; {1e3 * wait_s:.1f} / {1e3 * own_s:.1f} = "
        f"{wait_s / own_s if own_s else 0:.2f}, so {further} further stage(s)",
        named["recv_backward"][0].line,
    )
    return stage + 1 + further


def dp_of_reduction(reductions: Sequence[TraceOp], chosen: int | None, notes: Notebook) -> int:
    """Infer dp 1 from a gradient reduction at memory speed; otherwise it is what the user says.

    Parameters
    ----------
    reductions : sequence of TraceOp
        Reductions of gradients over dp.
    chosen : int, optional
        The user's dp.
    notes : Notebook
        Receives the assumption.

    Returns
    -------
    int
    """
    for op in reductions:
        if op.size_bytes and op.duration_s:
            rate = 2 * op.size_bytes / op.duration_s
            fast = rate > _MEMORY_SPEED_BYTES_PER_S
            text = (
                f"dp_allreduce reads and writes 2 x {op.size_bytes} bytes in {1e3 * op.duration_s:.2f} ms = "
                f"{rate / 1e12:.2f} TB/s, {'memory' if fast else 'network'} speed"
            )
            if fast:
                notes.assume("dp-from-reduction", f"traced with dp 1: {text}", op.line)
                return 1
            if chosen is None:
                notes.warn("dp-unknown", f"{text}, so dp is above 1; taken as 2 (give --dp)", op.line)
            return chosen or 2
    if chosen is None:
        notes.assume("dp-absent", "no gradient reduction tells dp; taken as 1 (give --dp)", None)
    return chosen or 1
