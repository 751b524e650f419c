"""Fit how wide intervals of differences are (`traincast.simulation.differences`) to pairs with one change.

    python studies/fit_differences.py [--data DIR] [--write]

Every two published jobs of one source that differ in one thing (`published/pairs.py`) are forecast by factors and
energies that have not seen the source. The widths make the errors of their ratios most likely (each from a Student
distribution: a few are far off for reasons of their own), and the multiple is what 90 of 100 errors lie within. Pairs
of one kind, model and source count together as the square root of their number. Where few pairs speak for a term, what
is expected of it counts too; terms that no pair differs in keep what they have. ``--write`` replaces
`data/training/difference_widths.csv`.

Letters: I runs, J pairs, T terms.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datafiles import DATA
from fit_widths import as_csv, quantile
from forecasts import PUBLISHED, shipped_forecasts, timed_rows
from published.pairs import Changed, changed_pairs, told_changes
from refit import Fitted, Runs, fitted_to, runs_of, simulated
from traincast.calibration.kind import BoolArray, FloatArray
from traincast.calibration.run_factors import Forecast
from traincast.calibration.runs import MeasuredRun, is_fitted, job_of_run
from traincast.shipped import SHIPPED
from traincast.simulation.differences import (
    EFFICIENCY,
    MULTIPLE,
    SOFTWARE_GAIN,
    Doubts,
    difference_widths,
    squares_between,
)
from traincast.simulation.doubts import KNOWN, doubts
from traincast.simulation.widths import LEVEL, basis_of

FILE = SHIPPED / "training" / "difference_widths.csv"
TABLES = (PUBLISHED, "mlperf_v6.csv", "tpu_runs.csv", "amd_other.csv", "mbridge_cards.csv")
_FREEDOM = 3
"""Degrees of freedom of the Student distribution: fewer than for steps, as errors of changes have longer tails."""
_ROUNDS = 400
_OF_FORECASTS = (KNOWN, EFFICIENCY, SOFTWARE_GAIN)
"""Terms of what is forecast; the others are of what jobs differ in."""
_ROUNDING = 1e-12
"""Sum of squares up to which two forecasts are one."""
_EXPECTED, _AS_MANY = 0.03, 2.0
"""Width that a difference of jobs is expected to have, and as many pairs as speak for that: some have few."""
_LEAST = 1e-5
"""Least squared width of a term, that no interval is a point."""


class Told(NamedTuple):
    """A pair and what was said of it."""

    pair: Changed
    ratio: float
    """Forecast time of a GPU for a token after the change over that before."""
    squares: Mapping[str, float]
    """What multiplies the squared widths, by term."""

    @property
    def is_one_job(self) -> bool:
        """Whether nothing that is modelled tells the two jobs apart, as two releases of one framework."""
        return sum(self.squares.values()) < _ROUNDING

    @property
    def error(self) -> float:
        """Logarithm of the forecast over the measured ratio."""
        return float(np.log(self.ratio / self.pair.ratio))


def told_pairs(data: Path = DATA, by: str = "source") -> list[Told]:
    """Return all pairs of the tables, each forecast by a fit that has not seen its group (`by`, names with ``+``)."""
    rows, fitted = table_runs(data)
    pairs = all_pairs(rows)
    # Repeats of a job are one forecast.
    sides = {side.run.id: side.run for pair in pairs for side in (pair.before, pair.after)}
    needed = {run.id: run for run in rows if run.id in fitted} | sides
    runs = _forecast_runs(list(needed.values()))
    groups = [", ".join(run.groups.named(each) for each in by.split("+")) for run in runs.rows]
    fitted_I = np.array([run.id in fitted for run in runs.rows], np.bool_)
    asked = [place for place, run in enumerate(runs.rows) if run.id in sides]
    fits = {place: fit for fit, places in _fits(runs, fitted_I, groups, asked) for place in places}
    found = {
        runs.rows[place].id: _doubted(runs.rows[place], forecast, fits[place])
        for place, forecast in simulated(runs, fits).items()
    }
    return [
        told_of(pair, found[pair.before.run.id], found[pair.after.run.id])
        for pair in pairs
        if {pair.before.run.id, pair.after.run.id} <= found.keys()
    ]


def told_of(pair: Changed, before: tuple[float, Doubts], after: tuple[float, Doubts]) -> Told:
    """Return what two forecasts, each with what it may be off by, say of a pair."""
    return Told(pair, after[0] / before[0] * pair.tokens, squares_between(before[1], after[1]))


def all_pairs(rows: Iterable[MeasuredRun]) -> list[Changed]:
    """Return the pairs of runs, and those of `single_changes.csv`, each once."""
    singles, found = list(told_changes()), {_ids(pair): pair for pair in changed_pairs(rows)}
    for pair in singles:
        found.setdefault(_ids(pair), pair)
    return list(found.values())


def _ids(pair: Changed) -> frozenset[str]:
    return frozenset((pair.before.run.id, pair.after.run.id))


def table_runs(data: Path = DATA) -> tuple[list[MeasuredRun], frozenset[str]]:
    """Return the runs of all tables with a step, and the ids of those that the factors are fitted to."""
    rows = [run for name in TABLES for run in timed_rows(name, data)]
    return rows, frozenset(run.id for run in timed_rows(PUBLISHED, data) if is_fitted(run))


def _forecast_runs(rows: Sequence[MeasuredRun]) -> Runs:
    """Return those runs that can be forecast, with what a fit needs of them."""
    kept = [(run, each) for run, each in zip(rows, shipped_forecasts(rows), strict=True) if each.step_s is not None]
    return runs_of([run for run, _ in kept], [each for _, each in kept])


def _fits(
    runs: Runs, fitted: BoolArray, groups: Sequence[str], asked: Iterable[int]
) -> Iterable[tuple[Fitted, list[int]]]:
    """Yield fits, each with the runs to forecast by it; groups that no fit has seen share one."""
    names = np.array(groups)
    seen = set(names[fitted].tolist())
    places: dict[str, list[int]] = {}
    for place in sorted(asked):
        places.setdefault(groups[place] if groups[place] in seen else "", []).append(place)
    for name, mine in places.items():
        yield fitted_to(runs, fitted & (names != name) if name else fitted), mine


def _doubted(run: MeasuredRun, forecast: Forecast, fit: Fitted) -> tuple[float, Doubts]:
    job, step_s = job_of_run(run), forecast.step_s or 0.0
    basis = forecast.basis or basis_of(job, run.cluster.gpu, {})
    return step_s, doubts(basis, fit.table, job, run.cluster, step_s)


def names_of_terms() -> list[str]:
    """Return the terms that have a width."""
    return [name for name in difference_widths() if name != MULTIPLE]


def fit_widths(told: Sequence[Told], seen: BoolArray | None = None) -> dict[str, float]:
    """Return the widths and the multiple that pairs ask for; `seen` says which count, by default all."""
    use_J = np.array([not each.is_one_job for each in told]) & (True if seen is None else seen)
    error_J = np.array([each.error for each in told])[use_J]
    squares_JT, weight_J = squares_of(told)[use_J], _weights(told)[use_J]
    shipped, names = difference_widths(), names_of_terms()
    square_T = np.array([shipped[name] ** 2 for name in names])
    known_T = squares_JT.any(axis=0)
    prior_T = np.array([_AS_MANY * (name not in _OF_FORECASTS) for name in names])
    for _ in range(_ROUNDS):
        variance_J = squares_JT @ square_T
        far_J = error_J**2 / variance_J
        robust_J = weight_J * (_FREEDOM + 1) / (_FREEDOM + far_J)
        asked_T = (robust_J * far_J / variance_J) @ squares_JT + prior_T * (_EXPECTED / square_T) ** 2
        given_T = (weight_J / variance_J) @ squares_JT + prior_T / square_T
        step_T = np.sqrt(np.maximum(asked_T, 1e-30) / np.maximum(given_T, 1e-30))
        # Keeps widths positive, and makes the errors more likely in every round.
        square_T = np.where(known_T, np.maximum(_LEAST, square_T * step_T), square_T)
    found = dict(zip(names, np.sqrt(square_T).tolist(), strict=True))
    return found | {MULTIPLE: quantile(np.abs(error_J) / np.sqrt(squares_JT @ square_T), weight_J, LEVEL)}


def squares_of(told: Sequence[Told]) -> FloatArray:
    """Return what multiplies the squared widths of all pairs, [J, T]."""
    return np.array([[each.squares.get(name, 0.0) for name in names_of_terms()] for each in told])


def spreads_of(told: Sequence[Told], widths: Mapping[str, float]) -> FloatArray:
    """Return by how much the logarithm of each ratio may be off, to either side, [J]."""
    square_T = np.array([widths[name] ** 2 for name in names_of_terms()])
    return np.asarray(widths[MULTIPLE] * np.sqrt(squares_of(told) @ square_T), np.float64)


def _weights(told: Sequence[Told]) -> FloatArray:
    names = [(each.pair.kind, each.pair.source, each.pair.model) for each in told]
    count = Counter(names)
    return np.array([count[name] ** -0.5 for name in names])


def main() -> int:
    """Fit, print, and write where asked to; return the exit code."""
    parser = argparse.ArgumentParser(description="fit how wide intervals of differences are")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the tables of runs")
    parser.add_argument("--write", action="store_true", help="replace the shipped widths")
    given = parser.parse_args()
    text = as_csv(fit_widths(told_pairs(given.data)), FILE)
    print(text, end="")
    if given.write:
        FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
