"""How certain the forecast of a job is: how it responds to each factor, and so an interval around its step.

One simulation gives the whole gradient. Making an operation on the critical path a little longer makes the step
longer by as much, and any other operation does nothing. So the share of the step that the path spends in a class of
work is the derivative of the logarithm of the step by that of the class's factor. What follows for the interval:
`traincast.simulation.widths`.

Letters: T template operations, H operations of the path.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traincast.analysis.summary import Interval
from traincast.diagnostics import Note
from traincast.estimate.factors import FactorTable, host_class, transfer_classes, with_factors
from traincast.lowering.emit import unhidden_context
from traincast.simulation.widths import LEVEL, Basis, basis_of, bounds, deviation
from traincast.workload.words import CostClass, Group, Kind

if TYPE_CHECKING:
    from traincast.job.job import Job
    from traincast.simulation.job_step import JobStep

_UNHIDDEN = {Group.TP: "tp", Group.ETP: "tp", Group.CP: "cp"}


def sensitivities(done: "JobStep") -> Mapping[str, float]:
    """Return the derivative of the logarithm of a step by that of each factor.

    By class of work (`traincast.estimate.factors`): a share of the step, below 0 where more of it makes it shorter.
    """
    program, step_s = done.step.program, done.step_s
    path = done.step.timed.path
    time_s_T = np.bincount(program.row_N[path.op_H], path.time_s_H, minlength=len(program.ops))
    built = with_factors(done.job, done.factors)
    found: dict[str, float] = {}
    for row in np.flatnonzero(time_s_T > 0).tolist():
        for name, share in _classes(done, built, row).items():
            found[name] = found.get(name, 0.0) + share * float(time_s_T[row]) / step_s
    return found


def _classes(done: "JobStep", built: "Job", row: int) -> dict[str, float]:
    """Return which factors scale an operation; more than one may scale all of it."""
    ops = done.step.program.ops
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
    found = {_transfer_classes(done)[group]: 1.0}
    if kind is Kind.COLLECTIVE:
        fsdp = done.job.sharding.zero == 3 and group in (Group.DP, Group.EDP, Group.SHARD)
        exchanged = "fsdp" if fsdp else _UNHIDDEN.get(group)
        found |= _unhidden(built, exchanged, cost_class)
    return found


def _unhidden(built: "Job", kind: str | None, cost_class: CostClass) -> dict[str, float]:
    """Return how the share that cannot be hidden scales a transfer, where the framework hides the rest.

    What blocks is that share u of an exchange, what is launched to overlap with computation the other, 1 - u, which
    shrinks by u / (1 - u) of itself where the first grows by all of itself.
    """
    if kind is None or cost_class not in (CostClass.UNHIDDEN, CostClass.HIDDEN):
        return {}
    of_context = kind == "cp"
    share = unhidden_context(built, built.parallel.cp) if of_context else getattr(built.framework, f"unhidden_{kind}")
    return {f"unhidden {kind}": 1.0 if cost_class is CostClass.UNHIDDEN else -share / (1 - share)}


def _transfer_classes(done: "JobStep") -> Mapping[Group, str]:
    job = done.job
    return transfer_classes(job.experts.dispatcher, job.parallel.expert_ranks, done.ranks_per_node)


def basis_of_step(done: "JobStep", notes: Iterable[Note] = ()) -> Basis:
    """Return what the interval of a forecast rests on; `notes` say what else than by the job was assumed."""
    return basis_of(done.job, done.gpu, sensitivities(done), notes)


def spread_of_job(done: "JobStep", table: FactorTable) -> Callable[[str], float]:
    """Return the uncertainty of the time of a kind of work: of a kind of group (``tp``), ``compute`` or ``host``."""
    classes = {group.name.lower(): name for group, name in _transfer_classes(done).items()}
    classes |= {"compute": "compute", "host": host_class(CostClass.HOST_LAYERS)}
    bases: list[Basis] = []

    def spread(what: str) -> float:
        # What is asked of few forecasts is worked out when it is.
        if not bases:
            bases.append(basis_of(done.job, done.gpu, {}))
        return deviation_alone(bases[0], table, classes[what]) if what in classes else 0.0

    return spread


def deviation_alone(basis: Basis, table: FactorTable, name: str) -> float:
    """Return the standard deviation of the logarithm of the time of one class of work."""
    both, rest = (deviation(replace(basis, slopes=slopes), table) for slopes in ({name: 1.0}, {}))
    return float(np.sqrt(max(0.0, both**2 - rest**2)))


def interval(done: "JobStep", table: FactorTable) -> Interval:
    """Return the interval that contains the measured step in 90 of 100 cases."""
    low, high = bounds(basis_of_step(done), table)
    return Interval(level=LEVEL, low_s=done.step_s * low, high_s=done.step_s * high)
