"""The tables that come with traincast: TOML, CSV, and what reports are made of, below ``traincast/data``."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")

SHIPPED = Path(__file__).parent / "data"
"""Their folder, whose files need no guard; `importlib.resources` would load what reads archives."""


def shipped_text(path: str, folder: Path = SHIPPED) -> str:
    """Return the text of a shipped file by its path below the folder."""
    return (folder / path).read_text(encoding="utf-8")


def shipped_names(path: str, folder: Path = SHIPPED) -> list[str]:
    """Return the names of the TOML files at a path below the folder, without their endings, sorted."""
    return sorted(file.stem for file in (folder / path).glob("*.toml"))


def shipped_rows(path: str) -> Iterable[dict[str, str]]:
    """Return the rows of a shipped CSV file by column."""
    return csv.DictReader(io.StringIO(shipped_text(path)))


def shipped_toml(path: str, kind: type[T]) -> T:
    """Return a shipped TOML file as a value of some type."""
    return msgspec.toml.decode(shipped_text(path), type=kind)
