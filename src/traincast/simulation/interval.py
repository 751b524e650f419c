"""How sure a forecast of a job is: an interval around its step.

What is not known is of two kinds: the factors of this GPU and this framework (after the fit, or as far as the
prior goes where no run was seen), each weighted by how much of the step answers to it, and what no
factor can explain.
"""

import math
from collections.abc import Mapping

from traincast.estimate.factors import FactorTable, chip_of, keys_of
from traincast.estimate.priors import prior_deviation
from traincast.simulation.predict import JobRun
from traincast.simulation.sensitivity import sensitivities

LEVEL = 0.9
"""Share of measured steps that intervals are meant to contain."""

Z = 1.6449
"""Standard deviations to either side that contain `LEVEL` of a normal distribution."""

UNEXPLAINED = {"dense": 0.03, "experts": 0.16}
"""Deviation of the logarithm of a step that no factor explains, chosen so that 90 % of the steps of families left
out of the fit lie inside (``traincast validate --cv family``, docs/ACCURACY.md)."""


TRANSFERS = {"seen": 0.10, "unseen": 0.30}
"""Deviation of transfers beyond the factors, which all links share: prices of collectives on links that were measured
are off by 5 to 17 % (90th percentile), those of links known from a datasheet by 7 to 50 % (docs/ACCURACY.md)."""

UNSEEN_COMPUTE = 0.12
"""Deviation of computation on a GPU that no run was fitted to: products of unseen GPUs are off by 12 % in the mean,
with kernels of its like (docs/operators.md)."""


def deviation(done: JobRun, table: FactorTable, slopes: Mapping[str, float] | None = None) -> float:
    """Return the standard deviation of the logarithm of a forecast.

    Parameters
    ----------
    done : JobRun
        The forecast.
    table : FactorTable
        Factors with the deviations that the fit left; a factor that is not in it has its prior's.
    slopes : mapping, optional
        Sensitivities of the forecast, where they are known already.
    """
    framework, slopes = done.job.framework.name, sensitivities(done) if slopes is None else slopes
    seen = any(key[0] == "chip" and key[1] == chip_of(done.gpu) for key in table.factors)
    variance = UNEXPLAINED["experts" if done.job.model.experts else "dense"] ** 2
    transfers = sum(slope for name, slope in slopes.items() if name.startswith("transfer"))
    variance += (TRANSFERS["seen" if seen else "unseen"] * transfers) ** 2
    variance += 0.0 if seen else (UNSEEN_COMPUTE * slopes.get("compute", 0.0)) ** 2
    for name, slope in slopes.items():
        for key in keys_of(name, done.gpu, framework):
            known = table.factors.get(key)
            variance += (slope * (known.deviation if known else prior_deviation(key))) ** 2
    return math.sqrt(variance)


def interval(done: JobRun, table: FactorTable) -> dict[str, float]:
    """Return the interval that contains the measured step in 90 of 100 cases.

    Returns
    -------
    dict
        ``level``, and ``low_s`` and ``high_s`` in seconds.
    """
    spread = math.exp(Z * deviation(done, table))
    return {"level": LEVEL, "low_s": done.step_s / spread, "high_s": done.step_s * spread}
