"""Max-min fair rates in machine code (extra ``fast``): one link at a time, tightest first.

Equal to the reference of `traincast.fabric.flows`, which says what the rates mean, but for
rounding. Letters: F flows, H hops, L links.
"""

import numpy as np

from traincast.fabric.flows import FloatArray, IntArray
from traincast.machine_code import CompiledKernel

_FILL = CompiledKernel("traincast.fabric.filling", "fill", "nnnidiliidd")


def fill(routes_FH: IntArray, capacity_L: FloatArray) -> FloatArray:
    """Return the rate of every flow, as `traincast.fabric.flows.rates` describes it."""
    (flows, hops), links = routes_FH.shape, len(capacity_L)
    rate_F, routes = np.full(flows, np.inf), np.ascontiguousarray(routes_FH, dtype=np.int32)
    left_L, count_L = capacity_L.astype(np.float64), np.zeros(links, np.int32)
    start_L1, flow_I = np.zeros(links + 1, np.int64), np.empty(flows * hops, np.int32)
    heap_L, share_L = np.empty(links, np.int32), np.empty(links)
    _FILL(flows, hops, links, routes, left_L, count_L, start_L1, flow_I, heap_L, share_L, rate_F)
    return rate_F
