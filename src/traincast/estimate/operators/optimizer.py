"""The optimizer's step over the parameters of a rank. Shape: (parameters).

Options: ``kind`` ``adam`` or ``sgd``; ``bytes_per_parameter`` in the place of the count below;
``kernels`` launches (one per bucket of tensors).

Adam on 16-bit or narrower weights reads and writes two fp32 moments (16 bytes) and the fp32
weight (8), reads the fp32 gradient (4) and writes the weight in 16 bits (2): 30 bytes per parameter;
Megatron runs fit 27 (docs/measured.md). SGD keeps one moment.
"""

from traincast.estimate.operators.calls import GRAD_BYTES, direction, number, only_options, option, result_bytes, sizes
from traincast.estimate.operators.contract import FAMILIES, OperatorCall, Work

_MOMENTS = {"adam": 2, "sgd": 1}


@FAMILIES.register("optimizer")
def optimizer(call: OperatorCall) -> Work:
    """Return the work of a step of the optimizer."""
    (parameters,) = sizes(call, "parameters")
    only_options(call, "kind", "bytes_per_parameter", "kernels")
    direction(call, "forward")
    moments = _MOMENTS[option(call, "kind", "adam", tuple(_MOMENTS))]
    narrow = result_bytes(call.dtype) if call.dtype not in ("fp32", "tf32") else 0.0
    usual = GRAD_BYTES * (2 * moments + 2 + 1) + narrow
    return Work(
        constants=("optimizer", "elementwise"),
        flops=12.0 * parameters,
        bytes_moved=number(call, "bytes_per_parameter", usual) * parameters,
        compute_dtype="fp32",
        kernels=max(1, round(number(call, "kernels", 1))),
    )
