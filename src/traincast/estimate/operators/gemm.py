"""Matrix products: one, a batch of equal ones, or a group of experts.

``gemm`` has the shape (m, n, k), or (batch, m, n, k): m rows (tokens) of k inputs give n
outputs. The shape is always that of the forward layer; the gradients are products of their own::

    forward   m x n, reduction k        Y  = X W
    dgrad     m x k, reduction n        dX = dY W'
    wgrad     n x k, reduction m        dW += dY' X     (read and written in fp32)

``grouped_gemm`` has the shape (rows, n, k, groups): `rows` of all experts together go through
`groups` weights, in one launch. Option ``accumulate``: ``fp32`` (default) adds a weight gradient to
the fp32 one in memory, ``none`` writes it in the result's type. Option
``kernel`` of ``grouped_gemm``: ``triton`` for the fused expert kernels of inference frameworks.
"""

from dataclasses import replace

from traincast.estimate.operators.calls import (
    GRAD_BYTES,
    direction,
    element_bytes,
    only_options,
    option,
    result_bytes,
    sizes,
)
from traincast.estimate.operators.contract import FAMILIES, OperatorCall, Tiling, Work

VECTOR_BYTES = 16
"""What a thread loads at once, if the row of the matrix begins at a multiple of it. Rows are n or k elements long,
whatever the direction."""


@FAMILIES.register("gemm")
def gemm(call: OperatorCall) -> Work:
    """Return the work of a matrix product or of a batch of them."""
    if len(call.shape) == 4:
        batch, m, n, k = sizes(call, "batch", "m", "n", "k")
    else:
        (m, n, k), batch = sizes(call, "m", "n", "k"), 1
    return _product(call, batch, m, n, k, "gemm" if len(call.shape) == 3 else "bmm")


@FAMILIES.register("grouped_gemm")
def grouped_gemm(call: OperatorCall) -> Work:
    """Return the work of the products of several experts in one launch."""
    rows, n, k, groups = sizes(call, "rows", "n", "k", "groups")
    busy = min(groups, rows)
    kernel = option(call, "kernel", "auto", ("auto", "triton"))
    plain = replace(call, options=tuple(each for each in call.options if each[0] != "kernel"))
    work = _product(plain, busy, rows / busy, n, k, "grouped_gemm")
    return work if kernel == "auto" else replace(work, constants=(f"grouped_gemm_{kernel}", *work.constants))


def _product(call: OperatorCall, batch: float, m: float, n: float, k: float, family: str) -> Work:
    only_options(call, "accumulate")
    way = direction(call, "forward", "dgrad", "wgrad")
    accumulates = option(call, "accumulate", "fp32", ("fp32", "none")) == "fp32"
    aligned = all(size * int(element_bytes(call.dtype) or 1) % VECTOR_BYTES == 0 for size in (n, k))
    inputs, result = element_bytes(call.dtype), result_bytes(call.dtype)
    if way == "wgrad":
        m, n, k = n, k, m
    elif way == "dgrad":
        n, k = k, n
    written = 2 * GRAD_BYTES if way == "wgrad" and accumulates else result
    special = () if way == "forward" else (f"{family}_{way}",)
    plain = () if family == "gemm" else ("gemm",)
    return Work(
        constants=(*special, family, *plain),
        flops=2.0 * batch * m * n * k,
        bytes_moved=batch * ((m * k + k * n) * inputs + m * n * written),
        tiling=Tiling(batch=batch, m=m, n=n, k=k),
        aligned=aligned,
        coordinates=((m, n, k) if family == "gemm" else (batch, m, n, k)) + (2.0 if aligned else 1.0,),
    )
