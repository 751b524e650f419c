"""Measured collectives: read from logs of nccl-tests and CSV files, put into bands of size, and estimated."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from traincast.calibration.kind import FloatArray, Grouping, IntArray
from traincast.calibration.tables import TIME_COLUMNS, Columns, MeasurementTable, Row, Skipped, read_table
from traincast.errors import FormatError
from traincast.estimate.collective_table import spread
from traincast.estimate.collectives import CollectiveCost, estimate_collective
from traincast.hardware.cluster import Cluster
from traincast.job.parallel import MAX_WORLD_SIZE
from traincast.units import format_size, parse_size
from traincast.workload.words import operation_named

SIZE_COLUMNS = ("size_bytes", "message_bytes")
RANKS_COLUMNS = ("ranks", "gpus", "num_gpus")
_EDGES = ("64KiB", "1MiB", "16MiB")


class CollectiveMeasurements(Columns, frozen=True):
    """Timings of collectives; all columns have the same length."""

    op: tuple[str, ...]
    """Names of `Operation` in lower case: ``"all_reduce"``."""
    ranks: IntArray
    nodes: IntArray
    """Nodes they sit on; 0 where the file does not say (see `on`)."""
    size_bytes: IntArray
    """Size as `Operation` defines it for the operation."""
    time_s: FloatArray
    source: tuple[str, ...]
    """``file:line``."""
    gpu: tuple[str | None, ...]
    """The GPU as the file names it; None where it does not."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.op)

    @property
    def groups(self) -> list[tuple[str, int, int]]:
        """Operation, ranks and nodes of each row."""
        return list(zip(self.op, self.ranks.tolist(), self.nodes.tolist(), strict=True))

    def on(self, cluster: Cluster) -> "CollectiveMeasurements":
        """Return the same rows with every number of nodes known: where none was said, full nodes of `cluster`."""
        filled = -(-self.ranks // cluster.gpus_per_node)
        return replace(self, nodes=np.where(self.nodes > 0, self.nodes, filled))


class Reading(NamedTuple):
    """What files hold: the rows that can be used, their ids, and those left out."""

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
    """Read the measured collectives of several files, logs of nccl-tests or CSV, one after the other."""
    return collectives_of(list(map(read_table, paths)))


def holds_collectives(columns: Sequence[str]) -> bool:
    """Say whether columns are those of measured collectives: a size, a time and a number of ranks."""
    return all(set(columns) & set(names) for names in (SIZE_COLUMNS, TIME_COLUMNS, RANKS_COLUMNS))


def collectives_of(tables: Sequence[MeasurementTable]) -> Reading:
    """Return the measured collectives of tables; a `FormatError` if a column is missing.

    They have a column of each of `SIZE_COLUMNS`, `TIME_COLUMNS` and `RANKS_COLUMNS`, and perhaps ``op`` (else
    all_reduce), ``nodes``, ``gpu``, ``id`` and ``suspect`` (why not to trust the row). A row is left out where it is
    suspect, has one rank only, lacks a cell or has a wrong one.
    """
    kept: list[tuple[Row, _Fields]] = []
    skipped: list[Skipped] = []
    for table in tables:
        if not holds_collectives(table.columns):
            raise FormatError(
                f"holds no measured collectives: it needs columns for size ({' or '.join(SIZE_COLUMNS)}), time "
                f"({' or '.join(TIME_COLUMNS)}) and ranks ({' or '.join(RANKS_COLUMNS)})",
                table.path,
            )
        rows, others = table.read(_read)
        kept += rows
        skipped += others
    every = [each for _, each in kept]
    measurements = CollectiveMeasurements(
        op=tuple(each.op for each in every),
        ranks=np.array([each.ranks for each in every], np.int64),
        nodes=np.array([each.nodes for each in every], np.int64),
        size_bytes=np.array([each.size_bytes for each in every], np.int64),
        time_s=np.array([each.time_s for each in every], np.float64),
        source=tuple(row.place for row, _ in kept),
        gpu=tuple(row.cells.get("gpu") for row, _ in kept),
    )
    return Reading(measurements, tuple(row.id for row, _ in kept), tuple(skipped))


def _read(row: Row) -> _Fields | Skipped:
    """Return what a row says, or why it is left out."""
    if "suspect" in row.cells:
        return Skipped(row.id, row.cells["suspect"])
    size, ranks, time = row.column(SIZE_COLUMNS), row.column(RANKS_COLUMNS), row.column([*TIME_COLUMNS])
    if size is None or ranks is None or time is None:
        return Skipped(row.id, "the size, the time or the number of ranks is empty")
    found = _Fields(
        op=operation_named(row.cells.get("op", "all_reduce")).name.lower(),
        ranks=row.count(ranks),
        nodes=row.count("nodes") if "nodes" in row.cells else 0,
        size_bytes=row.count(size),
        time_s=row.number(time) * TIME_COLUMNS[time],
    )
    if found.ranks > MAX_WORLD_SIZE:
        raise FormatError(f"{found.ranks:,} ranks are above the limit of {MAX_WORLD_SIZE:,}", row.path, row.line)
    if found.nodes > found.ranks:
        raise FormatError(f"{found.ranks} ranks cannot sit on {found.nodes} nodes", row.path, row.line)
    return Skipped(row.id, "one rank: a local copy") if found.ranks == 1 else found


def size_bands(size_bytes: IntArray) -> Grouping:
    """Return sizes grouped by band: up to 64 KiB, 1 MiB, 16 MiB, and above."""
    edges = list(map(parse_size, _EDGES))
    names = (*(f"<= {format_size(edge)}" for edge in edges), f"> {format_size(edges[-1])}")
    return Grouping(by="size", names=names, index=np.searchsorted(edges, size_bytes, side="left"))


def estimate_measured(measurements: CollectiveMeasurements, cluster: Cluster) -> list[CollectiveCost]:
    """Return the estimate of each measured collective on a cluster."""
    groups = measurements.on(cluster).groups
    spreads = {key: spread(*key) for key in {(ranks, nodes) for _, ranks, nodes in groups}}
    rows = zip(groups, measurements.size_bytes.tolist(), strict=True)
    return [
        estimate_collective(operation_named(op), size_bytes, spreads[ranks, nodes], cluster)
        for (op, ranks, nodes), size_bytes in rows
    ]
