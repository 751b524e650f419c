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
    for pattern, stack, before_2025, from_2026 in _patterns():
        if re.search(pattern, framework, re.IGNORECASE):
            year = year_of(row)
            if year is not None and year < 2025:
                return before_2025 or stack
            return from_2026 if from_2026 and year is not None and year >= 2026 else stack
    return None


def year_of(row: Row) -> int | None:
    """Return the year of a row's software as far as its release, tag or source says it."""
    url = row.cells.get("source_url_or_repo_path", "")
    tag = re.search(r"@v(2\d)\.\d\d", url) or re.search(r"\b(2\d)\.\d\d(?:\.\d+)?\b", row.cells.get("framework", ""))
    if tag:
        return 2000 + int(tag[1])
    source = row.cells.get("source", "")
    return next((year for name, year in _SOURCE_YEARS if source.startswith(name)), None)


@cache
def _patterns() -> tuple[tuple[str, str, str | None, str | None], ...]:
    text = (resources.files("traincast") / _FILE).read_text(encoding="utf-8")
    return tuple(
        (each["pattern"], each["stack"], each.get("before_2025"), each.get("from_2026"))
        for each in parse_toml(text, _FILE)["framework"]
    )
