"""What rank traces say of the degrees of their run, in addition to file names and flags.

Each function returns the degrees that agree with everything the traces say of it, the likeliest first; where only one
is left the traces determine it. Notes say what the first one follows from.
"""

from collections.abc import Sequence
from itertools import product
from math import log2

from traincast.diagnostics import Notebook
from traincast.formats.echo.experts import expert_layers
from traincast.formats.echo.files import RankTrace, Run
from traincast.formats.echo.lines import TraceOp
from traincast.workload.words import Group, Operation

_VOCABULARIES = {"GPT-2": 50257, "Llama 2": 32000, "Llama 3": 128256, "Qwen 2": 151936, "Mistral": 32768}
"""Vocabulary sizes whose shards give away the tensor parallel degree (model cards)."""

_PAD = 128
"""Megatron-LM pads a vocabulary to a multiple of 128 x tp (make-vocab-size-divisible-by)."""

_MEMORY_SPEED_BYTES_PER_S = 0.6e12
"""A reduction faster than this moved through memory: above any network, below any HBM (V100: 0.9e12)."""

_WEIGHTS_OF_LAYER = 12.0
"""Weights of a transformer layer over the square of its hidden size: 4 of attention and 8 of a feed-forward part four
times as wide; 13 with grouped queries and a gated part 3.5 times as wide (Llama 3 8B), 11.7 of Llama 2 7B."""

_CLEAR = 0.25
"""Binary logarithm by which the weights that a rank reduces may be off a power of two to tell the tensor parallel
degree."""

_MOST_RANKS = 1 << 16
"""Ranks of a stage: more than any published run has."""

_FURTHER = 3
"""Degrees after the first one that are taken as likely where nothing limits them: twice as many ranks each."""


def tp_degrees(run: Run, notes: Notebook) -> tuple[int, ...]:
    """Return the tensor parallel degrees that agree with the traces."""
    ops = list(run.ops)
    communicates = any(sub.call.group is Group.TP for op in ops for sub in op.sub_ops)
    if found := _tp_of_vocabulary([op for op in ops if op.op == "emb_allreduce"], communicates, notes):
        return (found,)
    if not communicates:
        notes.assume("tp-from-trace", "the trace shows no tp communication; taken as tp 1 (give --tp)", None)
        return (1,)
    if found := next((tp for trace in run.traces.values() if (tp := _tp_of_weights(trace, notes))), None):
        return (found,)
    text = "the trace shows tp communication but not its degree; taken as tp 2 (give --tp)"
    notes.assume("tp-from-trace", text, None)
    return (2, 4, 8)


def _tp_of_vocabulary(embeddings: Sequence[TraceOp], communicates: bool, notes: Notebook) -> int | None:
    """Infer tp from the shard of the vocabulary in the embedding's gradient; None where it fits no known one."""
    for op, (model, vocabulary), tp in product(embeddings, _VOCABULARIES.items(), (1, 2, 4, 8, 16)):
        padded = -(-vocabulary // (_PAD * tp)) * _PAD * tp
        if op.shape and op.shape[0] * tp == padded and (tp == 1) == (not communicates):
            shard = f"tp {tp}: the vocabulary shard of {op.shape[0]} rows x {tp} = {padded}"
            text = f"{shard}, the {vocabulary} of {model} padded to a multiple of {_PAD} x tp"
            notes.assume("tp-from-vocabulary", text, op.line, brief=f"tp {tp}, by its shard of {model}'s vocabulary")
            return tp
    return None


def _tp_of_weights(trace: RankTrace, notes: Notebook) -> int | None:
    """Infer tp from the weights whose gradients a rank of a middle stage reduces, and its layers.

    A layer sums over tp twice in its forward pass: after attention and after its feed-forward part.
    """
    forwards, reductions = trace.named("forward_step"), trace.named("dp_allreduce")
    if not forwards or not reductions or is_outer(trace) or any(map(expert_layers, forwards)):
        return None
    sums = [
        sub.call.shape
        for sub in forwards[0].sub_ops
        if sub.call.group is Group.TP and sub.call.comm is Operation.ALL_REDUCE and sub.call.shape
    ]
    layers, weights = len(sums) // 2, max((op.shape[0] for op in reductions if op.shape), default=0)
    hidden = sums[0][-1] if sums else 0
    if not layers or not weights or not hidden:
        return None
    of_layers = _WEIGHTS_OF_LAYER * hidden**2 * layers
    tp = 1 << max(round(log2(of_layers / weights)), 1)
    if abs(log2(of_layers / weights / tp)) > _CLEAR:
        return None
    text = (
        f"tp {tp}: {layers} layers of hidden size {hidden} have about {of_layers:.3g} weights, and rank {trace.rank} "
        f"reduces the gradients of {weights:.3g}"
    )
    notes.assume("tp-from-weights", text, reductions[0].line, brief=f"tp {tp}, by the weights that a rank reduces")
    return tp


def is_outer(trace: RankTrace) -> bool:
    """Tell whether a rank does what only the first and the last stage do: it reads tokens, or works out the loss."""
    return any(op.op in ("get_batch", "loss_func", "emb_allreduce") for op in trace.ops)


def ranks_per_stage(run: Run) -> tuple[int, int | None]:
    """Return the least and the most ranks that a stage can have; None where nothing limits them.

    A rank r of stage s is one of r // (s + 1) + 1 to r // s. A stage of more than `_MOST_RANKS` is not believed.
    """
    least, most = 1, None
    for rank, trace in run.traces.items():
        stage = trace.stage
        if stage is None:
            return 1, None
        least = max(least, rank // (stage + 1) + 1)
        if stage:
            most = rank // stage if most is None else min(most, rank // stage)
    return (least, most) if least <= _MOST_RANKS else (1, None)


def pp_degrees(run: Run, notes: Notebook) -> tuple[int, ...]:
    """Return the numbers of stages that agree with the traces."""
    if found := _pp_of_last_stage(run, notes):
        return (found,)
    trace = max(run.traces.values(), key=lambda each: (each.stage or 0, -each.rank))
    stage = trace.stage or 0
    if run.is_profile:
        least = _least_pp_of_profile(trace, stage, notes)
        if trace.named("loss_func"):
            return (least,)
    elif not (sends := bool(trace.named("send_forward") or trace.named("recv_backward"))) and not stage:
        return (1,)
    elif warmup := _warmup(trace):
        is_all = warmup == len(trace.named("forward_step"))
        text = f"stage {stage} ran {warmup} forward(s) before its first backward"
        notes.assume("pp-from-warmup", f"pp {stage + warmup}{' or more' if is_all else ''}: {text}", None)
        if not is_all:
            return (stage + warmup,)
        least = stage + warmup
    elif taken := _pp_of_first_wait(trace, notes):
        return (taken, *(each for each in _doubled(stage + 2) if each != taken))
    else:
        least = stage + (2 if sends else 1)
        text = f"no wait for a gradient gives pp away; taken as pp {least} (give --pp)"
        notes.warn("pp-unknown", text, None)
    return (least, *(each for each in _doubled(least) if each != least))


def _least_pp_of_profile(trace: RankTrace, stage: int, notes: Notebook) -> int:
    """Return how many stages a run has at least of which a lone GPU, which sends nothing, plays a rank."""
    loss = bool(trace.named("loss_func"))
    least = stage + (1 if loss or not trace.named("forward_step") else 2)
    text = f"rank {trace.rank} of stage {stage} works out {'the' if loss else 'no'} loss"
    it_is = "it is the last" if loss else "it is not the last"
    notes.assume("pp-from-loss", f"pp {least}{'' if loss else ' or more'}: {text}, so {it_is}", None)
    return least


def _doubled(least: int) -> tuple[int, ...]:
    """Return the powers of two from a number on."""
    first = 1 << max(least - 1, 0).bit_length()
    return tuple(first << step for step in range(_FURTHER))


def _pp_of_last_stage(run: Run, notes: Notebook) -> int | None:
    """Return pp where a traced rank is of the last stage: it receives activations and sends none on."""
    for rank, trace in () if run.is_profile else sorted(run.traces.items()):
        names, stage = {op.op for op in trace.ops}, trace.stage
        if stage and "recv_forward" in names and not names & {"send_forward", "recv_backward"}:
            text = f"pp {stage + 1}: rank {rank} of stage {stage} receives activations and sends none on"
            notes.assume("pp-from-last-stage", f"{text}, so it is the last", None)
            return stage + 1
    return None


def _warmup(trace: RankTrace) -> int:
    """Return how many forwards a rank runs before its first backward: as many as stages from its own on.

    0 of a step of one microbatch.
    """
    work = [op.op for op in trace.ops if op.op in ("forward_step", "backward_step")]
    warmup = work.index("backward_step") if "backward_step" in work else len(work)
    return warmup if work.count("forward_step") > 1 else 0


def _pp_of_first_wait(trace: RankTrace, notes: Notebook) -> int:
    """Infer pp from how long a rank awaited its first gradient, in units of one stage's work; 0 without a wait."""
    stage, awaited = trace.stage or 0, trace.named("recv_backward")
    forwards, backwards = trace.named("forward_step"), trace.named("backward_step")
    wait_s = (awaited[0].duration_s or 0.0) if awaited else 0.0
    if not wait_s:
        return 0
    own_s = sum(each[0].duration_s or 0.0 for each in (forwards, backwards) if each)
    further = max(1, round(wait_s / own_s)) if own_s else 1
    notes.assume(
        "pp-from-wait",
        f"pp {stage + 1 + further}: the first gradient came after {1e3 * wait_s:.1f} ms, and a stage works "
        f"{1e3 * own_s:.1f} ms forward and backward; {1e3 * wait_s:.1f} / {1e3 * own_s:.1f} = "
        f"{wait_s / own_s if own_s else 0:.2f}, so {further} further stage(s)",
        awaited[0].line,
        brief=f"pp {stage + 1 + further}, by the wait for the first gradient",
    )
    return stage + 1 + further


def replicas_of(run: Run, notes: Notebook) -> tuple[int | None, bool | None]:
    """Return the data parallel degree that the traces write, and whether there is more than one replica.

    Both are None where the traces do not tell. A reduction at the speed of memory is that of one replica.
    """
    written = next((each for op in run.ops if (each := op.raw("data_parallel_world_size")) and each.isdigit()), None)
    if written is not None:
        return int(written), int(written) > 1
    reductions = [op for op in run.ops if op.op == "dp_allreduce" and op.size_bytes]
    if run.is_profile:
        return None, True if reductions else None
    for op in reductions:
        if op.size_bytes and op.duration_s:
            rate = 2 * op.size_bytes / op.duration_s
            fast = rate > _MEMORY_SPEED_BYTES_PER_S
            text = (
                f"dp_allreduce reads and writes 2 x {op.size_bytes} bytes in {1e3 * op.duration_s:.2f} ms = "
                f"{rate / 1e12:.2f} TB/s, {'memory' if fast else 'network'} speed"
            )
            shown = f"traced with dp {'1' if fast else '2 or more'}"
            brief = f"{shown}: dp_allreduce runs at {'memory' if fast else 'network'} speed, {rate / 1e12:.2f} TB/s"
            notes.assume("dp-from-reduction", f"{shown}: {text}", op.line, brief=brief)
            return None, not fast
    return None, None
