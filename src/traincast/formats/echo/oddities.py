"""What is unusual in a trace, or easily misread."""

import math
from collections.abc import Sequence

from traincast.diagnostics import Note, Remarks
from traincast.formats.echo.clocks import fused_pairs
from traincast.formats.echo.lines import SubOp, TraceOp
from traincast.formats.echo.vocabulary import (
    COLLECTIVES,
    COMMUNICATIONS,
    DTYPE_BYTES,
    GROUPS,
    LATER_FIELDS,
    MESSAGES,
    WORK,
)
from traincast.formats.values import shown
from traincast.units import format_time


def oddities(path: str, ops: Sequence[TraceOp]) -> tuple[Note, ...]:
    """List what is unusual, each kind once with its first line.

    Parameters
    ----------
    path : str
        The file, for the notes' places.
    ops : sequence of TraceOp
        All its operations.

    Returns
    -------
    tuple of Note
        In the order of the lines.
    """
    remarks = Remarks(path)
    for op in ops:
        _of_one_line(op, remarks)
        for sub in op.sub_ops:
            _unknown_words(sub, op.line, remarks)
    for first, _ in fused_pairs(ops):
        text = "a send and a receive with one duration and timestamp are one exchange; its time counts once"
        remarks.add("fused-messages", text, ops[first].line)
    _asynchronous(ops, remarks)
    _waiting(ops, remarks)
    return remarks.notes()


def _of_one_line(op: TraceOp, remarks: Remarks) -> None:
    if op.duration_s is not None and op.is_placeholder:
        remarks.add("placeholder", f"{op.op} has no time: duration and timestamp are 0, to be estimated", op.line)
    if op.op not in WORK and op.op not in MESSAGES and op.op not in COLLECTIVES:
        remarks.add("unknown-operation", f"operation '{op.raw_op}' is not known; its time is in no total", op.line)
    group = op.raw("group_kind")
    if group not in GROUPS and group not in {None, "None"}:
        remarks.add("unknown-group", f"group {shown(str(group))} is not known", op.line)
    if op.dtype not in DTYPE_BYTES and op.dtype is not None:
        remarks.add("unknown-dtype", f"data type {shown(str(op.dtype))} is not known; its bytes count as 0", op.line)
    for key in op.extra.keys() - LATER_FIELDS:
        remarks.add("unknown-field", f"field {shown(str(key))} is not known; it is kept as text", op.line)
    if op.raw("metadata_only") == "True":
        text = "gradient buckets have a launch time and no duration: nothing was sent"
        remarks.add("bucket-launch-only", text, op.line)


def _unknown_words(sub: SubOp, line: int, remarks: Remarks) -> None:
    call = sub.call
    if call.group is None:
        remarks.add("unknown-group", f"group {shown(str(call.group_name))} of a sub-operation is not known", line)
    if call.comm_name not in COMMUNICATIONS:
        text = f"communication {shown(str(call.comm_name))} of a sub-operation is not known"
        remarks.add("unknown-communication", text, line)
    if call.dtype not in DTYPE_BYTES and call.dtype is not None:
        remarks.add("unknown-dtype", f"data type {shown(str(call.dtype))} is not known; its bytes count as 0", line)


def _asynchronous(ops: Sequence[TraceOp], remarks: Remarks) -> None:
    found = [(op, sub) for op in ops for sub in op.sub_ops if sub.is_async]
    if not found:
        return
    spent_s = math.fsum(sub.duration_s or 0.0 for _, sub in found)
    text = (
        f"{len(found)} asynchronous spans of {format_time(spent_s)} in all run from launch to wait: they contain the "
        "GEMMs that hide them, and stay in the compute time"
    )
    remarks.add("async-spans", text, found[0][0].line)


def _waiting(ops: Sequence[TraceOp], remarks: Remarks) -> None:
    """Say what the times of communications are worth: waiting included, or nothing in a profile."""
    communications = [op for op in ops if op.sub_ops or op.op in MESSAGES or op.op in COLLECTIVES]
    played = [op for op in communications if op.is_simulated]
    measured = [op for op in communications if not op.is_simulated and not op.is_placeholder]
    if played:
        text = "one GPU played this rank: times of communications are noise; only the compute between them counts"
        remarks.add("simulated-communication", text, played[0].line)
    if measured:
        text = "times of synchronous communications include the waiting for the slowest member"
        remarks.add("spans-include-waiting", text, measured[0].line)
