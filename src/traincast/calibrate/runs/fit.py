"""Fit the factors of end-to-end runs.

Simulate all runs, ask each how it answers to every factor, solve for the factors that bring forecasts
nearest to measurements, and simulate again. A factor that few runs speak for stays near 1.

Letters: I rows (runs), K factors.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from traincast.calibrate.runs.evaluate import Forecast, forecast_runs
from traincast.calibrate.runs.run import RunRow
from traincast.calibrate.runs.solve import FloatArray, solve
from traincast.estimate.factors import Factor, FactorTable, Key, keys_of
from traincast.estimate.priors import prior_deviation, prior_mean
from traincast.hardware.gpus import load_gpu

ROUNDS = 4
"""Simulations of all runs; the fourth changes forecasts by less than 1 %."""

_LEAST_SLOPE = 0.02
"""A factor that moves no run by more than this share of its own change is left alone."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the fit needs of a set of runs: how each forecast answers, and how far off it is."""

    keys: tuple[Key, ...]
    slope_IK: FloatArray
    residual_I: FloatArray
    weight_I: FloatArray
    current_K: FloatArray

    def without(self, left_out_I: "np.typing.NDArray[np.bool_]") -> "Sample":
        """Return the sample without some of its runs."""
        keep = ~left_out_I
        return Sample(self.keys, self.slope_IK[keep], self.residual_I[keep], self.weight_I[keep], self.current_K)


def fit_factors(
    rows: Sequence[RunRow],
    rounds: int = ROUNDS,
    progress: Callable[[int], None] | None = None,
    *,
    start: FactorTable | None = None,
    after_round: Callable[[Sequence[Forecast]], None] | None = None,
) -> tuple[FactorTable, Sample]:
    """Return the factors that bring forecasts nearest to measured steps.

    Parameters
    ----------
    rows : sequence of RunRow
        Runs with a measured step.
    rounds : int
        Simulations of all runs.
    progress : callable, optional
        Told after every simulated run how many are done.
    start : FactorTable, optional
        Factors of the first simulation; 1 by default. They change how many rounds are needed, not the end.
    after_round : callable, optional
        Told the forecasts of every round.

    Returns
    -------
    FactorTable, Sample
        The factors, and the sample of the last round, from which fits without some runs are solved.

    Raises
    ------
    ValueError
        If there is no round.
    """
    table = start or FactorTable()
    sample = None
    for _ in range(rounds):
        forecasts = forecast_runs(rows, [table] * len(rows), progress)
        if after_round is not None:
            after_round(forecasts)
        sample = sample_of(rows, forecasts, table)
        table = factors_of(sample)
    if sample is None:
        raise ValueError("a fit needs at least one round")
    return table, sample


def sample_of(rows: Sequence[RunRow], forecasts: Sequence[Forecast], table: FactorTable) -> Sample:
    """Return what the fit needs of forecasts that were made with some factors; runs without a forecast count 0."""
    slopes = [_by_key(each) for each in forecasts]
    most: dict[Key, float] = {}
    for row in slopes:
        for key, slope in row.items():
            most[key] = max(most.get(key, 0.0), slope)
    keys = tuple(sorted(key for key, slope in most.items() if slope >= _LEAST_SLOPE))
    number = {key: index for index, key in enumerate(keys)}
    slope_IK = np.zeros((len(rows), len(keys)))
    for index, row in enumerate(slopes):
        for key, slope in row.items():
            if key in number:
                slope_IK[index, number[key]] = slope
    known = [each.step_s is not None and row.measured_s is not None for row, each in zip(rows, forecasts, strict=True)]
    residual_I = np.array(
        [
            np.log(row.measured_s / each.step_s) if fine else 0.0  # type: ignore[operator]
            for row, each, fine in zip(rows, forecasts, known, strict=True)
        ]
    )
    current_K = np.array([np.log(table.factors[key].factor) if key in table.factors else 0.0 for key in keys])
    return Sample(keys, slope_IK, residual_I, _weights(rows) * np.array(known), current_K)


def factors_of(sample: Sample) -> FactorTable:
    """Return the factors that a sample asks for."""
    prior_K = np.array([prior_deviation(key) for key in sample.keys])
    mean_K = np.log([prior_mean(key) for key in sample.keys])
    found = solve(sample.slope_IK, sample.residual_I, sample.weight_I, prior_K, sample.current_K, mean_K)
    rows_K = ((sample.slope_IK >= _LEAST_SLOPE) & (sample.weight_I[:, None] > 0)).sum(axis=0)
    return FactorTable.of(
        Factor(
            level=key[0],
            name=key[1],
            cost_class=key[2],
            factor=float(np.exp(found.log_factor_K[index])),
            deviation=float(found.deviation_K[index]),
            rows=int(rows_K[index]),
        )
        for index, key in enumerate(sample.keys)
    )


def _by_key(forecast: Forecast) -> dict[Key, float]:
    if forecast.step_s is None:
        return {}
    gpu = load_gpu(forecast.gpu)
    found = forecast.slopes.items()
    return {key: slope for name, slope in found for key in keys_of(name, gpu, forecast.stack)}


def _weights(rows: Iterable[RunRow]) -> FloatArray:
    """Return the weight of each row: one configuration at many scales or releases is no more than its square root.

    Rows of a configuration share their errors, so that twice as many do not say twice as much
    (docs/measured.md, noise).
    """
    names = [_configuration(row) for row in rows]
    count = Counter(names)
    return np.array([count[name] ** -0.5 for name in names])


def _configuration(row: RunRow) -> tuple[object, ...]:
    request = row.request
    layout = (request.tp, request.pp, request.cp, request.ep, request.seq_length, request.micro_batch)
    return (row.groups["family"], *layout)
