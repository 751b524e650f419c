"""Which software stack a published run used, from the columns that name its framework and release."""

import re
from functools import cache
from importlib import resources

from traincast.calibrate.tables import Row
from traincast.spec.stacks import parse_toml

_FILE = "data/runs/frameworks.toml"
_SOURCE_YEARS = (("mlperf-training-v3", 2023), ("mlperf-training-v4", 2024), ("mlperf-training-v5", 2025))
"""Round of MLPerf Training and its year. Source: github.com/mlcommons, training_results_v3.0 to v5.1."""


def stack_of(row: Row) -> str | None:
    """Return the name of the stack of a row; None where its framework is not known."""
    framework = row.cells.get("framework", "")
    if row.cells.get("gpu", "").upper().startswith("MI"):
        return "primus-2025"
    for pattern, stack, before_2025, from_26_06 in _patterns():
        if re.search(pattern, framework, re.IGNORECASE):
            year, release = year_of(row), release_of(row)
            if year is not None and year < 2025:
                return before_2025 or stack
            return from_26_06 if from_26_06 and release is not None and release >= (26, 6) else stack
    return None


def release_of(row: Row) -> tuple[int, int] | None:
    """Return the release of a row's software as (year, month), None where it names none."""
    url = row.cells.get("source_url_or_repo_path", "")
    framework = row.cells.get("framework", "")
    tag = re.search(r"@v(2\d)\.(\d\d)", url) or re.search(r"\b(2\d)\.(\d\d)(?:\.\d+)?\b", framework)
    return (int(tag[1]), int(tag[2])) if tag else None


def year_of(row: Row) -> int | None:
    """Return the year of a row's software as far as its release, tag or source says it."""
    if (release := release_of(row)) is not None:
        return 2000 + release[0]
    source = row.cells.get("source", "")
    return next((year for name, year in _SOURCE_YEARS if source.startswith(name)), None)


@cache
def _patterns() -> tuple[tuple[str, str, str | None, str | None], ...]:
    text = (resources.files("traincast") / _FILE).read_text(encoding="utf-8")
    return tuple(
        (each["pattern"], each["stack"], each.get("before_2025"), each.get("from_26_06"))
        for each in parse_toml(text, _FILE)["framework"]
    )
