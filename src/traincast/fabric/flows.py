"""Flows that share links: max-min fair rates, finish times, and the link that holds a flow back.

Routes are padded tables: a row per flow, a link index per hop, -1 for no link. A flow
that crosses no link is held back by nothing: its rate is infinite.

Letters: F flows, H hops, L links.
"""

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from traincast.errors import ProgramError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.integer]

ENGINES = ("auto", "reference", "kernel")
KERNEL_FROM_HOPS = 50_000
"""Below this many hops numpy ends before numba is imported and its cache loaded."""
_SATURATED = 1 - 1e-9


def rates(routes_FH: IntArray, capacity_L: FloatArray, engine: str = "auto") -> FloatArray:
    """Return the max-min fair rate of every flow, in bytes per second.

    No rate can be raised without lowering one that is not higher.

    Parameters
    ----------
    routes_FH : int array [F, H]
        Links of each flow; -1 means no link.
    capacity_L : float array [L]
        Bytes per second of each link.
    engine : {"auto", "reference", "kernel"}
        Numpy or numba; they agree to rounding.

    Raises
    ------
    ProgramError
        If a route names an unknown link, a capacity is not positive, or the engine is unknown or missing.

    Notes
    -----
    Source: progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2). The
    reference freezes in each round every link that is the tightest one of all its flows; the
    kernel freezes one link at a time, tightest first. The result is the same.
    """
    _check(routes_FH, capacity_L)
    return _solver(engine, routes_FH.size)(routes_FH, capacity_L)


def finish_times(
    routes_FH: IntArray, sizes_F: FloatArray, capacity_L: FloatArray, tolerance: float = 0.0, engine: str = "auto"
) -> FloatArray:
    """Return when each flow ends, in seconds, all having started together; routes, capacity and engine as in `rates`.

    Parameters
    ----------
    sizes_F : float array [F]
        Bytes of each flow.
    tolerance : float
        How late a flow may end, as a fraction of the end of all; 0 is exact. Completions are
        put together in windows of half of it, measured in the least possible end of all (the
        load of the busiest link over its capacity): what a flow leaves behind is shared out
        at the end of its window. No bound is proven; `docs/fabrics.md` has what was measured.

    Raises
    ------
    ProgramError
        As `rates`, or if a size or the tolerance is negative.

    Notes
    -----
    Equal flows need exactly one solve: the bottleneck of a flow carries only flows that are
    no faster and so end no earlier, hence no rate changes before its flow has ended.
    """
    sizes_F = np.asarray(sizes_F, dtype=np.float64)
    if sizes_F.shape != (len(routes_FH),) or not np.all(sizes_F >= 0) or not tolerance >= 0:
        raise ProgramError("every flow needs a size that is not negative, and the tolerance must not be negative")
    _check(routes_FH, capacity_L)
    solve = _solver(engine, routes_FH.size)
    window_s = 0.5 * tolerance * _busiest_s(routes_FH, sizes_F, capacity_L)
    end_F, now = np.zeros(len(sizes_F)), 0.0
    flow = np.flatnonzero((sizes_F > 0) & (routes_FH >= 0).any(axis=1))
    left, routes = sizes_F[flow], routes_FH[flow]
    while len(flow):
        rate = solve(routes, capacity_L)
        left_s = left / rate
        if np.all(left == left[0]):
            end_F[flow] = now + left_s
            break
        step = float(left_s.min()) * (1 + 1e-12) + window_s
        ends, goes_on = left_s <= step, left_s > step
        end_F[flow[ends]] = now + left_s[ends]
        left, flow, routes = (left - rate * step)[goes_on], flow[goes_on], routes[goes_on]
        now += step
    return end_F


def bottleneck(routes_FH: IntArray, rates_F: FloatArray, capacity_L: FloatArray) -> npt.NDArray[np.int64]:
    """Return the link that holds each flow back: the first full one of its route on which no flow is faster.

    It is -1 for a flow that crosses none; `rates_F` is what `rates` returned for the same routes and links.
    """
    real_FH = routes_FH >= 0
    flow_I, link_I = np.nonzero(real_FH)[0], routes_FH[real_FH]
    load_L = np.bincount(link_I, rates_F[flow_I], minlength=len(capacity_L))
    fastest_L = np.zeros(len(capacity_L))
    np.maximum.at(fastest_L, link_I, rates_F[flow_I])
    full_L = load_L >= capacity_L * _SATURATED
    held_FH = real_FH & full_L[routes_FH] & (rates_F[:, None] >= fastest_L[routes_FH] * _SATURATED)
    first_F = held_FH.argmax(axis=1)
    each = np.arange(len(routes_FH))
    return np.where(held_FH[each, first_F], routes_FH[each, first_F], -1).astype(np.int64)


def _check(routes_FH: IntArray, capacity_L: FloatArray) -> None:
    if routes_FH.ndim != 2 or routes_FH.shape[1] == 0:
        raise ProgramError("routes must be a table with a row per flow and at least one hop")
    if routes_FH.size and (routes_FH.max() >= len(capacity_L) or routes_FH.min() < -1):
        raise ProgramError(f"a route names a link that is not one of the {len(capacity_L)}")
    if not np.all(capacity_L > 0):
        raise ProgramError("every link needs a positive capacity")


def _solver(engine: str, hops: int) -> Callable[[IntArray, FloatArray], FloatArray]:
    if engine not in ENGINES:
        raise ProgramError(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
    if engine == "kernel" and not find_spec("numba"):
        raise ProgramError("the engine 'kernel' needs numba: pip install 'traincast[fast]'")
    if engine == "kernel" or (engine == "auto" and hops >= KERNEL_FROM_HOPS and find_spec("numba")):
        from traincast.fabric.flows_kernel import fill

        return fill
    return _fill


def _busiest_s(routes_FH: IntArray, sizes_F: FloatArray, capacity_L: FloatArray) -> float:
    real_FH = routes_FH >= 0
    load_L = np.bincount(routes_FH[real_FH], sizes_F[np.nonzero(real_FH)[0]], minlength=len(capacity_L))
    return float((load_L / capacity_L).max(initial=0.0))


def _fill(routes_FH: IntArray, capacity_L: FloatArray) -> FloatArray:
    """Fill up in rounds; each freezes every link whose share is the least of all its flows."""
    rate_F = np.full(len(routes_FH), np.inf)
    real_FH = routes_FH >= 0
    flow_I, link_I = np.nonzero(real_FH)[0], routes_FH[real_FH]
    left_L = capacity_L.astype(np.float64)
    while len(flow_I):
        flows_L = np.bincount(link_I, minlength=len(left_L))
        share_L = np.divide(left_L, flows_L, out=np.full(len(left_L), np.inf), where=flows_L > 0)
        least_F = np.full(len(rate_F), np.inf)
        np.minimum.at(least_F, flow_I, share_L[link_I])
        lowest_L = np.full(len(left_L), np.inf)
        np.minimum.at(lowest_L, link_I, least_F[flow_I])
        tight_L = lowest_L >= share_L
        frozen_F = np.zeros(len(rate_F), dtype=bool)
        frozen_F[flow_I[tight_L[link_I]]] = True
        rate_F[frozen_F] = least_F[frozen_F]
        frozen_I = frozen_F[flow_I]
        used_L = np.bincount(link_I[frozen_I], rate_F[flow_I[frozen_I]], minlength=len(left_L))
        left_L = np.maximum(left_L - used_L, 0.0)
        flow_I, link_I = flow_I[~frozen_I], link_I[~frozen_I]
    return rate_F
