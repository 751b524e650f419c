"""Describe a NeuSight file: counts, the layer it lists, totals, and what looks wrong in it."""

import re
from collections import Counter
from collections.abc import Iterator

from traincast.diagnostics import Note
from traincast.formats.contract import Counted, Inspection, totals_of
from traincast.formats.neusight.grammar import GRADIENT_SUFFIX, NEUSIGHT_DTYPE, PHASES, Form, NeusightFile
from traincast.formats.neusight.layers import Layers, find_layers, forward_s, milliseconds
from traincast.hardware.dtypes import bytes_per_element
from traincast.units import counted
from traincast.workload.words import Group, Operation

GRAVE = {"process-time"}
"""Warnings of the file that change the forecast, and so are warnings of a simulation."""
GRAVE_GRADIENTS = {"embedding-gradient-small", "gradient-without-node"}
"""Those that do so where gradients are reduced."""

_EVIDENCE = {
    Form.FORECAST: "the columns are those of AICB's Work_Item, the rows are nodes of a model traced with torch.fx",
    Form.GRAPH: "the columns are those of NeuSight's graphs: nodes of a traced model with operators and shapes",
    Form.PREDICTION: "the columns are those of NeuSight's graphs, and the times that it predicts",
}
_SHORTEST_S = 1e-9
"""A kernel cannot be shorter than a nanosecond."""
_VIEW = re.compile(r"(?:getitem|view|transpose|permute|split|chunk|squeeze|unsqueeze|expand)(?:_\d+)?")
"""Functions of PyTorch that only look at a tensor in another way."""
_NORM = re.compile(r"(?:^|_)(?:ln|norm|layernorm)(?:_|$)", re.IGNORECASE)
_EMBEDDING = re.compile(r"(?:^|_)(?:wte|word_embeddings?|embed_tokens|embed_in|tok_embeddings?)(?:_|$)")
_HEAD = re.compile(r"(?:^|_)(?:lm_head|embed_out|predictions_decoder)(?:_|$)")


def describe(file: NeusightFile) -> Inspection:
    """Describe a file.

    Totals are over the file as written. The file counts elements: bytes are those of NeuSight's
    type, and the elements are among the counts.
    """
    layers = find_layers(file)
    return Inspection(
        generation=f"NeuSight {file.form}" + (", JSON form" if file.entries else ""),
        evidence=(_EVIDENCE[file.form],),
        counts=_counts(file, layers),
        layout=_layout(file, layers),
        totals=tuple(totals_of(_parts(file))),
        oddities=(*file.warnings, *structural_warnings(file)),
    )


def _counts(file: NeusightFile, layers: Layers | None) -> dict[str, int]:
    elements: Counter[Group] = Counter()
    for cell in (cell for row in file.rows for cell in row.cells if cell.operation is not Operation.NONE):
        elements[cell.group] += cell.elements
    return {
        "rows": len(file.rows),
        "operators": sum(any(cell.computes for cell in row.cells) for row in file.rows),
        "layers": len(layers.starts) if layers else 0,
        "rows_per_layer": len(layers.last) if layers else 0,
        **{f"{group.name.lower()}_elements": count for group, count in sorted(elements.items())},
    }


def _layout(file: NeusightFile, layers: Layers | None) -> dict[str, int | str | None]:
    pp = 1 + sum(row.sends for row in file.rows)
    layout: dict[str, int | str | None] = {"layer_block": None, "dtype": None, "tp": None, "dp": None, "pp": pp}
    if layers is None:
        return layout
    first, last = file.rows[layers.last.start], file.rows[layers.last.stop - 1]
    unit = "entries" if file.entries else "lines"
    layout |= {
        "layer_block": f"{first.name}:{last.name}",
        "layer_rows": f"{unit} {first.number} to {last.number}",
    }
    if file.form is Form.GRAPH:
        return layout
    return layout | {
        "forward_before_layers": milliseconds(forward_s(file, range(layers.starts[0]))),
        "forward_of_a_layer": milliseconds(forward_s(file, layers.last)),
        "forward_after_layers": milliseconds(forward_s(file, range(layers.end, len(file.rows)))),
    }


def _parts(file: NeusightFile) -> Iterator[Counted]:
    each = bytes_per_element(NEUSIGHT_DTYPE)
    for row in file.rows:
        for phase, cell in zip(PHASES.values(), row.cells, strict=True):
            yield Counted(Group.NONE, phase, int(cell.computes), time_s=None if cell.calls else cell.compute_s)
            if cell.operation is not Operation.NONE:
                yield Counted(cell.group, cell.operation, size_bytes=cell.elements * each, time_s=cell.comm_s)


def structural_warnings(file: NeusightFile) -> tuple[Note, ...]:
    """List what is odd about the rows of a file, each with its place; those of single values are in the file."""
    found = [*_odd_times(file), *_lonely_gradients(file), *_odd_gradients(file)]
    return tuple(Note(code, text, file.place(row)) for code, text, row in found)


_Warning = tuple[str, str, int]
"""Code, text, and index of the row."""


def _odd_times(file: NeusightFile) -> Iterator[_Warning]:
    if not file.has_backward:
        yield "no-backward", "no row has a time of the backward pass: the model was traced without training", 0
    rows = list(enumerate(file.rows))
    longest_s = [max(cell.compute_s for cell in row.cells) for row in file.rows]
    tiny = [index for index, time_s in enumerate(longest_s) if 0 < time_s < _SHORTEST_S]
    if tiny:
        takes = counted(len(tiny), "row takes", "rows take")
        here = milliseconds(longest_s[tiny[0]])
        yield "no-kernel", f"{takes} less than 1 ns (here {here}): no kernel is so short", tiny[0]
    views = [index for index, row in rows if row.forward.compute_s >= _SHORTEST_S and _VIEW.fullmatch(row.name)]
    if views:
        total = milliseconds(sum(file.rows[index].forward.compute_s for index in views))
        text = (
            f"{counted(len(views), 'row is a view', 'rows are views')}, which costs nothing in PyTorch and counts as "
            f"a copy here: {total} forward in all (first {file.rows[views[0]].name})"
        )
        yield "view-has-time", text, views[0]
    # Nodes of a graph may only handle sizes.
    idle = (
        []
        if file.form is not Form.FORECAST
        else [index for index, row in rows if not any(cell.compute_s or cell.operation >= 0 for cell in row.cells)]
    )
    if idle:
        text = f"{counted(len(idle), 'row says', 'rows say')} neither a time nor a communication"
        yield "empty-row", text, idle[0]


def _lonely_gradients(file: NeusightFile) -> Iterator[_Warning]:
    """Report gradient rows that do not stand right before their node: they start at another time."""
    for index, row in enumerate(file.rows):
        node = row.name.removesuffix(GRADIENT_SUFFIX)
        following = file.rows[index + 1].name if index + 1 < len(file.rows) else "nothing"
        if node != row.name and row.reductions and following != node:
            text = f"{row.name} stands before {following}, not before {node}, whose backward makes this gradient"
            yield "gradient-without-node", text, index


def _gradients(file: NeusightFile, names: re.Pattern[str]) -> list[tuple[int, int]]:
    """Return the rows of such names that reduce a gradient, each with its elements."""
    rows = enumerate(file.rows)
    return [(index, row.reductions[0].elements) for index, row in rows if row.reductions and names.search(row.name)]


def _odd_gradients(file: NeusightFile) -> Iterator[_Warning]:
    """Compare the embedding with the LM head, and both with the hidden size."""
    # The commonest gradient of a layer norm is of a weight and a bias.
    norms = Counter(elements // 2 for _, elements in _gradients(file, _NORM) if elements % 2 == 0)
    hidden = norms.most_common(1)[0][0] if norms else 0
    heads = _gradients(file, _HEAD)
    if not heads:
        return
    head, of_head = heads[0]
    for row, elements in _gradients(file, _EMBEDDING)[:1]:
        if elements < of_head:
            text = (
                f"{file.rows[row].name} has {elements} elements, fewer than the {of_head} of {file.rows[head].name}: "
                "both are vocabulary x hidden"
            )
            if hidden and elements % hidden == 0:
                text += f"; {elements} = {elements // hidden} x hidden {hidden} is sequence x hidden, if anything"
            yield "embedding-gradient-small", text, row
    if hidden and of_head % hidden and of_head % (hidden + 1) == 0:
        vocabulary = of_head // (hidden + 1)
        text = (
            f"{of_head} elements = {vocabulary} x hidden {hidden} + a bias of {vocabulary}; "
            "the output projection of most language models has none"
        )
        yield "head-bias", text, head
