"""How much spans of time cover of each other, in numba, on arrays that come as pointers.

The same sums in the same order as `traincast.simulation.overlap.covered`. Letters: I spans, D disjoint spans.
"""

from traincast.machine_code import part
from traincast.workload.ops import FloatArray, IntArray


def cover(
    ranks: int,
    begin_I: FloatArray,
    end_I: FloatArray,
    ptr_R1: IntArray,
    begin_D: FloatArray,
    end_D: FloatArray,
    disjoint_ptr_R1: IntArray,
    of_span_I: FloatArray,
    of_disjoint_D: FloatArray,
) -> None:
    """Add how much of each span disjoint ones cover, and of each disjoint one the spans."""
    for rank in range(ranks):
        low, high = disjoint_ptr_R1[rank], disjoint_ptr_R1[rank + 1]
        first = low
        for span in range(ptr_R1[rank], ptr_R1[rank + 1]):
            begin, end = begin_I[span], end_I[span]
            first = _first_after(begin, end_D, low, first, high)
            for at in range(first, high):
                if begin_D[at] >= end:
                    break
                both = max(min(end, end_D[at]) - max(begin, begin_D[at]), 0.0)
                of_span_I[span] += both
                of_disjoint_D[at] += both


@part
def _first_after(begin: float, end_D: FloatArray, low: int, near: int, high: int) -> int:
    """Return the first place from `low` to `high` whose end is after a time, which is looked for near another first."""
    if near > low and end_D[near - 1] > begin:
        high = near - 1
    else:
        low = near
        # Most spans follow each other closely.
        for at in range(near, min(near + 4, high)):
            if end_D[at] > begin:
                return at
    while low < high:
        middle = (low + high) // 2
        if end_D[middle] > begin:
            high = middle
        else:
            low = middle + 1
    return low
