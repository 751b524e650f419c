"""Prices from measured times: where a cluster has a table for just this group, the formula steps back.

Between two measured sizes the logarithm of the time is a straight line over that of the size.
Outside them the formula goes on from the last measured time, scaled to meet it. The table holds
for the links it was measured on: where others share them, or where they are changed, it is
scaled by what the formula makes of the difference.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from traincast.estimate.collectives.contract import FloatArray
from traincast.fabric.placement import Placement
from traincast.hardware.cluster import Cluster, MeasuredTable
from traincast.workload.words import Operation

TABLE = "table"
"""What stands for the algorithm of a price that was measured."""

Form = Callable[[FloatArray, Cluster], FloatArray]
"""The fitted formula: times of sizes on a cluster."""


def table_of(operation: Operation, placement: Placement, cluster: Cluster) -> MeasuredTable | None:
    """Return the measured table of an operation over just this group, or None.

    Parameters
    ----------
    operation : Operation
        What is done.
    placement : Placement
        Members per node; only groups that are spread evenly are in tables.
    cluster : Cluster
        With its tables, if it has any.
    """
    if cluster.ideal or cluster.measured is None or placement.max_members - placement.min_members > 1:
        return None
    wanted = (operation.name.lower(), placement.ranks, placement.nodes)
    return next((each for each in cluster.measured.tables if (each.op, each.ranks, each.nodes) == wanted), None)


def table_times_s(table: MeasuredTable, size_bytes: FloatArray, cluster: Cluster, form: Form) -> FloatArray:
    """Return the times of some sizes by a measured table.

    Parameters
    ----------
    table : MeasuredTable
        The times of this operation and group.
    size_bytes : array of float
        Sizes; no bytes take no time.
    cluster : Cluster
        The links as they are now.
    form : callable
        The fitted formula of this operation and group.

    Returns
    -------
    array of float
        Seconds; never falling with the size on the links of the table.
    """
    measured = cluster.measured
    then = cluster if measured is None else replace(cluster, intra=measured.intra, inter=measured.inter)
    sizes, times = np.array(table.size_bytes, np.float64), np.array(table.time_s)
    at_least_one = np.maximum(size_bytes, 1.0)
    inside = np.clip(at_least_one, sizes[0], sizes[-1])
    time_s: FloatArray = np.exp(np.interp(np.log(inside), np.log(sizes), np.log(times)))
    outside = at_least_one != inside
    if outside.any():
        # Divided first: the ratio is never above one below the table and never below one above it.
        time_s[outside] *= form(at_least_one[outside], then) / form(inside[outside], then)
    if then != cluster:
        time_s = time_s * (form(at_least_one, cluster) / form(at_least_one, then))
    return np.where(size_bytes > 0, time_s, 0.0)
