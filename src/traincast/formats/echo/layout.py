"""Find out how the traced run was laid out, and how the run to simulate is.

The traced layout comes from file names, then from the ranks and stages of the lines, then from what
the trace shows; a flag wins over what was only inferred. The layout to simulate is the traced one
with the user's flags over it, so that a flag extrapolates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

from traincast.diagnostics import Notebook
from traincast.errors import FormatError, InfeasibleError
from traincast.formats.echo import evidence
from traincast.formats.echo.facts import experts_of
from traincast.formats.echo.files import RankTrace
from traincast.formats.echo.lines import TraceOp
from traincast.formats.layout import asked_dp, replicas
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.workload.words import Group


@dataclass(frozen=True, slots=True)
class Traced:
    """What the traces of a run show, in short."""

    traces: Mapping[int, RankTrace]
    profile: bool
    """One GPU played the rank: its communication times mean nothing."""

    def ops(self, rank: int, name: str) -> list[TraceOp]:
        """Return a rank's operations of that name, in order."""
        return [op for op in self.traces[rank].ops if op.op == name]

    def stage(self, rank: int) -> int | None:
        """Return the stage that a rank's lines say; None where they are silent."""
        return next((op.stage_id for op in self.traces[rank].ops if op.stage_id is not None), None)

    @property
    def first_rank(self) -> int:
        """The lowest traced rank."""
        return min(self.traces)

    @property
    def microbatches(self) -> int:
        """Microbatches of the traced step."""
        return max(1, len(self.ops(self.first_rank, "forward_step")))


@dataclass(frozen=True, slots=True)
class Layouts:
    """The layout that was traced and the one to simulate."""

    traced: Parallel
    target: Parallel


def decide_layouts(traced: Traced, options: LayoutOptions, notes: Notebook) -> Layouts:
    """Work out the traced layout and the one to simulate.

    Parameters
    ----------
    traced : Traced
        The traces.
    options : LayoutOptions
        What the user says.
    notes : Notebook
        Receives every assumption with its arithmetic.

    Returns
    -------
    Layouts

    Raises
    ------
    InfeasibleError
        If the degrees contradict each other or the traced ranks.
    """
    original = _traced_layout(traced, options, notes)
    _check_stages(traced, original, notes)
    tp, pp, cp = options.tp or original.tp, options.pp or original.pp, original.cp
    dp = asked_dp(options, {"tp": tp, "cp": cp, "pp": pp}, notes.path) or original.dp
    target = replace(original, tp=tp, pp=pp, dp=dp, microbatches=options.microbatches or traced.microbatches)
    _say_what_changed(original, target, notes)
    return Layouts(original, target)


def _traced_layout(traced: Traced, options: LayoutOptions, notes: Notebook) -> Parallel:
    name, cp = traced.traces[traced.first_rank].name, options.cp or 1
    communicates = _tp_subs(traced)
    tp = name.tp or evidence.tp_of_vocabulary(traced.ops(traced.first_rank, "emb_allreduce"), communicates, notes)
    tp = tp or options.tp or evidence.tp_of_communication(communicates, notes)
    per_stage = _ranks_per_stage(traced, tp)
    pp = name.pp or _pp_of_last_stage(traced, notes) or options.pp or _pp_of_waits(traced, notes)
    dp = name.dp or (name.world // (tp * cp * pp) if name.world else None)
    if dp is None and per_stage is not None:
        dp = per_stage // (tp * cp)
    if dp is None and traced.profile:
        degrees = {"tp": tp, "cp": cp, "pp": pp}
        dp = options.dp or (None if options.gpus is None else replicas(options.gpus, degrees, notes.path))
    if not dp:
        dp = evidence.dp_of_reduction(traced.ops(traced.first_rank, "dp_allreduce"), options.dp, notes)
    ep = options.ep or name.ep or _ep_of_experts(traced, tp * cp * dp, notes)
    return Parallel(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=options.etp or (1 if ep > 1 else None))


def _tp_subs(traced: Traced) -> bool:
    return any(sub.group is Group.TP for op in traced.traces[traced.first_rank].ops for sub in op.sub_ops)


def _ranks_per_stage(traced: Traced, tp: int) -> int | None:
    """Return how many ranks a stage has, where the stages of the traced ranks leave one number only."""
    least, most = 1, None
    for rank in traced.traces:
        stage = traced.stage(rank)
        if traced.profile or stage is None:
            return None
        least = max(least, rank // (stage + 1) + 1)
        if stage:
            most = rank // stage if most is None else min(most, rank // stage)
    fitting = [size for size in range(least, (most or 0) + 1) if size % tp == 0]
    return fitting[0] if len(fitting) == 1 else None


def _pp_of_last_stage(traced: Traced, notes: Notebook) -> int | None:
    """Return pp where a traced rank is of the last stage: it receives activations and sends none on."""
    if traced.profile:
        return None
    for rank, trace in sorted(traced.traces.items()):
        names, stage = {op.op for op in trace.ops}, traced.stage(rank)
        if stage and "recv_forward" in names and not names & {"send_forward", "recv_backward"}:
            text = f"pp {stage + 1}: rank {rank} of stage {stage} receives activations and sends none on"
            notes.assume("pp-from-last-stage", f"{text}, so it is the last", None)
            return stage + 1
    return None


def _pp_of_waits(traced: Traced, notes: Notebook) -> int:
    rank = max(traced.traces, key=lambda each: (traced.stage(each) or 0, -each))
    return evidence.pp_of_first_wait(traced.traces[rank].ops, traced.stage(rank) or 0, notes)


def _ep_of_experts(traced: Traced, ranks_per_stage: int, notes: Notebook) -> int:
    """Infer ep where experts exchange tokens: as many ranks as the experts and the stage's ranks allow."""
    ops = traced.traces[traced.first_rank].ops
    if not any(sub.group is Group.EP for op in ops for sub in op.sub_ops):
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


def _check_stages(traced: Traced, layout: Parallel, notes: Notebook) -> None:
    """Refuse lines that contradict each other, and a layout that puts traced ranks elsewhere than they say."""
    for rank, trace in traced.traces.items():
        for op in trace.ops:
            if op.stage_id not in (None, traced.stage(rank)):
                text = f"rank {rank} says stage {op.stage_id} here and stage {traced.stage(rank)} before"
                raise FormatError(f"{text}; a rank has one stage", op.path, op.line)
    for rank in traced.traces:
        stage, place = traced.stage(rank), rank // layout.ranks_per_stage
        if traced.profile and stage is not None:
            place = stage
        if place >= layout.pp or stage not in (None, place):
            where = f"stage {place}" if place < layout.pp else f"none of its {layout.world_size} ranks"
            said = f"says it is of stage {stage}" if stage is not None else "was traced"
            raise InfeasibleError(
                f"{notes.path}: rank {rank} {said}, but tp {layout.tp} x cp {layout.cp} x pp {layout.pp} x dp "
                f"{layout.dp} puts it on {where}; give the degrees that the run had (--tp, --pp, --dp)"
            )


def _say_what_changed(original: Parallel, target: Parallel, notes: Notebook) -> None:
    if target.tp != original.tp:
        notes.warn(
            "tp-not-rescaled",
            f"the run was traced with tp {original.tp}; its compute times and sizes are kept for tp {target.tp}",
            None,
        )
    if target.pp != original.pp:
        notes.warn(
            "pp-not-rescaled",
            f"the run was traced with pp {original.pp}; every stage of pp {target.pp} keeps the work of a traced one, "
            "so the model is another one",
            None,
        )
    if target.dp != original.dp:
        notes.assume(
            "dp-extrapolated",
            f"the run was traced with dp {original.dp}; reductions over dp {target.dp} are priced by the model",
            None,
        )
