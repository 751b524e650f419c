"""Operators that work on each row alone: norms and softmax. Shape: (rows, width).

Bytes: forward reads the input and writes the output; backward reads the output's gradient and one
saved tensor and writes the input's gradient. ``norm`` takes the option ``kind``: ``rms`` or ``layer``.
FLOP per element: 5 for softmax, 6 for a norm, as NeuSight counts them (arXiv 2407.13853).
"""

from traincast.estimate.operators.calls import direction, only_options, option, result_bytes, sizes
from traincast.estimate.operators.contract import FAMILIES, OperatorCall, Work


@FAMILIES.register("norm")
def norm(call: OperatorCall) -> Work:
    """Return the work of a layer norm or RMS norm."""
    only_options(call, "kind")
    option(call, "kind", "rms", ("rms", "layer"))
    return _by_row(call, "norm", 6.0)


@FAMILIES.register("softmax")
def softmax(call: OperatorCall) -> Work:
    """Return the work of a softmax over each row."""
    only_options(call)
    return _by_row(call, "softmax", 5.0)


def _by_row(call: OperatorCall, family: str, flops_per_element: float) -> Work:
    rows, width = sizes(call, "rows", "width")
    backward = direction(call, "forward", "backward") == "backward"
    tensors = 3 if backward else 2
    return Work(
        constants=(f"{family}_backward", family) if backward else (family,),
        flops=flops_per_element * rows * width * (1.5 if backward else 1.0),
        bytes_moved=tensors * rows * width * result_bytes(call.dtype),
        compute_dtype="fp32",
        coordinates=(rows, width * result_bytes(call.dtype)),
    )
