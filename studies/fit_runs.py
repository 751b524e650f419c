"""Fit the factors of end-to-end runs (`traincast.estimate.factors`) to published training runs.

    python studies/fit_runs.py [--data DIR] [--rounds 4] [--most 2] [--warm] [--write]

DIR holds ``measured_training_runs.csv`` and ``recipe_settings.csv``; `studies/data` by default. Only pretraining
runs whose whole layout was published are fitted to. With ``--write`` the factors go to
`src/traincast/data/training/factors.csv`, and the energies and clocks that were fitted with them to
`src/traincast/data/gpus/generations.csv`; without it, the errors of each round are printed and nothing is changed. Each
round simulates two runs of every configuration, of the fewest and the most GPUs: about two minutes on two idle cores.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from datafiles import DATA, table_path
from published.reading import read_published
from refit import fitted_to, runs_of
from traincast.calibration.kinds.runs import BOARD, labels_of
from traincast.calibration.run_factors import (
    Forecast,
    Sample,
    factors_of,
    forecast_runs,
    representatives,
    sample_of,
)
from traincast.calibration.runs import MeasuredRun, is_fitted, read_runs
from traincast.estimate.factors import FactorTable, shipped_factors
from traincast.shipped import SHIPPED
from written import with_energies, write_factors

ROUNDS = 4
"""Simulations of all runs; a fourth changes forecasts by less than 1 %. From the shipped factors two are enough."""
MOST = 2
"""Runs of one configuration that are simulated; they count as all of it."""
FACTORS, GENERATIONS = SHIPPED / "training" / "factors.csv", SHIPPED / "gpus" / "generations.csv"


def main() -> None:
    """Fit, print, and write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with measured_training_runs.csv")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="simulations of all runs")
    parser.add_argument("--most", type=int, default=MOST, help="runs of each configuration that are simulated")
    parser.add_argument("--warm", action="store_true", help="start from the shipped factors: fewer rounds, same end")
    parser.add_argument("--write", action="store_true", help="replace the shipped factors and energies")
    given = parser.parse_args()
    tables = (table_path(name, given.data) for name in ("measured_training_runs.csv", "recipe_settings.csv"))
    runs = read_runs(read_published(*tables))
    fitted = [row for row in runs.rows if row.measured_s is not None and is_fitted(row)]
    rows, weight_I = representatives(fitted, given.most)
    print(f"{len(rows)} of {len(fitted)} runs, {given.rounds} rounds")
    begin = time.perf_counter()

    def tell(forecasts: Sequence[Forecast]) -> None:
        print(f"{time.perf_counter() - begin:.0f} s")
        print_errors(rows, np.array([np.nan if each.step_s is None else each.step_s for each in forecasts]))

    start = shipped_factors().found() if given.warm else None
    table, _ = fit_factors(rows, given.rounds, start=start, after_round=tell, weight_I=weight_I)
    again = forecast_runs(rows, [table] * len(rows))
    # Factors of GEMMs hang on the energies and clocks: only those of one solution belong together.
    found = fitted_to(runs_of(rows, again, table, weight_I), np.ones(len(rows), np.bool_))
    print(f"{len(found.table.factors)} factors")
    for (generation, column), value in found.physics.values.items():
        print(f"{column} of {generation}: {value:.3f}")
    if given.write:
        FACTORS.write_text(write_factors(found.table.factors.values()), encoding="utf-8")
        before = GENERATIONS.read_text(encoding="utf-8")
        GENERATIONS.write_text(with_energies(before, found.physics.values), encoding="utf-8")
        print(f"wrote {FACTORS} and {GENERATIONS}")


def fit_factors(
    rows: Sequence[MeasuredRun],
    rounds: int = ROUNDS,
    progress: Callable[[int], None] | None = None,
    *,
    start: FactorTable | None = None,
    after_round: Callable[[Sequence[Forecast]], None] | None = None,
    weight_I: "np.typing.NDArray[np.float64] | None" = None,
) -> tuple[FactorTable, Sample]:
    """Return the factors that bring forecasts nearest to measured steps.

    Parameters
    ----------
    rows : sequence of MeasuredRun
        Runs with a measured step.
    rounds : int
        Simulations of all runs.
    progress : callable, optional
        Told after every simulated run how many are done.
    start : FactorTable, optional
        Factors of the first simulation; 1 by default. They change how many rounds are needed, not the end.
    after_round : callable, optional
        Told the forecasts of every round.
    weight_I : float array [I], optional
        How much each row counts; by default rows of one configuration share one weight.

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
        sample = sample_of(rows, forecasts, table, weight_I)
        table = factors_of(sample)
    if sample is None:
        raise ValueError("a fit needs at least one round")
    return table, sample


def print_errors(rows: list[MeasuredRun], step_s: "np.typing.NDArray[np.float64]") -> None:
    """Print the errors by board."""
    error = step_s / np.array([row.measured_s for row in rows]) - 1
    names = np.array(labels_of(rows)[BOARD])
    for name in sorted(set(names)):
        mine = error[(names == name) & ~np.isnan(error)]
        median, p90 = np.quantile(np.abs(mine), (0.5, 0.9))
        print(f"  {name:15s} {len(mine):4d} runs  median {median:6.1%}  p90 {p90:6.1%}  bias {np.median(mine):+6.1%}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
