"""Max-min fair rates in numba (extra ``fast``): one link at a time, tightest first.

Equal to the reference of `traincast.fabric.flows`, which says what the rates mean, but for
rounding. Letters: F flows, H hops, L links.
"""

import heapq

import numba
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]


def fill(routes_FH: npt.NDArray[np.integer], capacity_L: FloatArray) -> FloatArray:
    """Return the rate of every flow, as `traincast.fabric.flows.rates` describes it."""
    rate_F = np.full(len(routes_FH), np.inf)
    links_FH = np.ascontiguousarray(routes_FH, dtype=np.int32)
    count_L, start_L1, flow_I = _flows_of_links(links_FH, len(capacity_L))
    _fill(links_FH, capacity_L.astype(np.float64), count_L, start_L1, flow_I, rate_F)
    return rate_F


@numba.njit(cache=True)
def _flows_of_links(routes_FH: Int32Array, links: int) -> tuple[Int32Array, npt.NDArray[np.int64], Int32Array]:
    """Count the flows of each link and list them, link by link."""
    flows, hops = routes_FH.shape
    count_L = np.zeros(links, dtype=np.int32)
    for flow in range(flows):
        for hop in range(hops):
            if routes_FH[flow, hop] >= 0:
                count_L[routes_FH[flow, hop]] += 1
    start_L1 = np.zeros(links + 1, dtype=np.int64)
    for link in range(links):
        start_L1[link + 1] = start_L1[link] + count_L[link]
    place_L = start_L1[:-1].copy()
    flow_I = np.empty(start_L1[-1], dtype=np.int32)
    for flow in range(flows):
        for hop in range(hops):
            link = routes_FH[flow, hop]
            if link >= 0:
                flow_I[place_L[link]] = flow
                place_L[link] += 1
    return count_L, start_L1, flow_I


@numba.njit(cache=True)
def _fill(
    routes_FH: Int32Array,
    left_L: FloatArray,
    count_L: Int32Array,
    start_L1: npt.NDArray[np.int64],
    flow_I: Int32Array,
    rate_F: FloatArray,
) -> None:
    links, hops = len(left_L), routes_FH.shape[1]
    heap = [(left_L[link] / count_L[link], link) for link in range(links) if count_L[link] > 0]
    heapq.heapify(heap)
    while len(heap) > 0:
        key, link = heap[0]
        if count_L[link] == 0:
            heapq.heappop(heap)
            continue
        # A share only grows while tighter links are frozen: a link that comes up early goes back.
        share = max(left_L[link], 0.0) / count_L[link]
        if share > key * (1 + 1e-13):
            heapq.heapreplace(heap, (share, link))
            continue
        heapq.heappop(heap)
        for place in range(start_L1[link], start_L1[link + 1]):
            flow = flow_I[place]
            if rate_F[flow] != np.inf:
                continue
            rate_F[flow] = share
            for hop in range(hops):
                other = routes_FH[flow, hop]
                if other >= 0:
                    left_L[other] -= share
                    count_L[other] -= 1
