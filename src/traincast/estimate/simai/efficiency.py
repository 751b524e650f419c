"""SimAI's efficiency tables: the share of the bus bandwidth that a size reaches on a number of nodes."""

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources

import numpy as np

from traincast.errors import InfeasibleError
from traincast.estimate.simai.machine import SimaiGroup, SimaiMachine, single
from traincast.workload.words import Operation

_MULTI = 9
"""Number of nodes by which SimAI asks for its column ``multi``; a group on nine nodes gets it, too."""
_FALLBACK = 16
"""Number of nodes whose column stands for every number that has none."""


def efficiency(
    operation: Operation,
    group: SimaiGroup,
    ranks: int,
    tp: int,
    size_bytes: int,
    by_nvlink: bool,
    machine: SimaiMachine,
) -> float:
    """Return the share of the bus bandwidth, 1 for all but a few communications.

    Only all-gather, reduce-scatter and all-to-all over TP and all-to-all over EP have a table.

    Parameters
    ----------
    operation, group : Operation, SimaiGroup
        What is communicated, and among whom.
    ranks, tp : int
        Size of the group, and the TP size, which decides with it on the number of nodes.
    size_bytes : int
        Size as the file writes it.
    by_nvlink : bool
        Whether NVLink limits a group on several nodes. On one node it is False, so that a group
        there gets its share from the NIC's table.
    machine : SimaiMachine
        For the GPUs per server.

    Raises
    ------
    InfeasibleError
        If the size is above 16 GiB, where the tables end and SimAI ends without a result.
    """
    gpus = machine.gpus_per_server
    if group is SimaiGroup.TP and operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER):
        return _share("nvlink" if by_nvlink else "nic", max(1, tp // gpus), size_bytes)
    if group is SimaiGroup.TP and operation is Operation.ALL_TO_ALL:
        return _share("all_to_all", max(1, tp // gpus), size_bytes)
    if group is SimaiGroup.EP and operation is Operation.ALL_TO_ALL:
        inside = tp * ranks <= gpus
        nodes = 1 if inside else _MULTI if tp >= gpus else tp * ranks // gpus
        return _share("all_to_all", nodes, size_bytes)
    return 1.0


def _share(name: str, nodes: int, size_bytes: int) -> float:
    """Return a table's value over its last one; sizes below the first have the first value."""
    table = _table(name)
    sizes, values = table["size_bytes"], table[str(_column(nodes))]
    if size_bytes == 0:
        return 1.0
    if size_bytes > sizes[-1]:
        raise InfeasibleError(
            f"SimAI's efficiency tables end at 16 GiB; with a communication of {size_bytes} bytes it has no result"
        )
    return single(float(np.interp(size_bytes, sizes, values)) / values[-1])


def _column(nodes: int) -> str | int:
    if nodes == _MULTI:
        return "multi"
    return nodes if str(nodes) in _table("nic") else _FALLBACK


@cache
def _table(name: str) -> Mapping[str, list[float]]:
    """Return the columns of a table by their headings."""
    file = resources.files("traincast") / "data" / "simai" / f"{name}.csv"
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    # SimAI reads an empty cell as 1.
    return {heading: [float(row[heading] or 1) for row in rows] for heading in rows[0]}
