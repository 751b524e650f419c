"""The tables that come with traincast: TOML, CSV, and what reports are made of, below ``traincast/data``."""

import csv
import gzip
import io
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import msgspec

T = TypeVar("T")

SHIPPED = Path(__file__).parent / "data"
"""Their folder, whose files need no guard; `importlib.resources` would load what reads archives."""


P = ParamSpec("P")


def _constant(make: Callable[P, T], *of: P.args, **named: P.kwargs) -> T:
    """Return what a function makes of shipped tables and names alone, made once: neither changes while we run.

    This is all that the package remembers by itself; work of a job belongs to whoever prepares it.
    """
    return make(*of, **named)


if TYPE_CHECKING:
    constant = _constant
else:
    constant = cache(_constant)


def shipped_text(path: str, folder: Path = SHIPPED) -> str:
    """Return the text of a shipped file by its path below the folder."""
    return (folder / path).read_text(encoding="utf-8")


def shipped_packed_text(path: str) -> str:
    """Return the text of a shipped file that is packed with gzip."""
    return gzip.decompress((SHIPPED / path).read_bytes()).decode()


def shipped_names(path: str, folder: Path = SHIPPED) -> list[str]:
    """Return the names of the TOML files at a path below the folder, without their endings, sorted."""
    return sorted(file.stem for file in (folder / path).glob("*.toml"))


def shipped_rows(path: str) -> Iterable[dict[str, str]]:
    """Return the rows of a shipped CSV file by column."""
    return csv.DictReader(io.StringIO(shipped_text(path)))


def shipped_toml(path: str, kind: type[T]) -> T:
    """Return a shipped TOML file as a value of some type."""
    return msgspec.toml.decode(shipped_text(path), type=kind)
