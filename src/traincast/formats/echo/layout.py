"""Find out how the traced run was laid out, and how the run to simulate is.

The traced layout comes from file names, then from the ranks and stages of the lines, then from what
the trace gives away; a flag wins over what was only inferred. The layout to simulate is the traced one
with the user's flags over it, so that a flag extrapolates.
"""

from collections.abc import Sequence
from itertools import product
from math import gcd

from msgspec import Struct
from msgspec.structs import replace

from traincast.diagnostics import Notebook
from traincast.errors import FormatError, InfeasibleError
from traincast.formats.echo.experts import experts_of
from traincast.formats.echo.files import RankTrace, Run
from traincast.formats.echo.lines import TraceOp
from traincast.formats.layout import asked_dp, replicas
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.workload.words import Group

_VOCABULARIES = {"GPT-2": 50257, "Llama 2": 32000, "Llama 3": 128256, "Qwen 2": 151936, "Mistral": 32768}
"""Vocabulary sizes whose shards give away the tensor parallel degree (model cards)."""

_PAD = 128
"""Megatron-LM pads a vocabulary to a multiple of 128 x tp (make-vocab-size-divisible-by)."""

_MEMORY_SPEED_BYTES_PER_S = 0.6e12
"""A reduction faster than this moved through memory: above any network, below any HBM (V100: 0.9e12)."""


class Layouts(Struct, frozen=True):
    """The layout that was traced and the one to simulate."""

    traced: Parallel
    target: Parallel

    def stage_of(self, trace: RankTrace) -> int:
        """Return the stage of a traced rank."""
        return trace.rank // self.traced.ranks_per_stage if trace.stage is None else trace.stage


def decide_layouts(run: Run, options: LayoutOptions, notes: Notebook) -> Layouts:
    """Work out the traced layout and the one to simulate; `notes` receives every assumption with its arithmetic.

    Raises
    ------
    InfeasibleError
        If the degrees that the user gives contradict each other or the traced ranks.
    """
    original = _traced_layout(run, options, notes)
    _check_stages(run, original, notes)
    tp, pp, cp = options.tp or original.tp, options.pp or original.pp, original.cp
    dp = asked_dp(options, {"tp": tp, "cp": cp, "pp": pp}, notes.path) or original.dp
    target = replace(original, tp=tp, pp=pp, dp=dp, microbatches=options.microbatches or run.microbatches)
    if target.tp != original.tp:
        text = f"the run was traced with tp {original.tp}; its compute times and sizes are kept for tp {target.tp}"
        notes.warn("tp-not-rescaled", text, None)
    if target.pp != original.pp:
        kept = f"every stage of pp {target.pp} keeps the work of a traced one, so the model is another one"
        notes.warn("pp-not-rescaled", f"the run was traced with pp {original.pp}; {kept}", None)
    if target.dp != original.dp:
        text = f"the run was traced with dp {original.dp}; reductions over dp {target.dp} are estimated"
        notes.assume("dp-extrapolated", text, None)
    return Layouts(original, target)


def _traced_layout(run: Run, options: LayoutOptions, notes: Notebook) -> Parallel:
    name = run.first.name
    cp = options.cp or name.cp or 1
    communicates = any(sub.call.group is Group.TP for op in run.first.ops for sub in op.sub_ops)
    tp = name.tp or _tp_of_vocabulary(run.first.named("emb_allreduce"), communicates, notes)
    tp = tp or options.tp or _tp_of_communication(communicates, notes)
    per_stage = _ranks_per_stage(run, tp)
    pp = name.pp or _pp_of_last_stage(run, notes) or options.pp
    if not pp:
        pp = _pp_of_first_wait(max(run.traces.values(), key=lambda each: (each.stage or 0, -each.rank)), notes)
    dp = name.dp or (name.world // (tp * cp * pp) if name.world else None)
    if dp is None and per_stage is not None:
        dp = per_stage // (tp * cp)
    if dp is None and run.is_profile:
        degrees = {"tp": tp, "cp": cp, "pp": pp}
        dp = options.dp or (None if options.gpus is None else replicas(options.gpus, degrees, notes.path))
    if not dp:
        dp = _dp_of_reduction(run.first.named("dp_allreduce"), options.dp, notes)
    ep = options.ep or name.ep or _ep_of_experts(run.first.ops, tp * cp * dp, notes)
    etp = options.etp or name.etp or (1 if ep > 1 else None)
    return Parallel(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp, shard=name.shard)


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


def _tp_of_communication(communicates: bool, notes: Notebook) -> int:
    """Take tp from whether the rank communicates over it at all."""
    tp, shown = (2, "tp communication but not its degree") if communicates else (1, "no tp communication")
    notes.assume("tp-from-trace", f"the trace shows {shown}; taken as tp {tp} (give --tp)", None)
    return tp


def _ranks_per_stage(run: Run, tp: int) -> int | None:
    """Return how many ranks a stage has, where the stages of the traced ranks leave one number only."""
    least, most = 1, None
    for rank, trace in run.traces.items():
        stage = trace.stage
        if run.is_profile or stage is None:
            return None
        least = max(least, rank // (stage + 1) + 1)
        if stage:
            most = rank // stage if most is None else min(most, rank // stage)
    fitting = [size for size in range(least, (most or 0) + 1) if size % tp == 0]
    return fitting[0] if len(fitting) == 1 else None


def _pp_of_last_stage(run: Run, notes: Notebook) -> int | None:
    """Return pp where a traced rank is of the last stage: it receives activations and sends none on."""
    for rank, trace in () if run.is_profile else sorted(run.traces.items()):
        names, stage = {op.op for op in trace.ops}, trace.stage
        if stage and "recv_forward" in names and not names & {"send_forward", "recv_backward"}:
            text = f"pp {stage + 1}: rank {rank} of stage {stage} receives activations and sends none on"
            notes.assume("pp-from-last-stage", f"{text}, so it is the last", None)
            return stage + 1
    return None


def _pp_of_first_wait(trace: RankTrace, notes: Notebook) -> int:
    """Infer pp from how long a rank awaited its first gradient, in units of one stage's work."""
    stage, forwards, backwards = trace.stage or 0, trace.named("forward_step"), trace.named("backward_step")
    awaited = trace.named("recv_backward")
    wait_s = (awaited[0].duration_s or 0.0) if awaited else 0.0
    if not wait_s:
        sends = bool(trace.named("send_forward"))
        pp = max(stage + 1, 2 if sends else 1)
        if stage or sends:
            notes.warn("pp-unknown", f"no wait for a gradient gives pp away; taken as pp {pp} (give --pp)", None)
        return pp
    if len(forwards) > 1:
        work = [op.op for op in trace.ops if op.op in ("forward_step", "backward_step")]
        warmup = work.index("backward_step") if backwards else len(work)
        text = f"pp {stage + warmup}: stage {stage} ran {warmup} forward(s) before its first backward"
        notes.assume("pp-from-warmup", text, None)
        return stage + warmup
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


def _dp_of_reduction(reductions: Sequence[TraceOp], chosen: int | None, notes: Notebook) -> int:
    """Infer dp 1 from a gradient reduction at memory speed; otherwise it is what the user says."""
    for op in reductions:
        if op.size_bytes and op.duration_s:
            rate = 2 * op.size_bytes / op.duration_s
            fast = rate > _MEMORY_SPEED_BYTES_PER_S
            text = (
                f"dp_allreduce reads and writes 2 x {op.size_bytes} bytes in {1e3 * op.duration_s:.2f} ms = "
                f"{rate / 1e12:.2f} TB/s, {'memory' if fast else 'network'} speed"
            )
            if fast:
                brief = f"traced with dp 1: dp_allreduce runs at memory speed, {rate / 1e12:.2f} TB/s"
                notes.assume("dp-from-reduction", f"traced with dp 1: {text}", op.line, brief=brief)
                return 1
            if chosen is None:
                notes.warn("dp-unknown", f"{text}, so dp is above 1; taken as 2 (give --dp)", op.line)
            return chosen or 2
    if chosen is None:
        notes.assume("dp-absent", "no gradient reduction tells dp; taken as 1 (give --dp)", None)
    return chosen or 1


def _ep_of_experts(ops: Sequence[TraceOp], ranks_per_stage: int, notes: Notebook) -> int:
    """Infer ep where experts exchange tokens: as many ranks as the experts and the stage's ranks allow."""
    if not any(sub.call.group is Group.EP for op in ops for sub in op.sub_ops):
        return 1
    gathered = experts_of(ops)
    ep = gcd(gathered or ranks_per_stage, ranks_per_stage)
    said = f"tokens are gathered for {gathered} experts" if gathered else "experts exchange tokens"
    notes.warn(
        "ep-from-experts",
        f"{said}, but the trace does not say on how many ranks they are; taken as ep {ep}, the most that divides them "
        f"and the {ranks_per_stage} ranks of a stage (give --ep)",
        None,
    )
    return ep


def _check_stages(run: Run, layout: Parallel, notes: Notebook) -> None:
    """Refuse lines that contradict each other, and a layout that puts traced ranks elsewhere than they say."""
    for rank, trace in run.traces.items():
        stage = trace.stage
        for op in trace.ops:
            if op.stage_id not in (None, stage):
                text = f"rank {rank} says stage {op.stage_id} here and stage {stage} before"
                raise FormatError(f"{text}; a rank has one stage", op.path, op.line)
    for rank, trace in run.traces.items():
        stage, place = trace.stage, rank // layout.ranks_per_stage
        if run.is_profile and stage is not None:
            place = stage
        if place >= layout.pp or stage not in (None, place):
            where = f"stage {place}" if place < layout.pp else f"none of its {layout.world_size} ranks"
            said = f"says it is of stage {stage}" if stage is not None else "was traced"
            raise InfeasibleError(
                f"{notes.path}: rank {rank} {said}, but tp {layout.tp} x cp {layout.cp} x pp {layout.pp} x dp "
                f"{layout.dp} puts it on {where}; give the degrees that the run had (tp, pp, dp)"
            )
