"""Read NeuSight's operator graphs, and its predictions, which add times in milliseconds: CSV with a row a node.

Columns are ``Name, OpName, FwOps, BwOps, AccOps, Prev, Next, InputShapes, OutputShape``; operators and shapes are
lists and tuples as Python writes them (`traincast.formats.neusight.kernels`). A prediction has ``fw_latency,
bw_latency, acc_latency`` besides, and perhaps their sums. The nodes are those of a model that torch.fx or torch.export
traced, one of its layers as a rule; ``x_grad`` before a node reduces its gradients over dp, ``sendrecv`` ends a stage.

Source: sitar-lab/NeuSight (MIT), neusight/Tracing/parse.py and neusight/Prediction/predictor.py.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from math import fsum, isclose, prod
from typing import Any

from traincast.diagnostics import FileWarnings
from traincast.errors import FormatError
from traincast.formats import values
from traincast.formats.neusight.grammar import (
    MAX_ELEMENTS,
    MILLISECONDS_PER_SECOND,
    Cell,
    Form,
    NeusightFile,
    Row,
    check_stages,
)
from traincast.formats.neusight.kernels import (
    ATTENTION,
    VECTOR,
    Calls,
    ListedNode,
    ListedOp,
    Shape,
    forward_calls,
    input_gradient_calls,
    weight_gradient_calls,
)
from traincast.formats.neusight.sniff import GRAPH_COLUMNS
from traincast.formats.values import check_lines, check_width, filled_lines, shown
from traincast.workload.words import Group, Operation

TIMES = ("fw_latency", "bw_latency", "acc_latency")
"""Columns of a prediction: forward, both gradients, their accumulation; in milliseconds."""
SUMS = ("bwall_latency", "e2e_latency")
"""Sums of the last two of `TIMES`, and of all."""
_LISTS = GRAPH_COLUMNS[2:5]
_SIZES = {"Linear": 3, "BMM": 4} | dict.fromkeys(ATTENTION, 7)
_COMMUNICATIONS = {
    "ALLREDUCE": (Operation.ALL_REDUCE, Group.TP, False),
    "ALLREDUCE_ASYNC": (Operation.ALL_REDUCE, Group.DP, True),
    "SENDRECV": (Operation.SEND_RECV, Group.PP, False),
}
"""Operation, who takes part, and whether what follows goes on meanwhile."""
_OPERATORS = f"{', '.join(_SIZES)}, {VECTOR}..., MEM, {', '.join(_COMMUNICATIONS)}"
_NEAR_MS = 1e-6


def parse(path: str, text: str) -> NeusightFile:
    """Read the text of a file; `path` is where it came from, for messages.

    Raises
    ------
    FormatError
        With the line, and the column and value, of the first thing that cannot be read.
    """
    check_lines(text, path)
    lines = filled_lines(text)
    if not lines:
        raise FormatError("the file is empty", path)
    first, header = lines[0]
    names = [name.strip() for name in header.split(",")]
    _check_header(names, path, first)
    warnings = FileWarnings(path)
    reader = _NodeReader(path, names, warnings)
    rows = tuple(reader.row(line, content) for line, content in lines[1:])
    if not rows:
        raise FormatError("the file ends after its header; the nodes are missing", path, first)
    check_stages(rows, lambda line, text: FormatError(text, path, line))
    form = Form.PREDICTION if reader.timed else Form.GRAPH
    return NeusightFile(path=path, rows=rows, form=form, entries=False, warnings=warnings.notes())


def _check_header(names: Sequence[str], path: str, line: int) -> None:
    known = (*GRAPH_COLUMNS, *TIMES, *SUMS)
    missing = [name for name in GRAPH_COLUMNS if name not in names]
    timed = [name for name in TIMES if name in names]
    unknown = [name for name in names if name not in known]
    problem = ""
    if missing:
        problem = f"lacks {', '.join(missing)}; an operator graph needs {', '.join(GRAPH_COLUMNS)}"
    elif unknown:
        problem = f"has the unknown {shown(unknown[0])}; known: {', '.join(known)}"
    elif len(set(names)) != len(names):
        problem = "has a column twice"
    elif len(timed) not in (0, len(TIMES)) or (not timed and set(names) & {*SUMS}):
        problem = f"has some of the times of a prediction, which are {', '.join(TIMES)}"
    if problem:
        raise FormatError(f"the header {problem}", path, line)


class _NodeReader:
    """Reads the rows of a graph."""

    def __init__(self, path: str, names: Sequence[str], warnings: FileWarnings) -> None:
        self.path, self.columns, self.warnings = path, names, warnings
        self.names: set[str] = set()
        # The layers of a model repeat their operators and shapes: equal texts are read once.
        self._operators, self._literal = cache(_operators), cache(_literal)
        self.timed = TIMES[0] in names

    def row(self, line: int, content: str) -> Row:
        """Read one node."""
        record = self._record(line, content)
        name = record["Name"].strip()
        if not name:
            raise FormatError("column Name is empty; write the name of the node", self.path, line)
        if name in self.names:
            text = f"the name {shown(name)} stands twice; traced nodes have one each"
            self.warnings.add("name-repeated", text, line)
        self.names.add(name)
        try:
            return self._row(line, name, record)
        except ValueError as problem:
            raise FormatError(str(problem), self.path, line) from None

    def _record(self, line: int, content: str) -> dict[str, str]:
        try:
            (found,) = csv.reader([content], strict=True)
        except (csv.Error, ValueError) as problem:
            raise FormatError(f"is not a line of CSV: {problem}", self.path, line) from None
        check_width(found, self.columns, "columns", self.path, line)
        return dict(zip(self.columns, found, strict=True))

    def _row(self, line: int, name: str, record: dict[str, str]) -> Row:
        lists = [self._operators(record[column], column) for column in _LISTS]
        output = _shape(self._literal(record["OutputShape"], "OutputShape"), "OutputShape")
        inputs = _shapes(self._literal(record["InputShapes"], "InputShapes"), "InputShapes")
        times = self._times_s(line, record)
        forward, backward, accumulate = (tuple(_computing(ops)) for ops in lists)
        node = ListedNode(record["OpName"].strip(), forward, backward, accumulate, inputs, output)
        calls = (forward_calls(node), input_gradient_calls(node), weight_gradient_calls(node))
        forward_cell, backward_cell, weight_cell = map(_cell, lists, times, calls, _LISTS)
        return Row(line, name, forward_cell, backward_cell, weight_cell, process_s=0.0)

    def _times_s(self, line: int, record: dict[str, str]) -> list[float | None]:
        if not self.timed:
            return [None] * len(TIMES)
        times = [_time_s(record[column], column) for column in TIMES]
        for column, parts in zip(SUMS, (times[1:], times), strict=True):
            if column not in record:
                continue
            said = _time_s(record[column], column)
            near_s = _NEAR_MS / MILLISECONDS_PER_SECOND
            if not isclose(said, fsum(parts), rel_tol=1e-6, abs_tol=near_s):
                text = f"column {column} is not the sum of the times that it stands for, which are taken"
                self.warnings.add("sum-differs", text, line)
        return [*times]


def _cell(ops: Sequence[ListedOp], time_s: float | None, calls: Calls, column: str) -> Cell:
    """Return one pass of a node: a computation, or a communication."""
    communications = [op for op in ops if op.name in _COMMUNICATIONS]
    if not communications:
        run = calls if time_s is None else ()
        return Cell(time_s or 0.0, Operation.NONE, asynchronous=False, elements=0, group=Group.NONE, calls=run)
    if len(ops) > 1:
        raise ValueError(f"column {column}: {communications[0].name} has company; give it a node of its own")
    operation, group, asynchronous = _COMMUNICATIONS[communications[0].name]
    if group is Group.PP and column == "AccOps":
        raise ValueError(f"column {column}: SENDRECV carries activations; write it in FwOps or BwOps")
    return Cell(0.0, operation, asynchronous, communications[0].elements, group, comm_s=time_s)


def _computing(ops: Sequence[ListedOp]) -> Iterator[ListedOp]:
    return (op for op in ops if op.name not in _COMMUNICATIONS)


def _time_s(text: str, column: str) -> float:
    try:
        return values.time_s(text, MILLISECONDS_PER_SECOND, "ms")
    except ValueError as problem:
        raise ValueError(f"column {column}: {problem}; write milliseconds, such as 9.98") from None


# --- lists and tuples


_CLOSING_COMMA = re.compile(r",\s*\]")


def _literal(text: str, column: str) -> Any:  # noqa: ANN401 - whatever Python's lists and tuples hold
    """Read lists, tuples, texts and whole numbers as Python writes them; tuples as lists."""
    plain = text.replace("(", "[").replace(")", "]").replace("'", '"')
    try:
        return json.loads(_CLOSING_COMMA.sub("]", plain))
    except (ValueError, RecursionError):
        raise ValueError(f"column {column}: {shown(text)} is not a list or tuple of Python") from None


def _operators(text: str, column: str) -> tuple[ListedOp, ...]:
    """Read the operators of a pass: ``[['Linear', (4096, 1280, 3840)]]``."""
    found = _literal(text, column)
    if not isinstance(found, list):
        raise ValueError(f"column {column}: {shown(text)} is not a list of operators")
    return tuple(_operator(entry, column) for entry in found)


def _operator(entry: object, column: str) -> ListedOp:
    if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)):
        raise ValueError(f"column {column}: {shown(str(entry))} is not an operator with its sizes")
    name, said = entry
    if name == "MEM":
        return ListedOp(name, shapes=_shapes(said, column))
    sizes = _shape(said, f"{column}, {shown(name)}")
    count = 1 if name in _COMMUNICATIONS else 2 if name.startswith(VECTOR) else _SIZES.get(name, 0)
    if not count:
        raise ValueError(f"column {column}: unknown operator {shown(name)}; known: {_OPERATORS}")
    if len(sizes) != count:
        raise ValueError(f"column {column}: {name} has {len(sizes)} sizes; it needs {count}")
    if not prod(sizes) and name not in _COMMUNICATIONS:
        raise ValueError(f"column {column}: a size of {name} is 0")
    return ListedOp(name, sizes)


def _shapes(found: object, column: str) -> tuple[Shape, ...]:
    if not isinstance(found, list):
        raise ValueError(f"column {column}: {shown(str(found))} is not a list of shapes")
    return tuple(_shape(shape, column) for shape in found)


def _shape(found: object, column: str) -> Shape:
    sizes = tuple(found) if isinstance(found, list) else None
    if sizes is None or any(type(size) is not int or size < 0 for size in sizes):
        raise ValueError(f"column {column}: {shown(str(found))} is not a shape, such as (4096, 1280)")
    if prod(sizes) > MAX_ELEMENTS:
        raise ValueError(f"column {column}: {shown(str(found))} has more than {MAX_ELEMENTS} elements")
    return sizes
