"""Describe a NeuSight file: counts, the layer it lists, totals, and what looks wrong in it."""

import re
from collections import Counter
from collections.abc import Iterator

from traincast.diagnostics import Note
from traincast.formats.contract import Counted, Inspection, totals_of
from traincast.formats.neusight.grammar import GRADIENT_SUFFIX, NEUSIGHT_DTYPE, PHASES, NeusightFile
from traincast.formats.neusight.layers import Layers, find_layers, forward_s, milliseconds
from traincast.job.dtypes import bytes_per_element
from traincast.units import counted
from traincast.workload.words import Group, Operation

GRAVE = {"process-time"}
"""Oddities that change the forecast, and so are warnings of a simulation."""
GRAVE_GRADIENTS = {"embedding-gradient-small", "gradient-without-node"}
"""Those that do so where gradients are reduced."""

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
        generation="NeuSight operator forecast" + (", JSON form" if file.entries else ""),
        evidence=("the columns are those of AICB's Work_Item, the rows are nodes of a model traced with torch.fx",),
        counts=_counts(file, layers),
        layout=_layout(file, layers),
        totals=tuple(totals_of(_parts(file))),
        oddities=(*file.oddities, *structural_oddities(file)),
    )


def _counts(file: NeusightFile, layers: Layers | None) -> dict[str, int]:
    elements: Counter[Group] = Counter()
    for cell in (cell for row in file.rows for cell in row.cells if cell.operation is not Operation.NONE):
        elements[cell.group] += cell.elements
    return {
        "rows": len(file.rows),
        "operators": sum(any(cell.compute_s for cell in row.cells) for row in file.rows),
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
    return {
        **layout,
        "layer_block": f"{first.name}:{last.name}",
        "layer_rows": f"{unit} {first.number} to {last.number}",
        "forward_before_layers": milliseconds(forward_s(file, range(layers.starts[0]))),
        "forward_of_a_layer": milliseconds(forward_s(file, layers.last)),
        "forward_after_layers": milliseconds(forward_s(file, range(layers.end, len(file.rows)))),
    }


def _parts(file: NeusightFile) -> Iterator[Counted]:
    each = bytes_per_element(NEUSIGHT_DTYPE)
    for row in file.rows:
        for phase, cell in zip(PHASES.values(), row.cells, strict=True):
            yield Counted(Group.NONE, phase, int(cell.compute_s > 0), time_s=cell.compute_s)
            if cell.operation is not Operation.NONE:
                yield Counted(cell.group, cell.operation, size_bytes=cell.elements * each)


def structural_oddities(file: NeusightFile) -> tuple[Note, ...]:
    """List what is odd about the rows of a file, each with its place; those of single values are in the file."""
    checks = (_no_backward, _tiny, _views, _idle, _lonely_gradients, _embedding, _head)
    return tuple(Note(code, text, file.place(row)) for check in checks for code, text, row in check(file))


_Oddity = tuple[str, str, int]
"""Code, text, and index of the row."""


def _no_backward(file: NeusightFile) -> Iterator[_Oddity]:
    if not file.has_backward:
        yield "no-backward", "no row has a time of the backward pass: the model was traced without training", 0


def _tiny(file: NeusightFile) -> Iterator[_Oddity]:
    times = {index: max(cell.compute_s for cell in row.cells) for index, row in enumerate(file.rows)}
    tiny = [index for index, time_s in times.items() if 0 < time_s < _SHORTEST_S]
    if tiny:
        takes = f"{counted(len(tiny), 'row takes', 'rows take')} less than 1 ns (here {milliseconds(times[tiny[0]])})"
        yield "no-kernel", f"{takes}: no kernel is so short", tiny[0]


def _views(file: NeusightFile) -> Iterator[_Oddity]:
    rows = enumerate(file.rows)
    views = [index for index, row in rows if row.forward.compute_s >= _SHORTEST_S and _VIEW.fullmatch(row.name)]
    if views:
        total = milliseconds(sum(file.rows[index].forward.compute_s for index in views))
        text = (
            f"{counted(len(views), 'row is a view', 'rows are views')}, which costs nothing in PyTorch and counts as "
            f"a copy here: {total} forward in all (first {file.rows[views[0]].name})"
        )
        yield "view-has-time", text, views[0]


def _idle(file: NeusightFile) -> Iterator[_Oddity]:
    rows = enumerate(file.rows)
    idle = [index for index, row in rows if not any(cell.compute_s or cell.operation >= 0 for cell in row.cells)]
    if idle:
        text = f"{counted(len(idle), 'row says', 'rows say')} neither a time nor a communication"
        yield "empty-row", text, idle[0]


def _lonely_gradients(file: NeusightFile) -> Iterator[_Oddity]:
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


def _hidden(file: NeusightFile) -> int | None:
    """Return the hidden size, by the commonest gradient of a layer norm: a weight and a bias."""
    sizes = Counter(elements // 2 for _, elements in _gradients(file, _NORM) if elements % 2 == 0)
    return sizes.most_common(1)[0][0] or None if sizes else None


def _embedding(file: NeusightFile) -> Iterator[_Oddity]:
    embeddings, heads, hidden = _gradients(file, _EMBEDDING), _gradients(file, _HEAD), _hidden(file)
    if not embeddings or not heads or embeddings[0][1] >= heads[0][1]:
        return
    (row, elements), (head, of_head) = embeddings[0], heads[0]
    text = (
        f"{file.rows[row].name} has {elements} elements, fewer than the {of_head} of {file.rows[head].name}: both are "
        "vocabulary x hidden"
    )
    if hidden and elements % hidden == 0:
        text += f"; {elements} = {elements // hidden} x hidden {hidden} is sequence x hidden, if anything"
    yield "embedding-gradient-small", text, row


def _head(file: NeusightFile) -> Iterator[_Oddity]:
    heads, hidden = _gradients(file, _HEAD), _hidden(file)
    if not heads or hidden is None or heads[0][1] % hidden == 0 or heads[0][1] % (hidden + 1):
        return
    row, elements = heads[0]
    vocabulary = elements // (hidden + 1)
    text = (
        f"{elements} elements = {vocabulary} x hidden {hidden} + a bias of {vocabulary}; "
        "the output projection of most language models has none"
    )
    yield "head-bias", text, row
