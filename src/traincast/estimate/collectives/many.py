"""Prices of many communications at once.

Letters: N communications, P distinct placements, A algorithms.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from traincast.errors import ProgramError
from traincast.estimate.collectives.contract import Curve, FloatArray, curve, evaluate
from traincast.estimate.collectives.measured import Form, table_of, table_times_s
from traincast.estimate.collectives.price import candidates, form_s
from traincast.fabric.placement import Placement
from traincast.hardware.cluster import Cluster
from traincast.workload.words import Operation

IntArray = npt.NDArray[np.int64]

_BLOCK = 1 << 15
"""Communications priced at a time: their arrays stay in the processor's cache."""


def price_many(
    operation: Operation,
    size_bytes: npt.ArrayLike,
    placements: Sequence[Placement],
    cluster: Cluster,
    which: npt.ArrayLike | None = None,
) -> FloatArray:
    """Return the times of many communications of one operation, as `price_collective` gives them.

    Parameters
    ----------
    operation : Operation
        What is done.
    size_bytes : array of int [N]
        Sizes, zero or more.
    placements : sequence of Placement [P]
        The distinct placements.
    cluster : Cluster
        The links.
    which : array of int [N], optional
        The placement of each communication; where it is left out there is only one.

    Returns
    -------
    array of float [N]
        Seconds.

    Raises
    ------
    ProgramError
        If a size is negative or no algorithm can do the operation.
    """
    size_N = np.asarray(size_bytes, dtype=np.float64)
    which_N = np.zeros(size_N.shape, np.int64) if which is None else np.asarray(which, dtype=np.int64)
    if (size_N < 0).any():
        raise ProgramError("a communication has a negative size; it must be zero or more")
    if cluster.ideal:
        return np.zeros(size_N.shape)
    # An algorithm that a placement rules out takes forever there; one rank has nothing to send.
    curves = [_curves(operation, placement, cluster) for placement in placements]
    names = sorted({name for found in curves for name in found})
    never = Curve(np.inf, 0.0, 0.0, 1.0, 0.0, 1.0)
    alone = np.array([placement.ranks == 1 for placement in placements])
    table_AFP = np.array([[found.get(name, never) for found in curves] for name in names]).transpose(0, 2, 1)
    time_N = np.empty(size_N.shape)
    for start in range(0, size_N.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        at, size = which_N[block], np.where(alone[which_N[block]], 0.0, size_N[block])
        best = np.full(size.shape, np.inf)
        for fields_FP in table_AFP:
            np.minimum(best, evaluate(Curve(*fields_FP[:, at]), size), out=best)
        time_N[block] = best
    for index, placement in enumerate(placements):
        _put_measured(operation, index, placement, cluster, which_N, size_N, time_N)
    return time_N


def _put_measured(
    operation: Operation,
    index: int,
    placement: Placement,
    cluster: Cluster,
    which_N: IntArray,
    size_N: FloatArray,
    time_N: FloatArray,
) -> None:
    """Put the times of a placement that was measured in the place of those of the formula."""
    table = table_of(operation, placement, cluster)
    if table is not None:
        at = np.flatnonzero(which_N == index)
        form: Form = lambda size, links: form_s(operation, size, placement, links)  # noqa: E731 - bound to this placement
        time_N[at] = table_times_s(table, size_N[at], cluster, form)


def _curves(operation: Operation, placement: Placement, cluster: Cluster) -> dict[str, Curve]:
    """Return the curve of every algorithm that may run; a single rank gets one that is never used."""
    if placement.ranks == 1:
        return {"none": Curve(0.0, 0.0, 0.0, 1.0, 0.0, 1.0)}
    found = {name: curve(traffic, cluster) for name, traffic in candidates(operation, placement, cluster)}
    if not found:
        raise ProgramError(f"no algorithm can do {operation.name} over {placement.ranks} ranks")
    return found
