"""GEMMs: one, a batch of equal ones, or a group of experts.

``gemm`` has the shape (m, n, k), or (batch, m, n, k): m rows (tokens) of k inputs give n
outputs. The shape is always that of the forward layer; the gradients are GEMMs of their own::

    forward   m x n, reduction k        Y  = X W
    dgrad     m x k, reduction n        dX = dY W'
    wgrad     n x k, reduction m        dW += dY' X     (read and written in fp32)

``grouped_gemm`` has the shape (rows, n, k, groups): `rows` of all experts together go through
`groups` weights. Option ``accumulate``: ``fp32`` (default) adds a weight gradient to
the fp32 one in memory, ``none`` writes it in the result's type. Option
``kernel`` of ``grouped_gemm``: one kernel for all groups (default), ``each`` for a plain GEMM of each group,
``triton`` for the fused expert kernels of inference frameworks; of ``gemm``: ``scaled``
for their GEMMs of 8 and 4 bits, which cast what they read as they go. Other GEMMs read what was cast before.
Option ``sizes`` of ``grouped_gemm``: groups have as many rows as the router sends them (``routed``, default), or all
the same number (``equal``), as experts with a capacity that is filled up.

GEMMs of groups that a library launches over several streams follow each other all the same: a kernel of theirs takes
the whole GPU. On an H100 they take what as many plain GEMMs take alone, one after the other (studies/expert_gemms.py,
docs/published-runs.md).
"""

from msgspec.structs import replace

from traincast.estimate.operators.families import (
    FP32_BYTES,
    Size,
    Tiling,
    Work,
    element_bytes,
    family,
    result_bytes,
)
from traincast.workload.ops import OperatorCall

VECTOR_BYTES = 16
"""What a thread loads at once, if the row of the matrix begins at a multiple of it. Rows are n or k elements long,
whatever the direction."""
_WAYS = ("forward", "dgrad", "wgrad")
SUMMED = 0.95
"""Rate of a GEMM that adds its result to one in fp32, over that of the same GEMM that writes it in 16 bits: what it
reads and writes at its end is hidden in part. Training kernels of SimuMax (studies/data,
training_kernel_efficiency_measured: layout NT, accumulate, out_dtype fp32, next to NN and TN): 0.97 in the median of 56
on an A100, 0.93 of 136 on a B200. Constants of grouped GEMMs are fitted to such kernels and have it."""
_ACCUMULATE = ("fp32", "none")


def _cost_class(call: OperatorCall) -> str:
    """Return the family and type; matrix units run both 16-bit types at one rate."""
    return f"{call.family} {'bf16' if call.dtype == 'fp16' else call.dtype}"


@family(
    "gemm",
    Size("batch", 1),
    *("m", "n", "k"),
    drops_batch=True,
    directions=_WAYS,
    options={"accumulate": _ACCUMULATE, "kernel": ("auto", "scaled")},
    cost_class=_cost_class,
)
def gemm(call: OperatorCall, *, accumulate: str, kernel: str) -> Work:
    """Return the work of a GEMM or of a batch of them."""
    *batch, m, n, k = call.shape
    work = _product(call, batch[0] if batch else 1, m, n, k, "bmm" if batch else "gemm", accumulate)
    return _of_kernel(work, "gemm", kernel)


@family(
    "grouped_gemm",
    *("rows", "n", "k", "groups"),
    directions=_WAYS,
    options={"accumulate": _ACCUMULATE, "kernel": ("auto", "each", "triton"), "sizes": ("routed", "equal")},
    cost_class=_cost_class,
)
def grouped_gemm(call: OperatorCall, *, accumulate: str, kernel: str, sizes: str) -> Work:
    """Return the work of the GEMMs of several experts, in one kernel or one after the other."""
    rows, n, k, groups = call.shape
    busy = min(groups, rows)
    if kernel == "each":
        return _one_by_one(_product(call, 1, rows / busy, n, k, "gemm", accumulate), busy)
    work = _product(call, busy, rows / busy, n, k, "grouped_gemm", accumulate)
    if sizes == "routed" and work.tiling is not None:
        work = replace(work, tiling=replace(work.tiling, ragged="k" if call.direction == "wgrad" else "m"))
    return _of_kernel(work, "grouped_gemm", kernel)


def _of_kernel(work: Work, name: str, kernel: str) -> Work:
    return work if kernel == "auto" else replace(work, constants=(f"{name}_{kernel}", *work.constants))


def _one_by_one(work: Work, count: int) -> Work:
    tiling = None if work.tiling is None else replace(work.tiling, rounds=float(count))
    return replace(
        work,
        flops=work.flops * count,
        bytes_moved=work.bytes_moved * count,
        kernels=work.kernels * count,
        tiling=tiling,
    )


def _product(call: OperatorCall, batch: float, m: float, n: float, k: float, name: str, accumulate: str) -> Work:
    inputs, result = element_bytes(call.dtype), result_bytes(call.dtype)
    aligned = all(size * int(inputs or 1) % VECTOR_BYTES == 0 for size in (n, k))
    way = call.direction
    if way == "wgrad":
        m, n, k = n, k, m
    elif way == "dgrad":
        n, k = k, n
    written = 2 * FP32_BYTES if way == "wgrad" and accumulate == "fp32" else result
    summed = written > result and name == "gemm"
    special = () if way == "forward" else (f"{name}_{way}",)
    plain = () if name == "gemm" else ("gemm",)
    return Work(
        constants=(*special, name, *plain),
        flops=2.0 * batch * m * n * k,
        bytes_moved=batch * ((m * k + k * n) * inputs + m * n * written),
        tiling=Tiling(batch=batch, m=m, n=n, k=k),
        efficiency=SUMMED if summed else 1.0,
        aligned=aligned,
        coordinates=((m, n, k) if name == "gemm" else (batch, m, n, k)) + (2.0 if aligned else 1.0,),
    )
