"""The words of Echo's rank traces (``data/formats/echo.toml``), and one line of them with its types and SI units."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from traincast.shipped import shipped_toml
from traincast.workload.words import Group, Operation, Phase


class _Words(msgspec.Struct, forbid_unknown_fields=True):
    fields: list[str]
    later_fields: list[str]
    field_names: dict[str, list[str]]
    groups: dict[str, list[str]]
    communications: dict[str, list[str]]
    v_forms: dict[str, list[str]]
    dtype_bytes: dict[str, int]
    collectives: dict[str, tuple[str, str]]
    other_names: dict[str, list[str]]


def _by_name(names: dict[str, list[str]]) -> dict[str, str]:
    return {name: meant for meant, alike in names.items() for name in alike}


_WORDS = shipped_toml("formats/echo.toml", _Words)

FIELDS = frozenset(_WORDS.fields)
"""Fields of an operation that have a property of `TraceOp`."""

LATER_FIELDS = frozenset(_WORDS.later_fields)
"""Fields that the traces of 2026 add."""

DIFFERS = frozenset({"batch_id", "duration", "timestamp", "sub_operations"})
"""Fields that differ between lines that are alike."""

UID = "cmd_uid"
"""Field that numbers the lines of the traces of 2026; it differs too."""

FORECAST = "simulated_run"
"""What ``op_semantics`` says of the lines of a simulated run."""

ALIASES = _by_name(_WORDS.field_names)
"""Other spellings of a field's name (older logs) and the usual one."""

GROUPS = {name: Group[group] for name, group in _by_name(_WORDS.groups).items()}
"""Groups by the tracer's name; ``ep`` is the embedding group, ``exp`` the expert group."""

V_FORMS = {name: Operation[operation] for name, operation in _by_name(_WORDS.v_forms).items()}
"""Forms of communications in which every rank has a piece of any size."""

COMMUNICATIONS = {name: Operation[operation] for name, operation in _by_name(_WORDS.communications).items()} | V_FORMS
"""Communications by the tracer's name, in both spellings."""

DTYPE_BYTES = _WORDS.dtype_bytes
"""Bytes of one element, by PyTorch's name without ``torch.``."""

COLLECTIVES = {name: (Group[group], Operation[what]) for name, (group, what) in _WORDS.collectives.items()}
"""Operations that are one collective as a whole."""

OPERATION_NAMES = _by_name(_WORDS.other_names)
"""Operations that go by another name here; every other name is kept."""

MESSAGES = frozenset({"send_forward", "recv_forward", "send_backward", "recv_backward"})
"""Operations that are one end of a message between pipeline stages."""

PHASES = {
    "get_batch": Phase.FORWARD,
    "forward_step": Phase.FORWARD,
    "loss_func": Phase.FORWARD,
    "backward_step": Phase.BACKWARD,
    "optimizer_step": Phase.STEP,
}
"""Operations that compute, with the collectives inside them as sub-operations: the part of the step they are of."""


Fields = tuple[tuple[str, str], ...]
"""Keys and their texts as written."""


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
    """What the collective is for."""
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
    fields: Fields = field(compare=False)
    """Every field and its text as written; the times are empty."""

    @property
    def is_v_form(self) -> bool:
        """Whether every rank has a piece of any size."""
        return self.comm_name in V_FORMS


class SubOp(msgspec.Struct, frozen=True, gc=False):
    """One collective inside an operation."""

    call: Call
    duration_s: float | None
    """Seconds, with the waiting for the slowest member; None where the trace says none."""
    end_s: float | None
    """End on the host's clock in seconds."""

    @property
    def start_s(self) -> float | None:
        """Start on the host's clock in seconds; None where a time is missing."""
        return None if self.end_s is None or self.duration_s is None else self.end_s - self.duration_s


class TraceOp(msgspec.Struct, frozen=True, gc=False):
    """One operation of a rank: a line of a trace or of a scheduling plan."""

    path: str
    line: int
    """1-based line in the file."""
    scope: str
    """``rank``, or ``stage`` in scheduling plans."""
    rank: int
    """Number of the scope: the rank, in plans of scope ``stage`` the stage."""
    batch_id: int | None
    """Occurrence of this operation in the step, from 0; None where the trace says none."""
    duration_s: float | None
    """Seconds; None in plans, 0 in placeholders."""
    timestamp_s: float | None
    """End on the host's clock in seconds."""
    sub_ops: tuple[SubOp, ...]
    uid: str | None
    """Number of the command (traces of 2026)."""
    op: str
    """Name of the operation; the spellings of one operation have one name (`OPERATION_NAMES`)."""
    raw_op: str
    """Name as written."""
    stage_id: int | None
    state: str | None
    """Part of the schedule: warmup, help, steady, cooldown, finalize; None in a profile."""
    description: str | None
    group_kind: Group | None
    """None where the trace says none, or a group that is not known (`raw` has its name)."""
    shape: tuple[int, ...] | None
    dtype: str | None
    """PyTorch's name without ``torch.``."""
    size_bytes: int | None
    """Bytes of the tensor; None where shape or dtype are not known."""
    fields: Fields
    """Every field and its text as written, in the order of the line; empty texts for what differs between alike lines
    (`DIFFERS`)."""

    @property
    def is_placeholder(self) -> bool:
        """Whether the trace leaves the time open: no duration, or duration and timestamp zero."""
        return self.duration_s is None or (not self.duration_s and not self.timestamp_s)

    @property
    def is_forecast(self) -> bool:
        """Whether the line is of a simulated run of all ranks, so that all its times mean something."""
        return self.raw("op_semantics") == FORECAST

    @property
    def is_simulated(self) -> bool:
        """Whether one GPU played the rank, so that the times of its communications mean nothing."""
        if self.is_forecast:
            return False
        if self.description is not None and self.description.startswith("simulation"):
            return True
        return self.raw("metadata_only") == "True" or (self.state is None and self.scope == "rank")

    @property
    def start_s(self) -> float | None:
        """Start on the host's clock in seconds; None where the time is left open."""
        end_s = self.end_s
        return None if end_s is None or self.duration_s is None else end_s - self.duration_s

    @property
    def end_s(self) -> float | None:
        """End on the host's clock in seconds; None where the time is left open."""
        return None if self.is_placeholder else self.timestamp_s

    @property
    def moved_bytes(self) -> int | None:
        """Bytes that a communication moves on this rank: of its tensor, else of a gradient bucket's elements."""
        elements, dtype = self.raw("bucket_numel"), (self.raw("grad_dtype") or "").removeprefix("torch.")
        if self.size_bytes is None and elements is not None and elements.isdecimal() and dtype in DTYPE_BYTES:
            return int(elements[:18]) * DTYPE_BYTES[dtype]
        return self.size_bytes

    @property
    def extra(self) -> dict[str, str]:
        """Fields without a property here, as written."""
        return {key: self.raw(key) or text for key, text in self.fields if ALIASES.get(key, key) not in FIELDS}

    def raw(self, key: str) -> str | None:
        """Return the text of a field as written, None where the line has no such field."""
        if key == UID:
            return self.uid
        return next((text for name, text in self.fields if name == key), None)


def fused_pairs(ops: Sequence[TraceOp]) -> list[tuple[int, int]]:
    """Return the indices of every two consecutive lines that were one exchange: a send and a receive of one span.

    Both times are those of the exchange, so they count once.
    """
    pairs: list[tuple[int, int]] = []
    for index, (first, second) in enumerate(pairwise(ops)):
        if (pairs and pairs[-1][1] == index) or first.is_placeholder or not {first.op, second.op} <= MESSAGES:
            continue
        both_ways = first.op.startswith("send") != second.op.startswith("send")
        if both_ways and (first.duration_s, first.timestamp_s) == (second.duration_s, second.timestamp_s):
            pairs.append((index, index + 1))
    return pairs


def resolved_s(elapsed_s: float, clock_s: float | None) -> float:
    """Return a difference of clock readings without the digits that come from the size of the clock alone.

    Clocks count from the boot of a host: 52 days are 4.5e6 s, which a double holds to 1e-9 s, so that a difference of
    two readings of 0.33 ms comes out as 0.330001 ms. Rounded is to the last decimal that four roundings of the
    reading `clock_s` leave intact; None and 0 leave the difference as it is.
    """
    return round(elapsed_s, -math.ceil(math.log10(4 * math.ulp(clock_s)))) if clock_s else elapsed_s
