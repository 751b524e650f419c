"""One line of a rank trace, and the collectives inside it.

The raw text of every field is kept in its order, so that a line is written as it was read;
the properties are the same values with their types and SI units.
"""

from dataclasses import dataclass

from traincast.formats.echo.vocabulary import ALIASES, FIELDS, V_FORMS
from traincast.workload.words import Group, Operation


@dataclass(frozen=True, slots=True)
class Call:
    """What a sub-operation does, apart from when: the same object for every alike one."""

    source: str
    """Function of the tracer that recorded it (``trace_src_func``)."""
    shape: tuple[int, ...] | None
    """Shape of the tensor that goes in."""
    dtype: str | None
    """PyTorch's name without ``torch.``."""
    func_name: str | None
    group: Group | None
    """None where the trace says none, or a group that is not known."""
    group_name: str | None
    """Group as the trace spells it."""
    comm: Operation
    """NONE where the trace says none, or a communication that is not known."""
    comm_name: str | None
    """Communication as the trace spells it."""
    size_bytes: int | None
    """Bytes of the tensor that goes in; None where shape or dtype are not known."""
    is_async: bool
    """Whether the span runs from launch to wait, and so contains the GEMM that hides it."""
    extra: tuple[tuple[str, str], ...] = ()
    """Fields without a meaning here, as written."""


@dataclass(frozen=True, slots=True)
class SubOp:
    """One collective inside an operation."""

    call: Call
    duration_s: float | None
    """Seconds, with the waiting for the slowest member; None where the trace says none."""
    timestamp_s: float | None
    """End on the host's clock in seconds."""

    @property
    def source(self) -> str:
        """Function of the tracer that recorded it (``trace_src_func``)."""
        return self.call.source

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the tensor that goes in."""
        return self.call.shape

    @property
    def dtype(self) -> str | None:
        """PyTorch's name of the element type, without ``torch.``."""
        return self.call.dtype

    @property
    def func_name(self) -> str | None:
        """What the collective is for, where the trace says it."""
        return self.call.func_name

    @property
    def group(self) -> Group | None:
        """Kind of the communication group."""
        return self.call.group

    @property
    def comm(self) -> Operation:
        """What the communication does."""
        return self.call.comm

    @property
    def is_v_form(self) -> bool:
        """Whether every rank has a piece of any size."""
        return self.call.comm_name in V_FORMS

    @property
    def is_async(self) -> bool:
        """Whether the span runs from launch to wait, and so contains the GEMM that hides it."""
        return self.call.is_async

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the tensor that goes in; None where shape or dtype are not known."""
        return self.call.size_bytes

    @property
    def start_s(self) -> float | None:
        """Start on the host's clock in seconds."""
        return _start_s(self.timestamp_s, self.duration_s)

    @property
    def end_s(self) -> float | None:
        """End on the host's clock in seconds."""
        return self.timestamp_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOp:
    """One operation of a rank: a line of a trace or of a scheduling plan."""

    path: str
    line: int
    """1-based line in the file."""
    scope: str
    """``rank``, or ``stage`` in scheduling plans."""
    rank: int
    """Number of the scope: the rank, in plans of scope ``stage`` the stage."""
    op: str
    """Name of the operation; the spellings of one operation have one name (`OPERATION_NAMES`)."""
    raw_op: str
    """Name as written."""
    stage_id: int | None
    batch_id: int | None
    """Occurrence of this operation in the step, from 0; None where the trace says none."""
    state: str | None
    """Part of the schedule: warmup, help, steady, cooldown, finalize; None in a profile."""
    duration_s: float | None
    """Seconds; None in plans, 0 in placeholders."""
    timestamp_s: float | None
    """End on the host's clock in seconds."""
    description: str | None
    group_kind: Group | None
    """None where the trace says none, or a group that is not known (`raw` has its name)."""
    shape: tuple[int, ...] | None
    dtype: str | None
    """PyTorch's name without ``torch.``."""
    size_bytes: int | None
    """Bytes of the tensor; None where shape or dtype are not known."""
    sub_ops: tuple[SubOp, ...]
    fields: tuple[tuple[str, str], ...]
    """Every field and its text as written, in the order of the line."""
    gaps: tuple[str, ...]
    """What stands before each field but the first: a comma, in plans with a space."""

    @property
    def is_placeholder(self) -> bool:
        """Whether the trace leaves the time open: no duration, or duration and timestamp zero."""
        return self.duration_s is None or (not self.duration_s and not self.timestamp_s)

    @property
    def is_simulated(self) -> bool:
        """Whether one GPU played the rank, so that the times of its communications mean nothing."""
        if self.description is not None and self.description.startswith("simulation"):
            return True
        if self.raw("metadata_only") == "True":
            return True
        return self.state is None and self.scope == "rank"

    @property
    def start_s(self) -> float | None:
        """Start on the host's clock in seconds; None where the time is left open."""
        return None if self.is_placeholder else _start_s(self.timestamp_s, self.duration_s)

    @property
    def end_s(self) -> float | None:
        """End on the host's clock in seconds; None where the time is left open."""
        return None if self.is_placeholder else self.timestamp_s

    @property
    def extra(self) -> dict[str, str]:
        """Fields without a property here, as written."""
        return {key: text for key, text in self.fields if ALIASES.get(key, key) not in FIELDS}

    def raw(self, key: str) -> str | None:
        """Return the text of a field as written, None where the line has no such field."""
        return next((text for name, text in self.fields if name == key), None)


def format_line(op: TraceOp) -> str:
    """Write an operation as the line it was read from, without a line end."""
    gaps = ("", *op.gaps)
    body = "".join([f"{gap}{key}={text}" for gap, (key, text) in zip(gaps, op.fields, strict=True)])
    return f"{op.scope}:{op.rank}:{op.raw_op}({body})"


def _start_s(end_s: float | None, duration_s: float | None) -> float | None:
    return None if end_s is None or duration_s is None else end_s - duration_s
