"""Which framework of traincast a published run used, from the columns that name its software, release and GPU."""

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from traincast.calibrate.tables import Row
from traincast.files import parse_toml
from traincast.hardware.gpu import find_gpu
from traincast.job.frameworks import DEFAULT_FRAMEWORK, framework_names, framework_of_year, load_framework

_FILE = "data/runs/frameworks.toml"
_LAG_YEARS = 2
"""Years from a generation of GPUs to the software of runs on it. Median of the published runs whose framework is known:
3 on Ampere (263 runs), 2 on Hopper (495), 1 on Blackwell (252)."""


@dataclass(frozen=True, slots=True)
class Found:
    """The framework of a published run, and where no column names it, what it is taken from.

    Parameters
    ----------
    framework : str
        Its name.
    assumed : str
        Why it is taken; empty where the row's column says it.
    """

    framework: str
    assumed: str = ""


def framework_of(row: Row) -> Found:
    """Return the framework of a row; where its column names none that is known, that of its GPU."""
    written = row.cells.get("framework", "")
    if written in framework_names():
        return Found(written)
    for entry in _table()["framework"]:
        if _is_of(entry, row):
            return _by_year(row) if entry.get("by_year") else Found(_of_entry(entry, row))
    shown = f"framework {written!r} is not known" if written else "the framework is not given"
    return _by_vendor(row, shown) or _by_year(row, shown)


def by_annotations(framework: str) -> bool:
    """Say whether a framework lays out by sharding annotations, whose axes are no degrees of parallelism."""
    return framework in _table()["annotations"]["frameworks"]


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
    framework, year, release = str(entry["framework"]), year_of(row), release_of(row)
    if year is not None and year < 2025:
        return str(entry.get("before_2025", framework))
    newer = entry.get("from_26_06")
    return str(newer) if newer and release is not None and release >= (26, 6) else framework


def _by_year(row: Row, shown: str = "") -> Found:
    """Return Megatron's framework of the software's year, which the GPU's generation tells where nothing else does."""
    year = _megatron_year(row)
    if year is not None:
        framework = framework_of_year(year)
        return Found(framework, f"{shown}: {framework}, by its year {year}" if shown else "")
    shown = shown or f"nothing says of which year {row.cells['framework']!r} is"
    gpu = find_gpu(row.cells.get("gpu", ""))
    came_out = None if gpu is None else _table()["generations"].get(gpu.architecture)
    if gpu is None or came_out is None:
        return Found(DEFAULT_FRAMEWORK, f"{shown}, nor what its GPU usually runs: {DEFAULT_FRAMEWORK}")
    year = min(came_out + _LAG_YEARS, load_framework(DEFAULT_FRAMEWORK).year)
    framework = framework_of_year(year)
    return Found(
        framework, f"{shown}: {framework}, the software of {year} that most runs on {gpu.architecture} GPUs use"
    )


def _by_vendor(row: Row, shown: str) -> Found | None:
    """Return what runs on the GPUs of a vendor that has its own frameworks; None for others."""
    gpu = find_gpu(row.cells.get("gpu", ""))
    framework = None if gpu is None else _table()["vendors"].get(gpu.vendor)
    return (
        None
        if gpu is None or framework is None
        else Found(framework, f"{shown}: {framework}, as others on GPUs of {gpu.vendor}")
    )


def _megatron_year(row: Row) -> int | None:
    year = year_of(row)
    if year is not None:
        return year
    if "@HEAD" in row.cells.get("source_url_or_repo_path", ""):
        return load_framework(DEFAULT_FRAMEWORK).year
    framework = row.cells.get("framework", "").lower()
    if "megatron" not in framework:
        return None
    releases: dict[str, int] = _table()["releases"]
    return next((year for pattern, year in releases.items() if re.search(pattern, framework)), None)


@cache
def _table() -> dict[str, Any]:
    text = (resources.files("traincast") / _FILE).read_text(encoding="utf-8")
    return parse_toml(text, _FILE)
