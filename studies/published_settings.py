"""Count which settings published runs have, for the plan to say what none of them has.

    python studies/published_settings.py [--write]

Every run whose layout can be resolved counts, tuned or not, with what is known of its recipe. ``--write`` replaces
`data/training/published_settings.csv`.
"""

import argparse
import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from judges.scaling import runs_of
from traincast.calibration.runs import MeasuredRun, job_of_run
from traincast.errors import TraincastError
from traincast.planning.changes import layout_of
from traincast.planning.published import kind_of, settings_of, software_of

FILE = Path(__file__).parents[1] / "src" / "traincast" / "data" / "training" / "published_settings.csv"
TABLES = ("measured_training_runs.csv", "mlperf_v6.csv", "tpu_runs.csv", "amd_other.csv")
COLUMNS = ("kin", "kind", "field", "value", "runs", "sources")


def published() -> Iterator[MeasuredRun]:
    """Yield every published run that has a step."""
    for name in TABLES:
        yield from runs_of(name)


def counted(runs: Iterable[MeasuredRun]) -> list[dict[str, str]]:
    """Return the rows of the table: settings with the runs and the sources that have them."""
    found: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for run in runs:
        try:
            job = job_of_run(run)
        except TraincastError:
            continue
        for name, value in settings_of(layout_of(job), software_of(job)):
            found[job.framework.kin, kind_of(job.model), name, value].append(run.groups.source)
    return [
        dict(zip(COLUMNS, (*key, str(len(sources)), str(len(set(sources)))), strict=True))
        for key, sources in sorted(found.items())
    ]


def as_csv(rows: Iterable[dict[str, str]]) -> str:
    """Return the rows as the file of them."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def main() -> None:
    """Count, and print or write."""
    parser = argparse.ArgumentParser(description="count the settings of published runs")
    parser.add_argument("--write", action="store_true", help="replace the shipped table")
    text = as_csv(counted(published()))
    if parser.parse_args().write:
        FILE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
