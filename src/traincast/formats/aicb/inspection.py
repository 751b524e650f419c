"""Describe an AICB file: generation, counts, layout as written, totals, oddities."""

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from traincast.formats.aicb.generation import generation
from traincast.formats.aicb.grammar import load
from traincast.formats.aicb.meaning import group_of, positions_as_written
from traincast.formats.aicb.oddities import structural_oddities
from traincast.formats.aicb.rows import AicbFile, Column
from traincast.formats.aicb.structure import Structure, structure
from traincast.formats.contract import Inspection, Total
from traincast.workload.words import Group, Operation, Phase

_PHASE_OF_COLUMN = {
    Column.FORWARD: Phase.FORWARD,
    Column.INPUT_GRAD: Phase.BACKWARD,
    Column.WEIGHT_GRAD: Phase.WEIGHT_GRADIENT,
}


def inspect_file(path: Path) -> Inspection:
    """Describe a file.

    Parameters
    ----------
    path : Path
        AICB or SimAI workload text.

    Returns
    -------
    Inspection
        Totals are over the file as written, which is one stage for one step; compute of
        once-per-step rows is the phase ``step``.

    Raises
    ------
    FormatError
        If the file cannot be read; with the line.
    """
    file = load(path)
    split = structure(file)
    text, confidence, evidence = generation(file)
    return Inspection(
        path=str(path),
        format="aicb",
        generation=text,
        confidence=confidence,
        evidence=evidence,
        counts=_counts(file, split),
        layout=_layout(file),
        totals=(*_compute_totals(file, split), *_communication_totals(file)),
        oddities=(*file.oddities, *structural_oddities(file, split)),
    )


def _counts(file: AicbFile, split: Structure) -> dict[str, int]:
    layers = [len(block.layers) for block in split.blocks]
    counts = {
        "rows": len(file.rows),
        "microbatches": len(split.blocks),
        "layers_per_microbatch": max(layers, default=0),
        "once_per_step_rows": len(split.leading) + len(split.trailing) + len(split.embedding_norm),
    }
    if file.declared_rows is not None:
        counts["declared_rows"] = file.declared_rows
    return counts


def _layout(file: AicbFile) -> dict[str, int | str | None]:
    header = file.header
    return {
        "policy": header.policy,
        "tp": header.tp,
        "ep": header.ep,
        "pp": header.pp,
        "vpp": header.vpp,
        "microbatches": header.ga,
        "world_size": header.all_gpus,
        "pp_message_bytes": header.pp_message_bytes,
        **header.extra,
    }


def _compute_totals(file: AicbFile, split: Structure) -> Iterator[Total]:
    once = {*split.leading, *split.trailing, *split.embedding_norm}
    times: dict[Phase, list[float]] = defaultdict(list)
    for index, row in enumerate(file.rows):
        for column, phase in _PHASE_OF_COLUMN.items():
            times[Phase.STEP if index in once else phase].append(row.cell(column).compute_s)
    for phase in sorted(times):
        busy = [time_s for time_s in times[phase] if time_s > 0]
        yield Total(
            group="compute", what=phase.name.lower(), count=len(busy), size_bytes=0, time_s=math.fsum(times[phase])
        )


def _communication_totals(file: AicbFile) -> Iterator[Total]:
    sizes: dict[tuple[Group, Operation], list[int]] = defaultdict(list)
    positions = positions_as_written(file)
    for row in file.rows:
        for column in Column:
            cell = row.cell(column)
            if cell.operation is not Operation.NONE:
                sizes[group_of(row.name, column, cell, positions), cell.operation].append(cell.size_bytes)
    for group, operation in sorted(sizes):
        found = sizes[group, operation]
        yield Total(
            group=group.name.lower(),
            what=operation.name.lower(),
            count=len(found),
            size_bytes=sum(found),
            time_s=None,
        )
