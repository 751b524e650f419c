"""How certain the forecast of a job is: how it responds to each factor, and so an interval around its step.

One simulation gives the whole gradient. Making an operation on the critical path a little longer makes the step
longer by as much, and any other operation does nothing. So the share of the step that the path spends in a class of
work is the derivative of the logarithm of the step by that of the class's factor.

What is not known is of two kinds: the factors of this GPU and this framework (after the fit, or as far as the prior
goes where no run was seen), each weighted by how much of the step answers to it, and what no factor can explain.

Letters: T template operations, H operations of the path.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from traincast.analysis.summary import Interval
from traincast.diagnostics import Note
from traincast.estimate.factors import (
    TRANSFER_CLASS,
    Factor,
    FactorTable,
    Key,
    chip_of,
    host_class,
    keys_of,
    own_key,
    part_of,
    prior_deviation,
    with_factors,
)
from traincast.workload.words import CostClass, Group, Kind

if TYPE_CHECKING:
    from traincast.job.frameworks import Framework
    from traincast.simulation.job_step import JobStep

LEVEL = 0.9
"""Share of measured steps that intervals are meant to contain."""

Z = 1.6449
"""Standard deviations to either side that contain `LEVEL` of a normal distribution."""

UNEXPLAINED = 0.03
"""Deviation of the logarithm of a step that no factor explains: repeats of equal runs differ by 1 % in the median and
by 7 to 10 % at the 90th percentile (docs/published-runs.md, noise)."""

TOGETHER = 0.2
"""Deviation of what well-known factors make of a step, over that of each apart: a fit knows their product better than
each, as what one gains the other loses (all GPUs, an architecture)."""

LOOSE = 0.14
"""Deviation of the time of one class of work in one job beyond the factors that all jobs share, for what depends on
more than a factor says: transfers (placement, congestion), grouped GEMMs (how tokens fall to experts), launches
(processor, Python, what else the host does). These constants are such that 90 % of the steps of families left out of
the fit lie inside, of dense models, of those with experts, and of runs that are not fitted to (docs/ACCURACY.md)."""

LOOSE_MEMORY = 0.36
"""Likewise of what memory binds, and of casts: which kernels are fused depends on shapes and releases."""

LOOSE_GEMM = 0.04
"""Likewise of GEMMs: a library picks kernels by shape, and what a type of 8 or 4 bits gains depends on it, too."""

UNFITTED_TASK = 0.04
"""Deviation of a step of fine-tuning, of which no run is fitted to: median errors are 4 to 8 % (docs/ACCURACY.md)."""

UNFITTED_BLOCKS = 0.08
"""Deviation of a step of a hybrid model, of whose blocks no run is fitted to: the median error is 13 %, likewise."""

_LOOSE_CLASSES = {
    **{"transfer": LOOSE, "grouped_gemm": LOOSE, "host": LOOSE},
    **{"memory": LOOSE_MEMORY, "cast": LOOSE_MEMORY, "gemm": LOOSE_GEMM},
}

TRANSFERS = {"seen": 0.10, "unseen": 0.30}
"""Deviation of collectives alone: on links that were measured they are off by 5 to 17 % (90th percentile), on those
known from a datasheet by 7 to 50 % (docs/ACCURACY.md)."""

ASSUMED = 0.14
"""Deviation of a step for each choice that was assumed where it decides what runs: how ranks share the work, the
framework, adapters, the dispatcher of tokens. A micro batch that a job leaves open is 1 and that is what is forecast;
one that a published run does not print is not known. Runs whose layout is not printed whole are off by 8 to 10 % in
the median (docs/ACCURACY.md)."""

_CHOICES: Mapping[str, frozenset[str]] = {
    "layout": frozenset({"annotation-axes", "one-microbatch", "open-micro-batch", "ep-missing", "assumed-ep"}),
    "adapters": frozenset({"assumed-lora-targets", "assumed-lora-rank"}),
    "framework": frozenset({"assumed-framework", "unknown-framework"}),
    "dispatcher": frozenset({"assumed-moe-dispatcher"}),
}
"""Choices to the codes of the notes that say that one was assumed."""

UNSEEN_COMPUTE = 0.12
"""Deviation of computation on a GPU that no run was fitted to: GEMMs of unseen GPUs are off by 12 % in the mean,
with kernels of its kind (docs/operators.md)."""

UNSEEN_FRAMEWORK = 0.10
"""Deviation of computation in a framework that no run was fitted to, beyond the prior of its factor: sources of runs
whose framework no other source used are off by 15 % (root of the mean square) when they are left out of the fit."""

_UNHIDDEN = {Group.TP: "tp", Group.ETP: "tp", Group.CP: "cp"}


def sensitivities(done: "JobStep") -> Mapping[str, float]:
    """Return the derivative of the logarithm of a step by that of each factor.

    By class of work (`traincast.estimate.factors`): a share of the step, below 0 where more of it makes it shorter.
    """
    program, step_s = done.step.program, done.step_s
    path = done.step.timed.path
    time_s_T = np.bincount(program.row_N[path.op_H], path.time_s_H, minlength=len(program.ops))
    framework = with_factors(done.job, done.factors).framework
    found: dict[str, float] = {}
    for row in np.flatnonzero(time_s_T > 0).tolist():
        for name, share in _classes(done, framework, row).items():
            found[name] = found.get(name, 0.0) + share * float(time_s_T[row]) / step_s
    return found


def _classes(done: "JobStep", framework: "Framework", row: int) -> dict[str, float]:
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
    found = {TRANSFER_CLASS[group]: 1.0}
    if kind is Kind.COLLECTIVE:
        fsdp = done.job.sharding.zero == 3 and group in (Group.DP, Group.EDP, Group.SHARD)
        exchanged = "fsdp" if fsdp else _UNHIDDEN.get(group)
        found |= _unhidden(framework, exchanged, cost_class, blocking=bool(ops.blocking_T[row]))
    return found


def _unhidden(framework: "Framework", kind: str | None, cost_class: CostClass, *, blocking: bool) -> dict[str, float]:
    """Return how the share that cannot be hidden scales a transfer, where the framework hides the rest.

    What blocks is that share u of an exchange, what is launched to overlap with computation the other, 1 - u, which
    shrinks by u / (1 - u) of itself where the first grows by all of itself.
    """
    if kind is None or blocking != (cost_class is CostClass.UNHIDDEN):
        return {}
    share = float(getattr(framework, f"unhidden_{kind}"))
    return {f"unhidden {kind}": 1.0 if blocking else -share / (1 - share)}


def deviation(
    done: "JobStep", table: FactorTable, slopes: Mapping[str, float] | None = None, notes: Iterable[Note] = ()
) -> float:
    """Return the standard deviation of the logarithm of a forecast.

    The table has the deviations that the fit left; a factor that no run speaks for has its prior's. `slopes` are the
    sensitivities of the forecast, where they are known already; `notes` say what else than by the job was assumed.
    """
    slopes = sensitivities(done) if slopes is None else slopes
    own = {name for name in slopes if _own(name, done, table)}
    variance, loose = UNEXPLAINED**2 + _assumed(done, notes), dict[str, float]()
    shares: dict[Key, float] = {}
    for name, slope in slopes.items():
        if name not in own and part_of(name) in own:
            continue
        variance += slope**2 * _outside_factors(name, done, table)
        if name in own:
            continue
        kind = name if name == TRANSFER_CLASS[Group.EP] else name.partition(" ")[0]
        loose[kind] = loose.get(kind, 0.0) + slope * _loose(name)
        # What several classes share makes all of them longer at once.
        for key in keys_of(name, done.gpu, _fitted_as(done)):
            shares[key] = shares.get(key, 0.0) + slope
    variance += sum(share**2 * _left(key, table) for key, share in shares.items())
    return math.sqrt(variance + sum(each**2 for each in loose.values()))


def deviation_of(name: str, done: "JobStep", table: FactorTable) -> float:
    """Return the standard deviation of the logarithm of the time of one class of work, as far as it is known."""
    variance = _outside_factors(name, done, table)
    if _own(name, done, table) is None:
        variance += _loose(name) ** 2 + sum(_left(key, table) for key in keys_of(name, done.gpu, _fitted_as(done)))
    return math.sqrt(variance)


def _loose(name: str) -> float:
    """Return the deviation of the time of a class of work in one job beyond the factors that all jobs share."""
    return _LOOSE_CLASSES.get(name.partition(" ")[0], 0.0)


def _own(name: str, done: "JobStep", table: FactorTable) -> Factor | None:
    """Return what the cluster's own runs say of a class of work."""
    return table.factors.get(own_key(done.job.framework.name, name))


def _outside_factors(name: str, done: "JobStep", table: FactorTable) -> float:
    """Return the variance of the logarithm of a class's time that the factors of all runs do not speak for."""
    own = _own(name, done, table)
    if own is not None:
        # What the cluster's own runs left open of all that scales this class.
        return own.deviation**2
    seen = _fitted_to("chip", chip_of(done.gpu), table)
    if name in TRANSFER_CLASS.values():
        return 0.0 if seen else TRANSFERS["unseen"] ** 2
    if name != "compute":
        return 0.0
    framework = 0.0 if _fitted_to("framework", _fitted_as(done), table) else UNSEEN_FRAMEWORK**2
    return framework + (0.0 if seen else UNSEEN_COMPUTE**2)


def _left(key: Key, table: FactorTable) -> float:
    """Return the variance of the logarithm of a factor that the fit leaves."""
    prior, known = prior_deviation(key), table.factors.get(key)
    left = prior if known is None else min(known.deviation, prior)
    # Where nothing was learnt, the factors of a class are as independent as their priors.
    return left**2 * (TOGETHER**2 + (1 - TOGETHER**2) * (left / prior) ** 4)


def _fitted_as(done: "JobStep") -> str:
    """Return the framework whose published runs the factors of a job's are fitted to."""
    return done.job.framework.fitted_as or done.job.framework.name


def _fitted_to(level: str, name: str, table: FactorTable) -> bool:
    """Say whether a run of a GPU's chip, or of a framework, was in the fit."""
    return (level, name) in table.seen


def _assumed(done: "JobStep", notes: Iterable[Note]) -> float:
    """Return the variance of a step for choices that were assumed, and for a kind of step that no fitted run had."""
    codes = {note.code for note in (*done.job.assumptions, *notes)}
    other = 0.0 if done.job.finetuning.task == "pretrain" else UNFITTED_TASK**2
    other += UNFITTED_BLOCKS**2 if done.job.model.blocks else 0.0
    return other + sum(ASSUMED**2 for known in _CHOICES.values() if known & codes)


def spread_of_job(done: "JobStep", table: FactorTable) -> Callable[[str], float]:
    """Return the uncertainty of the time of a kind of work: of a kind of group (``tp``), ``compute`` or ``host``."""
    classes = {group.name.lower(): name for group, name in TRANSFER_CLASS.items()}
    classes |= {"compute": "compute", "host": host_class(CostClass.HOST_LAYERS)}
    return lambda what: deviation_of(classes[what], done, table) if what in classes else 0.0


def interval(done: "JobStep", table: FactorTable) -> Interval:
    """Return the interval that contains the measured step in 90 of 100 cases."""
    spread = math.exp(Z * deviation(done, table))
    return Interval(level=LEVEL, low_s=done.step_s / spread, high_s=done.step_s * spread)
