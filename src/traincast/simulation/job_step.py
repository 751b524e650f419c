"""The step of a job: build its work, estimate it, run it."""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.estimate.clocks import power_notes, slowest_of
from traincast.estimate.factors import CostFactors, FactorTable, factors_on, host_class, transfer_classes, with_factors
from traincast.estimate.measured import constants_notes, in_pass, processor_factor, unmeasured, with_measured
from traincast.estimate.offload import offload_notes, ranks_of_host, with_offload
from traincast.estimate.program import ComputeCost, OperatorSeconds, distinct_calls, estimate_compute
from traincast.fabric.placement import place_job
from traincast.hardware.cluster import Cluster
from traincast.hardware.gpu import Gpu
from traincast.hardware.host import host_of
from traincast.job.frameworks import Framework
from traincast.job.job import Job
from traincast.lowering.build import build_workload
from traincast.schedules.plan import SchedulePlan
from traincast.simulation.step import Setting, Step, run_step
from traincast.simulation.study import Study
from traincast.workload.ops import OpTable
from traincast.workload.words import CostClass, Group, Kind, Operation, Phase
from traincast.workload.workload import Workload

_REDUCED_BY_SWITCHES = (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER)
"""What switches can reduce or multicast (`traincast.estimate.collectives.algorithms.in_switch`)."""


class JobStep(Struct, frozen=True):
    """A job's step as it was simulated."""

    job: Job
    factors: CostFactors
    compute: ComputeCost
    step: Step

    @property
    def gpu(self) -> Gpu:
        """What it runs on."""
        return self.step.setting.cluster.gpu

    @property
    def ranks_per_node(self) -> int:
        """Ranks that reach each other without the network."""
        return self.step.setting.cluster.ranks_per_node

    @property
    def step_s(self) -> float:
        """Time of the step."""
        return self.step.timeline.step_s


def run_job(job: Job, setting: Setting, factors: CostFactors | None = None, study: Study | None = None) -> JobStep:
    """Simulate one step of a job.

    `factors` is what whole runs taught of each class of work, by default as shipped; what a study has prepared is taken
    from there.

    Raises
    ------
    ConfigError
        If nothing is known of the cluster's GPU.
    TraincastError
        If the job cannot run.
    """
    factors, study = factors or factors_of(job, setting), study or Study()
    cluster, notes = placed(job, setting)
    workload, compute = estimated_work(job, cluster.gpu, factors, cluster.ranks_per_node, study)
    doubts = unmeasured(cluster, job, distinct_calls(workload.ops))
    workload = replace(
        workload,
        assumptions=(
            *workload.assumptions,
            *notes,
            *constants_notes(setting.constants, cluster.gpu),
            *offload_notes(job, cluster.gpu, cluster.ranks_per_node),
            *(Note("power-limit", text) for text in power_notes(cluster.gpu)),
        ),
        warnings=(*workload.warnings, *doubts),
    )
    workload = _with_sharp(workload, job, cluster)
    return JobStep(job, factors, compute, run_step(workload, replace(setting, cluster=cluster), study))


def factors_of(job: Job, setting: Setting, table: FactorTable | None = None) -> CostFactors:
    """Return what the estimates of a job are made with: the factors of its cluster, or others, and its constants."""
    known = table or factors_on(setting.cluster)
    found = known.for_job(setting.cluster.gpu, job.framework.name, job.framework.fitted_as)
    found = replace(found, waiting=placed(job, setting)[0].waiting(job.parallel.world_size))
    return with_measured(found, setting.constants, setting.cluster.gpu, job.framework)


def placed(job: Job, setting: Setting) -> tuple[Cluster, tuple[Note, ...]]:
    """Return a cluster with the GPUs of each node that a job's ranks are placed on, and what was assumed of them."""
    asked = job.communication.gpus_used_per_node if setting.gpus_used_per_node is None else setting.gpus_used_per_node
    return place_job(setting.cluster, job.parallel, asked)


def plan_in(study: Study, job: Job) -> SchedulePlan:
    """Return the checked pipeline plan of a job, which is perhaps prepared."""
    return study.plan(job.pipeline.schedule, job.parallel, pairs=job.experts.pairs_passes)


def estimated_work(
    job: Job, gpu: Gpu, factors: CostFactors, ranks_per_node: int = 8, study: Study | None = None
) -> tuple[Workload, ComputeCost]:
    """Build a job's work, with a time for its computations and the host's work.

    Raises
    ------
    TraincastError
        If the job cannot run.
    """
    built, study = with_factors(job, factors), study or Study()
    workload = study.workload(
        (built, ranks_per_node), lambda: build_workload(built, plan_in(study, built), ranks_per_node)
    )
    compute_factor = _compute_factor(job, gpu, factors)
    seconds = study.seconds((gpu, factors, compute_factor), lambda: operator_seconds(job, gpu, factors))
    compute = estimate_compute(workload.ops, seconds)
    if job.offload.any:
        compute = with_offload(compute, host_of(gpu, ranks_of_host(job, ranks_per_node)))
    host_T = np.ones(len(compute.ops))
    for row in np.flatnonzero(compute.ops.kind_T == Kind.GAP).tolist():
        host_T[row] = _host_factor(compute.ops, row, factors, job.framework, gpu)
    ops = replace(compute.ops, duration_s_T=compute.ops.duration_s_T * host_T)
    classes = transfer_classes(job.experts.dispatcher, job.parallel.expert_ranks, ranks_per_node)
    transfer = {group: factors.factor(name) for group, name in classes.items()}
    return replace(workload, ops=ops, transfer_factor=transfer), compute


def _host_factor(ops: OpTable, row: int, factors: CostFactors, framework: Framework, gpu: Gpu) -> float:
    """Return the factor on the host's work: of its processor, of its class, and of that in a pass."""
    cost_class = CostClass(int(ops.cost_class_T[row]))
    name = host_class(cost_class)
    of_class = factors.factor(name) * factors.factor(in_pass(name, Phase(int(ops.phase_T[row]))))
    return processor_factor(framework, gpu, cost_class) * of_class


def operator_seconds(job: Job, gpu: Gpu, factors: CostFactors) -> OperatorSeconds:
    """Return what tells the time of single operator calls in a step of a job."""
    return OperatorSeconds(gpu, factors, _compute_factor(job, gpu, factors))


def _compute_factor(job: Job, gpu: Gpu, factors: CostFactors) -> float:
    """Return the factor on all computation: a step waits for the slowest of its GPUs, and of its nodes."""
    slowest = slowest_of(gpu, job.parallel.world_size) * factors.waiting
    return job.framework.compute_factor * factors.factor("compute") * slowest


def _with_sharp(workload: Workload, job: Job, cluster: Cluster) -> Workload:
    """Let the switches between nodes reduce for the group that the job asks it for, where they can."""
    if job.communication.sharp is None:
        return workload
    group = {"dp": Group.DP, "dp_replica": Group.REPLICA}[job.communication.sharp]
    flag = f"sharp {job.communication.sharp}"
    if cluster.inter.kind != "infiniband":
        text = (
            f"{flag} has no effect: {cluster.name} is not specified as InfiniBand, and other switches do not reduce; "
            'give a cluster file with kind = "infiniband" in [inter] where it is'
        )
        return replace(workload, warnings=(*workload.warnings, Note("sharp-unused", text)))
    at = workload.ops.group_T == group
    if not np.any(at & np.isin(workload.ops.operation_T, _REDUCED_BY_SWITCHES)):
        text = f"{flag} has no effect: no gradients or parameters are exchanged over groups of that kind"
        return replace(workload, warnings=(*workload.warnings, Note("sharp-unused", text)))
    text = f"{flag}: InfiniBand switches reduce, so that an all-reduce crosses each NIC once, and not nearly twice"
    if not np.any(at & (workload.ops.operation_T == Operation.ALL_REDUCE)):
        text += (
            f"; zero {job.sharding.zero} has no all-reduce over that group, "
            "and reduce-scatters and all-gathers move the same bytes"
        )
    note = Note("sharp", text, brief=f"{flag}: InfiniBand switches reduce")
    return replace(workload, in_network=frozenset({group}), assumptions=(*workload.assumptions, note))
