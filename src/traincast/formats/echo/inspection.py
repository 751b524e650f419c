"""Describe a rank trace: what wrote it, counts, layout by name and shapes, totals, what is unusual in it."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from traincast.diagnostics import Note, Remarks
from traincast.errors import FormatError
from traincast.formats.contract import Inspection, Sniff
from traincast.formats.echo.clocks import fused_pairs
from traincast.formats.echo.facts import shape_facts
from traincast.formats.echo.files import RankTrace, read_trace
from traincast.formats.echo.grammar import HEAD, parse_line
from traincast.formats.echo.lines import SubOp, TraceOp
from traincast.formats.echo.totals import totals
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


def inspect_file(path: Path) -> Inspection:
    """Describe a file.

    Parameters
    ----------
    path : Path
        Rank trace or scheduling plan.

    Returns
    -------
    Inspection
        Totals are over the file as written, which is one rank for one step.

    Raises
    ------
    FormatError
        If the file cannot be read; with the line.
    """
    trace = read_trace(path)
    kind = generation(trace.ops)
    layout = _layout(trace)
    return Inspection(
        path=str(path),
        format="echo",
        generation=kind.text,
        confidence=kind.confidence,
        evidence=kind.evidence,
        counts=_counts(trace),
        layout=layout,
        totals=totals(trace.ops),
        oddities=(*trace.notes, *_name_against_shapes(trace), *oddities(str(path), trace.ops)),
    )


def _counts(trace: RankTrace) -> dict[str, int]:
    counts = {"operations": len(trace.ops), "sub_operations": sum(len(op.sub_ops) for op in trace.ops)}
    return counts | dict(Counter(op.op for op in trace.ops))


def _layout(trace: RankTrace) -> dict[str, int | str | None]:
    name, shapes, first = trace.name, shape_facts(trace.ops), trace.ops[0]
    forwards = sum(op.op == "forward_step" for op in trace.ops)
    return {
        "rank": trace.rank if first.scope == "rank" else None,
        "stage": first.stage_id,
        "world_size": name.world,
        "tp": name.tp,
        "pp": name.pp,
        "dp": name.dp,
        "ep": name.ep,
        "experts": shapes.experts if shapes.experts is not None else name.experts,
        "layers": name.layers,
        "microbatches": forwards or None,
        "micro_batch": shapes.micro_batch if shapes.micro_batch is not None else name.micro_batch,
        "sequence": shapes.sequence if shapes.sequence is not None else name.sequence,
        "hidden": shapes.hidden if shapes.hidden is not None else name.hidden,
        "vocabulary_shard": shapes.vocabulary_shard,
        "gradient_elements": shapes.gradient_elements,
        "dtype": shapes.dtype,
    }


def _name_against_shapes(trace: RankTrace) -> list[Note]:
    """Remark sizes of which the name says one and the shapes another; the shapes were really there."""
    shapes = shape_facts(trace.ops)
    pairs = {
        "micro_batch": (trace.name.micro_batch, shapes.micro_batch),
        "hidden": (trace.name.hidden, shapes.hidden),
        "sequence": (trace.name.sequence, shapes.sequence),
    }
    return [
        Note(
            "name-against-shapes",
            f"{what} is {named} by the name and {found} by the shapes, which count",
            str(trace.path),
        )
        for what, (named, found) in pairs.items()
        if None not in {named, found} and named != found
    ]


REAL_RUN = "Echo rank trace of a real run"
PROFILE = "Echo single-GPU profile"
PLAN = "Echo scheduling plan"
BUCKETS = "2026 trace with gradient buckets"


@dataclass(frozen=True, slots=True)
class Generation:
    """What wrote a trace, how sure that is, and why it is believed."""

    text: str
    confidence: float
    evidence: tuple[str, ...]


def looks_like(head: str) -> Sniff:
    """Tell how sure it is that a text begins a rank trace or a scheduling plan.

    Parameters
    ----------
    head : str
        The beginning of a file.

    Returns
    -------
    Sniff
    """
    line, _, more = head.removeprefix("\ufeff").lstrip().partition("\n")
    if HEAD.match(line) is None:
        return Sniff(0.0, "the first line does not begin like rank:0:forward_step(")
    try:
        parse_line(line, "", 1)
    except FormatError as problem:
        if not more and "duration=" in line:
            return Sniff(0.8, "begins like a rank trace; its first line goes on beyond the text seen")
        return Sniff(0.5, f"begins like a rank trace, but the first line cannot be read{problem}")
    return Sniff(0.98, "the first line is an operation of a rank trace")


def generation(ops: Sequence[TraceOp]) -> Generation:
    """Tell which kind of run a trace is of.

    Parameters
    ----------
    ops : sequence of TraceOp
        All operations of a file.

    Returns
    -------
    Generation
    """
    played = sum(op.is_simulated for op in ops)
    how = (f"{played} of {len(ops)} operations are marked as simulation or have no schedule state",)
    if any(op.op == "ddp_grad_comm" for op in ops):
        played_by = "one GPU played the rank" if played else "all ranks ran"
        return Generation(BUCKETS, 0.95, ("lines of gradient buckets (ddp_grad_comm)", *how, played_by))
    if all(op.duration_s is None for op in ops):
        return Generation(PLAN, 0.95, ("no operation has a duration",))
    later = ("fields of the traces of 2026 (cmd_uid)",) if any(op.raw("cmd_uid") for op in ops) else ()
    if played:
        return Generation(PROFILE, 0.95 if played == len(ops) else 0.6, (*how, *later))
    return Generation(REAL_RUN, 0.95, ("every operation has a schedule state and a time of its own", *later))


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
