"""Max-min fair rates in numba, one link at a time, tightest first, on arrays that come as pointers.

Letters: F flows, H hops, L links, I flows of links.
"""

from math import inf

from traincast.fabric.flows import FloatArray, IntArray
from traincast.machine_code import part


@part
def _sink(share_L: FloatArray, heap_L: IntArray, top: int, count: int) -> None:
    """Put what stands at a place of a heap below all that is less: a smaller share, of equal ones the first link."""
    link = heap_L[top]
    share = share_L[link]
    while 2 * top + 1 < count:
        child = 2 * top + 1
        if child + 1 < count:
            one, other = heap_L[child], heap_L[child + 1]
            if share_L[other] < share_L[one] or (share_L[other] == share_L[one] and other < one):
                child += 1
        least = heap_L[child]
        if share_L[least] > share or (share_L[least] == share and least > link):
            break
        heap_L[top] = least
        top = child
    heap_L[top] = link


@part
def _list_flows(
    flows: int, hops: int, links: int, routes_FH: IntArray, count_L: IntArray, start_L1: IntArray, flow_I: IntArray
) -> None:
    """Count the flows of each link, and list them link by link."""
    for hop in range(flows * hops):
        if routes_FH[hop] >= 0:
            count_L[routes_FH[hop]] += 1
    # Where the flows of a link begin stands one place late, and moves on to where they end: there the next ones begin.
    for link in range(1, links):
        start_L1[link + 1] = start_L1[link] + count_L[link - 1]
    for flow in range(flows):
        for hop in range(flow * hops, (flow + 1) * hops):
            link = routes_FH[hop]
            if link >= 0:
                flow_I[start_L1[link + 1]] = flow
                start_L1[link + 1] += 1


def fill(
    flows: int,
    hops: int,
    links: int,
    routes_FH: IntArray,
    left_L: FloatArray,
    count_L: IntArray,
    start_L1: IntArray,
    flow_I: IntArray,
    heap_L: IntArray,
    share_L: FloatArray,
    rate_F: FloatArray,
) -> None:
    """Write the rate of every flow that crosses a link; links have `left_L`, all else but routes is room to work in."""
    _list_flows(flows, hops, links, routes_FH, count_L, start_L1, flow_I)
    count = 0
    for link in range(links):
        if count_L[link] > 0:
            share_L[link] = left_L[link] / count_L[link]
            heap_L[count] = link
            count += 1
    for top in range(count // 2 - 1, -1, -1):
        _sink(share_L, heap_L, top, count)
    while count > 0:
        link = heap_L[0]
        share = max(left_L[link], 0.0) / count_L[link] if count_L[link] > 0 else 0.0
        # A share only grows while tighter links are frozen: a link that comes up early goes back.
        if count_L[link] > 0 and share > share_L[link] * (1 + 1e-13):
            share_L[link] = share
            _sink(share_L, heap_L, 0, count)
            continue
        count -= 1
        heap_L[0] = heap_L[count]
        _sink(share_L, heap_L, 0, count)
        if count_L[link] == 0:
            continue
        for place in range(start_L1[link], start_L1[link + 1]):
            flow = flow_I[place]
            if rate_F[flow] != inf:
                continue
            rate_F[flow] = share
            for hop in range(flow * hops, (flow + 1) * hops):
                other = routes_FH[hop]
                if other >= 0:
                    left_L[other] -= share
                    count_L[other] -= 1
