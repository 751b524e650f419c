"""How much spans of time cover of each other, in machine code (extra ``fast``).

Bit-equal to `traincast.simulation.overlap`, which says what each means. Letters: R ranks, I spans, D disjoint spans.
"""

import numpy as np

from traincast.machine_code import CompiledKernel
from traincast.simulation import overlap
from traincast.simulation.overlap import Spans
from traincast.workload.ops import FloatArray, IntArray

_COVER = CompiledKernel("traincast.simulation.coverage", "cover", "nddlddldd")
_UNITE = CompiledKernel("traincast.simulation.coverage", "unite", "nddlddl")
_MEET = CompiledKernel("traincast.simulation.coverage", "meet", "nddlddl")

_Columns = tuple[FloatArray, FloatArray, IntArray]


def covered(spans: Spans, disjoint: Spans) -> tuple[FloatArray, FloatArray]:
    """Return how much of each span is covered, and of each disjoint one."""
    of_span_I, of_disjoint_D = np.zeros(len(spans.begin_s_I)), np.zeros(len(disjoint.begin_s_I))
    _COVER(len(spans.ptr_R1) - 1, *_columns(spans), *_columns(disjoint), of_span_I, of_disjoint_D)
    return of_span_I, of_disjoint_D


def union(spans: Spans) -> Spans:
    """Return the same time as disjoint spans, in order."""
    count, ranks = len(spans.begin_s_I), len(spans.ptr_R1) - 1
    begin_D, end_D, ptr_R1 = np.empty(count), np.empty(count), np.empty(ranks + 1, np.int64)
    found = _UNITE(ranks, *_columns(spans), begin_D, end_D, ptr_R1) if count else -1
    if found < 0:
        return overlap.union(spans)
    return Spans(begin_D[:found], end_D[:found], ptr_R1, np.repeat(np.arange(ranks), np.diff(ptr_R1)))


def meet(one: Spans, two: Spans) -> bool:
    """Tell whether disjoint spans, in order, overlap with others anywhere."""
    return bool(_MEET(len(one.ptr_R1) - 1, *_columns(one), *_columns(two)))


def _columns(spans: Spans) -> _Columns:
    begin_s, end_s = np.ascontiguousarray(spans.begin_s_I), np.ascontiguousarray(spans.end_s_I)
    return begin_s, end_s, np.ascontiguousarray(spans.ptr_R1, np.int64)
