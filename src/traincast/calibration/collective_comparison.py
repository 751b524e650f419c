"""Measured collectives of two files side by side: one operation, group and size on two clusters, or at two times."""

from os import PathLike
from pathlib import Path
from statistics import median

import numpy as np
from msgspec import Struct

from traincast.calibration.collectives import collectives_of
from traincast.calibration.tables import Skipped, read_table
from traincast.errors import CalibrationError
from traincast.units import format_share
from traincast.workload.words import bus_factor, operation_named

_Key = tuple[str, int, int, int]


class MeasuredPair(Struct, frozen=True, kw_only=True):
    """One operation over one group and of one size, on both sides; of several timings the median."""

    op: str
    ranks: int
    nodes: int
    """0 where the files do not say it."""
    size_bytes: int
    a_s: float
    b_s: float

    @property
    def relative(self) -> float:
        """How much longer it takes on side b, as a share of a."""
        return self.b_s / self.a_s - 1

    def busbw_bytes_per_s(self, time_s: float) -> float:
        """Return the bus bandwidth, as nccl-tests defines it."""
        return self.size_bytes / time_s * bus_factor(operation_named(self.op), self.ranks)


class CollectiveComparison(Struct, frozen=True, kw_only=True):
    """Measured collectives of two files."""

    a: str
    b: str
    pairs: tuple[MeasuredPair, ...]
    """By operation, ranks, nodes and size."""
    only_a: int
    """Operations, groups and sizes that only side a has."""
    only_b: int
    skipped: tuple[Skipped, ...]

    def __repr__(self) -> str:
        """Say how the two differ, in a line."""
        off = f"{format_share(self.median_relative, 1, '+')} in the median" if self.pairs else "nothing in common"
        return f"<CollectiveComparison: {self.b} against {self.a}, {off}>"

    @property
    def median_relative(self) -> float:
        """Median of how much longer they take on side b."""
        return median(pair.relative for pair in self.pairs)


def compare_collectives(a: str | PathLike[str], b: str | PathLike[str]) -> CollectiveComparison:
    """Compare two files of measured collectives, logs or reports of nccl-tests, or tables.

    Raises
    ------
    FormatError
        If a file cannot be read, or holds no measured collectives.
    CalibrationError
        If they have no operation, group and size in common.
    """
    (mine, skipped), (theirs, also) = (_medians(Path(path)) for path in (a, b))
    common = sorted(mine.keys() & theirs.keys())
    if not common:
        raise CalibrationError(
            f"{a} and {b} have no operation, number of ranks and nodes, and size in common", rows=0, needed_rows=1
        )
    pairs = tuple(
        MeasuredPair(op=op, ranks=ranks, nodes=nodes, size_bytes=size, a_s=mine[key], b_s=theirs[key])
        for key in common
        for op, ranks, nodes, size in [key]
    )
    only_a, only_b = len(mine) - len(common), len(theirs) - len(common)
    return CollectiveComparison(
        a=str(a), b=str(b), pairs=pairs, only_a=only_a, only_b=only_b, skipped=(*skipped, *also)
    )


def _medians(path: Path) -> tuple[dict[_Key, float], tuple[Skipped, ...]]:
    """Return the median time of each operation, group and size of a file."""
    read = collectives_of([read_table(path)])
    found: dict[_Key, list[float]] = {}
    rows = zip(read.measurements.groups, read.measurements.size_bytes.tolist(), strict=True)
    for (group, size), time_s in zip(rows, read.measurements.time_s.tolist(), strict=True):
        found.setdefault((*group, size), []).append(time_s)
    return {key: float(np.median(times)) for key, times in found.items()}, read.skipped
