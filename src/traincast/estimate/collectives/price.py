"""The price of one communication: the cheapest legal algorithm."""

import math
from dataclasses import dataclass

from traincast.errors import ConfigError, ProgramError
from traincast.estimate.collectives.contract import ALGORITHMS, Traffic, bus_factor, latency_s, transfer_time_s
from traincast.estimate.collectives.pairwise import point_to_point
from traincast.fabric.placement import Placement
from traincast.spec.cluster import Cluster
from traincast.workload.words import Operation


@dataclass(frozen=True, slots=True)
class Price:
    """What a communication costs and how it is done.

    Parameters
    ----------
    time_s : float
        Seconds from the arrival of the last member to the end.
    algorithm : str
        Name in `ALGORITHMS`, ``"none"`` where nothing is sent.
    protocol : str, optional
        Protocol inside the algorithm; None where the model has none.
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
) -> Price:
    """Return the price of a collective among the ranks of a placement.

    Parameters
    ----------
    operation : Operation
        What is done; it says what the size means.
    size_bytes : int
        Size in bytes.
    placement : Placement
        Members per node.
    cluster : Cluster
        The links; on an ideal one all prices are zero.
    busbw_bytes_per_s : float, optional
        Bus bandwidth as nccl-tests defines it. It replaces what the links say about the
        bytes, on an ideal cluster too; start and steps stay.

    Returns
    -------
    Price
        Of the cheapest algorithm; zero for one rank and for no bytes.

    Raises
    ------
    ProgramError
        If the size is negative or no algorithm can do the operation.
    ConfigError
        If `busbw_bytes_per_s` is not a positive, finite number.
    """
    _check(size_bytes, busbw_bytes_per_s)
    if placement.ranks == 1 or size_bytes == 0:
        return NOTHING
    wire_s = None
    if busbw_bytes_per_s is not None:
        wire_s = size_bytes * bus_factor(operation, placement.ranks) / busbw_bytes_per_s
    prices = []
    for name in ALGORITHMS.names():
        traffic = ALGORITHMS.get(name)(operation, placement)
        if traffic is not None:
            prices.append(Price(_time_s(traffic, size_bytes, cluster, wire_s), name))
    if not prices:
        raise ProgramError(f"no algorithm can do {operation.name} over {placement.ranks} ranks")
    return min(prices, key=lambda price: price.time_s)


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
        Rate that replaces what the links say about the bytes; the latency stays.

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
    wire_s = None if busbw_bytes_per_s is None else size_bytes / busbw_bytes_per_s
    return Price(_time_s(point_to_point(same_node=same_node), size_bytes, cluster, wire_s), "pairwise")


def _check(size_bytes: int, busbw_bytes_per_s: float | None) -> None:
    if size_bytes < 0:
        raise ProgramError(f"a communication has {size_bytes} bytes; it must be zero or more")
    if busbw_bytes_per_s is not None and not (math.isfinite(busbw_bytes_per_s) and busbw_bytes_per_s > 0):
        raise ConfigError(f"is {busbw_bytes_per_s} B/s; it must be a positive, finite rate", "busbw")


def _time_s(traffic: Traffic, size_bytes: int, cluster: Cluster, wire_s: float | None) -> float:
    """Return the modelled time, or the given time on the wire behind the modelled latency."""
    if wire_s is not None:
        return wire_s + (0.0 if cluster.ideal else latency_s(traffic, cluster))
    return 0.0 if cluster.ideal else float(transfer_time_s(traffic, size_bytes, cluster))
