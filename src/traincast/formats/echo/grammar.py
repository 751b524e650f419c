"""Read the lines of a rank trace: ``rank:0:forward_step(key=value,...,sub_operations=[...])``.

Values are unquoted and may hold commas. A key starts at the beginning or after a comma outside square brackets,
so the commas of a shape and of a description are not separators.

Source: fwyc0573/Megatron-LM, the tracer's commands (the writer).
"""

import ast
import math
import re
from collections.abc import Mapping
from pathlib import Path

from traincast.errors import FormatError
from traincast.files import read_unpacked, warnings_of_python
from traincast.formats.echo.lines import (
    ALIASES,
    COMMUNICATIONS,
    DIFFERS,
    DTYPE_BYTES,
    FIELDS,
    GROUPS,
    OPERATION_NAMES,
    UID,
    Call,
    Fields,
    SubOp,
    TraceOp,
)
from traincast.formats.echo.sniff import HEAD
from traincast.formats.values import MOST_LINES, check_lines, shown
from traincast.units import LARGEST_WHOLE
from traincast.workload.words import Group, Operation

_AFTER_DESCRIPTION = FIELDS | {"cmd_uid", "op_semantics", "finalize_base_duration_ms"} | frozenset(ALIASES)
"""Fields that end a description; any other ``word=`` in one belongs to its text."""

_MAX_MS = 1e15
"""Durations and clocks above it are damage: it is 30,000 years."""

_MAX_KEPT = 65536
"""Texts of a kind whose meaning is kept: traces repeat few, damaged ones none."""
_MAX_DIGITS = 9
_TAIL = 20

_FIRST = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*+)=", re.ASCII)
_MARK = re.compile(r"([\[\]]|, *+)(?:([A-Za-z_][A-Za-z0-9_.]*+)=)?", re.ASCII)
_UID = f",{UID}="
_INERT = re.compile(r"[\w.-]+", re.ASCII)
"""A text that has nothing of the grammar in it."""
_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
_SHAPE = re.compile(r"\[(?:[0-9]{1,18}(?:, ?[0-9]{1,18})*+)?\]")

_Around = tuple[str, str, str, str, str, str, str, str]
_Said = tuple[
    str, str, int | None, str | None, str | None, Group | None, tuple[int, ...] | None, str | None, int | None, Fields
]
"""What lines that differ only in their numbers have in common: the last fields of a `TraceOp`."""


def load(path: Path, calls: "CallReader | None" = None) -> tuple[TraceOp, ...]:
    """Read a file from disk (see `parse`); undecodable bytes are replaced, and fail where they matter."""
    return parse(str(path), read_unpacked(path).decode("utf-8", errors="replace"), calls)


def parse(path: str, text: str, calls: "CallReader | None" = None) -> tuple[TraceOp, ...]:
    """Read the text of a trace, one operation per line, in the order of the program.

    Empty lines, a byte-order mark and carriage returns are passed over; `path` is for messages. Other files of the
    same run may have left what they say of `calls`.

    Raises
    ------
    FormatError
        With the line of the first thing that cannot be read.
    """
    lines = text.removeprefix("\ufeff").split("\n", MOST_LINES + 1)
    if len(lines) > MOST_LINES:
        check_lines(text, path)
    lines_of = LineReader(path, calls)
    filled = ((place, line) for place, line in enumerate(lines, 1) if line and not line.isspace())
    ops = tuple([lines_of.read(line, place) for place, line in filled])
    if not ops:
        raise FormatError("the file has no operations", path, 1)
    return ops


class LineReader:
    """Reads the lines of one file: what a line has in common with one before it is not read again."""

    def __init__(self, path: str, calls: "CallReader | None" = None) -> None:
        """Begin with the first line of a file; `path` is for messages."""
        self._path = path
        self._calls = calls or CallReader()
        self._said: dict[_Around, _Said] = {}
        """By the texts around the numbers."""

    def read(self, text: str, line: int) -> TraceOp:
        """Read one line, with or without its line end, of a rank trace or of a scheduling plan.

        Raises
        ------
        FormatError
            If it is none; with the path, the 1-based number `line`, and what is wrong.
        """
        text = text.rstrip("\r\n")
        try:
            return self._like_another(text, line) or self._unlike(text, line)
        except ValueError as problem:
            raise FormatError(str(problem), self._path, line) from None

    def _like_another(self, text: str, line: int) -> TraceOp | None:
        """Read a line like one before but for its numbers and sub-operations; None if it is not, or is damaged."""
        try:
            around, (number, batch, duration, uid, stamp, subs) = _cut(text)
            said = self._said.get(around)
            if said is None or len(number) > _MAX_DIGITS or (uid and _INERT.fullmatch(uid) is None):
                return None
            duration_ms, end_ms = float(duration), float(stamp)
            # within the limits of `_time_s`
            if not 0.0 <= duration_ms <= end_ms <= _MAX_MS or "_" in duration or "_" in stamp or not text.isascii():
                return None
            found = () if subs == "[]" or not around[-2] else self._calls.sub_operations(subs)
            path, rank, batch_id, duration_s = self._path, _number(number), _number(batch), duration_ms / 1e3
            return TraceOp(path, line, around[0], rank, batch_id, duration_s, end_ms / 1e3, found, uid or None, *said)
        except ValueError:
            return None

    def _unlike(self, text: str, line: int) -> TraceOp:
        """Read a line by the whole grammar, and keep what it says but for its numbers where others may say the same."""
        op, said = _operation(text, self._path, line, self._calls)
        around = _repeated(text, said)
        if around is not None and len(self._said) < _MAX_KEPT:
            self._said[around] = said
        return op


def parse_line(text: str, path: str, line: int) -> TraceOp:
    """Read a single line (see `LineReader.read`)."""
    return LineReader(path).read(text, line)


def _cut(text: str) -> tuple[_Around, tuple[str, str, str, str, str, str]]:
    """Return what is around the numbers of a usual line, and rank, batch, duration, uid, end and sub-operations."""
    head, listed, subs = text[:-1].partition(",sub_operations=")
    front, _, back = head.partition(",duration=")
    scope, number, front = front.split(":", 2)
    name, _, front = front.partition(",batch_id=")
    batch, _, state = front.partition(",")
    duration, _, back = back.partition(",")
    middle, _, stamp = back.rpartition(",timestamp=")
    middle, numbered, rest = middle.partition(_UID)
    uid, _, rest = rest.partition(",")
    return (scope, name, state, middle, numbered, rest, listed, text[-1:]), (number, batch, duration, uid, stamp, subs)


def _operation(text: str, path: str, line: int, calls: "CallReader") -> tuple[TraceOp, _Said]:
    """Read a line by the whole grammar; return it, and what it says but for its numbers."""
    head = HEAD.match(text)
    if head is None:
        message = "is not a line of a trace, such as rank:0:forward_step(stage_id=0,...)"
        raise ValueError(f"{shown(text)} {message}")
    if not text.endswith(")"):
        raise ValueError(f"the line does not end with ')' but with {shown(text[-_TAIL:])}; was it cut off?")
    scope, number, name = head.groups()
    fields = _split(text[head.end() : -1])
    values = _by_key(fields)
    if "duration" not in values:
        raise ValueError("the line has no field 'duration'")
    said: _Said = (
        OPERATION_NAMES.get(name, name),
        name,
        int(number) if scope == "stage" else _whole(values, "stage_id"),
        _text(values, "mg_state"),
        _text(values, "description"),
        GROUPS.get(values.get("group_kind", "")),
        *_tensor(values),
        tuple([(key, "" if key == UID or ALIASES.get(key, key) in DIFFERS else value) for key, value in fields]),
    )
    batch_id = _whole(values, "batch_id")
    duration_s, end_s = _time_s(values["duration"], "duration"), _time_s(values.get("timestamp"), "timestamp")
    op = TraceOp(
        path,
        line,
        scope,
        int(number),
        batch_id,
        duration_s,
        end_s,
        calls.sub_operations(values.get("sub_operations")),
        values.get(UID),
        *said,
    )
    return op, said


def _repeated(text: str, said: _Said) -> _Around | None:
    """Return what is around the numbers of a line, if it would say the same with any others; None if it would not."""
    try:
        around, _ = _cut(text)
    except ValueError:
        return None
    scope, name, state, middle, numbered, rest, listed, end = around
    middle += f"{numbered}5,{rest}" if numbered else ""
    other = f"{scope}:1:{name},batch_id=2,{state},duration=3,{middle},timestamp=4{listed}{end}"
    numbers = {"batch_id": "2", "duration": "3", "timestamp": "4", UID: "5"}
    head = HEAD.match(other)
    same = (
        scope == "rank"
        and head is not None
        and _split(other[head.end() : -1]) == tuple((key, numbers.get(key, value)) for key, value in said[-1])
    )
    return around if same else None


class CallReader:
    """Reads the collectives in operations; those that differ only in their times, in whatever file, are read once."""

    def __init__(self) -> None:
        """Begin with none."""
        self._calls: dict[str, Call] = {}
        """By their text without the times."""
        self._ends: dict[tuple[str | None, str], tuple[Call, str | None]] = {}
        """By what stands before their times, and what after them up to those of the next."""

    def sub_operations(self, text: str | None) -> tuple[SubOp, ...]:
        """Read the collectives in an operation.

        All but their two times comes from few alike texts, so what stands from the time of one to the time of the next
        is read once.
        """
        if text is None or text in ("None", "[]"):
            return ()
        before: str | None
        before, *pieces = text[2:].split(",duration=")
        found = []
        try:
            for piece in pieces:
                duration, _, rest = piece.partition(",timestamp=")
                stamp, _, rest = rest.partition(",")
                call, before = self._both_ends(before, rest)
                duration_ms, end_ms = float(duration), float(stamp)
                # within the limits of `_time_s`
                if not 0.0 <= duration_ms <= end_ms <= _MAX_MS or "_" in duration or "_" in stamp:
                    break
                found.append(SubOp(call, duration_ms / 1e3, end_ms / 1e3))
            else:
                if before is None and text.startswith("['") and text.isascii():
                    return tuple(found)
        except ValueError:
            pass  # some are unusual, or damaged
        return tuple(map(self._sub_operation, _list_of_strings(text)))

    def _both_ends(self, before: str | None, rest: str) -> tuple[Call, str | None]:
        """Return a call from the texts before and after its times, and that before the times of the next, if any."""
        known = self._ends.get((before, rest))
        if known is not None:
            return known
        after, comma, following = rest.partition("', '")
        if not comma:
            after, comma, following = rest.removesuffix("']"), "", ""
        if before is None or (not comma and after == rest):
            raise ValueError(rest)
        if any(char in text for text in (before, after, following) for char in "'\"\\"):
            raise ValueError(rest)  # strings with escapes, or of another quote
        found = self._call(f"{before},duration=,timestamp=,{after}"), following if comma else None
        if len(self._ends) < _MAX_KEPT:
            self._ends[before, rest] = found
        return found

    def _sub_operation(self, text: str) -> SubOp:
        """Read a collective, whatever its fields and their order."""
        fields = _split(text)
        values = _by_key(fields)
        duration_s, end_s = (_time_s(values.get(key), key) for key in ("duration", "timestamp"))
        alike = ",".join([f"{key}={'' if key in DIFFERS else value}" for key, value in fields])
        return SubOp(self._call(alike), duration_s, end_s)

    def _call(self, text: str) -> Call:
        """Read an element without its times."""
        known = self._calls.get(text)
        if known is None:
            known = _call(text)
            if len(self._calls) < _MAX_KEPT:
                self._calls[text] = known
        return known


def _call(text: str) -> Call:
    """Read an element without its times."""
    fields = _split(text)
    values = _by_key(fields)
    source = values.get("trace_src_func")
    if not source:
        raise ValueError(f"a sub-operation has no field 'trace_src_func': {shown(text)}")
    if values.get("duration") or values.get("timestamp"):
        raise ValueError(f"what stands after a time belongs to no field: {shown(text)}")
    shape, dtype, size_bytes = _tensor(values)
    func_name, group_name, comm_name = (_text(values, key) for key in ("func_name", "group", "comm_func"))
    return Call(
        source=source,
        shape=shape,
        dtype=dtype,
        func_name=func_name,
        group=GROUPS.get(group_name or ""),
        group_name=group_name,
        comm=COMMUNICATIONS.get(comm_name or "", Operation.NONE),
        comm_name=comm_name,
        size_bytes=size_bytes,
        is_async=source.endswith("_async") or (func_name or "").endswith("_async"),
        fields=fields,
    )


def _split(body: str) -> Fields:
    """Return keys and values as written: ``sub_operations`` runs to the end, ``description`` to a key that is known."""
    first = _FIRST.match(body)
    if first is None:
        raise ValueError(f"expected key=value, found {shown(body)}")
    key, value, depth = first[1], first.end(), 0
    fields = []
    for mark in _MARK.finditer(body, value):
        if key == "sub_operations":
            break
        gap, following = mark.groups()
        if gap == "[":
            depth += 1
        elif gap == "]":
            depth = max(0, depth - 1)
        elif following is not None and depth == 0 and (key != "description" or following in _AFTER_DESCRIPTION):
            fields.append((key, body[value : mark.start()]))
            key, value = following, mark.end()
    if depth:
        raise ValueError("a square bracket stays open")
    return (*fields, (key, body[value:]))


def _by_key(fields: Fields) -> dict[str, str]:
    """Return the fields by the usual spelling of their keys."""
    found = dict(fields)
    if not found.keys().isdisjoint(ALIASES):
        found = {ALIASES.get(key, key): text for key, text in fields}
    if len(found) < len(fields):
        keys = [ALIASES.get(key, key) for key, _ in fields]
        raise ValueError(f"field {shown(next(key for key in keys if keys.count(key) > 1))} comes twice")
    return found


def _list_of_strings(text: str | None) -> list[str]:
    """Read the representation of a Python list of strings, such as ``['a', 'b']``; nothing is evaluated."""
    if text is None or text in ("None", "[]"):
        return []
    if "\\" in text or '"' in text:
        return _any_list_of_strings(text)
    if not (len(text) > 3 and text.startswith("['") and text.endswith("']")):
        raise ValueError(f"sub_operations is not a list of strings: {shown(text)}")
    found = text[2:-2].split("', '")
    if text.count("'") != 2 * len(found):
        raise ValueError("sub_operations is not a list of strings: a quote is missing or left over")
    return found


def _any_list_of_strings(text: str) -> list[str]:
    """Read a list in which strings have escapes or double quotes."""
    try:
        with warnings_of_python("error"):  # an unknown escape
            found = ast.literal_eval(text)
    except (ValueError, SyntaxError, Warning, MemoryError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError(f"sub_operations is not a list of strings: {shown(text)}")
    return found


def _text(values: Mapping[str, str], key: str) -> str | None:
    """Return a text, None where it is absent or Python's ``None``."""
    text = values.get(key)
    return None if text == "None" else text


def _tensor(values: Mapping[str, str]) -> tuple[tuple[int, ...] | None, str | None, int | None]:
    """Return shape, name of the type, and bytes of a tensor, as far as they are known."""
    shape, dtype = _shape(values.get("input__shape")), _text(values, "input__dtype")
    dtype = None if dtype is None else dtype.removeprefix("torch.")
    if shape is None or dtype not in DTYPE_BYTES:
        return shape, dtype, None
    size_bytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if size_bytes > LARGEST_WHOLE:
        raise ValueError(f"the shape {'x'.join(map(str, shape))} is more than the 2^53 bytes that any tensor has")
    return shape, dtype, size_bytes


def _time_s(text: str | None, what: str) -> float | None:
    """Read a time in milliseconds and return seconds."""
    if text is None or text == "None":
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    # a NaN fails both comparisons
    if not 0.0 <= value <= _MAX_MS or "_" in text or not text.isascii():
        raise ValueError(f"{what} is not a time in milliseconds: {shown(text)}")
    return value / 1e3


def _whole(values: Mapping[str, str], key: str) -> int | None:
    text = _text(values, key)
    try:
        return None if text is None else _number(text)
    except ValueError:
        raise ValueError(f"{key} is not a whole number: {shown(str(text))}") from None


def _number(text: str) -> int:
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(text)
    return int(text)


def _shape(text: str | None) -> tuple[int, ...] | None:
    """Read a shape such as ``[4096, 1, 5120]``."""
    if text is None or text == "None":
        return None
    if _SHAPE.fullmatch(text) is None:
        raise ValueError(f"input__shape is not a list of whole numbers: {shown(text)}")
    return tuple(int(size) for size in text[1:-1].split(",") if size)
