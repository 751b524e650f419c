"""Find out how the traced run was laid out: flags first, then file names, then what the trace shows."""

from collections.abc import Mapping
from dataclasses import dataclass

from traincast.errors import InfeasibleError
from traincast.formats.building import Notebook
from traincast.formats.echo.files import RankTrace
from traincast.formats.echo.lines import TraceOp
from traincast.spec.options import LayoutOptions
from traincast.spec.parallel import Parallel
from traincast.workload.words import Group

_VOCABULARIES = {"GPT-2": 50257, "Llama 2": 32000, "Llama 3": 128256, "Qwen 2": 151936, "Mistral": 32768}
"""Vocabulary sizes whose shards give away the tensor parallel degree (model cards)."""

_PAD = 128
"""Megatron-LM pads a vocabulary to a multiple of 128 x tp (make-vocab-size-divisible-by)."""

_MEMORY_SPEED_BYTES_PER_S = 0.6e12
"""A reduction faster than this moved through memory: above any network, below any HBM (V100: 0.9e12)."""


@dataclass(frozen=True, slots=True)
class Traced:
    """What the traces of a run show, in short."""

    traces: Mapping[int, RankTrace]
    profile: bool
    """One GPU played the rank: its communication times mean nothing."""

    def ops(self, rank: int, name: str) -> list[TraceOp]:
        """Return a rank's operations of that name, in order."""
        return [op for op in self.traces[rank].ops if op.op == name]

    @property
    def first_rank(self) -> int:
        """The lowest traced rank."""
        return min(self.traces)

    @property
    def microbatches(self) -> int:
        """Microbatches of the traced step."""
        return max(1, len(self.ops(self.first_rank, "forward_step")))


def decide_layout(traced: Traced, options: LayoutOptions, notes: Notebook) -> Parallel:
    """Work out degrees and microbatches of a traced run.

    Parameters
    ----------
    traced : Traced
        The traces.
    options : LayoutOptions
        What the user says; it wins.
    notes : Notebook
        Receives every assumption with its arithmetic.

    Returns
    -------
    Parallel

    Raises
    ------
    InfeasibleError
        If the degrees contradict each other or the traced ranks.
    """
    name = traced.traces[traced.first_rank].name
    tp = options.tp or name.tp or _tp_of_vocabulary(traced, notes)
    pp = options.pp or name.pp or _pp_of_first_wait(traced, notes)
    cp = options.cp or 1
    ep = options.ep or name.ep or 1
    world = options.gpus or (name.world if options.dp is None else None)
    dp = options.dp or (world // (tp * cp * pp) if world else name.dp) or _dp_of_reduction(traced, notes)
    if world is not None and world != tp * cp * pp * dp:
        raise InfeasibleError(
            f"{notes.path}: tp {tp} x cp {cp} x pp {pp} x dp {dp} = {tp * cp * pp * dp} ranks, not {world}; "
            "give the degrees that the run had"
        )
    parallel = Parallel(
        tp=tp,
        cp=cp,
        dp=dp,
        pp=pp,
        ep=ep,
        etp=options.etp or (1 if ep > 1 else None),
        microbatches=options.microbatches or traced.microbatches,
    )
    beyond = [rank for rank in traced.traces if rank >= parallel.world_size]
    if beyond:
        raise InfeasibleError(
            f"{notes.path}: rank {max(beyond)} was traced, but tp {tp} x cp {cp} x pp {pp} x dp {dp} is a world of "
            f"{parallel.world_size} ranks; give --tp, --pp and --dp"
        )
    return parallel


def _tp_of_vocabulary(traced: Traced, notes: Notebook) -> int:
    """Infer tp from the shard of the vocabulary in the embedding's gradient, or from tp communication."""
    subs = [sub for op in traced.traces[traced.first_rank].ops for sub in op.sub_ops if sub.group is Group.TP]
    for op in traced.ops(traced.first_rank, "emb_allreduce"):
        for model, vocabulary in _VOCABULARIES.items():
            for tp in (1, 2, 4, 8, 16):
                padded = -(-vocabulary // (_PAD * tp)) * _PAD * tp
                if op.shape and op.shape[0] * tp == padded and (tp == 1) == (not subs):
                    notes.assume(
                        "tp-from-vocabulary",
                        f"tp {tp}: the vocabulary shard of {op.shape[0]} rows x {tp} = {padded}, the {vocabulary} of "
                        f"{model} padded to a multiple of {_PAD} x tp",
                        op.line,
                    )
                    return tp
    tp = 2 if subs else 1
    shown = "tp communication but not its degree; taken as tp 2" if subs else "no tp communication; taken as tp 1"
    notes.assume("tp-from-trace", f"the trace shows {shown} (give --tp)")
    return tp


def _pp_of_first_wait(traced: Traced, notes: Notebook) -> int:
    """Infer pp from how long the first gradient was awaited, in units of one stage's work."""
    rank = traced.first_rank
    stage = max((op.stage_id or 0 for op in traced.traces[rank].ops), default=0)
    forwards, backwards = traced.ops(rank, "forward_step"), traced.ops(rank, "backward_step")
    waits = traced.ops(rank, "recv_backward")
    if not waits:
        if stage or traced.ops(rank, "send_forward"):
            notes.warn("pp-unknown", f"the trace shows stage {stage} but no wait that gives pp away; give --pp")
        return max(stage + 1, 2 if traced.ops(rank, "send_forward") else 1)
    if traced.microbatches > 1:
        warmup = next((n for n, op in enumerate(_work(traced, rank)) if op.op == "backward_step"), 1)
        notes.assume(
            "pp-from-warmup", f"pp {stage + warmup}: stage {stage} ran {warmup} forwards before its first backward"
        )
        return stage + warmup
    own_s = (forwards[0].duration_s or 0.0) + (backwards[0].duration_s or 0.0) if forwards and backwards else 0.0
    wait_s = waits[0].duration_s or 0.0
    further = max(1, round(wait_s / own_s)) if own_s else 1
    notes.assume(
        "pp-from-wait",
        f"pp {stage + 1 + further}: the first gradient came after {1e3 * wait_s:.1f} ms, and a stage works "
        f"{1e3 * own_s:.1f} ms forward and backward; {1e3 * wait_s:.1f} / {1e3 * own_s:.1f} = "
        f"{wait_s / own_s if own_s else 0:.2f}, so {further} further stage(s)",
        waits[0].line,
    )
    return stage + 1 + further


def _work(traced: Traced, rank: int) -> list[TraceOp]:
    return [op for op in traced.traces[rank].ops if op.op in ("forward_step", "backward_step")]


def _dp_of_reduction(traced: Traced, notes: Notebook) -> int:
    """Infer dp 1 from a gradient reduction at memory speed."""
    for op in traced.ops(traced.first_rank, "dp_allreduce"):
        if op.size_bytes and op.duration_s:
            rate = 2 * op.size_bytes / op.duration_s
            fast = rate > _MEMORY_SPEED_BYTES_PER_S
            text = (
                f"dp_allreduce reads and writes 2 x {op.size_bytes} bytes in {1e3 * op.duration_s:.2f} ms = "
                f"{rate / 1e12:.2f} TB/s, {'memory' if fast else 'network'} speed"
            )
            if fast:
                notes.assume("dp-from-reduction", f"dp 1: {text}", op.line)
                return 1
            notes.warn("dp-unknown", f"{text}, so dp is above 1; taken as 2 (give --dp)", op.line)
            return 2
    notes.assume("dp-absent", "no gradient reduction tells dp; taken as 1 (give --dp)")
    return 1
