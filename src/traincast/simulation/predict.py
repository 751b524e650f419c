"""Forecast a job: build its work, price it, simulate the step."""

from dataclasses import dataclass, replace

import numpy as np

from traincast.diagnostics import Note
from traincast.estimate.compute import PricedCompute, price_compute
from traincast.estimate.factors import CostFactors, host_class, shipped_factors, with_factors
from traincast.fabric.placement import place_job
from traincast.hardware.cluster import Cluster
from traincast.hardware.gpu import Gpu
from traincast.job.job import Job
from traincast.job.options import SimulateOptions
from traincast.schedules.check import plan_of
from traincast.schedules.plan import SchedulePlan
from traincast.simulation.run import Run, run_workload
from traincast.workload.build.build import build_workload
from traincast.workload.ops import FloatArray, OpTable
from traincast.workload.words import CostClass, Group, Kind, Operation
from traincast.workload.workload import Workload

IN_NETWORK_OPERATIONS = (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER)
"""What switches can reduce or multicast (`traincast.estimate.collectives.collnet`)."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """A job's step as it was simulated."""

    job: Job
    cluster: Cluster
    """What it runs on, with the GPUs of a node that it uses."""
    gpu: Gpu
    factors: CostFactors
    plan: SchedulePlan
    workload: Workload
    compute: PricedCompute
    run: Run

    @property
    def step_s(self) -> float:
        """Time of the step."""
        return self.run.timeline.step_s


def prepare_job(
    job: Job, gpu: Gpu, factors: CostFactors, ranks_per_node: int = 8
) -> tuple[SchedulePlan, Workload, PricedCompute]:
    """Build and price a job's work without running it.

    Raises
    ------
    TraincastError
        If the job cannot run.
    """
    plan = plan_of(job)
    workload = build_workload(with_factors(job, factors), plan, ranks_per_node)
    compute_factor = job.framework.compute_factor * factors.of("compute")
    compute = price_compute(workload.ops, gpu, factors, compute_factor)
    ops = replace(compute.ops, duration_s_T=compute.ops.duration_s_T * _host_factors(compute.ops, factors))
    return plan, replace(workload, ops=ops, transfer_factor=_transfer_factors(factors)), compute


def _host_factors(ops: OpTable, factors: CostFactors) -> FloatArray:
    """Return the factor on what the host does, 1 for all else, [T]."""
    return np.array(
        [
            factors.of(host_class(CostClass(cost_class))) if kind == Kind.GAP else 1.0
            for cost_class, kind in zip(ops.cost_class_T.tolist(), ops.kind_T.tolist(), strict=True)
        ]
    )


def _transfer_factors(factors: CostFactors) -> dict[Group, float]:
    """Return the factor on the communication of each kind of group."""
    return {group: factors.of(f"transfer {group.name.lower()}") for group in Group if group is not Group.NONE}


def _with_sharp(workload: Workload, job: Job, cluster: Cluster) -> Workload:
    """Let the switches between nodes reduce for the group that the job asks it for, where they can."""
    if job.sharp is None:
        return workload
    group = {"dp": Group.DP, "dp_replica": Group.REPLICA}[job.sharp]
    flag = f"sharp {job.sharp}"
    if cluster.inter.kind != "infiniband":
        text = (
            f"{flag} has no effect: {cluster.name} is not said to be InfiniBand, and other switches reduce nothing; "
            'give a cluster file with kind = "infiniband" in [inter] where it is'
        )
        return replace(workload, warnings=(*workload.warnings, Note("sharp-unused", text)))
    at = workload.ops.group_T == group
    if not np.any(at & np.isin(workload.ops.operation_T, IN_NETWORK_OPERATIONS)):
        text = f"{flag} has no effect: no gradients or parameters are exchanged over groups of that kind"
        return replace(workload, warnings=(*workload.warnings, Note("sharp-unused", text)))
    text = f"{flag}: InfiniBand switches reduce, so that an all-reduce crosses each NIC once, and not nearly twice"
    if not np.any(at & (workload.ops.operation_T == Operation.ALL_REDUCE)):
        text += f"; zero {job.zero} has none over that group, and reduce-scatters and all-gathers move the same bytes"
    note = Note("sharp", text)
    return replace(workload, in_network=frozenset({group}), assumptions=(*workload.assumptions, note))


def run_job(
    job: Job,
    cluster: Cluster,
    options: SimulateOptions | None = None,
    factors: CostFactors | None = None,
    engine: str = "auto",
) -> JobRun:
    """Simulate one step of a job.

    Parameters
    ----------
    job : Job
        With everything decided.
    cluster : Cluster
        What it runs on.
    options : SimulateOptions, optional
        Pricing overrides, stragglers, unfolding.
    factors : CostFactors, optional
        What end-to-end runs taught of each class of work; the shipped ones by default.
    engine : {"auto", "reference", "kernel"}
        Implementation of the engine.

    Returns
    -------
    JobRun

    Raises
    ------
    ConfigError
        If nothing is known of the cluster's GPU.
    TraincastError
        If the job cannot run.
    """
    gpu = cluster.gpu
    if factors is None:
        factors = shipped_factors().for_job(gpu, job.framework.name)
    options = options or SimulateOptions()
    asked = job.gpus_used_per_node if options.gpus_used_per_node is None else options.gpus_used_per_node
    cluster, notes = place_job(cluster, job.parallel, asked)
    plan, workload, compute = prepare_job(job, gpu, factors, cluster.ranks_per_node)
    workload = _with_sharp(replace(workload, assumptions=(*workload.assumptions, *notes)), job, cluster)
    run = run_workload(workload, plan, cluster, options, engine)
    return JobRun(job, cluster, gpu, factors, plan, workload, compute, run)
