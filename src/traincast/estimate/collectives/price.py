"""The price of one communication: the cheapest algorithm that may run.

The least of our own times is monotone, because each of them is; NCCL's own pick jumps with
the size, and a price that follows it falls by up to 20 % there (docs/clusters.md has what it
costs). Its tables say which algorithms may run and name the protocol (`tuning`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.errors import ConfigError, ProgramError
from traincast.estimate.collectives.contract import (
    ALGORITHMS,
    FloatArray,
    Traffic,
    bus_factor,
    latency_s,
    transfer_time_s,
)
from traincast.estimate.collectives.measured import TABLE, table_of, table_times_s
from traincast.estimate.collectives.pairwise import point_to_point
from traincast.estimate.collectives.tuning import may_run, protocol_of
from traincast.fabric.placement import Placement
from traincast.hardware.cluster import Cluster, MeasuredTable
from traincast.workload.words import Operation


@dataclass(frozen=True, slots=True)
class Price:
    """What a communication costs and how it is done.

    Parameters
    ----------
    time_s : float
        Seconds from the arrival of the last member to the end.
    algorithm : str
        Name in `ALGORITHMS`, ``"none"`` where nothing is sent, ``"table"`` where it was measured.
    protocol : str, optional
        What NCCL's tables prefer for that algorithm; None where the cluster has no NCCL.
    """

    time_s: float
    algorithm: str
    protocol: str | None = None


NOTHING = Price(0.0, "none")
"""The price of a communication that sends nothing."""


def price_collective(
    operation: Operation,
    size_bytes: int,
    placement: Placement,
    cluster: Cluster,
    busbw_bytes_per_s: float | None = None,
    *,
    loads: npt.ArrayLike | None = None,
    algorithm: str | None = None,
) -> Price:
    """Return the price of a collective among the ranks of a placement.

    Parameters
    ----------
    operation, size_bytes : Operation, int
        What is done, which says what the size means.
    placement, cluster : Placement, Cluster
        Members per node, and the links; on an ideal cluster all prices are zero.
    busbw_bytes_per_s : float, optional
        Bus bandwidth as nccl-tests defines it, everything included. It replaces the price, on
        an ideal cluster too; a message too small for it still takes its start and steps.
    loads : array of float, optional
        For an all-to-all that is not balanced: bytes of each member's buffer, or two rows,
        what each sends and what each receives. The busiest sets the time; `size_bytes` is
        not used then.
    algorithm : str, optional
        Name in `ALGORITHMS` to price whatever else is cheaper.

    Returns
    -------
    Price
        Of the cheapest algorithm, or of the cluster's measured table of just this operation and
        group; zero for one rank and for no bytes.

    Raises
    ------
    ProgramError
        If the size is negative, no algorithm can do the operation, or loads are given for
        another operation or number of members.
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
        return _measured(table, operation, size_bytes, placement, cluster)
    found = list(candidates(operation, placement, cluster, algorithm))
    if not found:
        raise ProgramError(f"no algorithm can do {operation.name} over {placement.ranks} ranks")
    wire_s = None
    if busbw_bytes_per_s is not None:
        wire_s = size_bytes * bus_factor(operation, placement.ranks) / busbw_bytes_per_s
    elif cluster.ideal:
        return NOTHING
    time_s, name = min((_time_s(traffic, size_bytes, cluster, wire_s), name) for name, traffic in found)
    return Price(time_s, name, protocol_of(name, operation, size_bytes, placement, cluster))


def candidates(
    operation: Operation, placement: Placement, cluster: Cluster, algorithm: str | None = None
) -> Iterator[tuple[str, Traffic]]:
    """Yield the algorithms that may run, with their traffic; only the one asked for, if it can do it."""
    for name in ALGORITHMS.names() if algorithm is None else [algorithm]:
        traffic = ALGORITHMS.get(name)(operation, placement)
        if traffic is not None and (algorithm is not None or may_run(name, placement, cluster)):
            yield name, traffic


def price_message(
    size_bytes: int,
    same_node: bool,
    cluster: Cluster,
    busbw_bytes_per_s: float | None = None,
) -> Price:
    """Return the price of one message from one rank to another, once both are there.

    Parameters
    ----------
    size_bytes : int
        Size in bytes.
    same_node : bool
        Whether both ranks sit on one node.
    cluster : Cluster
        The links; on an ideal one the price is zero.
    busbw_bytes_per_s : float, optional
        Rate that replaces the price; a message too small for it still takes its latency.

    Returns
    -------
    Price
        Zero for no bytes.

    Raises
    ------
    ProgramError
        If the size is negative.
    ConfigError
        If `busbw_bytes_per_s` is not a positive, finite number.
    """
    _check(size_bytes, busbw_bytes_per_s)
    if size_bytes == 0:
        return NOTHING
    ends = Placement((2,) if same_node else (1, 1))
    table = table_of(Operation.SEND_RECV, ends, cluster)
    if table is not None and busbw_bytes_per_s is None:
        return _measured(table, Operation.SEND_RECV, size_bytes, ends, cluster)
    if cluster.ideal and busbw_bytes_per_s is None:
        return NOTHING
    wire_s = None if busbw_bytes_per_s is None else size_bytes / busbw_bytes_per_s
    time_s = _time_s(point_to_point(same_node=same_node), size_bytes, cluster, wire_s)
    return Price(time_s, "pairwise", protocol_of("pairwise", Operation.SEND_RECV, size_bytes, ends, cluster))


def form_s(operation: Operation, size_bytes: FloatArray, placement: Placement, cluster: Cluster) -> FloatArray:
    """Return the times of the cheapest algorithm by the fitted formula, whatever was measured."""
    found = [transfer_time_s(traffic, size_bytes, cluster) for _, traffic in candidates(operation, placement, cluster)]
    if not found:
        raise ProgramError(f"no algorithm can do {operation.name} over {placement.ranks} ranks")
    best: FloatArray = np.min(found, axis=0)
    return best


def _measured(
    table: MeasuredTable, operation: Operation, size_bytes: int, placement: Placement, cluster: Cluster
) -> Price:
    sizes = np.array([size_bytes], dtype=np.float64)
    times = table_times_s(table, sizes, cluster, lambda size, links: form_s(operation, size, placement, links))
    return Price(float(times[0]), TABLE)


def _busiest(operation: Operation, loads: npt.ArrayLike, placement: Placement) -> int:
    """Return the size of the balanced all-to-all that takes as long as the busiest member."""
    load = np.asarray(loads, dtype=np.float64)
    n = placement.ranks
    if operation is not Operation.ALL_TO_ALL or load.shape not in ((n,), (2, n)):
        raise ProgramError(
            f"loads of shape {load.shape} fit no {operation.name} over {n} ranks; an ALL_TO_ALL takes one row "
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


def _time_s(traffic: Traffic, size_bytes: int, cluster: Cluster, wire_s: float | None) -> float:
    """Return the modelled time, or the given one, which includes the latency but cannot be shorter than it."""
    if wire_s is not None:
        return max(wire_s, 0.0 if cluster.ideal else latency_s(traffic, cluster))
    return 0.0 if cluster.ideal else float(transfer_time_s(traffic, size_bytes, cluster))
