"""How a forecast answers to each factor: one simulation gives the whole gradient.

Making an operation on the critical path a little longer makes the step longer by as much, and any other
operation does nothing. So the share of the step that the path spends in a class of work is the derivative of
the logarithm of the step by that of the class's factor.

Letters: T template operations, H operations of the path.
"""

from collections.abc import Mapping

import numpy as np

from traincast.analysis.critical_path import critical_path
from traincast.estimate.factors import host_class, with_factors
from traincast.simulation.predict import JobRun
from traincast.workload.words import CostClass, Group, Kind

_UNHIDDEN = {Group.TP: "tp", Group.ETP: "tp", Group.CP: "cp", Group.EP: "ep"}


def sensitivities(done: JobRun) -> Mapping[str, float]:
    """Return the derivative of the logarithm of a step by that of each factor.

    Parameters
    ----------
    done : JobRun
        A simulated job.

    Returns
    -------
    mapping
        Class of work (`traincast.estimate.factors`) -> share of the step; below 0 where a larger factor makes
        it shorter.
    """
    program, timeline = done.run.program, done.run.timeline
    path = critical_path(program, timeline)
    time_s_T = np.bincount(program.row_N[path.op_H], path.time_s_H, minlength=len(program.ops))
    found: dict[str, float] = {}
    for row in np.flatnonzero(time_s_T > 0).tolist():
        for name, share in _classes(done, row).items():
            found[name] = found.get(name, 0.0) + share * float(time_s_T[row]) / timeline.step_s
    return found


def _classes(done: JobRun, row: int) -> dict[str, float]:
    """Return which factors scale an operation; more than one may scale all of it."""
    ops = done.run.program.ops
    kind, group, cost_class = Kind(ops.kind_T[row]), Group(ops.group_T[row]), CostClass(ops.cost_class_T[row])
    if kind is Kind.COMPUTE:
        shares = done.compute.shares_T[row]
        total = sum(shares.values())
        found = {name: time_s / total for name, time_s in shares.items()} if total else {}
        return found | {"compute": 1.0}
    if kind is Kind.GAP:
        return {host_class(cost_class): 1.0}
    if group is Group.NONE:
        return {}
    found = {f"transfer {group.name.lower()}": 1.0}
    if kind is Kind.COLLECTIVE:
        found |= _unhidden(done, group, cost_class, blocking=bool(ops.blocking_T[row]))
    return found


def _unhidden(done: JobRun, group: Group, cost_class: CostClass, *, blocking: bool) -> dict[str, float]:
    """Return how the share that cannot be hidden scales a transfer, where the framework hides the rest.

    What blocks is that share u of an exchange, what is launched beside computation the other, 1 - u, which
    shrinks by u / (1 - u) of itself where the first grows by all of itself.
    """
    job = done.job
    kind = "fsdp" if job.zero == 3 and group in (Group.DP, Group.EDP, Group.SHARD) else _UNHIDDEN.get(group)
    if kind is None or blocking != (cost_class is CostClass.UNHIDDEN):
        return {}
    share = float(getattr(with_factors(job, done.factors).framework, f"unhidden_{kind}"))
    return {f"unhidden {kind}": 1.0 if blocking else -share / (1 - share)}
