"""Read a NeuSight file into the intermediate form: its layout, its stages, what it leaves out.

Letters: P stages, Q virtual stages in model order (here the stages), M microbatches.
"""

import math

from traincast.diagnostics import Notebook
from traincast.errors import ConfigError
from traincast.formats.contract import Source
from traincast.formats.layout import asked_dp, warn_single_microbatch
from traincast.formats.neusight.inspection import GRAVE, GRAVE_GRADIENTS, structural_oddities
from traincast.formats.neusight.layers import arrange, milliseconds
from traincast.formats.neusight.lower import RowLowering
from traincast.formats.neusight.rows import NEUSIGHT_DTYPE, NeusightFile
from traincast.job.dtypes import bytes_per_element
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.units import counted, format_size
from traincast.workload.words import Group
from traincast.workload.workload import Workload

NEUSIGHT_GPUS = 4
"""GPUs that NeuSight's own formula for communication is fixed at, whatever the layout."""


def decide_layout(file: NeusightFile, options: LayoutOptions, notes: Notebook) -> Parallel:
    """Work out degrees and microbatches.

    Parameters
    ----------
    file : NeusightFile
        What the file says.
    options : LayoutOptions
        What the user says.
    notes : Notebook
        Receives every assumption and warning.

    Returns
    -------
    Parallel
        As many stages as the file's SENDRECV rows separate.

    Raises
    ------
    ConfigError
        If the user wants other stages than the file has.
    InfeasibleError
        If the GPUs do not divide into the degrees.
    """
    pp = 1 + sum(row.sends for row in file.rows)
    if options.pp not in (None, pp):
        raise ConfigError(
            f"is {options.pp}; {file.path} describes {counted(pp, 'stage')}, and SENDRECV rows separate stages", "pp"
        )
    if options.vpp not in (None, 1):
        raise ConfigError(f"is {options.vpp}; the stages of a NeuSight file have no virtual stages", "vpp")
    if pp > 1 and options.microbatches is None:
        text = "the file says no number of microbatches; taken as 1, as NeuSight does (give --microbatches)"
        notes.assume("microbatches-absent", text, None)
    tp, dp = _degrees(file, options, pp, notes)
    _warn_not_rescaled(file, options, notes)
    parallel = Parallel(tp=tp, dp=dp, pp=pp, microbatches=options.microbatches or 1)
    warn_single_microbatch(notes, pp, pp, parallel.microbatches, None)
    return parallel


def _warn_not_rescaled(file: NeusightFile, options: LayoutOptions, notes: Notebook) -> None:
    """Warn where the user says a tp: nothing in the file says which one its times are of."""
    communicates = Group.TP in _groups(file)
    if options.tp is None or (options.tp == 1 and not communicates):
        return
    text = f"the file says no tp; its compute times and elements are kept as they are for tp {options.tp}"
    notes.warn("tp-not-rescaled", text if communicates else f"{text}, and no row communicates over tp", None)


def _groups(file: NeusightFile) -> set[Group]:
    return {cell.group for row in file.rows for cell in row.cells}


def _degrees(file: NeusightFile, options: LayoutOptions, pp: int, notes: Notebook) -> tuple[int, int]:
    """Return tp and dp: what the user leaves open follows from the GPUs, else from NeuSight's 4."""
    groups = _groups(file)
    tp = options.tp
    if tp is None:
        only_tp = Group.TP in groups and Group.DP not in groups
        if only_tp and options.gpus is not None:
            tp = max(1, options.gpus // (pp * (options.dp or 1)))
            text = f"the file communicates over tp only, so {counted(options.gpus, 'GPU makes', 'GPUs make')} tp {tp}"
            notes.assume("tp-from-gpus", text, None)
        else:
            tp = _default(Group.TP, groups, notes)
    dp = asked_dp(options, {"tp": tp, "pp": pp}, file.path)
    return tp, _default(Group.DP, groups, notes) if dp is None else dp


def _default(group: Group, groups: set[Group], notes: Notebook) -> int:
    if group not in groups:
        return 1
    name = group.name.lower()
    notes.assume(
        f"{name}-absent",
        f"the file communicates over {name} and says no number of ranks; taken as {NEUSIGHT_GPUS}, which NeuSight's "
        f"exporter fixes (give --{name} or --gpus)",
        None,
    )
    return NEUSIGHT_GPUS


_Work = list[tuple[int, int]]


def build(file: NeusightFile, options: LayoutOptions, source: Source) -> Workload:
    """Make the workload of a file."""
    notes = source.notes
    work = arrange(file, options, notes)
    parallel = decide_layout(file, options, notes)
    dtype = _dtype(file, work, options, notes)
    builder = source.builder(parallel, options.schedule or "1f1b")
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
