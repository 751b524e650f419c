"""The account of a step that ran: where its time went, told of every rank, part and exchange.

What nobody may ask for is worked out when it is first read (`traincast.later`).
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct

from traincast import __version__
from traincast.analysis.breakdown import RankBreakdown, last_rank, rank_breakdown
from traincast.analysis.diagnosis import suspects
from traincast.analysis.gpu_intervals import gpu_times
from traincast.analysis.slowdown import Replays, StepOps, slowdowns
from traincast.analysis.stragglers import SAME_LOAD, Straggler, find_stragglers
from traincast.analysis.summary import Cause, Slowdowns
from traincast.analysis.whole_step import WholeStep, competing, whole_step
from traincast.diagnostics import Note
from traincast.engine import run
from traincast.errors import ConfigError
from traincast.hardware.cluster import Cluster
from traincast.job.changes import PEERS, WorkEdit
from traincast.job.parallel import Parallel
from traincast.later import later
from traincast.simulation.causes import causes as find_causes
from traincast.simulation.edits import edited
from traincast.simulation.result import BREAKDOWN_KEYS, MOST_EXPLAINED, Result
from traincast.simulation.result_records import (
    ClusterFacts,
    CollectiveResult,
    ParallelFacts,
    PartResult,
    RankResult,
    StragglerResult,
)
from traincast.simulation.step import Step
from traincast.simulation.warnings import assumed, suspicious
from traincast.workload.ops import FloatArray
from traincast.workload.parts import Spent, step_parts
from traincast.workload.program import Program
from traincast.workload.words import Kind
from traincast.workload.workload import MeasuredStep

MOST_STRAGGLERS = 64
"""Stragglers whose cost is worked out."""


def account(step: Step) -> Result:
    """Say of a step that ran where its time went."""
    workload, parallel, told = step.workload, step.workload.parallel, _Account(step)
    return Result(
        iteration_time_s=step.timeline.step_s,
        breakdown_s=later(lambda: {key: told.where.breakdown_s[key] for key in BREAKDOWN_KEYS}),
        ranks=later(lambda: _ranks(step, told.owned)),
        parallel=_parallel(parallel, step.layout.schedule),
        collectives=later(lambda: _collectives(step)),
        inputs=workload.inputs,
        cluster=_cluster(step.setting.cluster, parallel.world_size),
        assumptions=later(lambda: workload.assumptions + assumed(step) + competing(told.where, step.timeline.step_s)),
        warnings=later(lambda: workload.warnings + suspicious(step) + told.stragglers[1]),
        stragglers=later(lambda: told.stragglers[0]),
        slowdown=later(lambda: told.diagnosed[0]),
        causes=later(lambda: told.diagnosed[1]),
        measured_s=workload.measured.step_s if workload.measured else None,
        parts=later(lambda: _parts(step, workload.measured)),
        gpu_time=later(lambda: gpu_times(step.program, step.timeline) if workload.program is not None else ()),
        version=__version__,
        timed=step.timed,
    )


class _Account(Struct, frozen=True, dict=True):
    """What several fields of a result are told from, worked out once."""

    step: Step

    @cached_property
    def owned(self) -> dict[int, RankBreakdown]:
        """The breakdown of every simulated rank, by its index."""
        return {index: rank_breakdown(self.step.timed, index) for index in range(len(self.step.program.rank_R))}

    @cached_property
    def where(self) -> WholeStep:
        """Where the whole step went."""
        step = self.step
        return whole_step(step.program, step.timeline, self.owned, last_rank(step.program, step.timeline), step.without)

    @cached_property
    def stragglers(self) -> tuple[tuple[StragglerResult, ...], tuple[Note, ...]]:
        """Slow ranks, and that some are not listed."""
        return _stragglers(self.step)

    @cached_property
    def diagnosed(self) -> tuple[Slowdowns | None, tuple[Cause, ...]]:
        """What replays say of a measured run."""
        return _diagnosed(self.step)


def _parts(step: Step, measured: MeasuredStep | None) -> tuple[PartResult, ...]:
    """Return the parts of every simulated rank's step, and what was measured of it."""
    results = []
    parts = step_parts(step.program, step.timeline)
    for rank, simulated in zip(step.program.rank_R.tolist(), parts, strict=True):
        known = measured.part_s.get(rank, {}) if measured else {}
        waits = measured.wait_s.get(rank, {}) if measured else {}
        # A part that was measured and has no operation here took no time, and must still be seen.
        for part, spent in (simulated | {part: Spent(0.0, 0.0) for part in known if part not in simulated}).items():
            measured_wait_s = waits.get(part, 0.0) if part in known else None
            results.append(
                PartResult(
                    rank=rank,
                    part=part,
                    time_s=spent.time_s,
                    measured_s=known.get(part),
                    wait_s=spent.wait_s,
                    measured_wait_s=measured_wait_s,
                )
            )
    return tuple(results)


def _ranks(step: Step, breakdowns: Mapping[int, RankBreakdown]) -> tuple[RankResult, ...]:
    program, timeline, measured = step.program, step.timeline, step.workload.measured
    results = []
    for index, rank in enumerate(program.rank_R.tolist()):
        owned = breakdowns[index]
        results.append(
            RankResult(
                rank=rank,
                stage=int(program.stage_R[index]),
                represents=int(program.represents_R[index]),
                end_s=float(timeline.end_s_N[program.rank_slice(index)].max(initial=0.0)),
                compute_s=owned.compute_s,
                wait_s=owned.wait_s,
                breakdown_s={key: owned.breakdown_s[key] for key in BREAKDOWN_KEYS},
                measured_end_s=measured.end_s.get(rank) if measured else None,
            )
        )
    return tuple(results)


def _stragglers(step: Step) -> tuple[tuple[StragglerResult, ...], tuple[Note, ...]]:
    """Return the stragglers with what each costs: the step less that of the same run without it.

    Where the input was measured, a rank that was made up from another one is none. Each is a step to be timed, so the
    slowest `MOST_STRAGGLERS` are listed, and a note says how many there are.
    """
    program, duration_N, workload = step.program, step.timeline.duration_s_N, step.workload
    load_R = None if workload.expert_load_W is None else workload.expert_load_W[program.rank_R]
    ranks = program.rank_R.tolist()
    all_of_them = [
        each
        for each in find_stragglers(program, step.costs.duration_s_N, load_R)
        if workload.measured is None or ranks[each.index] in workload.measured.end_s
    ]
    slowest = sorted(all_of_them, key=lambda each: (-each.slowdown, each.index))[:MOST_STRAGGLERS]
    found = []
    for straggler in sorted(slowest, key=lambda each: each.index):
        healthy_N = _as_its_peers(program, duration_N, straggler)
        _, _, end_N = run(step.layout.graph, healthy_N, step.setting.engine)
        found.append(
            StragglerResult(
                rank=ranks[straggler.index],
                stage=int(program.stage_R[straggler.index]),
                slowdown=straggler.slowdown,
                cost_s=step.timeline.step_s - float(end_N.max()),
            )
        )
    text = f"{len(all_of_them):,} ranks compute much longer than their peers; the {len(found)} slowest are listed"
    return tuple(found), (Note("stragglers-unlisted", text),) if len(found) < len(all_of_them) else ()


def _as_its_peers(program: Program, duration_s_N: FloatArray, straggler: Straggler) -> FloatArray:
    """Return the durations if a straggler's own work took as long as its peers' (``--what-if rank7.own=peers``).

    Where it has no peers to compare piece by piece, its computations take as much less as it is slow.
    """
    rank = int(program.rank_R[straggler.index])
    try:
        return edited(program, duration_s_N, [WorkEdit(work="own", ranks=(rank,), like=PEERS)])
    except ConfigError:
        mine_N = np.zeros(len(program), dtype=np.bool_)
        mine_N[program.rank_slice(straggler.index)] = True
        mine_N &= program.ops.kind_T[program.row_N] == Kind.COMPUTE
        return np.where(mine_N, duration_s_N / straggler.slowdown, duration_s_N)


def _diagnosed(step: Step) -> tuple[Slowdowns | None, tuple[Cause, ...]]:
    """Return what replays say of a measured run: of all steps of its trace where it holds several."""
    workload = step.workload
    if workload.measured is None or len(step.program) > MOST_EXPLAINED:
        return None, ()
    if workload.steps is None:
        steps = [StepOps(0, step.program, step.costs.duration_s_N)]
    else:
        steps = [
            StepOps(number, each.program, each.program.known_s_N)
            for number, each in workload.steps
            if each.program is not None
        ]
    loads_W, unequal = workload.expert_load_W, ""
    if loads_W is not None and loads_W.max() > 1 + SAME_LOAD:
        unequal = f"the busiest expert rank gets {loads_W.max():.2f}x the mean number of tokens"
    replays = Replays(steps, workload.parallel.ranks_per_stage)
    return slowdowns(replays), find_causes(suspects(replays, unequal), replays, step)


def _collectives(step: Step) -> tuple[CollectiveResult, ...]:
    return tuple(
        CollectiveResult(
            group=each.group.name.lower(),
            op=each.operation.name.lower(),
            size_bytes=each.size_bytes,
            ranks=each.placement.ranks,
            nodes=each.placement.nodes,
            count=each.count,
            time_s=each.cost.time_s,
            algorithm=each.cost.algorithm,
            protocol=each.cost.protocol,
        )
        for each in step.costs.communications
    )


def _parallel(parallel: Parallel, schedule: str) -> ParallelFacts:
    return ParallelFacts(
        world_size=parallel.world_size,
        dp=parallel.dp,
        tp=parallel.tp,
        pp=parallel.pp,
        vpp=parallel.vpp,
        cp=parallel.cp,
        ep=parallel.ep,
        etp=parallel.expert_tp,
        microbatches=parallel.microbatches,
        schedule=schedule,
    )


def _cluster(cluster: Cluster, world_size: int) -> ClusterFacts:
    return ClusterFacts(
        name=cluster.name,
        description=cluster.description,
        gpu=cluster.gpu.name,
        gpu_tdp_w=cluster.gpu.tdp_w,
        gpus_per_node=cluster.gpus_per_node,
        gpus_used_per_node=cluster.ranks_per_node,
        nodes=-(-world_size // cluster.ranks_per_node),
        ideal=cluster.ideal,
        fabric=cluster.fabric.kind if cluster.fabric else None,
    )
