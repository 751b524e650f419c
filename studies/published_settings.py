"""Count which settings published runs have, for the plan to say what hardly any has.

    python studies/published_settings.py [--write] [--distances]

Every run whose layout can be resolved counts, tuned or not, with what is known of its recipe. ``--write`` replaces
`data/training/published_settings.csv`. ``--distances`` forecasts all runs of the largest table and prints how far those
with a setting that no other source has are from the others of their family (source, model, chip, precision), and how
far these are from each other: what `traincast.planning.doubt.UNPUBLISHED_DEVIATION` rests on.
"""

import argparse
import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from forecasts import shipped_forecasts, timed_rows
from traincast.calibration.runs import MeasuredRun, job_of_run
from traincast.errors import TraincastError
from traincast.planning.changes import layout_of
from traincast.planning.published import FEWEST, is_known, kind_of, settings_of, software_of
from traincast.shipped import SHIPPED

FILE = SHIPPED / "training" / "published_settings.csv"
TABLES = ("measured_training_runs.csv", "mlperf_v6.csv", "tpu_runs.csv", "amd_other.csv")
COLUMNS = ("kin", "kind", "field", "value", "runs", "sources")
_NORMAL_MEDIAN = 0.6745
"""Median distance from the middle of a normal distribution, in deviations."""


class Setup(NamedTuple):
    """What a run has set."""

    run: MeasuredRun
    of: tuple[str, str]
    """Whose code it shares, and the kind of its model."""
    settings: frozenset[tuple[str, str]]


def setups(names: Iterable[str] = TABLES) -> Iterator[Setup]:
    """Yield what every published run has set that has a step and a layout."""
    for run in (run for name in names for run in timed_rows(name)):
        try:
            job = job_of_run(run)
        except TraincastError:
            continue
        settings = frozenset(settings_of(layout_of(job), software_of(job)))
        yield Setup(run, (job.framework.kin, kind_of(job.model)), settings)


def counted(found: Iterable[Setup]) -> list[dict[str, str]]:
    """Return the rows of the table: settings with the runs and the sources that have them."""
    sources: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for each in found:
        for setting in each.settings:
            sources[*each.of, *setting].append(each.run.groups.source)
    return [
        dict(zip(COLUMNS, (*key, str(len(names)), str(len(set(names)))), strict=True))
        for key, names in sorted(sources.items())
    ]


def as_csv(rows: Iterable[dict[str, str]]) -> str:
    """Return the rows as the file of them."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def is_new(found: Sequence[Setup]) -> list[bool]:
    """Return for each run whether it has a setting that fewer than `FEWEST` runs of other sources have."""
    runs: dict[tuple[str, ...], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for each in found:
        for name, value in each.settings:
            runs[*each.of, name][value].append(each.run.groups.source)

    def elsewhere(each: Setup, name: str) -> dict[str, int]:
        source = each.run.groups.source
        return {value: sum(one != source for one in names) for value, names in runs[*each.of, name].items()}

    return [not all(is_known(value, elsewhere(each, name)) for name, value in each.settings) for each in found]


def distances(families: Sequence[str], log_ratio: Sequence[float], new: Sequence[bool]) -> tuple[float, float, float]:
    """Return median distances from the middle of the known runs of a family: of new ones, and of these themselves.

    The third is the deviation of a normal distribution that the new ones have in addition.
    """
    known: dict[str, list[float]] = defaultdict(list)
    others: dict[str, list[float]] = defaultdict(list)
    for family, ratio, is_other in zip(families, log_ratio, new, strict=True):
        (others if is_other else known)[family].append(ratio)
    middle = {family: float(np.median(each)) for family, each in known.items() if len(each) >= FEWEST}
    far = [
        float(np.median([abs(ratio - middle[family]) for family in middle for ratio in each.get(family, ())]))
        for each in (others, known)
    ]
    return far[0], far[1], math.sqrt(max(0.0, far[0] ** 2 - far[1] ** 2)) / _NORMAL_MEDIAN


def main() -> None:
    """Count, and print or write."""
    parser = argparse.ArgumentParser(description="count the settings of published runs")
    parser.add_argument("--write", action="store_true", help="replace the shipped table")
    parser.add_argument("--distances", action="store_true", help="how far runs with settings of their own are off")
    given = parser.parse_args()
    if given.distances:
        known = list(setups(TABLES[:1]))
        steps = zip(known, shipped_forecasts([each.run for each in known]), strict=True)
        found = [(each, math.log((each.run.measured_s or 0.0) / of.step_s)) for each, of in steps if of.step_s]
        families = [each.run.groups.family for each, _ in found]
        new = is_new([each for each, _ in found])
        far, near, deviation = distances(families, [ratio for _, ratio in found], new)
        print(f"{sum(new)} runs with settings of their own; in families with others {far:.3f} from their middle")
        print(f"these others {near:.3f}; deviation of what is between {deviation:.3f}")
        return
    text = as_csv(counted(setups()))
    if given.write:
        FILE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
