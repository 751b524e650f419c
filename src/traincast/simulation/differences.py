"""How sure the ratio of two forecasts is: what both are off by cancels, and what they differ in does not.

A forecast is off for independent reasons, each of which moves the logarithm of its step by so much
(`traincast.simulation.widths`): factors of classes of work, links, the machine and its day. Two forecasts are off
together by what they share, as far as the steps answer to it alike. In addition every difference of the jobs
themselves is modelled within an error of its own: that of a layout grows with every doubling of a degree, that of
software is there or not, and that of efficiency grows with what is forecast of it. So each forecast is a point in a
space with one axis for each reason, and the deviation of the logarithm of the ratio of two is how far their points are
apart: nothing for the same job, the same both ways, and never more than by way of a third.

How wide each term is stands in ``data/training/difference_widths.csv``, fitted to pairs of published runs of one source
that differ in one thing (`studies/fit_differences.py`).
"""

import csv
import io
import math
from collections.abc import Hashable, Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING

from msgspec.structs import replace

from traincast.analysis.summary import Ratio
from traincast.errors import ConfigError
from traincast.estimate.factors import FactorTable, chip_of, factors_on
from traincast.hardware.cluster import Cluster
from traincast.job.job import Job
from traincast.model.counts import flops_per_token
from traincast.shipped import constant, shipped_text
from traincast.simulation.confidence import basis_of_step
from traincast.simulation.job_step import JobStep
from traincast.simulation.widths import LEVEL, Basis, causes

if TYPE_CHECKING:
    from traincast.simulation.result import Result

TABLE = "training/difference_widths.csv"
MULTIPLE = "multiple"
"""Row of the table that is no term: deviations to either side of the ratio that hold `LEVEL` of what is measured."""
KNOWN, EFFICIENCY = "known", "efficiency"
_QUARTERS = 4
_DEGREES = ("tp", "pp", "vpp", "cp", "ep")
_SHARED: Mapping[str, tuple[str, ...]] = {
    "transfers": ("chip",),
    "grouped GEMMs": ("architecture",),
    "GEMMs": ("architecture",),
    "launches": ("framework",),
    "new chip": ("chip",),
    "new architecture": ("architecture",),
    "new code": ("framework",),
    "small": ("model",),
    "context": ("model",),
    "task": ("model",),
}
"""Terms of the interval to what two forecasts must have alike to be off by it together; others: all of it."""
_ALL = ("model", "chip", "framework")

Doubts = Mapping[str, Mapping[Hashable, float]]
"""By term and reason by how many of its widths it moves the logarithm of a forecast's step."""


def doubts_of(done: JobStep, table: FactorTable | None = None) -> Doubts:
    """Return the reasons for which the forecast of a job's step may be off; `table` is what it was forecast with."""
    cluster = done.step.setting.cluster
    return doubts(basis_of_step(done), table or factors_on(cluster), done.job, cluster, done.step_s)


def doubts(basis: Basis, table: FactorTable, job: Job, cluster: Cluster, step_s: float) -> Doubts:
    """Return the reasons for which a forecast may be off that factors of a table were taken for."""
    found: dict[str, Mapping[Hashable, float]] = {
        KNOWN: _known(basis, table, job, cluster),
        EFFICIENCY: {"": math.log(_efficiency(job, cluster, step_s))},
        **_things(job, cluster),
    }
    return found


def deviation_between(one: Doubts, other: Doubts, widths: Mapping[str, float] | None = None) -> float:
    """Return the standard deviation of the logarithm of the ratio of two steps."""
    known = constant(_widths) if widths is None else widths
    return math.sqrt(sum(known[term] ** 2 * square for term, square in squares_between(one, other).items()))


def moves(doubts: Doubts) -> dict[Hashable, float]:
    """Return by how much each reason moves the logarithm of a forecast, if it is one deviation off.

    Of the ratio of two forecasts it is the difference of both.
    """
    known = constant(_widths)
    return {(term, reason): known[term] * by for term, reasons in doubts.items() for reason, by in reasons.items()}


def squares_between(one: Doubts, other: Doubts) -> dict[str, float]:
    """Return what multiplies the squared width of each term in the variance of the ratio of two steps."""
    return {term: _square(one.get(term, {}), other.get(term, {})) for term in {**one, **other}}


def _square(one: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> float:
    return math.fsum((one.get(reason, 0.0) - other.get(reason, 0.0)) ** 2 for reason in {**one, **other})


def difference_interval(before: "Result", after: "Result") -> Ratio:
    """Return how many times as long one forecast step is as another, with the interval of that.

    Raises
    ------
    ConfigError
        If one of them was not forecast here: a file says what was simulated, and a result that was read does not say
        what its forecast may be off by.
    """
    for each in (before, after):
        if each.doubts is None:
            name = each.inputs[0].path if each.inputs else "result"
            raise ConfigError("is not the forecast of a job, so that its errors are not known; forecast its job", name)
    return ratio_of(before.iteration_time_s, before.doubts or {}, after.iteration_time_s, after.doubts or {})


def ratio_of(before_s: float, before: Doubts, after_s: float, after: Doubts) -> Ratio:
    """Return how many times as long one step is as another, with what each may be off by."""
    deviation = deviation_between(before, after)
    ratio, spread = after_s / before_s, constant(_widths)[MULTIPLE] * deviation
    return Ratio(
        level=LEVEL,
        ratio=ratio,
        low=ratio * math.exp(-spread),
        high=ratio * math.exp(spread),
        chance_shorter=chance_of_less(ratio, deviation),
    )


def chance_of_less(ratio: float, deviation: float) -> float:
    """Return the probability that what is forecast to be so many times as much as another is less than it after all."""
    if deviation == 0:
        return 0.5 if ratio == 1 else float(ratio < 1)
    return NormalDist().cdf(-math.log(ratio) / deviation)


def difference_widths() -> dict[str, float]:
    """Return the width of each term, and of `MULTIPLE` how many deviations lie to either side."""
    return dict(constant(_widths))


def _widths() -> dict[str, float]:
    rows = csv.DictReader(io.StringIO(shipped_text(TABLE)))
    return {row["term"]: float(row["width"]) for row in rows}


def _known(basis: Basis, table: FactorTable, job: Job, cluster: Cluster) -> dict[Hashable, float]:
    """Return by how much each reason of the forecast's own interval moves it."""
    alike = {
        "model": job.model.name,
        "chip": chip_of(basis.gpu),
        "architecture": str(basis.gpu.architecture),
        "framework": basis.framework,
    }
    found: dict[Hashable, float] = {}
    for cause, moved in causes(basis, table).items():
        if isinstance(cause, str):
            found["term", cause, *(alike[each] for each in _SHARED.get(cause, _ALL))] = moved
        else:
            of_cluster = isinstance(cause, tuple) and cause[0] == "own"
            found[(cluster.name, cause) if of_cluster else cause] = moved
    return found


def _efficiency(job: Job, cluster: Cluster, step_s: float) -> float:
    """Return the share of the 16-bit peak that the model's FLOP take, recomputation not counted."""
    gpu = cluster.gpu
    needed, _ = flops_per_token(job.model, job.batch.attended_length, task=job.finetuning.task)
    peak = gpu.peak_flops_per_s("bf16" if gpu.has_peak("bf16") else "fp16")
    return job.batch.tokens_per_step * needed / step_s / job.parallel.world_size / peak


def _things(job: Job, cluster: Cluster) -> dict[str, dict[Hashable, float]]:
    """Return what a job is: of a number reasons for every doubling, of all else one for each value."""
    parallel, batch = job.parallel, job.batch
    kernels = replace(job.kernels, padded_vocab=0)  # follows from tp
    return {
        "GPUs": _doublings(gpus=parallel.world_size),
        "degrees": _doublings(**{name: getattr(parallel, name) for name in _DEGREES}),
        "microbatches": _doublings(microbatches=parallel.microbatches),
        "shapes": _doublings(micro_batch=batch.micro_batch, seq_length=batch.seq_length),
        "precision": _one_of(job.precision),
        "software": {
            **_one_of(job.communication, job.sharding, job.recompute, job.offload, job.experts, kernels, job.optimizer),
            **_one_of(("schedule", job.pipeline.schedule), ("shard", parallel.shard)),
        },
        "framework": _one_of(job.framework.name),
        "chip": _one_of(cluster.gpu.name),
        "model": _one_of(job.model.name, job.finetuning),
    }


def _one_of(*values: object) -> dict[Hashable, float]:
    """Return a reason for each value: of two that differ both count, which makes one width of them."""
    return {(type(value).__name__, str(value)): math.sqrt(0.5) for value in values}


def _doublings(**numbers: int) -> dict[Hashable, float]:
    """Return reasons for each doubling of a number, one for every quarter of it: numbers drift apart as they differ."""
    found: dict[Hashable, float] = {}
    for name, number in numbers.items():
        quarters = _QUARTERS * math.log2(max(1, number))
        for place in range(math.ceil(quarters)):
            found[name, place] = math.sqrt(min(1.0, quarters - place) / _QUARTERS)
    return found
