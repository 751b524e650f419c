"""A kernel of which a trace says only what it counts: FLOP and bytes.

It is a roofline without shape (Williams, Waterman and Patterson, 2009), as ASTRA-sim computes a node with ``num_ops``
and ``tensor_size``, with the sustained rates of GEMMs in the place of peaks: nothing is known of tiles and waves.
"""

from traincast.estimate.operators.families import Work, family
from traincast.workload.ops import OperatorCall


@family("counted", "flops", "bytes")
def counted(call: OperatorCall) -> Work:
    """Return the work of a kernel with so many FLOP and bytes."""
    flops, moved = call.shape
    return Work(constants=("gemm",), flops=float(flops), bytes_moved=float(moved), compute_dtype=call.dtype)
