"""Simulate a workload: its step, placed on a cluster, and the account of it."""

import numpy as np
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.estimate.factors import CostFactors
from traincast.estimate.measured import constants_notes, measured_constants
from traincast.estimate.program import OperatorSeconds, estimate_compute
from traincast.fabric.placement import place_job
from traincast.simulation.account import account
from traincast.simulation.result import Result
from traincast.simulation.step import Setting, Step, run_step
from traincast.simulation.study import Study
from traincast.simulation.warnings import check_time
from traincast.units import counted
from traincast.workload.workload import Workload


def simulate(workload: Workload, setting: Setting, study: Study | None = None) -> Result:
    """Simulate one step of a workload, whose layout its reader has decided, and account for it (errors as `timed`)."""
    return account(timed(workload, setting, study))


def timed(workload: Workload, setting: Setting, study: Study | None = None) -> Step:
    """Place a workload on its cluster and time one step of it; what a study has prepared is taken from there.

    Raises
    ------
    TraincastError
        If the workload cannot run, or nothing in it takes time.
    """
    workload = with_compute(workload, setting)
    measured = workload.measured is not None
    cluster, notes = place_job(setting.cluster, workload.parallel, setting.gpus_used_per_node, measured=measured)
    workload = replace(workload, assumptions=(*workload.assumptions, *notes))
    step = run_step(workload, replace(setting, cluster=cluster), study)
    check_time(step)
    return step


def with_compute(workload: Workload, setting: Setting) -> Workload:
    """Estimate the computations that the input gives as operators without a time."""
    untimed = zip(workload.ops.calls_T, np.isnan(workload.ops.duration_s_T), strict=True)
    calls = sum(calls is not None and bool(unknown) for calls, unknown in untimed)
    gpu = setting.cluster.gpu
    if not calls:
        text = "the constants change nothing: every computation has a time in the input"
        unused = () if setting.constants is None else (Note("constants-unused", text),)
        return replace(workload, warnings=(*workload.warnings, *unused))
    text = (
        f"{counted(calls, 'distinct computation has', 'distinct computations have')} a shape and no time; estimated "
        f"as kernels that run alone on {gpu.name}, without what a framework adds"
    )
    factors = CostFactors(constants=measured_constants(setting.constants))
    ops = estimate_compute(workload.ops, OperatorSeconds(gpu, factors)).ops
    brief = (
        f"{counted(calls, 'distinct computation', 'distinct computations')} without a time: kernels alone on {gpu.name}"
    )
    told = (Note("compute-priced", text, brief=brief), *constants_notes(setting.constants, gpu))
    return replace(workload, ops=ops, assumptions=(*workload.assumptions, *told))
