"""What communications cost: the least of the algorithms that apply, or what was measured.

The least of our own times is monotone, because each of them is; NCCL's own pick jumps with
the size, and a cost that follows it falls by up to 20 % there (docs/clusters.md has what it
costs). Its tables say which algorithms may run and name the protocol (`tuning`).

Where a cluster has a measured table for just this operation and group, the formula steps back. Between two measured
sizes the logarithm of the time is a straight line over that of the size. Outside them the formula goes on from the
last measured time, scaled to meet it. The table holds for the links it was measured on: where others share them, or
where they are changed, it is scaled by what the formula makes of the difference.

Letters: N communications, P distinct placements, A algorithms.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import ConfigError, ProgramError
from traincast.estimate.collectives.algorithms import ALGORITHMS, Algorithm, Traffic
from traincast.estimate.collectives.links import Curve, curve, evaluate, latency_s, seconds
from traincast.estimate.collectives.tuning import protocol_of
from traincast.fabric.placement import Placement
from traincast.hardware.cluster import Cluster, MeasuredTable
from traincast.workload.ops import FloatArray
from traincast.workload.words import Operation, bus_factor

TABLE = "table"
"""What stands for the algorithm of a cost that was measured."""
_BLOCK = 1 << 15
"""Communications worked out at a time: their arrays stay in the processor's cache."""


class CollectiveCost(Struct, frozen=True):
    """What a communication costs and how it is done."""

    time_s: float
    """Seconds from the arrival of the last member to the end."""
    algorithm: str
    """Name in `ALGORITHMS`, ``"none"`` where nothing is sent, ``"table"`` where it was measured."""
    protocol: str | None = None
    """What NCCL's tables prefer for that algorithm; None where the cluster has no NCCL."""


KnownCosts = dict[tuple[Operation, int, Placement, Cluster, float | None], CollectiveCost]
"""Costs by what `estimate_collective` is asked for, of collectives that are balanced."""

NOTHING = CollectiveCost(0.0, "none")
"""The cost of a communication that sends nothing."""


def estimate_collective(
    operation: Operation,
    size_bytes: int,
    placement: Placement,
    cluster: Cluster,
    busbw_bytes_per_s: float | None = None,
    *,
    loads: npt.ArrayLike | None = None,
    algorithm: str | None = None,
) -> CollectiveCost:
    """Return the cost of a collective, or of a message, among the ranks of a placement.

    It is that of the cheapest algorithm, or of the cluster's measured table of just this operation and group.

    Parameters
    ----------
    operation, size_bytes : Operation, int
        What is done, which says what the size means.
    placement, cluster : Placement, Cluster
        Members per node, and the links, which take no time if ideal.
    busbw_bytes_per_s : float, optional
        Bus bandwidth as nccl-tests defines it, everything included. It replaces the estimate, on
        an ideal cluster too; a message too small for it still takes its start and steps.
    loads : array of float, optional
        Instead of `size_bytes`, for an all-to-all that is not balanced: bytes of each member's buffer, or
        two rows, what each sends and what each receives. The busiest sets the time.
    algorithm : str, optional
        Name in `ALGORITHMS` to estimate, whatever else is cheaper or was measured.

    Raises
    ------
    ProgramError
        If the size is negative, no algorithm can do the operation, or loads do not fit it.
    UnknownNameError
        If no algorithm has that name.
    ConfigError
        If `busbw_bytes_per_s` is not a positive, finite number.
    """
    size_bytes = size_bytes if loads is None else _busiest(operation, loads, placement)
    _check(size_bytes, busbw_bytes_per_s)
    if placement.ranks == 1 or size_bytes == 0:
        return NOTHING
    table = table_of(operation, placement, cluster)
    if table is not None and algorithm is None and busbw_bytes_per_s is None:
        times = _measured_s(table, np.array([size_bytes], np.float64), operation, placement, cluster)
        return CollectiveCost(float(times[0]), TABLE)
    found = [each for each in candidates(operation, placement, cluster, algorithm) if size_bytes <= each[0].most_bytes]
    if not found:
        raise _impossible(operation, placement, algorithm)
    if busbw_bytes_per_s is None:
        if cluster.ideal:
            return NOTHING
        times_s = [seconds(curve(traffic, cluster), float(size_bytes)) for _, traffic in found]
    else:  # it includes the latency of each algorithm, but no time is shorter than that
        wire_s = size_bytes * bus_factor(operation, placement.ranks) / busbw_bytes_per_s
        times_s = [wire_s if cluster.ideal else max(wire_s, latency_s(traffic, cluster)) for _, traffic in found]
    time_s, _, chosen = min((time_s, each.name, each) for time_s, (each, _) in zip(times_s, found, strict=True))
    return CollectiveCost(time_s, chosen.name, protocol_of(chosen, operation, size_bytes, placement, cluster))


def estimate_collectives(
    operation: Operation,
    size_bytes: npt.ArrayLike,
    placements: Sequence[Placement],
    cluster: Cluster,
    which: npt.ArrayLike | None = None,
) -> FloatArray:
    """Return the times of many communications of one operation, as `estimate_collective` gives them.

    Parameters
    ----------
    size_bytes : array of int [N]
        Sizes, zero or more.
    placements : sequence of Placement [P]
        The distinct placements.
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
    alone = np.array([placement.ranks == 1 for placement in placements])
    curves = [_curves(operation, placement, cluster) if placement.ranks > 1 else {} for placement in placements]
    never = Curve(np.inf, 0.0)
    names = sorted({name for found in curves for name in found})
    table_AFP = [np.array([found.get(name, never) for found in curves]).T for name in names]
    time_N = np.zeros(size_N.shape)
    for start in range(0, size_N.size if names else 0, _BLOCK):
        block = slice(start, start + _BLOCK)
        at, size = which_N[block], np.where(alone[which_N[block]], 0.0, size_N[block])
        best = np.full(size.shape, np.inf)
        for fields_FP in table_AFP:
            np.minimum(best, evaluate(Curve(*fields_FP[:, at]), size), out=best)
        time_N[block] = best
    for index, placement in enumerate(placements):
        table = table_of(operation, placement, cluster)
        if table is not None:
            at = np.flatnonzero(which_N == index)
            time_N[at] = _measured_s(table, size_N[at], operation, placement, cluster)
    return time_N


def candidates(
    operation: Operation, placement: Placement, cluster: Cluster, algorithm: str | None = None
) -> Iterator[tuple[Algorithm, Traffic]]:
    """Yield the algorithms that apply, with their traffic; only the one asked for, if it can do it.

    Those that apply are what the library of the cluster chooses by itself, and what the cluster names.
    """
    asked = list(map(ALGORITHMS.get, cluster.algorithms if algorithm is None else (algorithm,)))
    for each in ALGORITHMS.entries() if algorithm is None else asked:
        if each.can_do(operation, placement) and (each in asked or each.is_chosen(placement, cluster)):
            yield each, each.traffic(operation, placement)


def table_of(operation: Operation, placement: Placement, cluster: Cluster) -> MeasuredTable | None:
    """Return the measured table of an operation over just this group, which is spread evenly; None without one."""
    if cluster.ideal or cluster.measured is None or placement.max_members - placement.min_members > 1:
        return None
    wanted = (operation.name.lower(), placement.ranks, placement.nodes)
    return next((each for each in cluster.measured.tables if (each.op, each.ranks, each.nodes) == wanted), None)


def _curves(operation: Operation, placement: Placement, cluster: Cluster) -> dict[str, Curve]:
    """Return the curve of every algorithm that applies."""
    found = {
        each.name: curve(traffic, cluster, each.most_bytes)
        for each, traffic in candidates(operation, placement, cluster)
    }
    if not found:
        raise _impossible(operation, placement)
    return found


def _formula_s(operation: Operation, size_bytes: FloatArray, placement: Placement, cluster: Cluster) -> FloatArray:
    """Return the times of the cheapest algorithm, whatever was measured."""
    curves = _curves(operation, placement, cluster).values()
    best: FloatArray = np.min([evaluate(each, size_bytes) for each in curves], axis=0)
    return best


def _measured_s(
    table: MeasuredTable, size_bytes: FloatArray, operation: Operation, placement: Placement, cluster: Cluster
) -> FloatArray:
    """Return the times of some sizes by a measured table, never falling with the size on the links of the table."""
    measured = cluster.measured
    then = cluster if measured is None else replace(cluster, intra=measured.intra, inter=measured.inter)
    sizes, times = np.array(table.size_bytes, np.float64), np.array(table.time_s)
    at_least_one = np.maximum(size_bytes, 1.0)
    inside = np.clip(at_least_one, sizes[0], sizes[-1])

    def ratio(size: FloatArray, links: Cluster, other_size: FloatArray, other_links: Cluster) -> FloatArray:
        one_s = _formula_s(operation, size, placement, links)
        return one_s / _formula_s(operation, other_size, placement, other_links)

    time_s: FloatArray = np.exp(np.interp(np.log(inside), np.log(sizes), np.log(times)))
    outside = at_least_one != inside
    if outside.any():
        # Divided first: the ratio is never above one below the table and never below one above it.
        time_s[outside] *= ratio(at_least_one[outside], then, inside[outside], then)
    if then != cluster:
        time_s = time_s * ratio(at_least_one, cluster, at_least_one, then)
    return np.where(size_bytes > 0, time_s, 0.0)


def _busiest(operation: Operation, loads: npt.ArrayLike, placement: Placement) -> int:
    """Return the size of the balanced all-to-all that takes as long as the busiest member."""
    load = np.asarray(loads, dtype=np.float64)
    n = placement.ranks
    if operation is not Operation.ALL_TO_ALL or load.shape not in ((n,), (2, n)):
        raise ProgramError(
            f"loads of shape {load.shape} do not fit {operation.name} over {n} ranks; an ALL_TO_ALL takes one row "
            f"of {n} (the buffer of each) or two (what each sends, what each receives)"
        )
    if not (np.isfinite(load).all() and (load >= 0).all()):
        raise ProgramError("loads must be finite and zero or more")
    return math.ceil(float(load.max()))


def _check(size_bytes: int, busbw_bytes_per_s: float | None) -> None:
    if size_bytes < 0:
        raise ProgramError(f"a communication has {size_bytes} bytes; it must be zero or more")
    if busbw_bytes_per_s is not None and not (math.isfinite(busbw_bytes_per_s) and busbw_bytes_per_s > 0):
        raise ConfigError(f"is {busbw_bytes_per_s} B/s; it must be a positive, finite rate", "busbw")


def _impossible(operation: Operation, placement: Placement, algorithm: str | None = None) -> ProgramError:
    who = "no algorithm can" if algorithm is None else f"{algorithm} cannot"
    return ProgramError(f"{who} do {operation.name} of this size over {placement.ranks} ranks")
