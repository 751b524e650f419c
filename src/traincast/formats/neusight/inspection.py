"""Describe a NeuSight file: counts, the layer it lists, totals, oddities."""

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from traincast.formats.contract import Inspection, Total
from traincast.formats.neusight.grammar import load
from traincast.formats.neusight.layers import Layers, find_layers, forward_s, milliseconds
from traincast.formats.neusight.oddities import structural_oddities
from traincast.formats.neusight.read import NEUSIGHT_DTYPE
from traincast.formats.neusight.rows import Column, NeusightFile
from traincast.spec.dtypes import bytes_per_element
from traincast.workload.words import Group, Operation

_PHASES = {
    Column.FORWARD: "forward",
    Column.BACKWARD: "backward",
    Column.WEIGHT_GRAD: "weight_gradient",
}


def inspect_file(path: Path) -> Inspection:
    """Describe a file.

    Parameters
    ----------
    path : Path
        NeuSight operator forecast, as text or JSON.

    Returns
    -------
    Inspection
        Totals are over the file as written. The file counts elements: bytes are those of
        NeuSight's type, fp32, and the elements are among the counts.

    Raises
    ------
    FormatError
        If the file cannot be read; with the line.
    """
    file = load(path)
    layers = find_layers(file)
    return Inspection(
        path=str(path),
        format="neusight",
        generation="NeuSight operator forecast" + (", JSON form" if file.entries else ""),
        confidence=0.95,
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
