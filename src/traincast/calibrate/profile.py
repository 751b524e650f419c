"""Write a cluster as the TOML file that ``--cluster`` reads, with the source of every number."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path

from traincast.errors import CalibrationError
from traincast.hardware.cluster import Cluster

_NOT_WRITTEN = ("name", "sources")
"""The name is that of the file, and sources stand beside their numbers."""
_LISTS = ("measured",)
"""What is written as a list of tables."""
_FILES = ("fabric.file",)
"""Paths, which must not depend on where the profile is written."""


def cluster_toml(cluster: Cluster, comments: Sequence[str] = ()) -> str:
    """Return a cluster as TOML that builds on no other file.

    Parameters
    ----------
    cluster : Cluster
        The cluster; its sources are written beside the numbers.
    comments : sequence of str
        Lines to put first.

    Returns
    -------
    str
        `load_cluster` of it gives an equal cluster, but for its name.
    """
    # A line break in a file's name must not end a comment.
    lines = ["".join(char if char.isprintable() else " " for char in f"# {comment}").rstrip() for comment in comments]
    lines += _table(cluster, "", dict(cluster.sources))
    for field in fields(cluster):
        section = getattr(cluster, field.name)
        if is_dataclass(section) and field.name not in _LISTS:
            lines += ["", f"[{field.name}]", *_table(section, f"{field.name}.", dict(cluster.sources))]
    for table in cluster.measured.tables if cluster.measured else ():
        lines += ["", "[[measured]]", *_table(table, "", {})]
    return "\n".join(lines) + "\n"


def _table(values: object, prefix: str, sources: dict[str, str]) -> Iterator[str]:
    """Yield a line per plain value of a dataclass; what is as its default is left out."""
    if not is_dataclass(values):
        return
    for field in fields(values):
        path, value = f"{prefix}{field.name}", getattr(values, field.name)
        if path in _NOT_WRITTEN or is_dataclass(value) or value == field.default:
            continue
        text = _value(Path(value).resolve() if path in _FILES else value, path)
        source = sources.get(path)
        yield f"{field.name} = " + (text if source is None else f"{{ value = {text}, source = {_text(source)} }}")


def _value(value: object, path: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        return _text(str(value))
    if isinstance(value, tuple):
        return f"[{', '.join(_value(each, path) for each in value)}]"
    raise CalibrationError(f"{path} is a {type(value).__name__}, which cannot be written to a cluster file")


def _text(text: str) -> str:
    # A JSON string is a TOML basic string, but for the one control character that JSON lets through.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
