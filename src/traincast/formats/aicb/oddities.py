"""What looks wrong in an AICB file once its rows are split into microbatches and layers."""

from collections.abc import Iterator

from traincast.diagnostics import Note
from traincast.formats.aicb.meaning import group_of, positions_as_written
from traincast.formats.aicb.rows import AicbFile, Cell, Column
from traincast.formats.aicb.structure import Block, Structure
from traincast.units import counted
from traincast.workload.words import Group

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
