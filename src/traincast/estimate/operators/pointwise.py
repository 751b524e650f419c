"""Operators that work on each element alone and are bound by memory.

======================  ==========================  =======================================================
family                  shape                       bytes per element (b: of the type)
======================  ==========================  =======================================================
``elementwise``         (rows, width)               b (inputs + outputs); options ``inputs`` 2, ``outputs`` 1
``activation``          (tokens, width of output)   gelu: b 2, backward b 3; gated: b 3, backward b 5
``rotary``              (tokens, heads, head_dim)   b 2, and the table once
``accumulate``          (elements)                  b + 8: reads a gradient, adds it to one in fp32
``cast``                (elements)                  2 + b: from bf16 to the type; option ``copies`` of the result
``copy``                (elements)                  b 2
======================  ==========================  =======================================================
"""

from traincast.estimate.operators.calls import (
    GRAD_BYTES,
    direction,
    element_bytes,
    number,
    only_options,
    option,
    result_bytes,
    sizes,
)
from traincast.estimate.operators.contract import FAMILIES, OperatorCall, Work

_GATED = ("swiglu", "geglu")


@FAMILIES.register("elementwise")
def elementwise(call: OperatorCall) -> Work:
    """Return the work of an operator on each element: addition, scaling, dropout, mask."""
    rows, width = sizes(call, "rows", "width")
    only_options(call, "inputs", "outputs", "kind")
    direction(call, "forward")
    tensors = number(call, "inputs", 2) + number(call, "outputs", 1)
    kind = option(call, "kind", "", ())
    names = ("elementwise",) if not kind else (f"elementwise_{kind}", kind, "elementwise")
    return _memory(names, rows * width, tensors * result_bytes(call.dtype))


@FAMILIES.register("activation")
def activation(call: OperatorCall) -> Work:
    """Return the work of an activation function; gated ones multiply it with a second input."""
    tokens, width = sizes(call, "tokens", "width")
    only_options(call, "kind")
    gated = option(call, "kind", "gelu", ("gelu", "relu", "silu", "tanh", *_GATED)) in _GATED
    backward = direction(call, "forward", "backward") == "backward"
    tensors = (5 if gated else 3) if backward else (3 if gated else 2)
    return _memory(("activation", "elementwise"), tokens * width, tensors * result_bytes(call.dtype), flops=8.0)


@FAMILIES.register("rotary")
def rotary(call: OperatorCall) -> Work:
    """Return the work of rotating queries and keys; its gradient is the rotation back."""
    tokens, heads, head_dim = sizes(call, "tokens", "heads", "head_dim")
    only_options(call)
    direction(call, "forward", "backward")
    table = 2 * GRAD_BYTES / heads
    return _memory(("rotary", "elementwise"), tokens * heads * head_dim, 2 * result_bytes(call.dtype) + table, 3.0)


@FAMILIES.register("accumulate")
def accumulate(call: OperatorCall) -> Work:
    """Return the work of adding a gradient to the fp32 one in memory."""
    (elements,) = sizes(call, "elements")
    only_options(call)
    direction(call, "forward")
    return _memory(("accumulate", "elementwise"), elements, element_bytes(call.dtype) + 2 * GRAD_BYTES)


@FAMILIES.register("cast")
def cast(call: OperatorCall) -> Work:
    """Return the work of a cast from bf16 to the type of the call, with its scales."""
    (elements,) = sizes(call, "elements")
    only_options(call, "copies")
    direction(call, "forward")
    written = number(call, "copies", 1) * element_bytes(call.dtype)
    return _memory(("cast", "elementwise"), elements, element_bytes("bf16") + written, 2.0)


@FAMILIES.register("copy")
def copy(call: OperatorCall) -> Work:
    """Return the work of copying elements from one place in memory to another."""
    (elements,) = sizes(call, "elements")
    only_options(call)
    direction(call, "forward")
    return _memory(("copy", "elementwise"), elements, 2 * element_bytes(call.dtype), 0.0)


def _memory(names: tuple[str, ...], elements: float, bytes_each: float, flops: float = 1.0) -> Work:
    return Work(
        constants=names,
        flops=flops * elements,
        bytes_moved=elements * bytes_each,
        compute_dtype="fp32",
        coordinates=(elements * bytes_each,),
    )
