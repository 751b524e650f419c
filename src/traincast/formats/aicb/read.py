"""Read an AICB file into the intermediate form."""

from collections import Counter

from traincast.diagnostics import Notebook
from traincast.errors import FormatError
from traincast.formats.aicb.inspection import structural_oddities
from traincast.formats.aicb.layout import Layout, decide_layout
from traincast.formats.aicb.lower import RowLowering
from traincast.formats.aicb.meaning import group_of
from traincast.formats.aicb.rows import AicbFile, Column
from traincast.formats.aicb.structure import StepRows, Structure, order_step_rows, rows_inside_experts, structure
from traincast.formats.aicb.template import TemplateWriter, rows_of_blocks
from traincast.formats.contract import Source
from traincast.formats.layout import known_message_bytes
from traincast.job.options import LayoutOptions
from traincast.units import GIGA, counted
from traincast.workload.builder import Rows
from traincast.workload.experts import ExpertLoads, describe, expert_loads, with_expert_loads
from traincast.workload.words import Group, Operation
from traincast.workload.workload import Workload

_GRAVE = {"placeholder-compute", "embedding-norm-repeated", "row-count", "unknown-key"}
"""Oddities of the file that change the forecast, and so are warnings of a simulation."""

_PLACEHOLDER_S = 1 / GIGA
"""AICB writes 1 ns where it has nothing to say."""

_MANY = "computations or communications"


def build(file: AicbFile, options: LayoutOptions, source: Source) -> Workload:
    """Make the workload of a file."""
    parts = structure(file)
    notes = source.notes
    layout = decide_layout(file, parts, options, notes)
    builder = source.builder(layout.parallel, layout.schedule)
    lowering = RowLowering(builder, file, layout.positions, rows_inside_experts(file, parts))
    steps = order_step_rows(file, parts)
    _refuse_embedding_rows_in_blocks(file, parts, layout)
    TemplateWriter(parts, layout, options, lowering, steps).write()
    message_bytes = _message_bytes(file, parts, layout, options, notes)
    lowering.say_what_was_left_out()
    loads = _decide_loads(lowering, options)
    if layout.forward_only:
        _say_what_is_not_forward(file, steps, notes)
    if options.overlap_grad_reduce and (layout.forward_only or steps.gradient is None):
        why = "the run is forward only" if layout.forward_only else "no row of the file reduces gradients"
        notes.warn("overlap-unused", f"the gradient reduction cannot overlap with anything: {why}", None)
    notes.warnings += [note for note in (*file.oddities, *structural_oddities(file, parts)) if note.code in _GRAVE]
    workload = builder.workload(message_bytes, forward_only=layout.forward_only)
    return workload if loads is None else with_expert_loads(workload, loads, _stretched_rows(lowering))


def _refuse_embedding_rows_in_blocks(file: AicbFile, parts: Structure, layout: Layout) -> None:
    """Refuse rows that meet the first and last stage where every stage of a pipeline would run them."""
    if layout.parallel.pp == 1:
        return
    for row in rows_of_blocks(parts):
        source = file.rows[row]
        for column in Column:
            if group_of(source.name, column, source.cell(column)) is Group.EMB:
                raise FormatError(
                    f"row {source.name!r} stands between the rows of a microbatch, but its communication joins the "
                    "first and last stage once per step; move it before the first microbatch",
                    file.path,
                    source.line,
                )


def _say_what_is_not_forward(file: AicbFile, steps: StepRows, notes: Notebook) -> None:
    """Note what a forward-only run leaves out."""
    closing = {(cell.row, cell.column) for cell in steps.end}
    lines = [
        row.line
        for index, row in enumerate(file.rows)
        for column in Column
        if (column is not Column.FORWARD or (index, column) in closing)
        and (row.cell(column).operation is not Operation.NONE or row.cell(column).compute_s > _PLACEHOLDER_S)
    ]
    if lines:
        notes.assume(
            "forward-only",
            f"the file is of inference: {counted(len(lines), 'computation or communication', _MANY)} of the backward "
            f"pass and the optimizer {'is' if len(lines) == 1 else 'are'} not run",
            lines[0],
        )


def _message_bytes(file: AicbFile, parts: Structure, layout: Layout, options: LayoutOptions, notes: Notebook) -> int:
    """Return the bytes of one activation message between stages."""
    known = known_message_bytes(options, layout.parallel.pp, file.header.pp_message_bytes, notes)
    if known is not None:
        return known
    activation, token, line = _activation(file, parts, layout)
    said = "no pp_comm" if file.header.pp_message_bytes is None else "pp_comm 0"
    if not activation:
        notes.warn(
            "pp-comm-unknown",
            f"the header says {said} and no row shows the size of an activation; pipeline sends and receives "
            "take no time (give --pp-comm)",
        )
        return 0
    sequence_parallel = token in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
    size = activation // layout.parallel.tp if sequence_parallel else activation
    shared = f" / tp {layout.parallel.tp} (sequence parallel rows)" if sequence_parallel else ""
    notes.assume(
        "pp-comm-absent",
        f"the header says {said}; a pipeline send/recv is the activation of {activation} bytes{shared} = {size} bytes",
        line,
    )
    return size


def _activation(file: AicbFile, parts: Structure, layout: Layout) -> tuple[int, Operation, int]:
    """Return the commonest size of a tp communication in the layers' forward pass, its operation and line."""
    seen: Counter[tuple[int, Operation]] = Counter()
    line_of: dict[tuple[int, Operation], int] = {}
    for block in parts.blocks[:1]:
        for row in [row for layer in block.layers for row in layer] or block.embedding:
            source = file.rows[row]
            cell = source.forward
            attention = "attention" in source.name
            if group_of(source.name, Column.FORWARD, cell, layout.positions) is Group.TP and cell.size_bytes:
                seen[cell.size_bytes, cell.operation] += 1000 if attention else 1
                line_of.setdefault((cell.size_bytes, cell.operation), source.line)
    if not seen:
        return 0, Operation.NONE, 1
    (size, operation), _ = seen.most_common(1)[0]
    return size, operation, line_of[size, operation]


def _decide_loads(lowering: RowLowering, options: LayoutOptions) -> ExpertLoads | None:
    """Return the loads of the expert ranks of a file, None where all are equal.

    Says what is assumed, and warns where there is nothing, or only half of it, to stretch.
    """
    notes, parallel = lowering.builder.notes, lowering.builder.parallel
    given = [name for name in ("expert_imbalance", "expert_loads") if getattr(options, name) is not None]
    if not given:
        return None
    exchanges = any(op.group is Group.EP and op.operation is Operation.ALL_TO_ALL for op in lowering.builder.ops)
    if not (exchanges or lowering.expert_rows):
        flag = given[0].replace("_", "-")
        notes.warn(f"{flag}-unused", f"--{flag} changes nothing: no row of the file is of experts", None)
        return None
    loads = expert_loads(options, parallel.ep)
    if loads is None:
        return None
    notes.assume("expert-loads", f"{describe(loads)}, in every layer and microbatch; {_what_stretches(lowering)}", None)
    if not lowering.expert_rows:
        notes.warn(
            "expert-compute-unknown",
            "no row of the file is named as the experts' computation (moe, expert), so only the all-to-alls over ep "
            "are stretched by their loads",
            None,
        )
    if not exchanges:
        notes.warn(
            "expert-exchange-unknown",
            "no row of the file is an all-to-all over ep, so only the experts' computations are stretched by their "
            "loads",
            None,
        )
    return loads


def _stretched_rows(lowering: RowLowering) -> Rows:
    """Return the template rows that stretch with a rank's load: computations, and what their tp ranks exchange.

    The tp ranks of an expert get the same tokens only where the expert is split over as many (`etp`).
    """
    parallel = lowering.builder.parallel
    return lowering.expert_rows + (lowering.token_rows if parallel.expert_tp == parallel.tp else [])


def _what_stretches(lowering: RowLowering) -> str:
    parallel = lowering.builder.parallel
    computed, exchanged = "the computations of expert rows", "the all-to-alls over ep"
    inside = "the tp communications between dispatch and combine"
    if not lowering.token_rows:
        return f"{computed} and {exchanged} are stretched"
    if parallel.expert_tp == parallel.tp:
        return f"{computed}, {inside} and {exchanged} are stretched"
    return (
        f"{computed} and {exchanged} are stretched; {inside} are not, because an expert is on etp "
        f"{parallel.expert_tp} ranks and not on tp {parallel.tp}"
    )
