"""Read a NeuSight file into the intermediate form.

Letters: P stages, Q virtual stages in model order (here the stages), M microbatches.
"""

import math
from pathlib import Path

from traincast.diagnostics import Notebook
from traincast.files import read_bytes
from traincast.formats.neusight.grammar import parse
from traincast.formats.neusight.layers import arrange, milliseconds
from traincast.formats.neusight.layout import decide_layout
from traincast.formats.neusight.lower import RowLowering
from traincast.formats.neusight.oddities import GRAVE, GRAVE_GRADIENTS, structural_oddities
from traincast.formats.neusight.rows import NeusightFile
from traincast.spec.dtypes import bytes_per_element
from traincast.spec.inputs import input_of
from traincast.spec.options import LayoutOptions
from traincast.spec.parallel import Parallel
from traincast.units import counted, format_size
from traincast.workload.builder import WorkloadBuilder
from traincast.workload.words import Group
from traincast.workload.workload import Workload

NEUSIGHT_DTYPE = "fp32"
"""Type of the elements where the user says none; NeuSight forecasts no other."""

_Work = list[tuple[int, int]]


def read_workload(path: Path, name: str, options: LayoutOptions) -> Workload:
    """Read one file (see `traincast.formats.contract.Format.read`)."""
    data = read_bytes(path)
    file = parse(str(path), data.decode("utf-8", errors="replace"))
    notes = Notebook(str(path))
    work = arrange(file, options, notes)
    parallel = decide_layout(file, options, notes)
    dtype = _dtype(file, work, options, notes)
    builder = WorkloadBuilder(path.name, parallel, options.schedule or "1f1b", notes, (input_of(path, name, data),))
    lowering = RowLowering(builder, file, dtype, _estimates_backward(file, work, options, notes))
    _lay_out(lowering, _stages(file, work), options.forward_only)
    _say_what_is_left_out(file, work, parallel, options, notes)
    grave = GRAVE if options.forward_only else GRAVE | GRAVE_GRADIENTS
    notes.warnings += [note for note in (*file.oddities, *structural_oddities(file)) if note.code in grave]
    message_bytes = _message_bytes(file, bytes_per_element(dtype), notes)
    return builder.workload(message_bytes, forward_only=options.forward_only)


def _dtype(file: NeusightFile, work: _Work, options: LayoutOptions, notes: Notebook) -> str:
    if options.dtype is not None:
        return options.dtype
    rows = [file.rows[index] for index, _ in work]
    cells = [cell for row in rows for cell in (row.cells[:1] if options.forward_only else row.cells)]
    elements = sum(cell.elements for cell in cells if cell.group is not Group.NONE)
    if elements:
        each = bytes_per_element(NEUSIGHT_DTYPE)
        notes.assume(
            "dtype-absent",
            f"the file counts elements and says no type; taken as NeuSight's {NEUSIGHT_DTYPE}: {elements} elements x "
            f"{each} bytes = {elements * each} bytes (give --dtype)",
            None,
        )
    return NEUSIGHT_DTYPE


def _estimates_backward(file: NeusightFile, work: _Work, options: LayoutOptions, notes: Notebook) -> bool:
    """Tell whether the backward pass has to be estimated; note it with its arithmetic."""
    if options.forward_only or file.has_backward:
        return False
    forward_s = math.fsum(file.rows[index].forward.compute_s for index, _ in work)
    notes.assume(
        "backward-estimated",
        "the file has no time of a backward pass (NeuSight traced it without training); every operator's is taken as "
        f"2 x its forward, 1 x for the input and 1 x for the weight gradient: 2 x {milliseconds(forward_s)} = "
        f"{milliseconds(2 * forward_s)} (--forward-only leaves it out)",
        None,
    )
    return True


def _stages(file: NeusightFile, work: _Work) -> list[_Work]:
    """Split the rows after each SENDRECV row."""
    stages: list[_Work] = [[]]
    for index, layer in work:
        stages[-1].append((index, layer))
        if file.rows[index].sends:
            stages.append([])
    return stages


def _lay_out(lowering: RowLowering, stages: list[_Work], forward_only: bool) -> None:
    """Write the template of every rank; gradients are reduced in the last microbatch only."""
    builder = lowering.builder
    template = builder.template()
    for stage, work in enumerate(stages):
        forward = lowering.forward(work)
        backward = [] if forward_only else lowering.backward(work)
        template.forward_QM[stage] = builder.segment(forward)
        template.backward_QM[stage, -1] = builder.segment(backward)
        if builder.parallel.microbatches > 1:
            others = [row for row in backward if row not in lowering.reductions]
            template.backward_QM[stage, :-1] = builder.segment(others)
        template.end_P[stage] = builder.segment(builder.drained([*forward, *backward]))


def _say_what_is_left_out(
    file: NeusightFile, work: _Work, parallel: Parallel, options: LayoutOptions, notes: Notebook
) -> None:
    """Note what the step does without: what no row describes, and what does not run."""
    reductions = [cell.elements for index, _ in work for cell in file.rows[index].reductions]
    silent = [(file.rows[index].number, cell) for index, _ in work for cell in file.rows[index].cells]
    empty = {number for number, cell in silent if cell.group is not Group.NONE and not cell.elements}
    if empty:
        text = f"{counted(len(empty), 'row communicates', 'rows communicate')} 0 elements, which takes no time"
        notes.assume("zero-size", text, None if file.entries else min(empty))
    if options.forward_only:
        text = "only the forward pass runs, as asked; the backward pass does not"
        if reductions:
            what = counted(len(reductions), "gradient reduction")
            text += (
                f", and neither {'does' if len(reductions) == 1 else 'do'} {what} of {sum(reductions)} elements in all"
            )
        notes.assume("forward-only", text, None)
        return
    notes.assume("optimizer-absent", "the file has no optimizer rows; the step ends with the gradients", None)
    if reductions and parallel.microbatches > 1:
        text = f"gradients are reduced once, in the backward pass of the last of {parallel.microbatches} microbatches"
        notes.assume("reduced-once", text, None)


def _message_bytes(file: NeusightFile, element_bytes: int, notes: Notebook) -> list[int]:
    """Return the bytes of the message that leaves each stage."""
    sizes = []
    for index, row in enumerate(file.rows):
        if not row.sends:
            continue
        written = {cell.elements for cell in row.cells if cell.group is Group.PP}
        if len(written) > 1:
            size = format_size(max(written) * element_bytes)
            text = f"SENDRECV has two sizes, forward and backward; the larger one, {size}, is taken for both"
            notes.warn("message-sizes-differ", text, file.line(index))
        sizes.append(max(written) * element_bytes)
    return [*sizes, 0]
