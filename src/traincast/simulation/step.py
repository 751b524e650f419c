"""A step: a workload laid out as a program, costed, and timed until what overlaps agrees with the times.

Letters: R simulated ranks, W ranks, L levels of location.
"""

from collections.abc import Container, Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.analysis.timed_program import TimedProgram, graph_of
from traincast.diagnostics import Note
from traincast.engine import has_numba
from traincast.engine.graph import Graph
from traincast.errors import ConfigError, DeadlockError, InfeasibleError
from traincast.estimate.contention import (
    Contention,
    NetworkAnswers,
    SharedNetwork,
    all_to_all_kinds,
    held_multiprocessors,
    slowdowns,
)
from traincast.estimate.program import ProgramCosts, Uncosted
from traincast.fabric.placement import locations
from traincast.hardware.cluster import Cluster
from traincast.job.changes import WorkEdit
from traincast.job.options import StepOptions
from traincast.progress import advanced, announce
from traincast.schedules.plan import SchedulePlan
from traincast.simulation.edits import edited, ranks_apart
from traincast.simulation.overlap import ComputeAndTransfers, KindsOfTransfers
from traincast.simulation.settle import Loop, Settled
from traincast.simulation.study import Study
from traincast.units import counted, format_size
from traincast.workload.groups import GroupTable, fold, unfolded
from traincast.workload.ops import BoolArray, FloatArray, IntArray, distinct
from traincast.workload.program import Program, Timeline
from traincast.workload.recorded_program import recorded_tables
from traincast.workload.words import Group
from traincast.workload.workload import Workload

MAX_OPS = 20_000_000
"""Largest program that is built (about 3.2 GB, and 20 s on one core); beyond it a message is kinder than an
exhausted machine."""

RECORDED = "recorded"
"""What stands for the schedule of a program that was recorded: none, for its order is known."""

LONG_OPS = 4_000_000
"""Operations from which a run is announced, with its progress."""
LONG_OPS_IN_PYTHON = 200_000
"""The same without numba."""
_OPS_PER_S = 1e6
_OPS_PER_S_IN_PYTHON = 3e4
_BYTES_PER_OP = 160
"""Measured on one core of a shared server, 5 million operations: 1.1 million in a second, 152 bytes each."""


class Setting(StepOptions, frozen=True, kw_only=True):
    """How a step is simulated, on what, and by which engine; made once, and handed to every act."""

    cluster: Cluster
    engine: str = "auto"
    """``auto``, ``reference`` or ``kernel``: implementations that agree bit for bit."""
    edits: tuple[WorkEdit, ...] = ()
    """Changes to how long work takes alone, for what-ifs."""

    @classmethod
    def from_options(cls, options: StepOptions, cluster: Cluster, engine: str = "auto") -> "Setting":
        """Return some options on a cluster."""
        said = {each: getattr(options, each) for each in StepOptions.__struct_fields__}
        return cls(cluster=cluster, engine=engine, **said)

    @property
    def hashes_flows(self) -> bool:
        """Whether another seed may give another step."""
        fabric = self.cluster.fabric
        return (
            fabric is not None and fabric.routing == "ecmp" and not self.cluster.ideal and self.network != "analytical"
        )


class ProgramLayout(Struct, frozen=True):
    """A workload as a program, and what does not depend on how long anything takes."""

    workload: Workload
    setting: Setting
    schedule: str
    """Name of the pipeline schedule, or `RECORDED`."""
    schedule_warnings: tuple[Note, ...]
    program: Program
    tables: Mapping[Group, GroupTable]
    location_LW: IntArray
    graph: Graph
    networks: NetworkAnswers
    """What is known of the links that groups share."""


class Step(Struct, frozen=True):
    """A step that ran: its program with costs and times."""

    layout: ProgramLayout
    timed: TimedProgram
    """The program of the layout with its times, each operation with where its time is known from."""
    costs: ProgramCosts
    contention: dict[Group, Contention]
    """How groups of one kind share links; empty where nothing is shared."""
    rate_notes: tuple[Note, ...]
    """What the fabric's own rate means for the costs."""
    settled: Settled
    loop: Loop
    """What lengthened its durations."""

    def without(self, gone_N: BoolArray) -> float:
        """Return the step in seconds if some transfers, [N], took no time."""
        return self.loop.step_without(self.layout.graph, self.setting.engine, self.settled, gone_N)

    @property
    def workload(self) -> Workload:
        """What every rank does."""
        return self.layout.workload

    @property
    def setting(self) -> Setting:
        """How it ran."""
        return self.layout.setting

    @property
    def program(self) -> Program:
        """Its operations."""
        return self.timed.program

    @property
    def timeline(self) -> Timeline:
        """When everything ran."""
        return self.settled.timeline

    def of_other_seeds(self) -> tuple[float, ...]:
        """Return the step time of each hash seed that is asked for but the fabric's own; none where none is hashed."""
        setting, fabric = self.setting, self.setting.cluster.fabric
        if fabric is None or not setting.hashes_flows:
            return ()
        seeds = range(fabric.seed + 1, fabric.seed + setting.network_seeds)
        return tuple(time_layout(self.layout, seed).timeline.step_s for seed in seeds)


def run_step(workload: Workload, setting: Setting, study: Study | None = None) -> Step:
    """Lay a workload out, cost it and time it; what a study has prepared is taken from there.

    Raises
    ------
    TraincastError
        If the workload cannot run; a deadlock names the operations that wait for each other.
    """
    return time_layout(lay_out(workload, setting, study))


def lay_out(workload: Workload, setting: Setting, study: Study | None = None) -> ProgramLayout:
    """Lay out the operations of every rank, or of one rank for all that are alike.

    Raises
    ------
    TraincastError
        If its schedule cannot run, or a rank of the setting does not exist.
    InfeasibleError
        If the program has more than `MAX_OPS` operations.
    """
    study = study or Study()
    location_LW = locations(setting.cluster, workload.parallel.world_size)
    if workload.program is None:
        plan = study.plan(workload.schedule, workload.parallel, pairs=workload.pairs_passes)
        kinds = frozenset(Group(int(kind)) for kind in distinct(workload.ops.group_T)) - {Group.NONE}
        kinds |= {Group.PP} if workload.parallel.pp > 1 else set()
        tables = study.groups(workload.parallel, kinds, workload.table_stages)
        program, graph = _program(workload, plan, tables, location_LW, setting, study)
        schedule, warnings = plan.name, plan.warnings
    else:
        program, tables = _as_recorded(workload, workload.program, setting)
        graph, schedule, warnings = graph_of(program), RECORDED, ()
    advanced(0.35)
    return ProgramLayout(workload, setting, schedule, warnings, program, tables, location_LW, graph, study.networks)


def time_layout(layout: ProgramLayout, seed: int | None = None) -> Step:
    """Cost a program and let its times settle; `seed` is that of hashed routes, by default the fabric's own.

    Raises
    ------
    DeadlockError
        If operations wait for each other for ever.
    """
    workload, setting, program = layout.workload, layout.setting, layout.program
    exchanging = all_to_all_kinds(program.ops)
    network = SharedNetwork(setting.cluster, layout.tables, exchanging, setting.network, seed, layout.networks)
    contention = network.own_kind()
    work = Uncosted.from_program(program, layout.location_LW)
    own, alone = {kind: each.cluster for kind, each in contention.items()}, network.alone

    def cost(contended: Mapping[Group, Cluster], kinds: Container[Group] | None = None) -> ProgramCosts:
        seen = {**own, **contended}
        for group in workload.in_network:
            seen[group] = replace(seen.get(group, alone), in_network_reduction=True)
        rates = setting.busbw_bytes_per_s
        return work.costs(alone, rates, seen, workload.transfer_factor, kinds, layout.networks.costs)

    def contended_s(contended: Mapping[Group, Cluster]) -> FloatArray:
        if setting.edits:
            return edited(program, cost(contended).duration_s_N, setting.edits)
        return cost(contended, contended).duration_s_N

    costs = cost({})
    slowdown_T = slowdowns(program, workload.compute_is_in_situ, setting.overlap_slowdown)
    slows = not setting.cluster.ideal and bool(slowdown_T.any())
    held_T = held_multiprocessors(program, workload.exchange_sms, setting.cluster.gpu.sms)
    loop = Loop(
        alone_s_N=edited(program, costs.duration_s_N, setting.edits),
        slowdown_N=lambda at_I: slowdown_T[program.row_N[at_I]],
        compute=ComputeAndTransfers.from_program(program) if slows else None,
        exchanges=ComputeAndTransfers.from_program(program, Group.EP)
        if held_T.any() and not setting.cluster.ideal
        else None,
        held_N=lambda at_I: held_T[program.row_N[at_I]],
        kinds=KindsOfTransfers.from_program(program, layout.location_LW) if network.shared else None,
        network=network,
        cost=contended_s,
    )
    advanced(0.5)
    try:
        settled = loop.settle(layout.graph, setting.engine)
    except DeadlockError as error:
        names = " -> ".join(_describe(program, op) for op in error.ops[:12])
        raise DeadlockError(f"{error}; {names}", error.ops) from None
    advanced(0.75)
    known = replace(program, ops=replace(program.ops, provenance_T=costs.provenance_T))
    timed = TimedProgram(program=known, timeline=settled.timeline, graph=layout.graph, engine=setting.engine)
    return Step(layout, timed, costs, contention, network.rate_notes, settled, loop)


def _program(
    workload: Workload,
    plan: SchedulePlan,
    tables: Mapping[Group, GroupTable],
    location_LW: IntArray,
    setting: Setting,
    study: Study,
) -> tuple[Program, Graph]:
    world = workload.parallel.world_size
    factor_W = _compute_factors(setting, world)
    if setting.unfold:
        chosen = unfolded(world)
    else:
        stage_W = np.arange(world) // workload.parallel.ranks_per_stage
        speeds, speed_W = np.unique(factor_W, return_inverse=True)
        start_W = (stage_W * len(workload.templates) + workload.template_W) * len(speeds) + speed_W
        for rank in ranks_apart(setting.edits):
            if rank < world:
                start_W[rank] = start_W.max() + 1
        measured = sorted(workload.measured.end_s) if workload.measured else []
        key = start_W.tobytes(), location_LW.tobytes(), tuple(measured), frozenset(tables), workload.table_stages
        preferred_W = np.isin(np.arange(world), measured)
        chosen = study.fold(
            (replace(workload.parallel, vpp=1, microbatches=1), *key),
            lambda: fold(start_W, tables, location_LW, preferred_W),
        )
    ranks = len(chosen.rank_C)
    ops = max(_estimated_ops(workload, ranks), float(len(workload.ops)))
    _check_size(ops, ranks, "use fewer microbatches, or drop --unfold")
    advanced(0.15)
    return study.program(workload, plan, chosen, tables, factor_W if setting.compute_slowdown else None)


def _as_recorded(workload: Workload, program: Program, setting: Setting) -> tuple[Program, dict[Group, GroupTable]]:
    """Return a recorded program as it runs in a setting, and its groups."""
    factor_W = _compute_factors(setting, workload.parallel.world_size)
    _check_size(len(program), len(program.rank_R), "simulate fewer ranks, or a shorter piece of the step")
    factor_N = factor_W[program.rank_N] if setting.compute_slowdown else None
    return replace(program, ops=workload.ops, compute_factor_N=factor_N), recorded_tables(program, len(factor_W))


def _check_size(ops: float, ranks: int, remedy: str) -> None:
    """Refuse a program that is too large; announce a long one."""
    if ops > MAX_OPS:
        raise InfeasibleError(
            f"simulating {ranks} ranks would take about {ops:.3g} operations, above the limit of "
            f"{MAX_OPS:.3g}; {remedy}"
        )
    fast = has_numba()
    if ops > (LONG_OPS if fast else LONG_OPS_IN_PYTHON):
        announce(
            f"simulating about {ops:,.0f} operations of {counted(ranks, 'rank')}: about "
            f"{ops / (_OPS_PER_S if fast else _OPS_PER_S_IN_PYTHON):.0f} s and {format_size(ops * _BYTES_PER_OP)}"
        )


def _estimated_ops(workload: Workload, ranks: int) -> float:
    """Return about how many operations a program of so many ranks has."""
    length = np.array([*map(len, workload.segments), 0])
    per_pipeline = max(
        float(length[template.forward_QM].sum() + length[template.backward_QM].sum()) for template in workload.templates
    )
    return per_pipeline / workload.parallel.pp * ranks


def _compute_factors(setting: Setting, world: int) -> FloatArray:
    factor_W = np.ones(world)
    for rank, factor in setting.compute_slowdown.items():
        if rank >= world:
            raise ConfigError(f"rank {rank} is outside the world of {world} ranks", "slow")
        factor_W[rank] = factor
    return factor_W


def _describe(program: Program, op: int) -> str:
    row, microbatch = int(program.row_N[op]), int(program.microbatch_N[op])
    where = f"rank {program.rank_N[op]}" + (f", microbatch {microbatch}" if microbatch >= 0 else "")
    return f"{program.ops.name_T[row]}{program.place_of(op)} on {where}"
