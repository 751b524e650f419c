"""How much spans of time cover of each other, in numba, on arrays that come as pointers.

The same sums in the same order as in `traincast.simulation.overlap`. Letters: I spans, D disjoint spans.
"""

from traincast.machine_code import part
from traincast.workload.ops import FloatArray, IntArray

_MOST_MOVED = 32
"""Places that spans may be moved on average to be in order; beyond it sorting is quicker."""


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


def unite(
    ranks: int,
    begin_I: FloatArray,
    end_I: FloatArray,
    ptr_R1: IntArray,
    begin_D: FloatArray,
    end_D: FloatArray,
    disjoint_ptr_R1: IntArray,
) -> int:
    """Write the same time as disjoint spans, and return how many; -1 where those of a rank are far from in order."""
    count, moved = 0, 0
    for rank in range(ranks):
        first, last = ptr_R1[rank], ptr_R1[rank + 1]
        disjoint_ptr_R1[rank] = count
        # Those of one stream are in order, and streams go side by side: few are to be moved, and none far.
        for at in range(first, last):
            begin, end, place = begin_I[at], end_I[at], at
            while place > first and begin_D[place - 1] > begin:
                begin_D[place], end_D[place] = begin_D[place - 1], end_D[place - 1]
                place -= 1
            begin_D[place], end_D[place] = begin, end
            moved += at - place
            if moved > _MOST_MOVED * (at + 1):
                return -1
        for at in range(first, last):
            begin, end = begin_D[at], end_D[at]
            if at == first or begin > end_D[count - 1]:
                begin_D[count], end_D[count] = begin, end
                count += 1
            else:
                end_D[count - 1] = max(end_D[count - 1], end)
    disjoint_ptr_R1[ranks] = count
    return count


def meet(
    ranks: int,
    begin_D: FloatArray,
    end_D: FloatArray,
    ptr_R1: IntArray,
    other_begin_D: FloatArray,
    other_end_D: FloatArray,
    other_ptr_R1: IntArray,
) -> int:
    """Tell whether disjoint spans, in order, overlap with others anywhere."""
    for rank in range(ranks):
        other, last = other_ptr_R1[rank], other_ptr_R1[rank + 1]
        for at in range(ptr_R1[rank], ptr_R1[rank + 1]):
            while other < last and other_end_D[other] <= begin_D[at]:
                other += 1
            if other < last and other_begin_D[other] < end_D[at]:
                return 1
    return 0


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
