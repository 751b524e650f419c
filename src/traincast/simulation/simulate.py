"""Simulate a workload on a cluster: lay it out, price it, run it, account for it."""

from dataclasses import dataclass, replace

import numpy as np

from traincast import __version__
from traincast.analysis.breakdown import rank_breakdown
from traincast.engine.graph import build_graph
from traincast.engine.run import run
from traincast.errors import ConfigError, DeadlockError, InfeasibleError
from traincast.estimate.price import PricedCommunication, Prices, price_program
from traincast.fabric.placement import locations
from traincast.schedules.check import check_plan
from traincast.schedules.plan import SCHEDULES, SchedulePlan
from traincast.simulation.result import BREAKDOWN_KEYS, CollectiveResult, Input, RankResult, Result
from traincast.spec.cluster import Cluster
from traincast.spec.notes import Note
from traincast.spec.options import SimulateOptions
from traincast.workload.expand import expand
from traincast.workload.fold import fold, unfolded
from traincast.workload.groups import rank_groups
from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Group
from traincast.workload.workload import Workload

MAX_OPS = 60_000_000
"""Largest program that is built (about 6 GB); beyond it a message is kinder than an exhausted machine."""


@dataclass(frozen=True, slots=True)
class Run:
    """A program with its prices and times."""

    program: Program
    prices: Prices
    timeline: Timeline


def simulate_workload(workload: Workload, cluster: Cluster, options: SimulateOptions, engine: str = "auto") -> Result:
    """Simulate one step.

    Parameters
    ----------
    workload : Workload
        What every rank does.
    cluster : Cluster
        What it runs on.
    options : SimulateOptions
        Pricing overrides, stragglers, unfolding. The layout has already been decided by the
        reader of the workload.
    engine : {"auto", "reference", "kernel"}
        Implementation of the engine; all agree bit for bit.

    Returns
    -------
    Result

    Raises
    ------
    TraincastError
        If the workload cannot run.
    """
    plan = plan_of(workload)
    done = _run(workload, plan, cluster, options, engine)
    ranks = _ranks(done)
    step_s = done.timeline.step_s
    last = min((rank for rank in ranks if rank.end_s == step_s), key=lambda rank: rank.rank)
    parallel = workload.parallel
    return Result(
        iteration_time_s=step_s,
        breakdown_s=last.breakdown_s,
        ranks=ranks,
        parallel={
            "world_size": parallel.world_size,
            "dp": parallel.dp,
            "tp": parallel.tp,
            "pp": parallel.pp,
            "vpp": parallel.vpp,
            "cp": parallel.cp,
            "ep": parallel.ep,
            "etp": parallel.expert_tp,
            "microbatches": parallel.microbatches,
            "schedule": plan.name,
        },
        collectives=tuple(_collective(each) for each in done.prices.communications),
        inputs=tuple(Input(path=file.path, format=file.format, sha256=file.sha256) for file in workload.inputs),
        cluster=_cluster(cluster, parallel.world_size),
        assumptions=workload.assumptions + _lonely_groups(done.program),
        warnings=workload.warnings + plan.warnings,
        measured_s=workload.measured_s,
        version=__version__,
        program=done.program,
        timeline=done.timeline,
    )


def plan_of(workload: Workload) -> SchedulePlan:
    """Return the checked pipeline plan of a workload."""
    parallel = workload.parallel
    plan = SCHEDULES.get(workload.schedule)(parallel.pp, parallel.vpp, parallel.microbatches)
    check_plan(plan, parallel.pp, parallel.vpp, parallel.microbatches)
    return plan


def _run(workload: Workload, plan: SchedulePlan, cluster: Cluster, options: SimulateOptions, engine: str) -> Run:
    location_LW = locations(cluster, workload.parallel.world_size)
    program = _program(workload, plan, location_LW, options)
    prices = price_program(program, cluster, location_LW, options.busbw_bytes_per_s)
    graph = build_graph(program.stream_N, program.edge_src_E, program.edge_dst_E, program.joint_N)
    try:
        ready_N, start_N, end_N = run(graph, prices.duration_s_N, engine)
    except DeadlockError as error:
        names = " -> ".join(_describe(program, op) for op in error.ops[:12])
        raise DeadlockError(f"{error}; {names}", error.ops) from None
    timeline = Timeline(ready_s_N=ready_N, start_s_N=start_N, end_s_N=end_N, duration_s_N=prices.duration_s_N)
    ops = replace(program.ops, provenance_T=prices.provenance_T)
    return Run(replace(program, ops=ops), prices, timeline)


def _program(workload: Workload, plan: SchedulePlan, location_LW: IntArray, options: SimulateOptions) -> Program:
    parallel = workload.parallel
    world = parallel.world_size
    factor_W = _compute_factors(options, world)
    kinds = {Group(int(kind)) for kind in np.unique(workload.ops.group_T)} - {Group.NONE}
    tables = rank_groups(parallel, kinds | ({Group.PP} if parallel.pp > 1 else set()))
    if options.unfold:
        chosen = unfolded(world)
    else:
        stage_W = np.arange(world) // parallel.ranks_per_stage
        speeds, speed_W = np.unique(factor_W, return_inverse=True)
        start_W = (stage_W * len(workload.templates) + workload.template_W) * len(speeds) + speed_W
        chosen = fold(start_W, tables, location_LW)
    ops = _estimated_ops(workload, len(chosen.rank_C))
    if ops > MAX_OPS:
        raise InfeasibleError(
            f"simulating {len(chosen.rank_C)} ranks would take about {ops:.3g} operations, above the limit of "
            f"{MAX_OPS:.3g}; use fewer microbatches, or drop --unfold"
        )
    return expand(workload, plan, chosen, tables, factor_W if options.compute_slowdown else None)


def _estimated_ops(workload: Workload, ranks: int) -> float:
    """Return about how many operations a program of so many ranks has."""
    length = np.array([len(segment) for segment in workload.segments] + [0])
    per_pipeline = max(
        float(length[template.forward_QM].sum() + length[template.backward_QM].sum()) for template in workload.templates
    )
    return per_pipeline / workload.parallel.pp * ranks


def _compute_factors(options: SimulateOptions, world: int) -> FloatArray:
    factor_W = np.ones(world)
    for rank, factor in options.compute_slowdown.items():
        if not 0 <= rank < world:
            raise ConfigError(f"rank {rank} is outside the world of {world} ranks", "compute_slowdown")
        if not (0 < factor < float("inf")):
            raise ConfigError(f"factor {factor} of rank {rank} must be positive", "compute_slowdown")
        factor_W[rank] = factor
    return factor_W


def _ranks(done: Run) -> tuple[RankResult, ...]:
    program, timeline = done.program, done.timeline
    step_s = timeline.step_s
    results = []
    for index, rank in enumerate(program.rank_R.tolist()):
        owned = rank_breakdown(program, timeline, index, step_s)
        results.append(
            RankResult(
                rank=rank,
                stage=int(program.stage_R[index]),
                represents=int(program.represents_R[index]),
                end_s=float(timeline.end_s_N[program.rank_slice(index)].max(initial=0.0)),
                compute_s=owned.compute_s,
                wait_s=owned.wait_s,
                breakdown_s={key: owned.breakdown_s[key] for key in BREAKDOWN_KEYS},
            )
        )
    return tuple(results)


def _collective(each: PricedCommunication) -> CollectiveResult:
    return CollectiveResult(
        group=each.group.name.lower(),
        op=each.operation.name.lower(),
        size_bytes=each.size_bytes,
        ranks=each.placement.ranks,
        nodes=each.placement.nodes,
        count=each.count,
        time_s=each.price.time_s,
        algorithm=each.price.algorithm,
        protocol=each.price.protocol,
    )


def _cluster(cluster: Cluster, world_size: int) -> dict[str, object]:
    return {
        "name": cluster.name,
        "description": cluster.description,
        "gpu": cluster.gpu.name,
        "gpus_per_node": cluster.gpus_per_node,
        "nodes": -(-world_size // cluster.gpus_per_node),
        "ideal": cluster.ideal,
    }


def _lonely_groups(program: Program) -> tuple[Note, ...]:
    """Note communications whose group has one member, which take no time."""
    sizes_G = np.array([len(group.members) for group in program.groups], dtype=np.int64)
    lonely_N = program.group_N[program.group_N >= 0]
    lonely_N = lonely_N[sizes_G[lonely_N] == 1]
    counts = np.bincount(lonely_N, minlength=len(program.groups))
    kinds = {program.groups[index].kind for index in np.flatnonzero(counts)}
    return tuple(
        Note("group-of-one", f"communications over {kind.name.lower()} have one member and take no time")
        for kind in sorted(kinds)
    )


def _describe(program: Program, op: int) -> str:
    row = int(program.row_N[op])
    return f"{program.ops.name_T[row]} (rank {program.rank_N[op]}, microbatch {program.microbatch_N[op]})"


def without_program(result: Result) -> Result:
    """Return a result without its operations, small enough to keep by the thousand."""
    return replace(result, program=None, timeline=None)
