"""Describe an AICB file: generation, counts, layout as written, totals, and what looks wrong in it."""

import math
from collections import defaultdict
from collections.abc import Iterator

from traincast.diagnostics import Note
from traincast.formats.aicb.generation import generation
from traincast.formats.aicb.meaning import group_of, positions_as_written
from traincast.formats.aicb.rows import AicbFile, Cell, Column
from traincast.formats.aicb.structure import Block, Structure, structure
from traincast.formats.contract import Inspection, Total
from traincast.units import counted
from traincast.workload.words import Group, Operation, Phase

_PHASE_OF_COLUMN = {
    Column.FORWARD: Phase.FORWARD,
    Column.INPUT_GRAD: Phase.BACKWARD,
    Column.WEIGHT_GRAD: Phase.WEIGHT_GRADIENT,
}


def describe(file: AicbFile) -> Inspection:
    """Describe a file.

    Totals are over the file as written, which is one stage for one step; compute of once-per-step
    rows is the phase ``step``.
    """
    split = structure(file)
    text, confidence, evidence = generation(file)
    return Inspection(
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


_DEGREES = {Group.TP: "tp", Group.EP: "ep"}


def structural_oddities(file: AicbFile, structure: Structure) -> tuple[Note, ...]:
    """List what is odd about the structure of a file, each with its ``file:line``.

    Parameters
    ----------
    file : AicbFile
        What the file says.
    structure : Structure
        Its rows, split.

    Returns
    -------
    tuple of Note
        In the order of the checks; the oddities of single values are `AicbFile.oddities`.
    """
    checks = (_microbatches, _embedding_norm, _unequal_blocks, _lonely_groups)
    return tuple(note for check in checks for note in check(file, structure))


def _microbatches(file: AicbFile, structure: Structure) -> Iterator[Note]:
    written, blocks = file.header.ga, len(structure.blocks)
    if written is not None and written != blocks:
        text = f"the header says ga {written}, but the rows hold {counted(blocks, 'microbatch', 'microbatches')}"
        yield Note("microbatches-mismatch", text, _place(file, 0))


def _embedding_norm(file: AicbFile, structure: Structure) -> Iterator[Note]:
    count = len(structure.embedding_norm)
    if count > 1:
        text = (
            f"embedding_norm stands {count} times; tied embeddings are reduced once per step, so the first one counts"
        )
        yield Note("embedding-norm-repeated", text, _place(file, structure.embedding_norm[0]))


def _unequal_blocks(file: AicbFile, structure: Structure) -> Iterator[Note]:
    """Report each kind of microbatch that differs from the last one, which is the steady state."""
    if not structure.blocks:
        return
    usual = _signature(file, structure.blocks[-1])
    differing = [block for block in structure.blocks if _signature(file, block) != usual]
    if differing:
        row = _first_difference(file, differing[0], structure.blocks[-1])
        differ = "differs" if len(differing) == 1 else "differ"
        text = f"{len(differing)} of {len(structure.blocks)} microbatches {differ} from the last one, first in this row"
        yield Note("microbatches-differ", text, _place(file, row))


def _lonely_groups(file: AicbFile, structure: Structure) -> Iterator[Note]:  # noqa: ARG001
    """Report communications in a group that the header says has one member: they would cost nothing."""
    positions = positions_as_written(file)
    for group, field in _DEGREES.items():
        if getattr(file.header, field) != 1:
            continue
        found = [
            index
            for index, row in enumerate(file.rows)
            for column in Column
            if row.cell(column).size_bytes and group_of(row.name, column, row.cell(column), positions) is group
        ]
        if found:
            are = counted(len(found), "communication is", "communications are")
            text = f"{are} in the {field} group by position or suffix, but {field} is 1"
            yield Note("group-of-one", text, _place(file, found[0]))


def _rows(block: Block) -> list[int]:
    return [*block.embedding, *(row for layer in block.layers for row in layer), *block.final]


def _signature(file: AicbFile, block: Block) -> list[tuple[str, Cell, Cell, Cell]]:
    rows = (file.rows[index] for index in _rows(block))
    return [(row.name, row.forward, row.input_grad, row.weight_grad) for row in rows]


def _first_difference(file: AicbFile, block: Block, usual: Block) -> int:
    """Return the first row of a block that differs from its counterpart."""
    rows, pairs = _rows(block), zip(_signature(file, block), _signature(file, usual), strict=False)
    places = (index for index, (one, other) in zip(rows, pairs, strict=False) if one != other)
    return next(places, rows[-1])


def _place(file: AicbFile, index: int) -> str:
    return f"{file.path}:{file.rows[index].line}"
