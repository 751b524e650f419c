"""Measured collectives: read from logs of nccl-tests and CSV files, put into bands of size, and priced."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from traincast.calibrate.contract import Grouping
from traincast.calibrate.measurements import CollectiveMeasurements, IntArray, Skipped, spread
from traincast.calibrate.tables import Row, Table, read_table
from traincast.errors import FormatError
from traincast.estimate.collectives import Price, price_collective
from traincast.hardware.cluster import Cluster
from traincast.job.parallel import MAX_WORLD_SIZE
from traincast.units import format_size, parse_size, parse_time
from traincast.workload.words import operation_named

SIZE_COLUMNS = ("size_bytes", "message_bytes")
TIME_COLUMNS = {"time_s": "1s", "time_ms": "1ms", "ms": "1ms", "time_us": "1us", "us": "1us"}
"""Column to the unit of its numbers."""
RANKS_COLUMNS = ("ranks", "gpus", "num_gpus")

_ONE_RANK = "one rank: a local copy"


class Reading(NamedTuple):
    """What a table holds: the rows that can be used, their ids, and those left out."""

    measurements: CollectiveMeasurements
    ids: tuple[str, ...]
    skipped: tuple[Skipped, ...]


class _Fields(NamedTuple):
    op: str
    ranks: int
    nodes: int
    size_bytes: int
    time_s: float


def read_collectives(paths: Sequence[Path]) -> Reading:
    """Read the measured collectives of several files.

    Parameters
    ----------
    paths : sequence of Path
        Logs of nccl-tests, or CSV files (see `collectives_of`).

    Returns
    -------
    Reading
        The rows of all files one after the other.

    Raises
    ------
    FormatError
        If a file cannot be read, or holds no measured collectives.
    """
    every = [collectives_of(read_table(path)) for path in paths]
    return Reading(
        CollectiveMeasurements.join(each.measurements for each in every),
        tuple(name for each in every for name in each.ids),
        tuple(row for each in every for row in each.skipped),
    )


def holds_collectives(columns: Sequence[str]) -> bool:
    """Say whether columns are those of measured collectives: a size, a time and a number of ranks."""
    return all(set(columns) & set(names) for names in (SIZE_COLUMNS, TIME_COLUMNS, RANKS_COLUMNS))


def collectives_of(table: Table) -> Reading:
    """Return the measured collectives of a table.

    Parameters
    ----------
    table : Table
        With the columns ``size_bytes`` or ``message_bytes``; ``time_s``, ``time_ms``, ``ms``,
        ``time_us`` or ``us``; ``ranks``, ``gpus`` or ``num_gpus``; and perhaps ``op`` (else
        all_reduce), ``nodes``, ``gpu``, ``id`` and ``suspect`` (why not to trust the row).

    Returns
    -------
    Reading
        A row is left out where it is suspect, has one rank only, lacks a cell or has a wrong one.

    Raises
    ------
    FormatError
        If a column is missing.
    """
    if not holds_collectives(table.columns):
        raise FormatError(
            f"holds no measured collectives: it needs columns for size ({' or '.join(SIZE_COLUMNS)}), time "
            f"({' or '.join(TIME_COLUMNS)}) and ranks ({' or '.join(RANKS_COLUMNS)})",
            table.path,
        )
    kept, skipped = table.read(_read)
    return Reading(_measurements(kept), tuple(row.id for row, _ in kept), skipped)


def _measurements(kept: Sequence[tuple[Row, _Fields]]) -> CollectiveMeasurements:
    every = [fields for _, fields in kept]
    return CollectiveMeasurements(
        op=tuple(fields.op for fields in every),
        ranks=np.array([fields.ranks for fields in every], np.int64),
        nodes=np.array([fields.nodes for fields in every], np.int64),
        size_bytes=np.array([fields.size_bytes for fields in every], np.int64),
        time_s=np.array([fields.time_s for fields in every], np.float64),
        source=tuple(row.place for row, _ in kept),
        gpu=tuple(row.cells.get("gpu") for row, _ in kept),
    )


def _read(row: Row) -> _Fields | Skipped:
    """Return what a row says, or why it is left out."""
    if "suspect" in row.cells:
        return Skipped(row.id, row.cells["suspect"])
    size, time, ranks = (row.column(*names) for names in (SIZE_COLUMNS, TIME_COLUMNS, RANKS_COLUMNS))
    if size is None or time is None or ranks is None:
        return Skipped(row.id, "the size, the time or the number of ranks is empty")
    operation = operation_named(row.cells.get("op", "all_reduce"))
    fields = _Fields(
        op=operation.name.lower(),
        ranks=row.count(ranks),
        nodes=row.count("nodes") if "nodes" in row.cells else 0,
        size_bytes=row.count(size),
        time_s=row.number(time) * parse_time(TIME_COLUMNS[time]),
    )
    if fields.ranks > MAX_WORLD_SIZE:
        raise FormatError(f"{fields.ranks:,} ranks are above the limit of {MAX_WORLD_SIZE:,}", row.path, row.line)
    if fields.nodes > fields.ranks:
        raise FormatError(f"{fields.ranks} ranks cannot sit on {fields.nodes} nodes", row.path, row.line)
    return Skipped(row.id, _ONE_RANK) if fields.ranks == 1 else fields


_EDGES = ("64KiB", "1MiB", "16MiB")


def size_bands(size_bytes: IntArray) -> Grouping:
    """Return sizes grouped by band: up to 64 KiB, 1 MiB, 16 MiB, and above."""
    edges = [parse_size(edge) for edge in _EDGES]
    names = (*(f"<= {format_size(edge)}" for edge in edges), f"> {format_size(edges[-1])}")
    return Grouping(by="size", names=names, index=np.searchsorted(edges, size_bytes, side="left"))


_spread = lru_cache(maxsize=None)(spread)


def price_measured(measurements: CollectiveMeasurements, cluster: Cluster) -> list[Price]:
    """Return the price of each measured collective on a cluster."""
    rows = zip(
        measurements.op,
        measurements.ranks.tolist(),
        measurements.on(cluster).nodes.tolist(),
        measurements.size_bytes.tolist(),
        strict=True,
    )
    return [
        price_collective(operation_named(op), size_bytes, _spread(ranks, nodes), cluster)
        for op, ranks, nodes, size_bytes in rows
    ]
