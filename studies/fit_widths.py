"""Fit how wide intervals are (`traincast.simulation.widths`) to forecasts whose like was left out of the fit.

    python studies/fit_widths.py [--data DIR] [--write]

Every published run is forecast by factors and energies that have not seen its source, then its chip, then its
framework. The widths make those errors most likely (each error from a Student distribution: a few are far off for
reasons of their own): a family of runs counts as the square root of its runs, and a source as that of its families. The
two multiples are what leaves 5 of 100 errors on either side. Of steps shorter than their interval every run counts
once. Longer ones are those that an interval promises not to have, and there whoever forecasts is one more source:
sources count nearly alike. ``--write`` replaces `data/training/widths.csv`.

Letters: J forecasts (each run once for each thing left out), T terms.
"""

import argparse
import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datafiles import DATA
from forecasts import shipped_forecasts, timed_rows
from refit import Runs, runs_of, simulated, without_each
from traincast.calibration.kind import BoolArray, FloatArray
from traincast.calibration.runs import MeasuredRun
from traincast.shipped import SHIPPED
from traincast.simulation.widths import LEVEL, known_variance, shipped_widths, terms

FILE = SHIPPED / "training" / "widths.csv"
LEFT_OUT = ("source", "chip", "framework")
SIDES = ("below", "above")
_FREEDOM = 6
"""Degrees of freedom of the Student distribution."""
NOISE = 0.03
"""Least width of a step: repeats of equal runs differ by 1 % in the median and by 7 to 10 % at the 90th percentile
(docs/published-runs.md, noise)."""
_ROUNDS = 400
_OF_WIDTHS, _OF_LATE = 0.5, 0.75
"""Power of a source's weight by which it is divided, for widths and for steps that are longer: at 0 sources count as
their families do, at 1 all alike. Of 90 % asked, 87 to 93 are to be inside over runs and 85 over sources, whatever is
left out: with all sources alike on both sides 94 to 95 over runs were. Judged on tables that no width has seen, too
(`judges/unseen.py`)."""


class LeftOut(NamedTuple):
    """Forecasts of runs whose group no fit has seen."""

    by: str
    rows: Sequence[MeasuredRun]
    log_ratio_J: FloatArray
    """Logarithm of forecast over measured."""
    known_J: FloatArray
    """Variances that the fits of factors left."""
    terms_JT: FloatArray
    """What multiplies the squared widths, in the order of `names_of_terms`."""

    def deviation_J(self, widths: Mapping[str, float]) -> FloatArray:
        """Return the deviation of every forecast."""
        width_T = np.array([widths[name] for name in names_of_terms()])
        return np.asarray(np.sqrt(self.known_J + self.terms_JT @ width_T**2), np.float64)

    def late_J(self, widths: Mapping[str, float]) -> BoolArray:
        """Say which measured steps lie above their interval."""
        return np.asarray(self.log_ratio_J / self.deviation_J(widths) < -widths["above"], np.bool_)

    def inside_J(self, widths: Mapping[str, float]) -> BoolArray:
        """Say which measured steps lie inside their interval."""
        z_J = self.log_ratio_J / self.deviation_J(widths)
        return np.asarray((z_J <= widths["below"]) & (z_J >= -widths["above"]), np.bool_)


def names_of_terms() -> list[str]:
    """Return the terms that have a width."""
    return [name for name in shipped_widths() if name not in SIDES]


def published_runs(data: Path = DATA) -> Runs:
    """Return all published runs with a step, each forecast with the shipped factors."""
    rows = timed_rows(folder=data)
    kept = [(run, each) for run, each in zip(rows, shipped_forecasts(rows), strict=True) if each.step_s is not None]
    return runs_of([run for run, _ in kept], [each for _, each in kept])


def left_out(runs: Runs, by: str, names: Sequence[str] = ()) -> LeftOut:
    """Return forecasts of all runs, each by a fit that has not seen its group.

    Groups have `names`, by default those of a grouping of runs; of two with ``+`` a group is what shares both.
    """
    names = names or [", ".join(run.groups.named(each) for each in by.split("+")) for run in runs.rows]
    count = len(names)
    log_ratio_J, known_J, terms_JT = np.zeros(count), np.zeros(count), np.zeros((count, len(names_of_terms())))
    fits = {place: fit for mine_J, fit in without_each(runs, names) for place in np.flatnonzero(mine_J).tolist()}
    for place, forecast in simulated(runs, fits).items():
        log_ratio_J[place] = np.log((forecast.step_s or 0.0) / (runs.rows[place].measured_s or 0.0))
        if forecast.basis is not None:
            table = fits[place].table
            found = terms(forecast.basis, table)
            known_J[place] = known_variance(forecast.basis, table)
            terms_JT[place] = [found[name] for name in names_of_terms()]
    return LeftOut(by, runs.rows, log_ratio_J, known_J, terms_JT)


def fit_widths(forecasts: Sequence[LeftOut], seen: BoolArray | None = None) -> dict[str, float]:
    """Return the widths and multiples that forecasts ask for; `seen` says which runs count, by default all."""
    count = len(forecasts[0].rows)
    use_J = np.tile(np.ones(count, np.bool_) if seen is None else seen, len(forecasts))
    error_J = np.concatenate([each.log_ratio_J for each in forecasts])[use_J]
    known_J = np.concatenate([each.known_J for each in forecasts])[use_J]
    terms_JT = np.vstack([each.terms_JT for each in forecasts])[use_J]
    weight_J, late_J = (
        np.tile(_weights(forecasts[0].rows, power), len(forecasts))[use_J] for power in (_OF_WIDTHS, _OF_LATE)
    )
    square_T = np.full(terms_JT.shape[1], 0.02)
    least_T = np.array([NOISE**2 if name == "step" else 0.0 for name in names_of_terms()])
    for _ in range(_ROUNDS):
        variance_J = known_J + terms_JT @ square_T
        far_J = error_J**2 / variance_J
        robust_J = weight_J * (_FREEDOM + 1) / (_FREEDOM + far_J)
        asked_T = (robust_J * far_J / variance_J) @ terms_JT
        given_T = (weight_J / variance_J) @ terms_JT
        # Keeps widths positive, and makes the errors more likely in every round.
        square_T = np.maximum(least_T, square_T * np.sqrt(np.maximum(asked_T, 1e-30) / np.maximum(given_T, 1e-30)))
    z_J = error_J / np.sqrt(known_J + terms_JT @ square_T)
    outside = (1 - LEVEL) / 2
    found = dict(zip(names_of_terms(), np.sqrt(square_T).tolist(), strict=True))
    every_J = np.ones(len(z_J))
    return found | {"below": quantile(z_J, every_J, 1 - outside), "above": -quantile(z_J, late_J, outside)}


def _weights(rows: Sequence[MeasuredRun], power: float) -> FloatArray:
    families = Counter(run.groups.family for run in rows)
    weight_J = np.array([families[run.groups.family] ** -0.5 for run in rows])
    sources = Counter[str]()
    for run, weight in zip(rows, weight_J.tolist(), strict=True):
        sources[run.groups.source] += weight
    return np.asarray(weight_J * np.array([sources[run.groups.source] ** -power for run in rows]), np.float64)


def quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    """Return the value that a share of all weights does not exceed."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(len(order) - 1, int(np.searchsorted(reached, share)))])


def as_csv(widths: Mapping[str, float], file: Path = FILE) -> str:
    """Return widths as a file of them, whose words stay."""
    rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))
    out = io.StringIO()
    writer = csv.DictWriter(out, ["term", "width", "what"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "width": f"{widths[row['term']]:.3f}"} for row in rows)
    return out.getvalue()


def main() -> None:
    """Fit, print, and write where asked to."""
    parser = argparse.ArgumentParser(description="fit how wide intervals are")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with measured_training_runs.csv")
    parser.add_argument("--write", action="store_true", help="replace the shipped widths")
    given = parser.parse_args()
    runs = published_runs(given.data)
    widths = fit_widths([left_out(runs, by) for by in LEFT_OUT])
    print(as_csv(widths), end="")
    if given.write:
        FILE.write_text(as_csv(widths), encoding="utf-8")


if __name__ == "__main__":
    main()
