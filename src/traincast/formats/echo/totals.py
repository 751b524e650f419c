"""Add up a trace: compute by phase, communication by group and operation."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from traincast.formats.contract import Total
from traincast.formats.echo.clocks import fused_pairs
from traincast.formats.echo.lines import SubOp, TraceOp
from traincast.formats.echo.vocabulary import COLLECTIVES, COMMUNICATIONS, DTYPE_BYTES, MESSAGES
from traincast.workload.words import Group, Operation, Phase

_PHASES = {
    "get_batch": Phase.FORWARD,
    "forward_step": Phase.FORWARD,
    "loss_func": Phase.FORWARD,
    "backward_step": Phase.BACKWARD,
    "optimizer_step": Phase.STEP,
}


@dataclass(slots=True)
class _Sum:
    count: int = 0
    size_bytes: int = 0
    times_s: list[float] = field(default_factory=list)


def totals(ops: Sequence[TraceOp]) -> tuple[Total, ...]:
    """Add up the operations of one rank.

    Parameters
    ----------
    ops : sequence of TraceOp
        In the order of the file.

    Returns
    -------
    tuple of Total
        Compute by phase, without the synchronous collectives inside it; communication by group and
        operation, with the bytes of the tensors that go in and the spans as traced. Asynchronous
        spans, which contain the GEMMs that hide them, are lines of their own, and stay in the compute.
    """
    return (*_compute_totals(ops), *_communication_totals(ops))


def pure_compute_s(op: TraceOp) -> float | None:
    """Return an operation's duration without its synchronous collectives, in seconds; None where it has none."""
    if op.duration_s is None or op.is_placeholder:
        return None
    return max(0.0, op.duration_s - math.fsum(sub.duration_s or 0.0 for sub in op.sub_ops if not sub.is_async))


def collective_of(op: TraceOp) -> tuple[Group, Operation] | None:
    """Return group and operation of a line that is a communication as a whole, None for another."""
    if op.op in MESSAGES:
        return Group.PP, Operation.SEND_RECV
    if op.op not in COLLECTIVES:
        return None
    group, operation = COLLECTIVES[op.op]
    written = op.raw("comm_func")
    if op.op == "ddp_grad_comm" and op.group_kind is not None:
        group = op.group_kind  # the buckets of expert parameters have their own group
    return group, operation if written is None else COMMUNICATIONS.get(written, operation)


def size_bytes_of(op: TraceOp) -> int | None:
    """Return the bytes a communication moves on this rank; None where the line does not say them."""
    elements, element = op.raw("bucket_numel"), (op.raw("grad_dtype") or "").removeprefix("torch.")
    if op.size_bytes is None and elements is not None and elements.isdecimal() and element in DTYPE_BYTES:
        return int(elements[:18]) * DTYPE_BYTES[element]
    return op.size_bytes


def _compute_totals(ops: Sequence[TraceOp]) -> Iterator[Total]:
    sums: dict[Phase, _Sum] = defaultdict(_Sum)
    for op in ops:
        if op.op in _PHASES:
            _add(sums[_PHASES[op.op]], 0, pure_compute_s(op))
    for phase in sorted(sums):
        yield _total("compute", phase.name.lower(), sums[phase])


def _communication_totals(ops: Sequence[TraceOp]) -> Iterator[Total]:
    sums: dict[tuple[Group, Operation, bool], _Sum] = defaultdict(_Sum)
    again = {second for _, second in fused_pairs(ops)}
    for index, op in enumerate(ops):
        whole = collective_of(op)
        if whole is not None:
            spent_s = None if op.is_placeholder else op.duration_s
            # the lines of one exchange have one span: its time counts once, its two tensors twice
            _add(sums[*whole, False], size_bytes_of(op), 0.0 if index in again else spent_s)
        for sub in op.sub_ops:
            _add(sums[_group(sub), sub.comm, sub.is_async], sub.size_bytes, sub.duration_s)
    for group, operation, is_async in sorted(sums):
        what = operation.name.lower() + ("_async" if is_async else "")
        yield _total(group.name.lower(), what, sums[group, operation, is_async])


def _group(sub: SubOp) -> Group:
    return Group.NONE if sub.group is None else sub.group


def _add(total: _Sum, size_bytes: int | None, time_s: float | None) -> None:
    total.count += 1
    total.size_bytes += size_bytes or 0
    if time_s is not None:
        total.times_s.append(time_s)


def _total(group: str, what: str, found: _Sum) -> Total:
    time_s = math.fsum(found.times_s) if found.times_s else None
    return Total(group=group, what=what, count=found.count, size_bytes=found.size_bytes, time_s=time_s)
