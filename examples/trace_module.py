"""Write the operators of a PyTorch module as an operator graph, which traincast simulates on any GPU.

    python examples/trace_module.py model.py:make graph.csv [--inference] [--accumulate] [--data-parallel] [--unfused]
    traincast simulate graph.csv --cluster h100 --dtype bf16

`make` in that file (or module, ``package.module:make``) returns the module and example inputs, ``(module, inputs)``;
what the module returns is trained, best its loss. It is called with the meta device as default, so that a model of any
size is traced without its weights (``--device cpu`` where the module needs real ones). Sizes that depend on data, such
as those of experts that take what a router sends them, must be fixed, such as by a capacity.

The file has a row a node: what it runs forward, backward and, with ``--accumulate`` (several microbatches), to add up
gradients; with ``--data-parallel`` a row before each node reduces its gradients. Columns and operators are those of
NeuSight's graphs (sitar-lab/NeuSight); fused attention, ATTENTION and CAUSAL_ATTENTION (batch, queries, keys, heads,
heads of keys, size of a head, size of a value), is not among them, and ``--unfused`` writes its GEMMs and softmax.
"""

import argparse
import csv
import importlib
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch
from torch.fx import Node

COLUMNS = ("Name", "OpName", "FwOps", "BwOps", "AccOps", "Prev", "Next", "InputShapes", "OutputShape")
KEPT = (
    *("linear", "layer_norm", "rms_norm", "group_norm", "batch_norm", "scaled_dot_product_attention"),
    *("conv1d", "conv2d", "conv3d", "gelu", "silu", "relu", "embedding"),
)
"""Operators that stay whole, as PyTorch has one kernel for each; others become what PyTorch makes of them."""
ROWS = {"_softmax": "VECsoftmax", "_log_softmax": "VECsoftmax"} | dict.fromkeys(
    ("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "native_group_norm", "batch_norm"), "VECln"
)
ACTIVATIONS = {name: f"VEC{name}" for name in ("gelu", "silu", "relu", "tanh")}
PIECES = {"select", "slice", "split", "split_with_sizes", "getitem", "unbind", "chunk"}
"""They take a part of a tensor."""
WITHOUT_GRADIENT_KERNEL = {"add", "sub", "neg"}
"""Their gradient is the one that comes in."""


Shape = tuple[int, ...]
Ops = list[list[object]]
"""Operators, each its name and its sizes."""
Made = tuple[torch.nn.Module, Sequence[torch.Tensor]]
"""A module and its example inputs."""


@dataclass
class Listed:
    """A row of the graph."""

    name: str
    kind: str
    inputs: list[Shape] = field(default_factory=list)
    output: Shape = ()
    forward: Ops = field(default_factory=list)
    backward: Ops = field(default_factory=list)
    parameters: int = 0


def traced(make: Callable[[], Made], device: str) -> tuple[torch.fx.Graph, set[str]]:
    """Return the graph of the module that `make` returns, and the names of its parameters in it."""
    with torch.device(device):
        module, inputs = make()
    program = torch.export.export(module, tuple(inputs), strict=False)
    table = torch.export.default_decompositions()
    for operator in [each for each in table if each.name().split("::")[1].split(".")[0] in KEPT]:
        table.pop(operator)
    program = program.run_decompositions(table)
    signature = program.graph_signature.inputs_to_parameters
    trained = {name for name, parameter in signature.items() if program.state_dict[parameter].requires_grad}
    return program.graph, trained


class Graph:
    """Lists the nodes of an exported graph."""

    def __init__(self, graph: torch.fx.Graph, trained: set[str], *, training: bool, unfused: bool) -> None:
        self.nodes, self.trained, self.training, self.unfused = list(graph.nodes), trained, training, unfused
        self.weight_of: dict[Node, Node | None] = {}
        self.needs: dict[Node, bool] = {}
        self.moved: Counter[str] = Counter()
        self.seen: set[Node] = set()

    def rows(self) -> list[Listed]:
        """Return a row for each node that does something."""
        found = []
        for node in self.nodes:
            if node.op == "placeholder":
                self.needs[node] = node.name in self.trained
                self.weight_of[node] = node if node.name in self.trained else None
            elif node.op == "call_function":
                row = self._row(node)
                if row.forward or row.backward:
                    found.append(row)
        return found

    def _row(self, node: Node) -> Listed:
        inputs = [each for each in node.all_input_nodes if shape_of(each) is not None]
        self.needs[node] = differentiable(node) and any(self.needs[each] for each in node.all_input_nodes)
        self.weight_of[node] = None
        row = Listed(self._name(node), operator_of(node), [shape_of(each) for each in inputs], shape_of(node) or ())
        if operator_of(node) == "getitem" or is_view(node):
            # A view of a weight is the weight.
            self.weight_of[node] = self.weight_of.get(node.all_input_nodes[0]) if node.all_input_nodes else None
        elif any(prod(shape) for shape in every_shape(node)):
            self._work(node, row, inputs)
        if self.training and self.needs[node]:
            row.backward += self._sums_of_gradients(node)
            new = {self.weight_of[each] for each in inputs} - {None} - self.seen
            row.parameters = 0 if is_view(node) else sum(prod(shape_of(each)) for each in new)
            self.seen |= set() if is_view(node) else new
        else:
            row.backward = []
        return row

    def _work(self, node: Node, row: Listed, inputs: list[Node]) -> None:
        """Say what a node runs, by the kind of its operator."""
        name, out = row.kind, row.output or first_shape(node)
        wants = [self.needs[each] for each in inputs]
        if name in ("linear", "addmm", "mm", "bmm", "baddbmm"):
            self._gemm(row, inputs)
        elif name in ("conv1d", "conv2d", "conv3d", "convolution"):
            # As a GEMM of the patches that each result is made of.
            rows, width = prod(out) // out[1], out[1]
            row.kind = "Linear"
            linear(row, rows, prod(row.inputs[1][1:]), width, wants)
        elif name == "scaled_dot_product_attention":
            self._attention(node, row)
        elif name in ROWS or name in ACTIVATIONS:
            kind = ROWS.get(name) or ACTIVATIONS[name]
            row.kind, size = kind, rows_of(out)
            row.forward, row.backward = [[kind, size]], [[kind, size]]
        elif name == "embedding":
            row.kind = "EMBEDDING"
            row.forward = [["MEM", (row.inputs[1], out, out)]]
            row.backward = [["MEM", (row.inputs[0],)], ["MEM", (out, out, out)]]
        elif torch.Tag.pointwise in node.target.tags:
            single = "u" if len(row.inputs) == 1 else ""
            row.kind = f"VEC{name.strip('_')}{single}"
            row.forward = [[row.kind, rows_of(out)]]
            if name not in WITHOUT_GRADIENT_KERNEL:
                row.backward = [[f"VEC{name.strip('_')}{single}", rows_of(out)] for want in wants if want]
        else:
            tensors = (*row.inputs, *every_shape(node))
            row.forward, row.backward = [["MEM", tensors]], [["MEM", tensors]]
            self.moved[name] += any(prod(shape) > 1 for shape in tensors)

    def _gemm(self, row: Listed, inputs: list[Node]) -> None:
        operands = inputs[1:] if row.kind in ("addmm", "baddbmm") else inputs
        left, right = shape_of(operands[0]), shape_of(operands[1])
        wants = [self.needs[each] for each in operands[:2]]
        if row.kind == "linear":
            linear(row, prod(left[:-1]), left[-1], right[0], wants)
        elif len(left) == 2:
            linear(row, *left, right[1], wants)
        elif left[0] == 1:
            linear(row, left[1], left[2], right[2], wants)
        else:
            batch, m, k, n = *left, right[2]
            row.forward = [["BMM", (batch, m, k, n)]]
            row.backward = [
                each
                for each, want in zip([["BMM", (batch, m, n, k)], ["BMM", (batch, k, m, n)]], wants, strict=True)
                if want
            ]
            row.kind = "BMM"
            return
        row.kind = "Linear"

    def _attention(self, node: Node, row: Listed) -> None:
        query, key, value = (shape_of(each) for each in node.args[:3])
        batch, heads = prod(query[:-3]), query[-3]
        causal = bool(node.args[5] if len(node.args) > 5 else node.kwargs.get("is_causal", False))
        row.kind = "attention"
        if not self.unfused:
            kind = "CAUSAL_ATTENTION" if causal else "ATTENTION"
            row.forward = [[kind, (batch, query[-2], key[-2], heads, key[-3], query[-1], value[-1])]]
            row.backward = [[*row.forward[0]]]
            return
        each, m, n = batch * heads, query[-2], key[-2]
        scores = (each * m, n)
        row.forward = [
            ["BMM", (each, m, query[-1], n)],
            *([["VECmulu", scores]] * (1 + causal)),
            ["VECsoftmax", scores],
            ["BMM", (each, m, n, value[-1])],
        ]
        row.backward = [
            *([["BMM", (each, m, value[-1], n)], ["BMM", (each, n, m, value[-1])], ["VECmul", scores]]),
            *([["VECmulu", scores]] * (1 + causal)),
            *([["BMM", (each, m, n, query[-1])], ["BMM", (each, n, m, query[-1])]]),
        ]

    def _sums_of_gradients(self, node: Node) -> Ops:
        """Return what adds up the gradients of a tensor that several nodes take."""
        users = [user for user in node.users if user.op == "call_function" and differentiable(user)]
        shape = shape_of(node)
        if shape is None or len(users) < 2:
            return []
        if all(operator_of(user) in PIECES for user in users):
            # The gradients of pieces are put together in one copy.
            return [["MEM", (shape, shape)]]
        return [["VECadd", rows_of(shape)]] * (len(users) - 1)

    def _name(self, node: Node) -> str:
        """Return the path of a node's module and its own name: ``blocks_0_mlp_linear_2``."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = str(stack[-1][0]) if stack else ""
        path = "_".join(part for part in path.removeprefix("L['self'].").split(".") if part)
        return f"{path}_{node.name}" if path else node.name


def linear(row: Listed, m: int, k: int, n: int, wants: list[bool]) -> None:
    """Write a GEMM of m x k by k x n, and those of the gradients that are wanted: of the input, of the weight."""
    row.forward = [["Linear", (m, k, n)]]
    gradients = ([["Linear", (m, n, k)]], [["Linear", (n, m, k)]])
    row.backward = [each for of, want in zip(gradients, wants, strict=False) if want for each in of]


def operator_of(node: Node) -> str:
    """Return the name of a node's operator, without namespace and overload."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target.name().split("::")[1].split(".")[0]
    if getattr(node.target, "__name__", "") == "getitem":
        return "getitem"
    sys.exit(f"{node.name} is {node.target}: control flow and operators without a schema cannot be listed")


def is_view(node: Node) -> bool:
    """Say whether an operator only looks at its input in another way."""
    return operator_of(node) != "getitem" and (node.target.is_view or operator_of(node) == "_unsafe_view")


def every_shape(node: Node) -> list[Shape]:
    """Return the shapes of all tensors that a node makes."""
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    shapes = [tuple(each.shape) for each in values if isinstance(each, torch.Tensor)]
    if any(not isinstance(size, int) for shape in shapes for size in shape):
        sys.exit(
            f"{node.name} ({node.target}) has a size that depends on data: {shapes}; fix it, such as by a capacity"
        )
    return shapes


def shape_of(node: Node) -> Shape | None:
    """Return the shape of a node's tensor; None where it makes none, or several."""
    shapes = every_shape(node)
    return shapes[0] if len(shapes) == 1 and isinstance(node.meta.get("val"), torch.Tensor) else None


def first_shape(node: Node) -> Shape:
    """Return the shape of the first tensor of a node."""
    return (every_shape(node) or [()])[0]


def differentiable(node: Node) -> bool:
    """Say whether gradients pass through a node: one of its tensors is of real numbers."""
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return any(isinstance(each, torch.Tensor) and each.is_floating_point() for each in values)


def rows_of(shape: Shape) -> Shape:
    """Return a shape as rows and their width."""
    width = shape[-1] if shape else 1
    return (prod(shape) // width if width else 0, width)


def written(rows: list[Listed], *, accumulate: bool, data_parallel: bool) -> Iterator[list[object]]:
    """Yield the lines of the file."""
    for row in rows:
        if data_parallel and row.parameters:
            reduced = [["ALLREDUCE_ASYNC", (row.parameters,)]]
            yield [f"{row.name}_grad", "allreduce", [], reduced, [], "set()", "set()", [], ()]
        sums = [["VECadd", [1, row.parameters]]] if accumulate and row.parameters else []
        yield [row.name, row.kind, row.forward, row.backward, sums, "set()", "set()", row.inputs, row.output]


def found(place: str) -> Callable[[], Made]:
    """Return the function that ``file.py:name`` or ``package.module:name`` names."""
    module, _, name = place.rpartition(":")
    if module.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(module).stem, module)
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = loaded
        spec.loader.exec_module(loaded)
    else:
        loaded = importlib.import_module(module)
    return getattr(loaded, name)


def main() -> None:
    """Trace a module and write its graph."""
    parser = argparse.ArgumentParser(description="write the operators of a PyTorch module as an operator graph")
    parser.add_argument("make", help="file.py:function or module:function that returns (module, inputs)")
    parser.add_argument("out", type=Path, help="file to write (CSV)")
    parser.add_argument("--inference", action="store_true", help="the forward pass alone")
    parser.add_argument("--accumulate", action="store_true", help="add gradients to those of earlier microbatches")
    parser.add_argument("--data-parallel", action="store_true", help="reduce gradients over data parallel ranks")
    parser.add_argument("--unfused", action="store_true", help="attention as GEMMs and softmax")
    parser.add_argument("--device", default="meta", help="where the module is built (meta)")
    said = parser.parse_args()
    graph = Graph(*traced(found(said.make), said.device), training=not said.inference, unfused=said.unfused)
    rows = graph.rows()
    with said.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(written(rows, accumulate=said.accumulate, data_parallel=said.data_parallel))
    print(f"{said.out}: {len(rows)} nodes, {sum(row.parameters for row in rows)} trained parameters")
    if +graph.moved:
        which = ", ".join(f"{name} x {count}" for name, count in (+graph.moved).most_common())
        print(f"taken as kernels that read and write their tensors once: {which}")


if __name__ == "__main__":
    main()
