"""Fits of factors and energies without some runs, each solved from one simulation of every run.

A run's forecast answers to the logarithm of each factor by its sensitivity, and to the energy of a FLOP of its
generation through the clock that the power limit leaves (`traincast.estimate.clocks`): GEMMs take as much longer as the
clock is lower. Both are fitted together, and again without each group: nothing that was fitted to training runs has
seen the group that it forecasts. Forecasts by such a fit are simulated again: what hides behind what changes with the
factors.

Letters: I runs, K factors, E energies and clocks of generations.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from traincast.calibration.kind import FloatArray
from traincast.calibration.run_factors import Forecast, Sample, Unknowns, factors_of, forecast_runs, sample_of
from traincast.calibration.runs import MeasuredRun, is_fitted
from traincast.estimate.clocks import slowdown_of
from traincast.estimate.factors import FactorTable, is_throttled, shipped_factors
from traincast.hardware.gpu import Gpu, load_gpu

ENERGY, CLOCK = "gemm_pj_per_flop", "timed_clock"
ENERGY_DEVIATION, CLOCK_DEVIATION = 0.25, 0.15
"""How far energies and clocks may be from what is expected of them before a run is seen, as deviations of logarithms:
random numbers and zeros take 1.03 and 0.56 pJ a FLOP on one H100 (studies/data, h100_sustained.csv.gz)."""
EXPECTED = {
    ("hopper", ENERGY): 0.76,
    ("blackwell", ENERGY): 0.48,
    ("blackwell", CLOCK): 1.0,
}
"""Energies in pJ and clocks that are expected where no training run was seen, by generation.

The geometric mean of random numbers and zeros on an H100, and the same share of the limit at the peak for a B200.
Energies of other generations were measured without training runs and stay (data/gpus/generations.csv)."""
_ROUNDS = 12
_STEP = 0.7
"""Share of a step towards the solution that is taken: the clock bends where the limit sets in."""
_SMALL = 1e-4


class Physics(NamedTuple):
    """Values of `EXPECTED`, as logarithms in its order, [E]."""

    log_E: FloatArray

    @property
    def values(self) -> dict[tuple[str, str], float]:
        """By generation and column of `data/gpus/generations.csv`."""
        return dict(zip(EXPECTED, np.exp(self.log_E).tolist(), strict=True))

    def slowdown(self, gpu: Gpu) -> float:
        """Return how much longer GEMMs take in a step than timed alone."""
        known = self.values
        energy = known.get((gpu.architecture or "", ENERGY), gpu.generation.gemm_pj_per_flop)
        clock = known.get((gpu.architecture or "", CLOCK), gpu.generation.timed_clock)
        return slowdown_of(gpu, energy, clock)


def shipped_physics() -> Physics:
    """Return the values that come with traincast."""
    generations = {gpu.architecture: gpu.generation for gpu in map(load_gpu, ("H100", "B200"))}
    return Physics(np.log([getattr(generations[name], column) for name, column in EXPECTED]))


class Fitted(NamedTuple):
    """What a fit found without some runs."""

    table: FactorTable
    physics: Physics


class Runs(NamedTuple):
    """Runs with forecasts by shipped constants, and what a fit needs of them."""

    rows: Sequence[MeasuredRun]
    forecasts: Sequence[Forecast]
    sample: Sample
    throttled_I: FloatArray
    """Share of each step that the power limit throttles."""
    gpus: tuple[Gpu, ...]

    def log_slowdown_I(self, physics: Physics) -> FloatArray:
        """Return the logarithm of the slowdown of every run's GPU."""
        known = {gpu.name: float(np.log(physics.slowdown(gpu))) for gpu in set(self.gpus)}
        return np.array([known[gpu.name] for gpu in self.gpus])


def runs_of(
    rows: Sequence[MeasuredRun],
    forecasts: Sequence[Forecast],
    table: FactorTable | None = None,
    weight_I: FloatArray | None = None,
) -> Runs:
    """Return runs as fits need them, with forecasts made by a table, by default as shipped; those without count 0."""
    sample = sample_of(rows, forecasts, table or shipped_factors(), weight_I)
    shares = [sum(slope for name, slope in each.slopes.items() if is_throttled(name)) for each in forecasts]
    return Runs(rows, forecasts, sample, np.array(shares), tuple(row.cluster.gpu for row in rows))


def fitted_to(runs: Runs, seen_I: npt.NDArray[np.bool_]) -> Fitted:
    """Return what a fit to some of the runs finds."""
    sample, expected = runs.sample, np.log(list(EXPECTED.values()))
    deviation_E = np.array([ENERGY_DEVIATION if column == ENERGY else CLOCK_DEVIATION for _, column in EXPECTED])
    physics, before_I = Physics(expected), runs.log_slowdown_I(shipped_physics())
    for _ in range(_ROUNDS):
        longer_I = runs.throttled_I * (runs.log_slowdown_I(physics) - before_I)
        moved = sample._replace(residual_I=sample.residual_I - longer_I).without(~seen_I)
        found = moved.solved(Unknowns(_slopes(runs, physics)[seen_I], deviation_E, physics.log_E, expected))
        step_E = found.log_factor_K[len(sample.keys) :] - physics.log_E
        physics = Physics(physics.log_E + _STEP * step_E)
        if np.abs(step_E).max() < 1e-3:
            break
    residual_I = sample.residual_I - runs.throttled_I * (runs.log_slowdown_I(physics) - before_I)
    return Fitted(factors_of(sample._replace(residual_I=residual_I).without(~seen_I)), physics)


def _slopes(runs: Runs, physics: Physics) -> FloatArray:
    """Return the change of the logarithm of each forecast with that of each energy and clock, [I, E]."""
    now_I, found = runs.log_slowdown_I(physics), []
    for place in range(len(EXPECTED)):
        moved = physics.log_E.copy()
        moved[place] += _SMALL
        found.append(runs.throttled_I * (runs.log_slowdown_I(Physics(moved)) - now_I) / _SMALL)
    return np.array(found).T


def without_each(runs: Runs, group_of: Sequence[str]) -> Iterator[tuple[npt.NDArray[np.bool_], Fitted]]:
    """Yield for each group which runs are of it, [I], and the fit that has not seen them."""
    names, fitted_I = np.array(group_of), np.array(list(map(is_fitted, runs.rows)))
    for name in sorted(set(group_of)):
        mine_I = names == name
        yield mine_I, fitted_to(runs, fitted_I & ~mine_I)


def simulated(runs: Runs, fits: Mapping[int, Fitted]) -> dict[int, Forecast]:
    """Return the forecasts of some runs by their places, each simulated by the factors of a fit of its own.

    What its energies and clocks change lengthens the share of the step that the power limit throttles.
    """
    rows = [runs.rows[place] for place in fits]
    made = forecast_runs(rows, [fit.table for fit in fits.values()])
    now_I, found = runs.log_slowdown_I(shipped_physics()), {}
    for (place, fit), forecast in zip(fits.items(), made, strict=True):
        if forecast.step_s is None:
            raise ValueError(f"{runs.rows[place].id} cannot be forecast: {forecast.reason}")
        gpu = runs.gpus[place]
        longer = runs.throttled_I[place] * (np.log(fit.physics.slowdown(gpu)) - now_I[place])
        found[place] = replace(forecast, step_s=forecast.step_s * float(np.exp(longer)))
    return found
