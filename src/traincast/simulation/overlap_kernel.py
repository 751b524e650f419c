"""How much spans of time cover of each other, in machine code (extra ``fast``).

Bit-equal to `traincast.simulation.overlap.covered`, which says what it means. Letters: I spans, D disjoint spans.
"""

import numpy as np

from traincast.machine_code import CompiledKernel
from traincast.simulation.overlap import Spans
from traincast.workload.ops import FloatArray

_COVER = CompiledKernel("traincast.simulation.coverage", "cover", "nddlddldd")


def covered(spans: Spans, disjoint: Spans) -> tuple[FloatArray, FloatArray]:
    """Return how much of each span is covered, and of each disjoint one."""
    of_span_I, of_disjoint_D = np.zeros(len(spans.begin_s_I)), np.zeros(len(disjoint.begin_s_I))
    times = ((each.begin_s_I, each.end_s_I) for each in (spans, disjoint))
    pointers = (np.ascontiguousarray(each.ptr_R1, np.int64) for each in (spans, disjoint))
    one, other = ((*map(np.ascontiguousarray, of), ptr_R1) for of, ptr_R1 in zip(times, pointers, strict=True))
    _COVER(len(spans.ptr_R1) - 1, *one, *other, of_span_I, of_disjoint_D)
    return of_span_I, of_disjoint_D
