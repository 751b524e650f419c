"""The files that a run is described by, each with the digest of what was read."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from traincast.files import read_bytes


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that a run was read from.

    Parameters
    ----------
    path : str
        As it was given.
    format : str
        Name of its format: that of a workload (``aicb``, ``echo``, ...), or one of `DESCRIPTIONS`.
    sha256 : str
        Hexadecimal digest of its bytes.
    """

    path: str
    format: str
    sha256: str


LOADS = "expert-loads"
"""Format of rank traces that say nothing but the loads of experts; a workload of its own they are ``echo``."""

DESCRIPTIONS = ("job", "torchtitan", "model", "hugging-face", "cluster", "topology", "framework")
"""Formats of files that describe a run, beside those that hold a workload."""


def input_of(path: str | Path, form: str, data: bytes | None = None) -> InputFile:
    """Return a file with the digest of its bytes, which are read where they are not given.

    Raises
    ------
    FormatError
        If it cannot be read, is no regular file or too large.
    """
    read = read_bytes(Path(path)) if data is None else data
    return InputFile(str(path), form, hashlib.sha256(read).hexdigest())


def named_file(name: str, known: Iterable[str], form: str) -> tuple[InputFile, ...]:
    """Return the file that a name or path stands for; nothing where it is a known name, or no regular file."""
    return () if name in known or not Path(name).is_file() else (input_of(name, form),)


def model_file(name: str, known: Iterable[str]) -> tuple[InputFile, ...]:
    """Return the file of a model by its path; of a directory its ``config.json``."""
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    return named_file(str(path), known, "hugging-face" if path.suffix == ".json" else "model")
