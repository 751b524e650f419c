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
from traincast.hardware.values import Value, built, read_table
from traincast.names import known_names
from traincast.units import quoted

OPERATIONS = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    *("broadcast", "reduce", "send_recv", "gather", "scatter"),
)
"""What can be measured, as `traincast.workload.words.Operation` names it."""


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
    values = {f"{path}.source": Value(f"set in {shown}", None)} | read_table(MeasuredTable, f"{path}.", raw, shown)
    table = built(MeasuredTable, f"{path}.", values, shown)
    if table.op not in OPERATIONS:
        raise ConfigError(f"is {quoted(table.op)}; {known_names(table.op, OPERATIONS)} (in {shown})", f"{path}.op")
    if not 1 <= table.nodes <= table.ranks or table.ranks < 2:
        text = f"{table.ranks} ranks cannot sit on {table.nodes} nodes and communicate (in {shown})"
        raise ConfigError(text, path)
    rising = all(one < two for one, two in pairwise(table.size_bytes))
    never_falling = all(one <= two for one, two in pairwise(table.time_s))
    if len(table.size_bytes) != len(table.time_s) or not table.size_bytes or not rising or not never_falling:
        raise ConfigError(f"needs as many times as sizes, sizes that rise and times that never fall (in {shown})", path)
    return table
