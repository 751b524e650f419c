"""Find the layers that a NeuSight file lists, and repeat the last one.

Names of modules say which layer they are in (``transformer_h_0_ln_1``, ``bert_encoder_layer_0_...``,
``model_decoder_layers_0_...``); names of functions (``addmm_1``, ``getitem_5``) belong to a layer by
their position.
"""

import math
import re

from msgspec import Struct

from traincast.diagnostics import Notebook
from traincast.errors import ConfigError
from traincast.formats.neusight.grammar import GRADIENT_SUFFIX, MILLISECONDS_PER_SECOND, Form, NeusightFile
from traincast.job.options import LayoutOptions
from traincast.units import counted

MAX_ROWS = 2**16
"""Most rows that repetition may make; a slip of the hand must not exhaust memory."""

_LAYER = re.compile(r"(?:^|_)(?:h|layers?|blocks?)_(\d{1,6})(?:_|$)")
_AFTER_LAYERS = re.compile(
    r"(?:^|_)(?:ln_f|final_layer_norm|final_norm|lm_head|head|embed_out|pooler|cls|classifier|score|logits|loss)(?:_|$)"
)
"""Modules that follow the last layer in models whose modules have no common first name."""
_LAST_OF_LAYER = re.compile(r"(?<!attention)_output_layer_?norm$", re.IGNORECASE)
"""The norm that ends a layer of BERT's kind; where the norms come first, functions without a name of the layer do."""


class Layers(Struct, frozen=True):
    """Where the layers of a file are; numbers index `NeusightFile.rows`."""

    starts: tuple[int, ...]
    """First row of each layer."""
    end: int
    """Row after the last layer."""

    @property
    def last(self) -> range:
        """Rows of the last layer."""
        return range(self.starts[-1], self.end)


def find_layers(file: NeusightFile) -> Layers | None:
    """Find the layers of a file by the names of its modules; None if no name says a layer.

    The last layer ends with the norm of its output (BERT's), else before the next stage or the first module that is in
    no layer (``transformer_ln_f``, ``lm_head``).
    """
    stem, number, starts, last = "", "", [], 0
    for index, row in enumerate(file.rows):
        match = _LAYER.search(row.name)
        if match is None or stem not in ("", row.name[: match.start(1)]):
            continue
        stem, last = row.name[: match.start(1)], index
        if match[1] != number:
            number = match[1]
            starts.append(index)
    if not starts:
        return None
    if _LAST_OF_LAYER.search(file.rows[last].name):
        return Layers(tuple(starts), last + 1)
    root = stem.split("_")[0] + "_"
    after = range(last + 1, len(file.rows))
    return Layers(tuple(starts), next((index for index in after if _leaves(file, index, root)), len(file.rows)))


def _leaves(file: NeusightFile, index: int, root: str) -> bool:
    """Tell whether a row after the last named one of a layer is outside it."""
    row = file.rows[index]
    return row.sends or row.name.startswith(root) or _AFTER_LAYERS.search(row.name) is not None


def _named_layer(file: NeusightFile, first: str, last: str) -> Layers:
    """Return the layer that the user names by its first and last row; the gradient row before it is taken along."""
    names = [row.name for row in file.rows]
    for name in (first, last):
        if name not in names:
            known = f"its rows are {names[0]} ... {names[-1]}"
            raise ConfigError(f"{file.path} has no row {name!r}; {known}", "layer_block")
    begin = names.index(first)
    if last not in names[begin:]:
        raise ConfigError(f"row {last!r} stands before row {first!r}; write FIRST:LAST", "layer_block")
    end = names.index(last, begin) + 1
    return Layers((begin - (begin > 0 and names[begin - 1] == first + GRADIENT_SUFFIX),), end)


def arrange(file: NeusightFile, options: LayoutOptions, notes: Notebook) -> list[tuple[int, int]]:
    """Lay out the rows of the whole model, of as many layers as `options` say.

    Returns
    -------
    list of (int, int)
        Index of a row and its layer: -1 before the first layer, the number of layers after the last.

    Raises
    ------
    ConfigError
        If no layer is found, fewer are wanted than there are, or one cannot be repeated.
    """
    if options.layer_block is not None and options.layers is None:
        raise ConfigError("says which rows are repeated; give layers=..., too", "layer_block").typed(layers="--layers")
    found = find_layers(file) if options.layer_block is None else _named_layer(file, *options.block_ends)
    if found is None:
        if options.layers is not None and options.layers > 1:
            raise ConfigError(
                f"no row of {file.path} names a layer (such as transformer_h_0_ln_1); "
                "give layer_block=FIRST:LAST with the names of the first and last row of a layer",
                "layers",
            ).typed(layer_block="--layer-block")
        return [(index, -1) for index in range(len(file.rows))]
    listed = len(found.starts)
    if options.layers is None and listed == 1:
        text = f"the file lists {counted(listed, 'layer')} of the model and is simulated as written"
        notes.warn("layers-as-listed", f"{text}; give --layers N for all N", file.line(found.starts[0]))
    copies = _copies(file, found, options.layers or listed)
    if copies > 1:
        which = "the one listed layer" if len(found.starts) == 1 else "the last listed layer"
        text, line = _arithmetic(file, found, copies), file.line(found.starts[-1])
        notes.assume("layers-repeated", text, line, brief=f"{which} runs {copies} times")
        if spread := _spread(file, found, options, copies):
            return spread
        if any(row.sends for row in file.rows):
            text = f"all {copies} copies of the last listed layer run in its stage; the stages may be uneven"
            notes.warn("layers-in-one-stage", text, file.line(found.starts[-1]))
    starts, layer, rows = set(found.starts), -1, []
    for index in range(found.starts[-1]):
        layer += index in starts
        rows.append((index, layer))
    rows += [(index, listed - 1 + copy) for copy in range(copies) for index in found.last]
    return rows + [(index, listed - 1 + copies) for index in range(found.end, len(file.rows))]


def _spread(file: NeusightFile, found: Layers, options: LayoutOptions, copies: int) -> list[tuple[int, int]]:
    """Return the rows with the one listed layer in as many stages as asked for; none where the file lists stages.

    The message after the layer, the only one of the file, then stands after each stage but the last.
    """
    messages = [index for index, row in enumerate(file.rows) if row.sends]
    if options.pp is None or options.pp < 2 or len(found.starts) > 1 or messages != [found.end]:
        return []
    if copies % options.pp:
        raise ConfigError(f"is {options.pp}; {copies} layers do not divide into so many stages", "pp")
    each = copies // options.pp
    rows = [(index, -1) for index in range(found.starts[0])]
    for layer in range(copies):
        rows += [(index, layer) for index in found.last]
        if (layer + 1) % each == 0 and layer + 1 < copies:
            rows.append((found.end, layer))
    return rows + [(index, copies) for index in range(found.end + 1, len(file.rows))]


def _copies(file: NeusightFile, found: Layers, layers: int) -> int:
    """Return how often the last layer runs."""
    listed = len(found.starts)
    if layers < listed:
        lists = counted(listed, "layer")
        raise ConfigError(f"is {layers}, but {file.path} lists {lists}; give {listed} or more", "layers")
    copies = layers - listed + 1
    if copies > 1 and any(file.rows[index].sends for index in found.last):
        raise ConfigError("cannot repeat a layer with a SENDRECV row in it: it is in two stages", "layers")
    rows = len(file.rows) + (copies - 1) * len(found.last)
    if rows > MAX_ROWS:
        raise ConfigError(f"{layers} layers make {rows} rows, above the limit of {MAX_ROWS}", "layers")
    return copies


def forward_s(file: NeusightFile, rows: range) -> float:
    """Return the forward time of some rows, in seconds."""
    return math.fsum(file.rows[index].forward.compute_s for index in rows)


def milliseconds(time_s: float) -> str:
    """Write a time as the file does: ``59.765 ms``."""
    return f"{time_s * MILLISECONDS_PER_SECOND:.6g} ms"


def _arithmetic(file: NeusightFile, found: Layers, copies: int) -> str:
    rows, last = file.rows, found.last
    parts = (range(last.start), last, range(last.stop, len(file.rows)))
    before, layer, after = (forward_s(file, part) for part in parts)
    which = "the one listed layer" if len(found.starts) == 1 else f"the last of {len(found.starts)} listed layers"
    ends = f"{rows[last.start].name} to {rows[last.stop - 1].name}, {counted(len(last), 'row')}"
    runs = f"{which} ({ends}) runs {copies} times"
    if file.form is Form.GRAPH:
        return runs
    return (
        f"{runs}: forward {milliseconds(before)} + {copies} x {milliseconds(layer)} + {milliseconds(after)} = "
        f"{milliseconds(before + copies * layer + after)}"
    )
