"""Simulate a workload on a cluster: lay it out, price it, run it, account for it."""

from dataclasses import replace

import numpy as np

from traincast import __version__
from traincast.analysis.breakdown import rank_breakdown
from traincast.analysis.parts import Spent, step_parts
from traincast.analysis.stragglers import find_stragglers
from traincast.diagnostics import Note
from traincast.engine.run import run
from traincast.estimate.compute import price_compute
from traincast.estimate.factors import CostFactors
from traincast.estimate.price import PricedCommunication
from traincast.fabric.placement import place_job
from traincast.hardware.cluster import Cluster
from traincast.job.options import SimulateOptions
from traincast.job.parallel import Parallel
from traincast.schedules.check import plan_of
from traincast.schedules.plan import SchedulePlan
from traincast.simulation.remarks import (
    check_time,
    measured_tables,
    overlap,
    seeds_spread,
    shared_links,
    unused_seeds,
    unused_slowdowns,
    without_peers,
)
from traincast.simulation.result import BREAKDOWN_KEYS, CollectiveResult, PartResult, RankResult, Result
from traincast.simulation.run import Run, run_workload, steps_of_other_seeds
from traincast.units import counted
from traincast.workload.words import Kind
from traincast.workload.workload import MeasuredRun, Workload

_FAR = 0.1
"""Deviation from a measured step above which a warning is due; repeats of a run vary by about 1 %."""


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
    workload = _with_compute(workload, cluster)
    cluster, notes = place_job(
        cluster, workload.parallel, options.gpus_used_per_node, measured=workload.measured is not None
    )
    workload = replace(workload, assumptions=(*workload.assumptions, *notes))
    done = run_workload(workload, plan, cluster, options, engine)
    check_time(done, workload, cluster)
    return account(done, workload, plan, cluster, options, engine)


def _with_compute(workload: Workload, cluster: Cluster) -> Workload:
    """Price the computations that the input gives as operators without a time."""
    calls = sum(calls is not None for calls in workload.ops.calls_T)
    if not calls:
        return workload
    priced = price_compute(workload.ops, cluster.gpu, CostFactors())
    text = (
        f"{counted(calls, 'distinct computation has', 'distinct computations have')} a shape and no time; priced as "
        f"kernels alone on {cluster.gpu.name}, without what a framework adds"
    )
    return replace(workload, ops=priced.ops, assumptions=(*workload.assumptions, Note("compute-priced", text)))


def account(
    done: Run,
    workload: Workload,
    plan: SchedulePlan,
    cluster: Cluster,
    options: SimulateOptions,
    engine: str = "auto",
) -> Result:
    """Say of a step that ran where its time went; the parameters are those it ran with.

    Returns
    -------
    Result
    """
    ranks = _ranks(done, workload.measured)
    step_s = done.timeline.step_s
    last = min((rank for rank in ranks if rank.end_s == step_s), key=lambda rank: rank.rank)
    return Result(
        iteration_time_s=step_s,
        breakdown_s=last.breakdown_s,
        ranks=ranks,
        parallel=_parallel(workload.parallel, plan.name),
        collectives=tuple(_collective(each) for each in done.prices.communications),
        inputs=workload.inputs,
        cluster=_cluster(cluster, workload.parallel.world_size),
        assumptions=workload.assumptions
        + measured_tables(done)
        + done.rate_notes
        + shared_links(done)
        + overlap(done, options, workload.compute_is_in_situ)
        + seeds_spread([step_s, *steps_of_other_seeds(workload, plan, cluster, options, engine)]),
        warnings=workload.warnings
        + plan.warnings
        + without_peers(done.program, workload.parallel)
        + _far_from_measured(step_s, workload.measured)
        + _unused_rates(done, options)
        + unused_slowdowns(done, options, workload.compute_is_in_situ)
        + unused_seeds(cluster, options),
        stragglers=_stragglers(done, engine, workload),
        measured_s=workload.measured.step_s if workload.measured else None,
        parts=_parts(done, workload.measured),
        version=__version__,
        program=done.program,
        timeline=done.timeline,
    )


def _parallel(parallel: Parallel, schedule: str) -> dict[str, int | str]:
    return {
        "world_size": parallel.world_size,
        "dp": parallel.dp,
        "tp": parallel.tp,
        "pp": parallel.pp,
        "vpp": parallel.vpp,
        "cp": parallel.cp,
        "ep": parallel.ep,
        "etp": parallel.expert_tp,
        "microbatches": parallel.microbatches,
        "schedule": schedule,
    }


def _parts(done: Run, measured: MeasuredRun | None) -> tuple[PartResult, ...]:
    """Return the parts of every simulated rank's step, beside what was measured of it."""
    results = []
    parts = step_parts(done.program, done.timeline)
    for rank, simulated in zip(done.program.rank_R.tolist(), parts, strict=True):
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


def _ranks(done: Run, measured: MeasuredRun | None) -> tuple[RankResult, ...]:
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
                measured_end_s=measured.end_s.get(rank) if measured else None,
            )
        )
    return tuple(results)


def _stragglers(done: Run, engine: str, workload: Workload) -> tuple[dict[str, int | float], ...]:
    """Return the stragglers with what each costs: the step less that of the same run without it.

    Where the input was measured, a rank that was made up from another one is none.
    """
    program, duration_N, measured = done.program, done.timeline.duration_s_N, workload.measured
    load_R = None if workload.expert_load_W is None else workload.expert_load_W[program.rank_R]
    compute_N = program.ops.kind_T[program.row_N] == Kind.COMPUTE
    found = []
    for straggler in find_stragglers(program, done.prices.duration_s_N, load_R):
        if measured is not None and int(program.rank_R[straggler.index]) not in measured.end_s:
            continue
        mine = program.rank_slice(straggler.index)
        healthy_N = duration_N.copy()
        healthy_N[mine] = np.where(compute_N[mine], duration_N[mine] / straggler.slowdown, duration_N[mine])
        _, _, end_N = run(done.graph, healthy_N, engine)
        found.append(
            {
                "rank": int(program.rank_R[straggler.index]),
                "stage": int(program.stage_R[straggler.index]),
                "slowdown": straggler.slowdown,
                "cost_s": done.timeline.step_s - float(end_N.max()),
            }
        )
    return tuple(found)


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
        "gpus_used_per_node": cluster.ranks_per_node,
        "nodes": -(-world_size // cluster.ranks_per_node),
        "ideal": cluster.ideal,
        "fabric": cluster.fabric.kind if cluster.fabric else None,
    }


def _unused_rates(done: Run, options: SimulateOptions) -> tuple[Note, ...]:
    """Warn of bus bandwidths given for groups, or operations of them, over which nothing was priced."""
    priced = [each for each in done.prices.communications if each.price.algorithm != "measured"]
    groups = {each.group.name.lower() for each in priced}
    used = groups | {f"{each.group.name.lower()}.{each.operation.name.lower()}" for each in priced}
    unused = [name for name in options.busbw_bytes_per_s if name not in used]
    if not unused:
        return ()
    text = f"--busbw {', '.join(unused)}: no such communication was priced, so {'it' if len(unused) == 1 else 'they'}"
    return (Note("busbw-unused", f"{text} {'changes' if len(unused) == 1 else 'change'} nothing"),)


def _far_from_measured(step_s: float, measured: MeasuredRun | None) -> tuple[Note, ...]:
    """Warn where the simulated step is not the measured one."""
    if measured is None or abs(step_s / measured.step_s - 1) <= _FAR:
        return ()
    text = (
        f"the simulated step of {step_s:.3f} s is {100 * (step_s / measured.step_s - 1):+.0f} % off the measured "
        f"{measured.step_s:.3f} s: what was not traced had to be made up"
    )
    return (Note("far-from-measured", text),)
