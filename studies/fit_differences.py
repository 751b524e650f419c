"""Fit how wide intervals of differences are (`traincast.simulation.differences`) to pairs with one change.

    python studies/fit_differences.py [--data DIR] [--write]

Every two published jobs of one source that differ in one thing (`published/pairs.py`) are forecast by factors and
energies that have not seen the source. The widths make the errors of their ratios most likely (each from a Student
distribution: a few are far off for reasons of their own), and the multiple is what 90 of 100 errors lie within. Pairs
of one kind, model and source count together as the square root of their number. Terms that no pair differs in keep what
they have. ``--write`` replaces `data/training/difference_widths.csv`.

Letters: I runs, J pairs, T terms.
"""

import argparse
import csv
import io
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datafiles import DATA, table_path
from published.pairs import Changed, Side, changed_pairs, told_changes
from published.reading import read_published
from published.single_changes import MADE
from refit import Fitted, Runs, fitted_to, runs_of
from traincast.calibration.kind import BoolArray, FloatArray
from traincast.calibration.run_factors import forecast_runs
from traincast.calibration.runs import MeasuredRun, is_fitted, job_of_run, read_runs
from traincast.estimate.factors import factors_on
from traincast.simulation.differences import MULTIPLE, Doubts, difference_widths, squares_between
from traincast.simulation.doubts import doubts
from traincast.simulation.widths import LEVEL, basis_of

FILE = Path(__file__).parents[1] / "src" / "traincast" / "data" / "training" / "difference_widths.csv"
FITTED = "measured_training_runs.csv"
TABLES = (FITTED, "mlperf_v6.csv", "tpu_runs.csv", "amd_other.csv", "mbridge_cards.csv")
_FREEDOM = 6
"""Degrees of freedom of the Student distribution."""
_ROUNDS = 400
_ROUNDING = 1e-12
"""Sum of squares up to which two forecasts are one."""
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
    singles = list(told_changes())
    runs, fitted = published(data, [run for pair in singles for side in pair[1:] for run in side.runs])
    pairs = _all_pairs(runs, singles)
    place_of = {run.id: place for place, run in enumerate(runs.rows)}
    groups = [", ".join(run.groups.named(each) for each in by.split("+")) for run in runs.rows]
    asked = {place_of[run.id] for pair in pairs for side in pair[1:] for run in side.runs}
    found: dict[int, tuple[float, Doubts]] = {}
    for fit, places in _fits(runs, fitted, groups, asked):
        for place in places:
            found[place] = _forecast(runs, place, fit)

    def side(of: Side) -> tuple[float, Doubts]:
        each = [found[place_of[run.id]] for run in of.runs]
        return float(np.median([step_s for step_s, _ in each])), each[0][1]

    return [_told(pair, side(pair.before), side(pair.after)) for pair in pairs]


def _told(pair: Changed, before: tuple[float, Doubts], after: tuple[float, Doubts]) -> Told:
    return Told(pair, after[0] / before[0] * pair.tokens, squares_between(before[1], after[1]))


def _all_pairs(runs: Runs, singles: Iterable[Changed]) -> list[Changed]:
    """Return the pairs of all tables, each once."""
    known = {run.id for run in runs.rows}
    # Of what is made of words only the ratio to its other side was measured.
    whole = [run for run in runs.rows if run.groups.source != MADE]
    found = {_ids(pair): pair for pair in changed_pairs(whole)}
    for pair in singles:
        if _ids(pair) <= known:
            found.setdefault(_ids(pair), pair)
    return list(found.values())


def _ids(pair: Changed) -> frozenset[str]:
    return frozenset((pair.before.run.id, pair.after.run.id))


def published(data: Path = DATA, others: Iterable[MeasuredRun] = ()) -> tuple[Runs, BoolArray]:
    """Return the runs of all tables and others that can be forecast, and to which of them the factors are fitted."""
    rows, count = list[MeasuredRun](), 0
    for name in TABLES:
        recipes = table_path("recipe_settings.csv", data) if name == FITTED else None
        table = read_runs(read_published(table_path(name, data), recipes)).rows
        rows += [run for run in table if run.measured_s is not None]
        count = count or len(rows)
    known = {run.id for run in rows}
    rows += [run for run in others if run.id not in known]
    forecasts = forecast_runs(rows, [factors_on(run.cluster) for run in rows])
    kept = [place for place, each in enumerate(forecasts) if each.step_s is not None]
    runs = runs_of([rows[place] for place in kept], [forecasts[place] for place in kept])
    fitted = np.array([place < count and is_fitted(rows[place]) for place in kept], np.bool_)
    return runs, fitted


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


def _forecast(runs: Runs, place: int, fit: Fitted) -> tuple[float, Doubts]:
    run, job = runs.rows[place], job_of_run(runs.rows[place])
    basis = runs.forecasts[place].basis or basis_of(job, run.cluster.gpu, {})
    step_s = (run.measured_s or 0.0) * float(np.exp(fit.log_ratio_I[place]))
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
    for _ in range(_ROUNDS):
        variance_J = squares_JT @ square_T
        far_J = error_J**2 / variance_J
        robust_J = weight_J * (_FREEDOM + 1) / (_FREEDOM + far_J)
        asked_T = (robust_J * far_J / variance_J) @ squares_JT
        given_T = (weight_J / variance_J) @ squares_JT
        step_T = np.sqrt(np.maximum(asked_T, 1e-30) / np.maximum(given_T, 1e-30))
        # Keeps widths positive, and makes the errors more likely in every round.
        square_T = np.where(known_T, np.maximum(_LEAST, square_T * step_T), square_T)
    found = dict(zip(names, np.sqrt(square_T).tolist(), strict=True))
    return found | {MULTIPLE: _quantile(np.abs(error_J) / np.sqrt(squares_JT @ square_T), weight_J, LEVEL)}


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


def _quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(len(order) - 1, int(np.searchsorted(reached, share)))])


def as_csv(widths: Mapping[str, float]) -> str:
    """Return widths as the file of them, whose words stay."""
    rows = list(csv.DictReader(io.StringIO(FILE.read_text(encoding="utf-8"))))
    out = io.StringIO()
    writer = csv.DictWriter(out, ["term", "width", "what"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "width": f"{widths[row['term']]:.3f}"} for row in rows)
    return out.getvalue()


def main() -> int:
    """Fit, print, and write where asked to; return the exit code."""
    parser = argparse.ArgumentParser(description="fit how wide intervals of differences are")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the tables of runs")
    parser.add_argument("--write", action="store_true", help="replace the shipped widths")
    given = parser.parse_args()
    text = as_csv(fit_widths(told_pairs(given.data)))
    print(text, end="")
    if given.write:
        FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
