"""Which software stack a published run used, from the columns that name its framework, release and GPU."""

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from traincast.calibrate.tables import Row
from traincast.files import parse_toml
from traincast.hardware.gpus import find_gpu
from traincast.job.frameworks import DEFAULT_STACK, load_stack, stack_names, stack_of_year

_FILE = "data/runs/frameworks.toml"
_LAG_YEARS = 2
"""Years from a generation of GPUs to the software of runs on it. Median of the published runs whose framework is known:
3 on Ampere (263 runs), 2 on Hopper (495), 1 on Blackwell (252)."""


@dataclass(frozen=True, slots=True)
class Found:
    """The stack of a published run, and where nothing names it, what it is taken from.

    Parameters
    ----------
    stack : str
        Its name.
    assumed : str
        Why it is taken; empty where the row's framework says it.
    """

    stack: str
    assumed: str = ""


def stack_of(row: Row) -> Found:
    """Return the stack of a row; where its framework is not known, that of its GPU's vendor or generation."""
    framework = row.cells.get("framework", "")
    if framework in stack_names():
        return Found(framework)
    for entry in _table()["framework"]:
        if _is_of(entry, row):
            return _by_year(row) if entry.get("by_year") else Found(_of_entry(entry, row))
    shown = f"framework {framework!r} is not known" if framework else "the framework is not given"
    return _by_vendor(row, shown) or _by_year(row, shown)


def by_annotations(stack: str) -> bool:
    """Say whether a stack lays out by sharding annotations, whose axes are no degrees of parallelism."""
    return stack in _table()["annotations"]["stacks"]


def _is_of(entry: dict[str, Any], row: Row) -> bool:
    texts = (("framework", entry["pattern"]), *((name, entry.get(name, "")) for name in ("gpu", "notes")))
    return all(re.search(pattern, row.cells.get(name, ""), re.IGNORECASE) for name, pattern in texts)


def release_of(row: Row) -> tuple[int, int] | None:
    """Return the release of a row's software as (year, month), None where it names none."""
    url = row.cells.get("source_url_or_repo_path", "")
    framework = row.cells.get("framework", "")
    tag = re.search(r"@v(2\d)\.(\d\d)", url) or re.search(r"\b(2\d)\.(\d\d)(?:\.\d+)?\b", framework)
    return (int(tag[1]), int(tag[2])) if tag else None


def year_of(row: Row) -> int | None:
    """Return the year of a row's software as far as its release, tag or name says it, or a column of its own."""
    if (release := release_of(row)) is not None:
        return 2000 + release[0]
    written = re.search(r"(?<!\d)20[12]\d(?!\d)", row.cells.get("framework", ""))
    if written:
        return int(written[0])
    return row.count("software_year") if "software_year" in row.cells else None


def _of_entry(entry: dict[str, Any], row: Row) -> str:
    stack, year, release = str(entry["stack"]), year_of(row), release_of(row)
    if year is not None and year < 2025:
        return str(entry.get("before_2025", stack))
    newer = entry.get("from_26_06")
    return str(newer) if newer and release is not None and release >= (26, 6) else stack


def _by_year(row: Row, shown: str = "") -> Found:
    """Return Megatron's stack of the software's year, which the GPU's generation tells where nothing else does."""
    year = _megatron_year(row)
    if year is not None:
        stack = stack_of_year(year)
        return Found(stack, f"{shown}: {stack}, by its year {year}" if shown else "")
    shown = shown or f"nothing says of which year {row.cells['framework']!r} is"
    gpu = find_gpu(row.cells.get("gpu", ""))
    came_out = None if gpu is None else _table()["generations"].get(gpu.architecture)
    if gpu is None or came_out is None:
        return Found(DEFAULT_STACK, f"{shown}, nor what its GPU usually runs: {DEFAULT_STACK}")
    year = min(came_out + _LAG_YEARS, load_stack(DEFAULT_STACK).year)
    stack = stack_of_year(year)
    return Found(stack, f"{shown}: {stack}, the software of {year} that most runs on {gpu.architecture} GPUs use")


def _by_vendor(row: Row, shown: str) -> Found | None:
    """Return what runs on the GPUs of a vendor that has its own frameworks; None for others."""
    gpu = find_gpu(row.cells.get("gpu", ""))
    stack = None if gpu is None else _table()["vendors"].get(gpu.vendor)
    return (
        None if gpu is None or stack is None else Found(stack, f"{shown}: {stack}, as others on GPUs of {gpu.vendor}")
    )


def _megatron_year(row: Row) -> int | None:
    year = year_of(row)
    if year is not None:
        return year
    if "@HEAD" in row.cells.get("source_url_or_repo_path", ""):
        return load_stack(DEFAULT_STACK).year
    framework = row.cells.get("framework", "").lower()
    if "megatron" not in framework:
        return None
    releases: dict[str, int] = _table()["releases"]
    return next((year for pattern, year in releases.items() if re.search(pattern, framework)), None)


@cache
def _table() -> dict[str, Any]:
    text = (resources.files("traincast") / _FILE).read_text(encoding="utf-8")
    return parse_toml(text, _FILE)
