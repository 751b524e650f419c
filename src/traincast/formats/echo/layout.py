"""Find out how the traced run was laid out, and how the run to simulate is.

The traced layout comes from file names, then from the ranks and stages of the lines, then from what
the trace gives away; a flag wins over what was only inferred. The layout to simulate is the traced one
with the user's flags over it, so that a flag extrapolates.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from traincast.diagnostics import Notebook
from traincast.errors import FormatError, InfeasibleError
from traincast.formats.echo.choices import Known, other_layouts, say_of_stage, stage_layouts
from traincast.formats.echo.evidence import pp_degrees, ranks_per_stage, replicas_of, tp_degrees
from traincast.formats.echo.experts import exchanges_tokens, experts_of
from traincast.formats.echo.files import RankTrace, Run
from traincast.formats.layout import asked_dp, replicas
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel


class Layouts(Struct, frozen=True):
    """The layout that was traced and the one to simulate."""

    traced: Parallel
    target: Parallel
    others: tuple[Mapping[str, int], ...] = ()
    """Other layouts that the traces allow, as fields of a layout, the likeliest first."""

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
    original, others = _traced_layout(run, options, notes)
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
    return Layouts(original, target, others)


def _traced_layout(run: Run, options: LayoutOptions, notes: Notebook) -> tuple[Parallel, tuple[Mapping[str, int], ...]]:
    """Return the layout of the traced run, and the others that the traces allow."""
    name = run.first.name
    cp = options.cp or name.cp or 1
    tps = (name.tp,) if name.tp else tp_degrees(run, notes)
    if len(tps) > 1 and options.tp:
        tps = (options.tp,)
    pps = (name.pp,) if name.pp else pp_degrees(run, notes)
    if len(pps) > 1 and options.pp:
        pps = (options.pp,)
    bounds = ranks_per_stage(run)
    is_told = bool(name.dp or name.world) or bounds[0] == bounds[1]
    written, replicated = (None, None) if is_told else replicas_of(run, notes)
    gathered = (experts_of(run.first.ops) or 0) if exchanges_tokens(run) else None
    stages = {}
    for tp in tps:
        dp = name.dp or written or (name.world // (tp * cp * pps[0]) if name.world else None)
        known = Known(dp, options.ep or name.ep, replicated)
        found = stage_layouts(run, tp * cp, bounds, known, gathered)
        if len({each.dp for each in found}) > 1 or (run.is_profile and not dp):
            asked = _asked(run, options, {"tp": tp, "cp": cp, "pp": pps[0]}, replicated, notes)
            if asked is not None:
                found = stage_layouts(run, tp * cp, bounds, known._replace(dp=asked), gathered)
        stages[tp] = found
    dp, ep = stages[tps[0]][0]
    if written is None and not (name.dp or name.world):
        say_of_stage(run, stages[tps[0]], bounds, gathered, notes)
    alone = run.is_profile and run.microbatches == 1 and options.microbatches is None
    others = other_layouts(tps, pps, stages, None if alone else options.microbatches or run.microbatches)
    etp = options.etp or name.etp or (1 if ep > 1 else None)
    traced = Parallel(tp=tps[0], cp=cp, dp=dp, pp=pps[0], ep=ep, etp=etp, shard=name.shard)
    return traced, tuple(others)


def _asked(
    run: Run, options: LayoutOptions, degrees: Mapping[str, int], replicated: bool | None, notes: Notebook
) -> int | None:
    """Return the replicas that the user says, as those of the traced run where it may have had as many."""
    if options.dp is not None:
        return options.dp if run.is_profile or replicated is not False else None
    if options.gpus is not None and run.is_profile:
        return replicas(options.gpus, degrees, notes.path)
    return None


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
