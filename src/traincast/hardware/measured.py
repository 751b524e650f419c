"""Measured times of collectives in a cluster file: where there are some, they are the price.

A file has one table per operation, number of ranks and number of nodes::

    [[measured]]
    op = "all_reduce"
    ranks = 16
    nodes = 2
    size_bytes = [1024, 1048576, 1073741824]
    time_s = [34.7e-6, 100.1e-6, 16.17e-3]
    source = "our nccl-tests of May"
"""

from dataclasses import dataclass
from itertools import pairwise

from traincast.errors import ConfigError
from traincast.ranges import RANGES, Range

OPERATIONS = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    *("broadcast", "reduce", "send_recv", "gather", "scatter"),
)
"""What can be measured, as `traincast.workload.words.Operation` names it."""

_KEYS = {"op", "ranks", "nodes", "size_bytes", "time_s", "source"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTable:
    """Times of one operation over sizes, for one number of ranks spread evenly over nodes.

    Parameters
    ----------
    op : str
        Name of the `Operation` in lower case.
    ranks, nodes : int
        Members of the group, and the nodes they sit on.
    size_bytes : tuple of int
        Rising sizes, as `Operation` defines them.
    time_s : tuple of float
        Seconds at each of them; never falling.
    source : str
        Where they come from.
    """

    op: str
    ranks: int
    nodes: int
    size_bytes: tuple[int, ...]
    time_s: tuple[float, ...]
    source: str


def measured_tables_from(raw: object, shown: str) -> tuple[MeasuredTable, ...]:
    """Return the tables of a cluster file.

    Parameters
    ----------
    raw : object
        What stands under ``measured``.
    shown : str
        The file, for messages.

    Raises
    ------
    ConfigError
        If it is no list of tables, one lacks a key, or sizes do not rise or times fall.
    """
    if not isinstance(raw, list):
        raise ConfigError(f"must be a list of tables, each under [[measured]] (in {shown})", "measured")
    tables = tuple(_table(each, f"measured[{index}]", shown) for index, each in enumerate(raw))
    keys = [(table.op, table.ranks, table.nodes) for table in tables]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"{twice[0]} over {twice[1]} ranks on {twice[2]} nodes is there twice (in {shown})", "measured"
        )
    return tables


def _table(raw: object, path: str, shown: str) -> MeasuredTable:
    if not isinstance(raw, dict) or not _KEYS - {"source"} <= set(raw) <= _KEYS:
        raise ConfigError(f"must have op, ranks, nodes, size_bytes, time_s and perhaps source (in {shown})", path)
    op, source = raw["op"], raw.get("source", f"set in {shown}")
    if op not in OPERATIONS or not isinstance(source, str):
        raise ConfigError(f"op must be one of {', '.join(OPERATIONS)}, and source a text (in {shown})", path)
    ranks, nodes = (int(_number(raw[name], RANGES["degree"], f"{path}.{name}", shown)) for name in ("ranks", "nodes"))
    if not 1 <= nodes <= ranks or ranks < 2:
        raise ConfigError(f"{ranks} ranks cannot sit on {nodes} nodes and communicate (in {shown})", path)
    given = _list(raw["size_bytes"], path, shown)
    sizes = tuple(int(_number(size, RANGES["bytes"], f"{path}.size_bytes", shown)) for size in given)
    times = tuple(_number(time, RANGES["time"], f"{path}.time_s", shown) for time in _list(raw["time_s"], path, shown))
    rising = all(one < two for one, two in pairwise(sizes))
    never_falling = all(one <= two for one, two in pairwise(times))
    if len(sizes) != len(times) or not sizes or not rising or not never_falling:
        raise ConfigError(f"needs as many times as sizes, sizes that rise and times that never fall (in {shown})", path)
    return MeasuredTable(op=op, ranks=ranks, nodes=nodes, size_bytes=sizes, time_s=times, source=source)


def _list(raw: object, path: str, shown: str) -> list[object]:
    if not isinstance(raw, list):
        raise ConfigError(f"size_bytes and time_s must be lists (in {shown})", path)
    return raw


def _number(raw: object, kind: Range, path: str, shown: str) -> float:
    """Return a positive number in range."""
    try:
        found = kind.checked(raw)
    except ConfigError as error:
        raise ConfigError(f"{error} (in {shown})", path) from None
    if not found:
        raise ConfigError(f"is {raw!r}; it must be positive (in {shown})", path)
    return found
