"""How wide the interval of a forecast is: how far steps were off where fits had seen no peers.

The logarithm of a step varies by what the fit of the factors left open, each as much as the step answers to it, and by
terms that no factor tells: of the machine and its day, of classes of work, and of the distance from what runs were
fitted to. Each term has a width, a standard deviation (``data/training/widths.csv``); widths are fitted to forecasts of
runs whose source, chip or framework was left out of the fit (`studies/fit_widths.py`), and judged on sources that no
width has seen. How many deviations lie to either side is fitted likewise: steps are late more often than early.
"""

import csv
import io
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping

from msgspec import Struct

from traincast.diagnostics import Note
from traincast.estimate.factors import (
    EXPERT_CLASSES,
    TRANSFER_CLASS,
    Factor,
    FactorTable,
    Key,
    chip_of,
    keys_of,
    own_key,
    part_of,
    prior_deviation,
)
from traincast.hardware.gpu import Gpu, find_gpu
from traincast.job.job import Job
from traincast.shipped import constant, shipped_text
from traincast.workload.words import Group

LEVEL = 0.9
"""Share of measured steps that intervals are meant to contain."""
Z = 1.6449
"""Standard deviations to either side that contain `LEVEL` of a normal distribution."""
TOGETHER = 0.2
"""Deviation of what well-known factors make of a step, over that of each apart: a fit knows their product better than
each, as what one gains the other loses (all GPUs, an architecture)."""
UNMEASURED_LINK = 0.30
"""Deviation of transfers over links that no run was fitted to: known from a datasheet, collectives are off by 7 to 50 %
(90th percentile, docs/ACCURACY.md)."""
LONG = 16384
"""Tokens above which sequences are long: few runs have more."""
_CHOICES: Mapping[str, frozenset[str]] = {
    "layout": frozenset({"annotation-axes", "one-microbatch", "open-micro-batch", "ep-missing", "assumed-ep"}),
    "adapters": frozenset({"assumed-lora-targets", "assumed-lora-rank"}),
    "framework": frozenset({"assumed-framework", "unknown-framework"}),
    "dispatcher": frozenset({"assumed-moe-dispatcher"}),
}
"""Choices that decide what runs, to the codes of the notes that say that one was assumed."""
_CLASSES = {
    "transfers": ("transfer",),
    "overlap": ("unhidden",),
    "grouped GEMMs": ("grouped_gemm",),
    "GEMMs": ("gemm",),
    "launches": ("host", "fixed", "handover"),
}
"""Terms of classes of work, by the first word of the classes: all of a term is off at once."""
_TRANSFERS = frozenset((*TRANSFER_CLASS.values(), *EXPERT_CLASSES))
_HIDDEN: Mapping[str, frozenset[str]] = {
    f"unhidden {kind}": frozenset(TRANSFER_CLASS[group] for group in groups)
    for kind, groups in {
        "tp": (Group.TP, Group.ETP),
        "cp": (Group.CP,),
        "fsdp": (Group.DP, Group.EDP, Group.SHARD),
    }.items()
}
"""Shares that nothing hides, to the classes of the transfers that they are of."""


class Basis(Struct, frozen=True, kw_only=True):
    """What the interval of a forecast rests on."""

    slopes: Mapping[str, float]
    """Derivative of the logarithm of the step by that of each factor, by class of work."""
    gpu: Gpu
    framework: str
    fitted_as: str
    """Framework whose published runs its factors are fitted to."""
    microbatches: int
    choices: int = 0
    """Choices that were assumed where they decide what runs."""
    context: float = 0.0
    """Logarithm of how far the sequence is above `LONG`."""


def basis_of(job: Job, gpu: Gpu, slopes: Mapping[str, float], notes: Iterable[Note] = ()) -> Basis:
    """Return what the interval of a job's forecast rests on; `notes` say what else than by the job was assumed."""
    codes = {note.code for note in (*job.assumptions, *notes)}
    framework = job.framework
    return Basis(
        slopes=slopes,
        gpu=gpu,
        framework=framework.name,
        fitted_as=framework.fitted_as or framework.name,
        microbatches=job.parallel.microbatches,
        choices=sum(bool(known & codes) for known in _CHOICES.values()),
        context=max(0.0, math.log(job.batch.seq_length / LONG)),
    )


def deviation(basis: Basis, table: FactorTable, widths: Mapping[str, float] | None = None) -> float:
    """Return the standard deviation of the logarithm of a forecast.

    The table has the deviations that the fit left; a factor that no run speaks for has its prior's.
    """
    known = constant(_widths) if widths is None else widths
    return math.sqrt(
        known_variance(basis, table) + sum(known[name] ** 2 * x for name, x in terms(basis, table).items())
    )


def terms(basis: Basis, table: FactorTable) -> dict[str, float]:
    """Return what multiplies the squared width of each term of `data/training/widths.csv` in a forecast's variance."""
    return {term: answer**2 for term, answer in _answers(basis, table).items()}


def _answers(basis: Basis, table: FactorTable) -> dict[str, float]:
    """Return by how many of its widths each term moves the logarithm of a step."""
    slopes = _not_own(basis, table)
    # The cluster's own runs tell what comes once a step.
    once = 1 / basis.microbatches if len(slopes) == len(basis.slopes) else 0.0
    classes = {
        term: sum(slope for name, slope in slopes.items() if name.partition(" ")[0] in words)
        for term, words in _CLASSES.items()
    }
    return {
        "step": 1.0,
        **classes,
        "new architecture": slopes.get("compute", 0.0) * (basis.gpu.architecture not in _architectures(table)),
        "choices": math.sqrt(basis.choices),
        "few microbatches": once,
        "context": basis.context,
    }


def known_variance(basis: Basis, table: FactorTable) -> float:
    """Return the variance that the fit of the factors left, and that of what a cluster's own runs taught."""
    return sum(answer**2 * variance for _, answer, variance in known_sources(basis, table))


def known_sources(basis: Basis, table: FactorTable) -> Iterator[tuple[Hashable, float, float]]:
    """Yield what the fit left open: each source of error, how the logarithm of the step answers to it, its variance.

    Forecasts with a source in common are off together by it.
    """
    shares = dict[Key, float]()
    for name, slope in basis.slopes.items():
        own = _own(name, basis, table)
        if own is not None:
            yield ("own", basis.framework, name), slope, own.deviation**2
    slopes = _not_own(basis, table)
    if ("chip", chip_of(basis.gpu)) not in table.seen:
        links = ((name, slope) for name, slope in slopes.items() if name in _TRANSFERS)
        yield from ((("link", chip_of(basis.gpu), name), slope, UNMEASURED_LINK**2) for name, slope in links)
    for name, slope in slopes.items():
        # What several classes share makes all of them longer at once.
        for key in keys_of(name, basis.gpu, basis.fitted_as):
            shares[key] = shares.get(key, 0.0) + slope
    yield from ((key, share, _left(key, table)) for key, share in shares.items())


def causes(basis: Basis, table: FactorTable) -> dict[Hashable, float]:
    """Return by how much each cause moves the logarithm of a forecast, if it is one deviation off.

    Causes are independent, so that their squares add up to the variance; forecasts of one job in other layouts share
    them, each as far as its step answers to it.
    """
    known = constant(_widths)
    found: dict[Hashable, float] = {
        source: answer * math.sqrt(variance) for source, answer, variance in known_sources(basis, table)
    }
    return found | {term: known[term] * answer for term, answer in _answers(basis, table).items()}


def bounds(basis: Basis, table: FactorTable) -> tuple[float, float]:
    """Return by what factors the ends of the interval are below and above a forecast's step."""
    spread, known = deviation(basis, table), constant(_widths)
    return math.exp(-known["below"] * spread), math.exp(known["above"] * spread)


def shipped_widths() -> dict[str, float]:
    """Return the width of each term, and of ``below`` and ``above`` how many deviations lie to either side."""
    return dict(constant(_widths))


def _widths() -> dict[str, float]:
    rows = csv.DictReader(io.StringIO(shipped_text("training/widths.csv")))
    return {row["term"]: float(row["width"]) for row in rows}


def _not_own(basis: Basis, table: FactorTable) -> dict[str, float]:
    """Return the sensitivities to classes of which the cluster's own runs say nothing."""
    own = {name for name in basis.slopes if _own(name, basis, table) is not None}
    # Transfers were timed there as the framework hides them.
    told = own | {share for share, transfers in _HIDDEN.items() if own & transfers}
    return {name: slope for name, slope in basis.slopes.items() if name not in told and part_of(name) not in told}


def _own(name: str, basis: Basis, table: FactorTable) -> Factor | None:
    """Return what the cluster's own runs say of a class of work."""
    return table.factors.get(own_key(basis.framework, name))


def _left(key: Key, table: FactorTable) -> float:
    """Return the variance of the logarithm of a factor that the fit leaves."""
    prior, known = prior_deviation(key), table.factors.get(key)
    left = prior if known is None else min(known.deviation, prior)
    # Where nothing was learnt, the factors of a class are as independent as their priors.
    return left**2 * (TOGETHER**2 + (1 - TOGETHER**2) * (left / prior) ** 4)


def _architectures(table: FactorTable) -> set[str | None]:
    """Return the architectures of the chips that runs were fitted to."""
    return {gpu.architecture for level, name in table.seen if level == "chip" and (gpu := find_gpu(name)) is not None}
