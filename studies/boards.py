"""Hold the boards of the accuracy page, and a sample of forecasts made now, against the limits of `boards.toml`.

    python studies/boards.py [--write]

Prints every board with its limit. Ends with 1 where one is worse by more than `TOLERANCE`. ``--write`` makes what
stands on the page, and what the sample gives now, the limits: to be used where a board got better, or where the
changelog says why it got worse. The page itself is held to what commands print by
``python studies/accuracy.py --check``.
"""

import argparse
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datafiles import table_path
from headline import ELSEWHERE, FAMILY, PAGE, held_out
from published.reading import read_published
from traincast.calibration.run_factors import forecast_run
from traincast.calibration.runs import MeasuredRun, read_runs
from traincast.calibration.validate import statistics
from traincast.estimate.factors import factors_on

LIMITS = Path(__file__).with_name("boards.toml")
EVERY = 16
"""One run in so many is in the sample: few enough for a test, and from every source that has more."""
SAMPLE = "sample"


class Score(NamedTuple):
    """Figures of a board in per cent: two that are worse when larger, and one that is worse when smaller."""

    median: float
    p90: float
    inside: float

    def worse_than(self, limit: "Score") -> bool:
        """Say whether a figure is worse than its limit by more than `TOLERANCE`."""
        longer = (self.median - limit.median, self.p90 - limit.p90, limit.inside - self.inside)
        return any(by > allowed for by, allowed in zip(longer, TOLERANCE, strict=True))


TOLERANCE = Score(0.3, 1.0, 2.0)
"""Points by which a board may get worse unnoticed: what rounding and a run more or less of a small board make."""
Boards = dict[tuple[str, str], Score]
"""Scores by what is left out of the fit and by the name of the board."""


def of_page(page: str) -> Boards:
    """Return the scores of the boards that a page shows."""
    return {
        (by, name): Score(*(float(text.removesuffix(" %")) for text in (each.median, each.p90, each.inside)))
        for by in (FAMILY, ELSEWHERE)
        for name, each in held_out(page, by).rows.items()
    }


def sampled() -> Iterator[MeasuredRun]:
    """Yield one published run in `EVERY` of those with a step."""
    tables = map(table_path, ("measured_training_runs.csv", "recipe_settings.csv"))
    runs = read_runs(read_published(*tables)).rows
    yield from [run for run in runs if run.measured_s is not None][::EVERY]


def of_sample(runs: Iterable[MeasuredRun]) -> Boards:
    """Return the score of forecasts of some runs, made now with the shipped factors."""
    known = [(run, forecast_run(run, factors_on(run.cluster))) for run in runs]
    found = [
        (run.measured_s, each.step_s, each.holds(run.measured_s)) for run, each in known if each.step_s is not None
    ]
    measured, forecast, inside = np.array(found, np.float64).T
    figures = statistics(forecast, measured, inside=inside > 0)
    shares = (figures.median_abs_error, figures.p90_abs_error, figures.interval_coverage)
    return {(SAMPLE, "all"): Score(*(round(100 * (share or 0.0), 2) for share in shares))}


def limits(path: Path = LIMITS) -> Boards:
    """Return the limits of all boards."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["board"]
    return {(row["left_out"], row["name"]): Score(row["median"], row["p90"], row["inside"]) for row in rows}


def as_toml(boards: Boards) -> str:
    """Return boards as the file of limits."""
    head = "# What boards may not get worse than, in per cent: written by `python studies/boards.py --write`.\n"
    rows = (
        f'\n[[board]]\nleft_out = "{by}"\nname = "{name}"\nmedian = {score.median}\np90 = {score.p90}\n'
        f"inside = {score.inside}\n"
        for (by, name), score in boards.items()
    )
    return head + "".join(rows)


def worse(boards: Boards, allowed: Boards) -> list[str]:
    """Return a line for each board that is worse than its limit, or that has gone."""
    lost = [f"{by}, {name}: is not shown any more" for by, name in allowed if (by, name) not in boards]
    return lost + [
        f"{by}, {name}: {score} is worse than {allowed[by, name]}"
        for (by, name), score in boards.items()
        if (by, name) in allowed and score.worse_than(allowed[by, name])
    ]


def main() -> int:
    """Print the boards, or write them as limits; return the exit code."""
    parser = argparse.ArgumentParser(description="hold boards of accuracy against their limits")
    parser.add_argument("--write", action="store_true", help="make what is shown now the limits")
    given = parser.parse_args()
    boards = of_page(PAGE.read_text(encoding="utf-8")) | of_sample(sampled())
    if given.write:
        LIMITS.write_text(as_toml(boards), encoding="utf-8")
        return 0
    allowed = limits()
    for (by, name), score in boards.items():
        limit = allowed.get((by, name))
        print(f"{by:12} {name:16} {score.median:6.1f} {score.p90:6.1f} {score.inside:6.1f}  limit {limit}")
    found = worse(boards, allowed)
    print(*found, sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
