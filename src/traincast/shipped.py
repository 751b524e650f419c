"""The tables that come with traincast: TOML, CSV, and what reports are made of, below ``traincast/data``.

An installation from a wheel holds them packed (``packing.py`` of the sources), any other as they are.
"""

import csv
import io
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")

SHIPPED = Path(__file__).parent / "data"
"""Their folder, whose files need no guard; `importlib.resources` would load what reads archives."""


def shipped_text(path: str, folder: Path = SHIPPED) -> str:
    """Return the text of a shipped file by its path below the folder."""
    plain = folder / path
    if plain.is_file():
        return plain.read_text(encoding="utf-8")
    packed = plain.with_name(f"{plain.name}.gz").read_bytes()
    return zlib.decompress(packed, zlib.MAX_WBITS | 16).decode("utf-8")


def shipped_names(path: str, folder: Path = SHIPPED) -> list[str]:
    """Return the names of the TOML files at a path below the folder, without their endings, sorted."""
    files = (file.name.removesuffix(".gz") for file in (folder / path).iterdir())
    return sorted({file.removesuffix(".toml") for file in files if file.endswith(".toml")})


def shipped_rows(path: str) -> Iterable[dict[str, str]]:
    """Return the rows of a shipped CSV file by column."""
    return csv.DictReader(io.StringIO(shipped_text(path)))


def shipped_toml(path: str, kind: type[T]) -> T:
    """Return a shipped TOML file as a value of some type."""
    return msgspec.toml.decode(shipped_text(path), type=kind)
