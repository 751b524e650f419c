"""The operators of NeuSight's graphs as calls of our own operator families.

A node lists what it runs forward, backward and to accumulate gradients: ``Linear`` (M, N, K) and ``BMM`` (B, M, N, K),
GEMMs of M x N by N x K; ``VEC...`` (rows, width), element by element, by rows for ``VECsoftmax`` and ``VECln``, of one
tensor where it ends in u; ``MEM`` (shapes), tensors that are read or written. What is one number is not on the GPU.

``ATTENTION`` and ``CAUSAL_ATTENTION`` (batch, queries, keys, heads, heads of keys, size of a head, of a value) are one
kernel; NeuSight has none, graphs of other tracers may (``examples/trace_module.py``).

A backward pass is taken as PyTorch runs it: softmax, layer norm and activation in one kernel of the forward shape,
what only moves tensors in one kernel. All operators of a node that NeuSight fused run in one kernel, which moves its
outer tensors; a softmax or layer norm among them decides its rate.

Source: sitar-lab/NeuSight (MIT), neusight/Tracing/parse.py and neusight/Prediction/predictor.py.
"""

from collections.abc import Sequence
from math import prod

from msgspec import Struct

from traincast.workload.ops import OperatorCall

Shape = tuple[int, ...]
Calls = tuple[tuple[OperatorCall, float], ...]
"""Operator calls, each with how often it runs."""

GRAPH_DTYPE = "fp32"
"""Type of the tensors where nobody says one; NeuSight traces and measures in no other."""
VECTOR = "VEC"
_ROWS = {"softmax": ("softmax", ()), "ln": ("norm", (("kind", "layer"),))}
"""Operators on whole rows: family and options."""
_ACTIVATIONS = ("gelu", "relu", "silu", "tanh")
ATTENTION = {"ATTENTION": False, "CAUSAL_ATTENTION": True}
"""Fused attention: its name, and whether queries see earlier keys alone."""
FUSED = "fused"
"""``OpName`` of a node that is several ones fused."""


class ListedOp(Struct, frozen=True):
    """One operator of a node."""

    name: str
    """``Linear``, ``BMM``, ``MEM`` or ``VEC...``."""
    sizes: Shape = ()
    """Its sizes; of ``MEM`` there are none."""
    shapes: tuple[Shape, ...] = ()
    """The tensors of ``MEM``."""

    @property
    def elements(self) -> int:
        """Elements of the result of one that works on elements, or of all tensors of ``MEM``."""
        return sum(map(prod, self.shapes)) if self.shapes else prod(self.sizes)

    @property
    def runs(self) -> bool:
        """Whether it runs on the GPU: works on more than single numbers, and on something."""
        return any(prod(shape) > 1 for shape in self.shapes or (self.sizes,))


class ListedNode(Struct, frozen=True):
    """What a node runs, and on which tensors."""

    op_name: str
    forward: tuple[ListedOp, ...]
    backward: tuple[ListedOp, ...]
    accumulate: tuple[ListedOp, ...]
    inputs: tuple[Shape, ...]
    output: Shape


def forward_calls(node: ListedNode) -> Calls:
    """Return what a node runs in the forward pass."""
    ops = [op for op in node.forward if op.runs]
    if node.op_name == FUSED and ops:
        return _fused(node, ops)
    outer = sum(map(prod, node.inputs)) + prod(node.output)
    return tuple((_forward(op, outer if len(ops) == 1 else 0), 1.0) for op in ops)


def input_gradient_calls(node: ListedNode) -> Calls:
    """Return what a node runs for the gradients of its inputs."""
    ops = [op for op in node.backward if op.runs]
    whole = [op for op in node.forward if op.runs]
    if ops and len(whole) == 1 and _is_one_kernel(whole[0]):
        return ((_forward(whole[0], 0, direction="backward"), 1.0),)
    moved = sum(op.elements for op in ops if op.name == "MEM")
    calls = [_forward(op, 0) for op in ops if op.name not in ("MEM", "Linear")]
    calls += [_gemm(op, "dgrad") for op in _linears(node)[0]]
    return tuple((call, 1.0) for call in (*calls, *([_moving(moved)] if moved else ())))


def weight_gradient_calls(node: ListedNode) -> Calls:
    """Return what a node runs for the gradients of its weights, and to add them to those that are there."""
    sums = [_moving(3 * op.elements) for op in node.accumulate if op.runs]
    return tuple((call, 1.0) for call in (*(_gemm(op, "wgrad") for op in _linears(node)[1]), *sums))


def _linears(node: ListedNode) -> tuple[list[ListedOp], list[ListedOp]]:
    """Return the GEMMs of the gradients of a node's inputs, and those of its weights, which reduce over its rows."""
    rows = {op.sizes[0] for op in node.forward if op.name == "Linear"}
    found: tuple[list[ListedOp], list[ListedOp]] = ([], [])
    for op in node.backward:
        if op.name == "Linear" and op.runs:
            # Of a square node both look alike; the one of the inputs is listed first.
            of_weight = op.sizes[1] in rows and not (op.sizes[0] in rows and not found[0])
            found[of_weight].append(op)
    return found


def _is_one_kernel(op: ListedOp) -> bool:
    return _family(op.name.removeprefix(VECTOR))[0] != ""


def _forward(op: ListedOp, outer: int, direction: str = "forward") -> OperatorCall:
    """Return the call of an operator; `outer` are the elements of a node's tensors, 0 where it is not alone in it."""
    if op.name == "Linear":
        return _gemm(op, "forward")
    if op.name == "BMM":
        batch, m, reduced, n = op.sizes
        return OperatorCall(family="gemm", shape=(batch, m, n, reduced), dtype=GRAPH_DTYPE)
    family, options = _family(op.name.removeprefix(VECTOR))
    if not family:
        if op.shapes:
            return _moving(op.elements)
        return _moving(outer or op.elements * (2 if op.name.endswith("u") else 3))
    causal = ATTENTION.get(op.name, False)
    return OperatorCall(
        family=family, shape=op.sizes, dtype=GRAPH_DTYPE, direction=direction, causal=causal, options=options
    )


def _family(name: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return family and options of an operator that has one of its own; empty for others."""
    if name in _ACTIVATIONS:
        return "activation", (("kind", name),)
    return ("attention", ()) if name in ATTENTION else _ROWS.get(name, ("", ()))


def _gemm(op: ListedOp, direction: str) -> OperatorCall:
    """Return the GEMM of M x N by N x K as the forward layer of which it is a pass."""
    m, reduced, n = op.sizes
    shape = {"forward": (m, n, reduced), "dgrad": (m, reduced, n), "wgrad": (reduced, m, n)}[direction]
    options = (("accumulate", "none"),) if direction == "wgrad" else ()
    return OperatorCall(family="gemm", shape=shape, dtype=GRAPH_DTYPE, direction=direction, options=options)


def _moving(elements: int) -> OperatorCall:
    """Return a kernel that reads or writes so many elements."""
    options = (("inputs", "1"), ("outputs", "0"))
    return OperatorCall(family="elementwise", shape=(elements, 1), dtype=GRAPH_DTYPE, options=options)


def _fused(node: ListedNode, ops: Sequence[ListedOp]) -> Calls:
    """Return the one kernel of fused operators: on rows where one of them is, with what else it reads."""
    outer = sum(map(prod, node.inputs)) + prod(node.output)
    rows = next((op for op in ops if op.name.removeprefix(VECTOR) in _ROWS), None)
    if rows is None:
        return ((_moving(outer), 1.0),)
    share = max(1.0, outer / (2 * rows.elements))
    return ((_forward(rows, 0), share),)
