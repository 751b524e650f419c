"""How certain it is which layout is the fastest: the same errors act on all layouts, as much as each responds.

What is not known of each class of work is drawn from a normal distribution, once for all layouts; the share of draws
in which a layout is the fastest is the probability that it is the best.

Between cases, on other GPUs, of other models, only those errors cancel that both have: each forecast says how far every
independent source of error moves it, and what two of them share drops out of their ratio.

Letters: N layouts, C classes of work, D draws.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from statistics import NormalDist

import numpy as np

from traincast.estimate.factors import chip_of, factors_on
from traincast.planning.finalists import Finalist
from traincast.simulation.confidence import basis_of_step, deviation_alone, sensitivities
from traincast.simulation.job_step import JobStep
from traincast.simulation.widths import known_sources, shipped_widths, terms
from traincast.workload.ops import FloatArray

DRAWS = 4096
_SEED = 1
OWN_DEVIATION = 0.01
"""Deviation of what no class of work explains and layouts do not share. Assumed: a third of what families of runs show
beyond the factors (`traincast.simulation.confidence`)."""


def drawn_steps(finalists: Sequence[Finalist]) -> FloatArray:
    """Return the steps of layouts in every draw, [N, D] seconds; the same for the same layouts."""
    slopes = [sensitivities(each.done) for each in finalists]
    names = sorted(set().union(*slopes))
    table = factors_on(finalists[0].done.step.setting.cluster)
    basis = basis_of_step(finalists[0].done)
    deviation_C = np.array([deviation_alone(basis, table, name) for name in names])
    slope_NC = np.array([[each.get(name, 0.0) for name in names] for each in slopes])
    draws = np.random.default_rng(_SEED)
    shared = draws.standard_normal((len(names), DRAWS)) * deviation_C[:, None]
    own = draws.standard_normal((len(finalists), DRAWS)) * OWN_DEVIATION
    step_N = np.array([each.step_s for each in finalists])
    found: FloatArray = step_N[:, None] * np.exp(slope_NC @ shared + own)
    return found


def probabilities(steps_ND: FloatArray) -> tuple[float, ...]:
    """Return the probability of each layout to be the fastest."""
    wins = np.bincount(np.argmin(steps_ND, axis=0), minlength=len(steps_ND))
    return tuple((wins / steps_ND.shape[1]).tolist())


def regrets(steps_ND: FloatArray) -> tuple[float, ...]:
    """Return how much longer the step of each layout is than the fastest one's on average, as a share."""
    return tuple((steps_ND / steps_ND.min(axis=0) - 1).mean(axis=1).tolist())


def tied(steps_ND: FloatArray, step_s: Sequence[float]) -> tuple[bool, ...]:
    """Return which layouts cannot be told from the fastest: nearer to it than their difference is uncertain."""
    logs = np.log(steps_ND)
    spread = (logs - logs[0]).std(axis=1)
    behind = np.log(np.array(step_s)) - math.log(step_s[0])
    return tuple((behind <= spread).tolist())


def chance_faster(one: Finalist, other: Finalist) -> float:
    """Return the probability that one layout's step is shorter than another's."""
    one_D, other_D = drawn_steps((one, other))
    return float((one_D < other_D).mean())


_SHARED: Mapping[str, tuple[str, ...]] = {
    "transfers": ("chip",),
    "grouped GEMMs": ("chip",),
    "GEMMs": ("chip",),
    "launches": ("chip", "framework"),
    "new chip": ("chip",),
    "new architecture": ("architecture",),
    "new code": ("framework",),
    "small": ("model",),
    "context": ("model",),
    "task": ("model",),
}
"""Terms of the interval to what two forecasts must have alike to be off by it together; others: all of it."""
_ALL = ("model", "chip", "framework")


def errors_of(done: JobStep) -> Mapping[Hashable, float]:
    """Return by how much each independent source of error moves the logarithm of a step, by a deviation of it.

    Their squares sum to the variance that the step's interval is made of.
    """
    cluster = done.step.setting.cluster
    basis, table, widths = basis_of_step(done), factors_on(cluster), shipped_widths()
    alike = {
        "model": done.job.model.name,
        "chip": chip_of(basis.gpu),
        "architecture": str(basis.gpu.architecture),
        "framework": basis.framework,
    }
    found: dict[Hashable, float] = {}
    for source, answer, variance in known_sources(basis, table):
        of_cluster = isinstance(source, tuple) and source[0] == "own"
        found[(cluster.name, source) if of_cluster else source] = answer * math.sqrt(variance)
    for name, squared in terms(basis, table).items():
        found["term", name, *(alike[each] for each in _SHARED.get(name, _ALL))] = widths[name] * math.sqrt(squared)
    return found


def apart(one: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> float:
    """Return the standard deviation of the logarithm of the ratio of two steps: what both are off by cancels."""
    off = [one.get(source, 0.0) - other.get(source, 0.0) for source in {**one, **other}]
    return math.hypot(*off, OWN_DEVIATION)


def chance_of_less(ratio: float, deviation: float) -> float:
    """Return the probability that what is forecast to be so many times as much as another is less than it after all."""
    return NormalDist().cdf(-math.log(ratio) / deviation)
