"""Describe a rank trace: what wrote it, counts, layout by name and shapes, totals, what is unusual in it."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from traincast.diagnostics import FileWarnings, Note
from traincast.formats.contract import Inspection, Total
from traincast.formats.echo.experts import experts_of
from traincast.formats.echo.files import FileName, read_trace
from traincast.formats.echo.lines import (
    COLLECTIVES,
    COMMUNICATIONS,
    DTYPE_BYTES,
    GROUPS,
    LATER_FIELDS,
    MESSAGES,
    PHASES,
    Call,
    TraceOp,
    fused_pairs,
)
from traincast.formats.values import shown
from traincast.units import format_time
from traincast.workload.words import Group, Operation

REAL_RUN = "Echo rank trace of a real run"
PROFILE = "Echo single-GPU profile"
FORECAST = "Echo trace of a simulated run"
PLAN = "Echo scheduling plan"
BUCKETS = "2026 trace with gradient buckets"

_OF_THE_BATCH = frozenset({"tokens", "labels", "position_ids", "loss_mask"})
_OF_ACTIVATIONS = frozenset({"embedding_fwd", "linear_fwd", "normlinear_bwd", "normlinear_bwd_allreduce"})
_UNKNOWN_DTYPE = "data type {} is not known; its bytes count as 0"

_LAYOUT = (
    *("tp", "pp", "dp", "ep", "experts", "layers", "microbatches", "micro_batch", "sequence", "hidden"),
    *("vocabulary_shard", "gradient_elements", "dtype"),
)
"""What the shapes, which were really there, or else the name say of a run."""

_Sizes = dict[str, int | str | None]


def inspect_file(path: Path) -> Inspection:
    """Describe a rank trace or scheduling plan; totals are over the file as written, one rank for one step."""
    trace = read_trace(path)
    ops, first = trace.ops, trace.ops[0]
    (kind, confidence, evidence), sizes = generation(ops), sizes_of_shapes(ops)
    counts = {"operations": len(ops), "sub_operations": sum(len(op.sub_ops) for op in ops)}
    said = {key: getattr(trace.name, key, None) if sizes.get(key) is None else sizes[key] for key in _LAYOUT}
    rank = trace.rank if first.scope == "rank" else None
    return Inspection(
        generation=kind,
        confidence=confidence,
        evidence=evidence,
        counts=counts | dict(Counter(op.op for op in ops)),
        layout={"rank": rank, "stage": first.stage_id, "world_size": trace.name.world, **said},
        totals=totals(ops),
        oddities=(*trace.warnings, *_name_against_shapes(path, trace.name, sizes), *trace_warnings(str(path), ops)),
    )


def _name_against_shapes(path: Path, name: FileName, sizes: _Sizes) -> list[Note]:
    """Warn of sizes of which the name says one and the shapes another."""
    pairs = {key: (getattr(name, key), sizes[key]) for key in ("micro_batch", "hidden", "sequence")}
    return [
        Note("name-against-shapes", f"{key} is {named} by the name and {found} by the shapes, which count", str(path))
        for key, (named, found) in pairs.items()
        if None not in {named, found} and named != found
    ]


def sizes_of_shapes(ops: Sequence[TraceOp]) -> _Sizes:
    """Return the sizes of the model and its batch that one rank's operations say; None for the others.

    A message is [sequence, microbatch, hidden], a batch [microbatch, sequence], the embedding's gradient
    [vocabulary / tp, hidden], an activation [..., hidden]. With sequence parallelism and no batch in the trace,
    ``sequence`` is a rank's share of it.
    """
    messages = [op for op in ops if op.op in MESSAGES and op.shape is not None and len(op.shape) == 3]
    embeddings = [op.shape for op in ops if op.op == "emb_allreduce" and op.shape is not None and len(op.shape) == 2]
    inner = [sub.call for op in ops for sub in op.sub_ops if sub.call.shape is not None and len(sub.call.shape) > 1]
    activations = [each for each in inner if each.func_name in _OF_ACTIVATIONS or each.comm is Operation.ALL_TO_ALL]
    tokens = next((call.shape for call in inner if call.func_name in _OF_THE_BATCH and call.shape is not None), None)
    message = next((op.shape for op in messages if op.shape is not None), None)
    if tokens is None and message is not None:
        tokens = message[1], message[0]
    wide = [message, *embeddings, *(call.shape for call in activations)]
    elements = [op.shape[0] for op in ops if op.op in {"dp_allreduce", "edp_allreduce"} and op.shape]
    return {
        "hidden": next((shape[-1] for shape in wide if shape is not None), None),
        "microbatches": sum(op.op == "forward_step" for op in ops) or None,
        "sequence": None if tokens is None else tokens[1],
        "micro_batch": None if tokens is None else tokens[0],
        "vocabulary_shard": embeddings[0][0] if embeddings else None,
        "gradient_elements": sum(elements) if elements else None,
        "experts": experts_of(ops),
        "dtype": next(chain((op.dtype for op in messages), (call.dtype for call in activations)), None),
    }


def generation(ops: Sequence[TraceOp]) -> tuple[str, float, tuple[str, ...]]:
    """Tell which kind of run the operations of a file are of, how sure that is, and why it is believed."""
    if all(op.is_forecast for op in ops):
        return (FORECAST, 0.98, ("every operation says that it was simulated in a run of all ranks",))
    played = sum(op.is_simulated for op in ops)
    how = (f"{played} of {len(ops)} operations are marked as simulation or have no schedule state",)
    if any(op.op == "ddp_grad_comm" for op in ops):
        played_by = "one GPU played the rank" if played else "all ranks ran"
        return (BUCKETS, 0.95, ("lines of gradient buckets (ddp_grad_comm)", *how, played_by))
    if all(op.duration_s is None for op in ops):
        return (PLAN, 0.95, ("no operation has a duration",))
    later = ("fields of the traces of 2026 (cmd_uid)",) if any(op.raw("cmd_uid") for op in ops) else ()
    if played:
        return (PROFILE, 0.95 if played == len(ops) else 0.6, (*how, *later))
    return (REAL_RUN, 0.95, ("every operation has a schedule state and a time of its own", *later))


def totals(ops: Sequence[TraceOp]) -> tuple[Total, ...]:
    """Add up the operations of one rank, given in the order of the file.

    Compute is by phase, without the synchronous collectives inside it; communication by group and operation, with
    the bytes of the tensors that go in and the spans as traced. Asynchronous spans, which contain the GEMMs that hide
    them, are lines of their own, and stay in the compute.
    """
    again = {second for _, second in fused_pairs(ops)}
    compute: dict[str, list[float | None]] = defaultdict(list)
    exchanged: dict[tuple[Group, Operation, bool], list[tuple[int | None, float | None]]] = defaultdict(list)
    for index, op in enumerate(ops):
        if op.op in PHASES:
            compute[PHASES[op.op].name.lower()].append(pure_compute_s(op))
        whole = _collective_of(op)
        if whole is not None:
            # the lines of one exchange have one span: its time counts once, its two tensors twice
            time_s = 0.0 if index in again else None if op.is_placeholder else op.duration_s
            exchanged[*whole, False].append((op.moved_bytes, time_s))
        for sub in op.sub_ops:
            call = sub.call
            group = Group.NONE if call.group is None else call.group
            exchanged[group, call.comm, call.is_async].append((call.size_bytes, sub.duration_s))
    phases = [phase for phase in ("forward", "backward", "step") if phase in compute]
    found = [_total("compute", phase, [(0, time_s) for time_s in compute[phase]]) for phase in phases]
    for key in sorted(exchanged):
        group, operation, is_async = key
        found.append(_total(group.name.lower(), operation.name.lower() + "_async" * is_async, exchanged[key]))
    return tuple(found)


def _total(group: str, what: str, parts: list[tuple[int | None, float | None]]) -> Total:
    times_s = [time_s for _, time_s in parts if time_s is not None]
    time_s, size_bytes = math.fsum(times_s) if times_s else None, sum(size_bytes or 0 for size_bytes, _ in parts)
    return Total(group=group, what=what, count=len(parts), size_bytes=size_bytes, time_s=time_s)


def pure_compute_s(op: TraceOp) -> float | None:
    """Return an operation's duration without its synchronous collectives, in seconds; None where it has none."""
    if op.duration_s is None or op.is_placeholder:
        return None
    return max(0.0, op.duration_s - math.fsum(sub.duration_s or 0.0 for sub in op.sub_ops if not sub.call.is_async))


def _collective_of(op: TraceOp) -> tuple[Group, Operation] | None:
    """Return group and operation of a line that is a communication as a whole, None for another."""
    if op.op in MESSAGES:
        return Group.PP, Operation.SEND_RECV
    if op.op not in COLLECTIVES:
        return None
    group, operation = COLLECTIVES[op.op]
    if op.op == "ddp_grad_comm" and op.group_kind is not None:
        group = op.group_kind  # the buckets of expert parameters have their own group
    return group, COMMUNICATIONS.get(op.raw("comm_func") or "", operation)


def trace_warnings(path: str, ops: Sequence[TraceOp]) -> tuple[Note, ...]:
    """List what is unusual in the operations of a file in the order of lines, each kind once with its first line."""
    found = FileWarnings(path)
    for op in ops:
        _of_operation(op, found)
        for sub in op.sub_ops:
            _of_call(sub.call, op.line, found)
    for first, _ in fused_pairs(ops):
        text = "a send and a receive with one duration and timestamp are one exchange; its time counts once"
        found.add("fused-messages", text, ops[first].line)
    spans = [(op, sub) for op in ops for sub in op.sub_ops if sub.call.is_async]
    if spans:
        spent_s = math.fsum(sub.duration_s or 0.0 for _, sub in spans)
        text = (
            f"{len(spans)} asynchronous spans of {format_time(spent_s)} in all run from launch to wait: they contain "
            "the GEMMs that they overlap with, and are counted as compute"
        )
        found.add("async-spans", text, spans[0][0].line)
    communications = [op for op in ops if op.sub_ops or op.op in MESSAGES or op.op in COLLECTIVES]
    for op in [op for op in communications if op.is_simulated][:1]:
        text = "one GPU played this rank: times of communications are noise; only the compute between them counts"
        found.add("simulated-communication", text, op.line)
    for op in [op for op in communications if not op.is_simulated and not op.is_placeholder][:1]:
        text = "times of synchronous communications include waiting for the slowest member"
        found.add("spans-include-waiting", text, op.line)
    return found.notes()


def _of_operation(op: TraceOp, found: FileWarnings) -> None:
    if op.duration_s is not None and op.is_placeholder:
        found.add("placeholder", f"{op.op} has no time: duration and timestamp are 0, to be estimated", op.line)
    if op.op not in PHASES and op.op not in MESSAGES and op.op not in COLLECTIVES:
        found.add("unknown-operation", f"operation '{op.raw_op}' is not known; its time is in no total", op.line)
    group = op.raw("group_kind")
    if group not in GROUPS and group not in {None, "None"}:
        found.add("unknown-group", f"group {shown(str(group))} is not known", op.line)
    if op.dtype not in DTYPE_BYTES and op.dtype is not None:
        found.add("unknown-dtype", _UNKNOWN_DTYPE.format(shown(op.dtype)), op.line)
    for key in op.extra.keys() - LATER_FIELDS:
        found.add("unknown-field", f"field {shown(key)} is not known; it is kept as text", op.line)
    if op.raw("metadata_only") == "True":
        text = "gradient buckets have a launch time and no duration: nothing was sent"
        found.add("bucket-launch-only", text, op.line)


def _of_call(call: Call, line: int, found: FileWarnings) -> None:
    if call.group is None:
        found.add("unknown-group", f"group {shown(str(call.group_name))} of a sub-operation is not known", line)
    if call.comm_name not in COMMUNICATIONS:
        text = f"communication {shown(str(call.comm_name))} of a sub-operation is not known"
        found.add("unknown-communication", text, line)
    if call.dtype not in DTYPE_BYTES and call.dtype is not None:
        found.add("unknown-dtype", _UNKNOWN_DTYPE.format(shown(call.dtype)), line)
