"""A sweep in the words of Python: ``{"model": "llama3-8b", "tp": [1, 2, 4]}``; what is given as a list varies."""

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import Any

from traincast.errors import ConfigError
from traincast.files import read_toml
from traincast.job.job_file import SECTIONS as JOB_SECTIONS
from traincast.job.words import JOB_WORDS, job_fields, sorted_out
from traincast.sweeps.spec import SECTIONS, Spec, base_of, over, spec_of

SWEEP_WORDS = MappingProxyType({**{name: name for name in SECTIONS}, "cluster": "cluster"})
"""What a sweep may be told in addition to the words of a job."""
_KEYS = {"model": "model.name", "cluster": "cluster.name"} | {
    field: f"{section}.{field}" for section, fields in JOB_SECTIONS.items() for field in fields if field != "name"
}
"""Field of a job to the key of the job file that says it."""
_OF_PYTHON = Path("keywords")
"""Where messages say that keywords are; the paths among them begin in the working folder."""


def specified(spec: str | PathLike[str] | Mapping[str, Any] | None, words: Mapping[str, Any]) -> Spec:
    """Return the sweep that a file or a mapping describes, with everything that keywords say instead.

    A mapping holds the sections of a file, the words of a job, or both. A word with a list is a key that varies; with
    anything else it is said of every point.

    Raises
    ------
    FormatError
        If the file cannot be read or is not TOML.
    ConfigError
        If a word or section is unknown, a value is wrong, or nothing varies.
    """
    if isinstance(spec, (str, PathLike)):
        path, said = Path(spec), words
        document = dict(read_toml(path))
    else:
        path, said, document = _OF_PYTHON, {**(spec or {}), **words}, {}
    document |= {name: _plain(value) for name, value in said.items() if name in SECTIONS and value is not None}
    base, grid = base_of(document, path), dict(document.get("grid", {}))
    for word, value in said.items():
        if word in SECTIONS or value is None:
            continue
        field, key = _field(word)
        if isinstance(value, (list, tuple, range)):
            grid[key] = [_value(field, each) for each in value]
        else:
            grid.pop(key, None)
            base = over(base, {key: _value(field, value)})
    return spec_of({**document, "base": base, **({"grid": grid} if grid else {})}, path)


def _field(word: str) -> tuple[str, str]:
    """Return the field that a word sets, and its key; a key stands for itself."""
    if "." in word:
        return word.partition(".")[2], word
    ((field,),) = (tuple(found) for found in sorted_out({word: None}, {**JOB_WORDS, "cluster": "cluster"}))
    return field, _KEYS.get(field, f"software.{field}")


def _value(field: str, value: Any) -> Any:  # noqa: ANN401
    """Return a value as a job file has it."""
    if field in ("model", "cluster", "name"):
        return _plain(value, field)
    (found,) = job_fields({field: value}).values() if field in _KEYS else (value,)
    return _plain(list(found) if isinstance(found, tuple) else found, field)


def _plain(value: Any, field: str | None = None) -> Any:  # noqa: ANN401
    """Return a path as text; refuse what no file can hold."""
    plain = fspath(value) if isinstance(value, PathLike) else value
    if field is not None and not isinstance(plain, (str, int, float, list)):
        raise ConfigError(f"is a {type(value).__name__}; a sweep takes names, files and numbers", field)
    return plain
