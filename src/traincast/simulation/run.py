"""Run a workload on a cluster: lay it out, price it, time it until what overlaps agrees with the times.

Letters: R simulated ranks, W ranks, L levels of location.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np

from traincast.diagnostics import Note
from traincast.engine.graph import Graph, build_graph
from traincast.errors import ConfigError, DeadlockError, InfeasibleError
from traincast.estimate.contention import Contention, SharedNetwork
from traincast.estimate.overlap import slowdowns
from traincast.estimate.price import Prices, price_program
from traincast.fabric.placement import locations
from traincast.hardware.cluster import Cluster
from traincast.job.options import SimulateOptions
from traincast.progress import advanced, announce
from traincast.schedules.plan import SchedulePlan
from traincast.simulation.beside import ComputeBesideTransfers, KindsBesideEachOther
from traincast.simulation.loop import Loop, Settled
from traincast.units import counted, format_size
from traincast.workload.expand import expand
from traincast.workload.fold import fold, unfolded
from traincast.workload.groups import GroupTable, rank_groups
from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Group
from traincast.workload.workload import Workload

MAX_OPS = 20_000_000
"""Largest program that is built (about 3.2 GB, and 20 s on one core); beyond it a message is kinder than an
exhausted machine."""

LONG_OPS = 4_000_000
"""Operations from which a run is announced, with its progress."""
LONG_OPS_IN_PYTHON = 200_000
"""The same without numba."""
_OPS_PER_S = 1e6
_OPS_PER_S_IN_PYTHON = 3e4
_BYTES_PER_OP = 160
"""Measured on one core of a shared server, 5 million operations: 1.1 million in a second, 152 bytes each."""


@dataclass(frozen=True, slots=True)
class Run:
    """A program with its prices and times."""

    program: Program
    prices: Prices
    contention: dict[Group, Contention]
    """How groups of one kind share links; empty where nothing is shared."""
    rate_notes: tuple[Note, ...]
    """What the fabric's own rate means for the prices."""
    graph: Graph
    settled: Settled

    @property
    def timeline(self) -> Timeline:
        """When everything ran."""
        return self.settled.timeline


def run_workload(
    workload: Workload, plan: SchedulePlan, cluster: Cluster, options: SimulateOptions, engine: str = "auto"
) -> Run:
    """Lay a workload out, price it and time it.

    Parameters
    ----------
    workload, plan : Workload, SchedulePlan
        What every rank does, and in which order of microbatches.
    cluster : Cluster
        What it runs on.
    options : SimulateOptions
        Pricing overrides, stragglers, unfolding, what shares links and what overlap costs.
    engine : {"auto", "reference", "kernel"}
        Implementation of the engine.

    Returns
    -------
    Run

    Raises
    ------
    TraincastError
        If the workload cannot run; a deadlock names the operations that wait for each other.
    """
    layout = _lay_out(workload, plan, cluster, options)
    return _time(workload, layout, cluster, options, engine)


def steps_of_other_seeds(
    workload: Workload, plan: SchedulePlan, cluster: Cluster, options: SimulateOptions, engine: str = "auto"
) -> tuple[float, ...]:
    """Return the step for each of `options.network_seeds` hash seeds but the fabric's own.

    Empty where there is one seed only, or nothing hashes any flow.
    """
    fabric = cluster.fabric
    if fabric is None or not hashes_flows(cluster, options):
        return ()
    layout = _lay_out(workload, plan, cluster, options)
    seeds = range(fabric.seed + 1, fabric.seed + options.network_seeds)
    return tuple(_time(workload, layout, cluster, options, engine, seed).timeline.step_s for seed in seeds)


def hashes_flows(cluster: Cluster, options: SimulateOptions) -> bool:
    """Tell whether another seed may give another step."""
    return (
        cluster.fabric is not None
        and cluster.fabric.routing == "ecmp"
        and not cluster.ideal
        and options.network != "analytical"
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """A program, and what does not depend on how long anything takes."""

    program: Program
    tables: Mapping[Group, GroupTable]
    location_LW: IntArray
    graph: Graph


def _lay_out(workload: Workload, plan: SchedulePlan, cluster: Cluster, options: SimulateOptions) -> _Layout:
    location_LW = locations(cluster, workload.parallel.world_size)
    tables = _tables(workload)
    program = _program(workload, plan, tables, location_LW, options)
    advanced(0.35)
    graph = build_graph(program.stream_N, program.edge_src_E, program.edge_dst_E, program.joint_N)
    return _Layout(program, tables, location_LW, graph)


def _time(
    workload: Workload,
    layout: _Layout,
    cluster: Cluster,
    options: SimulateOptions,
    engine: str,
    seed: int | None = None,
) -> Run:
    program, graph = layout.program, layout.graph
    network = SharedNetwork(cluster, layout.tables, program.ops, options.network, seed)
    contention = network.own_kind()
    own, alone = {kind: each.cluster for kind, each in contention.items()}, network.alone

    def price(contended: Mapping[Group, Cluster]) -> Prices:
        seen, rates = {**own, **contended}, options.busbw_bytes_per_s
        for group in workload.in_network:
            seen[group] = replace(seen.get(group, alone), in_network_reduction=True)
        return price_program(program, alone, layout.location_LW, rates, seen, workload.transfer_factor)

    prices = price({})
    slowdown_T = slowdowns(program, workload.compute_is_in_situ, options.overlap_slowdown)
    slows = not cluster.ideal and bool(slowdown_T.any())
    loop = Loop(
        alone_s_N=prices.duration_s_N,
        slowdown_N=lambda at_I: slowdown_T[program.row_N[at_I]],
        compute=ComputeBesideTransfers.of(program) if slows else None,
        kinds=KindsBesideEachOther.of(program, layout.location_LW) if network.shared else None,
        network=network,
        price=lambda contended: price(contended).duration_s_N,
    )
    advanced(0.5)
    try:
        settled = loop.settle(graph, engine)
    except DeadlockError as error:
        names = " -> ".join(_describe(program, op) for op in error.ops[:12])
        raise DeadlockError(f"{error}; {names}", error.ops) from None
    advanced(0.75)
    ops = replace(program.ops, provenance_T=prices.provenance_T)
    return Run(replace(program, ops=ops), prices, contention, network.rate_notes, graph, settled)


def _tables(workload: Workload) -> dict[Group, GroupTable]:
    """Return every group that communicates."""
    kinds = {Group(int(kind)) for kind in np.unique(workload.ops.group_T)} - {Group.NONE}
    return rank_groups(workload.parallel, kinds | ({Group.PP} if workload.parallel.pp > 1 else set()))


def _program(
    workload: Workload,
    plan: SchedulePlan,
    tables: Mapping[Group, GroupTable],
    location_LW: IntArray,
    options: SimulateOptions,
) -> Program:
    parallel = workload.parallel
    world = parallel.world_size
    factor_W = _compute_factors(options, world)
    if options.unfold:
        chosen = unfolded(world)
    else:
        stage_W = np.arange(world) // parallel.ranks_per_stage
        speeds, speed_W = np.unique(factor_W, return_inverse=True)
        start_W = (stage_W * len(workload.templates) + workload.template_W) * len(speeds) + speed_W
        measured = sorted(workload.measured.end_s) if workload.measured else []
        chosen = fold(start_W, tables, location_LW, np.isin(np.arange(world), measured))
    ops = _estimated_ops(workload, len(chosen.rank_C))
    if ops > MAX_OPS:
        raise InfeasibleError(
            f"simulating {len(chosen.rank_C)} ranks would take about {ops:.3g} operations, above the limit of "
            f"{MAX_OPS:.3g}; use fewer microbatches, or drop --unfold"
        )
    speed = _OPS_PER_S if find_spec("numba") else _OPS_PER_S_IN_PYTHON
    told = max(ops, float(len(workload.ops)))
    if told > (LONG_OPS if find_spec("numba") else LONG_OPS_IN_PYTHON):
        announce(
            f"simulating about {told:,.0f} operations of {counted(len(chosen.rank_C), 'rank')}: about "
            f"{told / speed:.0f} s and {format_size(told * _BYTES_PER_OP)}"
        )
    advanced(0.15)
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
            raise ConfigError(f"rank {rank} is outside the world of {world} ranks", "slow")
        if not (0 < factor < float("inf")):
            raise ConfigError(f"factor {factor} of rank {rank} must be positive", "slow")
        factor_W[rank] = factor
    return factor_W


def _describe(program: Program, op: int) -> str:
    row = int(program.row_N[op])
    where = f"rank {program.rank_N[op]}, microbatch {program.microbatch_N[op]}"
    return f"{program.ops.name_T[row]}{program.place(row)} on {where}"
