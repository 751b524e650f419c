"""What a calibration leaves: a cluster as a TOML file, with tables of the measured times where asked for."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np

from traincast.calibrate.measurements import CollectiveMeasurements, FloatArray
from traincast.errors import CalibrationError
from traincast.hardware.cluster import Cluster, MeasuredTable

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


_LEAST_SIZES = 2
"""With fewer sizes there is no line between them."""


def measured_tables(measured: CollectiveMeasurements, source: str) -> tuple[MeasuredTable, ...]:
    """Return a table per operation and group: the median time of each size, never falling with it.

    Parameters
    ----------
    measured : CollectiveMeasurements
        With known numbers of nodes.
    source : str
        Where they come from.

    Returns
    -------
    tuple of MeasuredTable
        Sorted; groups with one size only are left out.
    """
    keys = list(zip(measured.op, measured.ranks.tolist(), measured.nodes.tolist(), strict=True))
    tables = []
    for key in sorted(set(keys)):
        rows = np.array([each == key for each in keys])
        sizes, group = np.unique(measured.size_bytes[rows], return_inverse=True)
        if len(sizes) < _LEAST_SIZES:
            continue
        times = [np.median(measured.time_s[rows][group == index]) for index in range(len(sizes))]
        rising = np.exp(never_falling(np.log(times)))
        tables.append(
            MeasuredTable(
                op=key[0],
                ranks=key[1],
                nodes=key[2],
                size_bytes=tuple(sizes.tolist()),
                # Four digits are far below the noise, and rounding keeps the order.
                time_s=tuple(float(f"{time:.4g}") for time in rising),
                source=source,
            )
        )
    return tuple(tables)


def never_falling(values: Sequence[float] | FloatArray) -> FloatArray:
    """Return the sequence that never falls and is nearest to some values, in least squares.

    Notes
    -----
    Neighbours that fall are replaced by their mean until none do: pool adjacent violators,
    Ayer, Brunk, Ewing, Reid and Silverman, 1955.
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((float(value), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (one, many), (two, more) = pools[-2:]
            pools[-2:] = [((one * many + two * more) / (many + more), many + more)]
    return np.repeat([value for value, _ in pools], [count for _, count in pools])
