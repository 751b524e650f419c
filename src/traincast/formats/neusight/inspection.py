"""Describe a NeuSight file: counts, the layer it lists, totals, and what looks wrong in it."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from traincast.diagnostics import Note
from traincast.formats.contract import Inspection, Total
from traincast.formats.neusight.layers import Layers, find_layers, forward_s, milliseconds
from traincast.formats.neusight.rows import GRADIENT_SUFFIX, NEUSIGHT_DTYPE, Column, NeusightFile
from traincast.job.dtypes import bytes_per_element
from traincast.units import counted
from traincast.workload.words import Group, Operation

_PHASES = {
    Column.FORWARD: "forward",
    Column.BACKWARD: "backward",
    Column.WEIGHT_GRAD: "weight_gradient",
}


def describe(file: NeusightFile) -> Inspection:
    """Describe a file.

    Totals are over the file as written. The file counts elements: bytes are those of NeuSight's
    type, fp32, and the elements are among the counts.
    """
    layers = find_layers(file)
    return Inspection(
        generation="NeuSight operator forecast" + (", JSON form" if file.entries else ""),
        evidence=("the columns are those of AICB's Work_Item, the rows are nodes of a model traced with torch.fx",),
        counts=_counts(file, layers),
        layout=_layout(file, layers),
        totals=(*_compute_totals(file), *_communication_totals(file)),
        oddities=(*file.oddities, *structural_oddities(file)),
    )


def _counts(file: NeusightFile, layers: Layers | None) -> dict[str, int]:
    counts = {
        "rows": len(file.rows),
        "operators": sum(any(cell.compute_s for cell in row.cells) for row in file.rows),
        "layers": len(layers.starts) if layers else 0,
        "rows_per_layer": len(layers.last) if layers else 0,
    }
    for (group, _), sizes in sorted(_elements(file).items()):
        key = f"{group.name.lower()}_elements"
        counts[key] = counts.get(key, 0) + sum(sizes)
    return counts


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


def _compute_totals(file: NeusightFile) -> Iterator[Total]:
    for column, phase in _PHASES.items():
        times = [row.cell(column).compute_s for row in file.rows]
        busy = sum(time_s > 0 for time_s in times)
        yield Total(group="compute", what=phase, count=busy, size_bytes=0, time_s=math.fsum(times))


def _communication_totals(file: NeusightFile) -> Iterator[Total]:
    for (group, operation), sizes in sorted(_elements(file).items()):
        yield Total(
            group=group.name.lower(),
            what=operation.name.lower(),
            count=len(sizes),
            size_bytes=sum(sizes) * bytes_per_element(NEUSIGHT_DTYPE),
            time_s=None,
        )


def _elements(file: NeusightFile) -> dict[tuple[Group, Operation], list[int]]:
    """Return the elements of every communication by group and operation."""
    sizes: dict[tuple[Group, Operation], list[int]] = defaultdict(list)
    for row in file.rows:
        for cell in row.cells:
            if cell.operation is not Operation.NONE:
                sizes[cell.group, cell.operation].append(cell.elements)
    return sizes


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


def structural_oddities(file: NeusightFile) -> tuple[Note, ...]:
    """List what is odd about the rows of a file, each with its place.

    Parameters
    ----------
    file : NeusightFile
        What the file says.

    Returns
    -------
    tuple of Note
        In the order of the checks; the oddities of single values are `NeusightFile.oddities`.
    """
    checks = (_no_backward, _tiny, _views, _idle, _lonely_gradients, _embedding, _head)
    return tuple(note for check in checks for note in check(file))


def _no_backward(file: NeusightFile) -> Iterator[Note]:
    if not file.has_backward:
        text = "no row has a time of the backward pass: the model was traced without training"
        yield Note("no-backward", text, file.place(0))


def _tiny(file: NeusightFile) -> Iterator[Note]:
    times = {index: max(cell.compute_s for cell in row.cells) for index, row in enumerate(file.rows)}
    tiny = [index for index, time_s in times.items() if 0 < time_s < _SHORTEST_S]
    if tiny:
        first = milliseconds(times[tiny[0]])
        take = "row takes" if len(tiny) == 1 else "rows take"
        text = f"{len(tiny)} {take} less than 1 ns (here {first}): no kernel is so short"
        yield Note("no-kernel", text, file.place(tiny[0]))


def _views(file: NeusightFile) -> Iterator[Note]:
    views = [
        index
        for index, row in enumerate(file.rows)
        if row.forward.compute_s >= _SHORTEST_S and _VIEW.fullmatch(row.name)
    ]
    if views:
        total = milliseconds(sum(file.rows[index].forward.compute_s for index in views))
        are = counted(len(views), "row is a view", "rows are views")
        text = (
            f"{are}, which costs nothing in PyTorch and counts as a copy here: {total} forward in all "
            f"(first {file.rows[views[0]].name})"
        )
        yield Note("view-has-time", text, file.place(views[0]))


def _idle(file: NeusightFile) -> Iterator[Note]:
    idle = [
        index
        for index, row in enumerate(file.rows)
        if not any(cell.compute_s or cell.operation >= 0 for cell in row.cells)
    ]
    if idle:
        text = f"{counted(len(idle), 'row says', 'rows say')} neither a time nor a communication"
        yield Note("empty-row", text, file.place(idle[0]))


def _lonely_gradients(file: NeusightFile) -> Iterator[Note]:
    """Report gradient rows that do not stand right before their node: they start at another time."""
    for index, row in enumerate(file.rows):
        node = row.name.removesuffix(GRADIENT_SUFFIX)
        following = file.rows[index + 1].name if index + 1 < len(file.rows) else "nothing"
        if node != row.name and row.reductions and following != node:
            text = f"{row.name} stands before {following}, not before {node}, whose backward makes this gradient"
            yield Note("gradient-without-node", text, file.place(index))


def _gradient(file: NeusightFile, names: re.Pattern[str]) -> tuple[int, int] | None:
    """Return the first row of such a name that reduces a gradient, and its elements."""
    found = (
        (index, row.reductions[0].elements)
        for index, row in enumerate(file.rows)
        if row.reductions and names.search(row.name)
    )
    return next(found, None)


def _hidden(file: NeusightFile) -> int | None:
    """Return the hidden size, by the commonest gradient of a layer norm: a weight and a bias."""
    sizes = Counter(
        row.reductions[0].elements // 2
        for row in file.rows
        if row.reductions and _NORM.search(row.name) and row.reductions[0].elements % 2 == 0
    )
    commonest = [size for size, _ in sizes.most_common(1) if size]
    return commonest[0] if commonest else None


def _embedding(file: NeusightFile) -> Iterator[Note]:
    embedding, head, hidden = _gradient(file, _EMBEDDING), _gradient(file, _HEAD), _hidden(file)
    if embedding is None or head is None or embedding[1] >= head[1]:
        return
    text = (
        f"{file.rows[embedding[0]].name} has {embedding[1]} elements, fewer than the {head[1]} of "
        f"{file.rows[head[0]].name}: both are vocabulary x hidden"
    )
    if hidden and embedding[1] % hidden == 0:
        text += f"; {embedding[1]} = {embedding[1] // hidden} x hidden {hidden} is sequence x hidden, if anything"
    yield Note("embedding-gradient-small", text, file.place(embedding[0]))


def _head(file: NeusightFile) -> Iterator[Note]:
    head, hidden = _gradient(file, _HEAD), _hidden(file)
    if head is None or hidden is None or head[1] % hidden == 0 or head[1] % (hidden + 1):
        return
    vocabulary = head[1] // (hidden + 1)
    text = (
        f"{head[1]} elements = {vocabulary} x hidden {hidden} + a bias of {vocabulary}; "
        "the output projection of most language models has none"
    )
    yield Note("head-bias", text, file.place(head[0]))
