"""Read the lines of a rank trace: ``rank:0:forward_step(key=value,...,sub_operations=[...])``.

Values are unquoted and may hold commas. A key starts at the beginning or after a comma outside square brackets,
so the commas of a shape and of a description are no separators.

Source: fwyc0573/Megatron-LM, the tracer's commands (the writer).
"""

import gc
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from traincast.errors import FormatError
from traincast.files import read_unpacked
from traincast.formats.echo.lines import (
    ALIASES,
    COMMUNICATIONS,
    DTYPE_BYTES,
    FIELDS,
    GROUPS,
    OPERATION_NAMES,
    Call,
    SubOp,
    TraceOp,
)
from traincast.formats.values import check_lines, shown
from traincast.units import LARGEST_WHOLE
from traincast.workload.words import Operation

HEAD = re.compile(r"(rank|stage):(0|[1-9][0-9]{0,8}):([A-Za-z_][A-Za-z0-9_]{0,63})\(", re.ASCII)
"""How a line starts."""

_AFTER_DESCRIPTION = FIELDS | {"cmd_uid", "op_semantics", "finalize_base_duration_ms"} | frozenset(ALIASES)
"""Fields that end a description; any other ``word=`` in one belongs to its text."""

_MAX_MILLISECONDS = 1e15
"""Durations and clocks above it are damage: it is 30,000 years."""

_MAX_CALLS, _MAX_SHAPES = 65536, 4096
_TAIL = 20

_FIRST = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*+)=", re.ASCII)
_MARK = re.compile(r"([\[\]]|, *+)(?:([A-Za-z_][A-Za-z0-9_.]*+)=)?", re.ASCII)
_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
_SHAPE = re.compile(r"\[(?:[0-9]{1,18}(?:, ?[0-9]{1,18})*+)?\]")
_STRING = re.compile(r"'((?:[^'\\]|\\.)*+)'|\"((?:[^\"\\]|\\.)*+)\"", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}

_Fields = tuple[tuple[str, str], ...]


def load(path: Path) -> tuple[TraceOp, ...]:
    """Read a file from disk (see `parse`); undecodable bytes are replaced, and fail where they matter."""
    return parse(str(path), read_unpacked(path).decode("utf-8", errors="replace"))


def parse(path: str, text: str) -> tuple[TraceOp, ...]:
    """Read the text of a trace, one operation per line, in the order of the program.

    Empty lines, a byte-order mark and carriage returns are passed over; `path` is for messages.

    Raises
    ------
    FormatError
        With the line of the first thing that cannot be read.
    """
    check_lines(text, path)
    lines = text.removeprefix("\ufeff").split("\n")
    was_enabled = gc.isenabled()
    gc.disable()  # it would walk the growing trace, which has no cycles, again and again
    try:
        filled = [(place, line) for place, line in enumerate(lines, 1) if line and not line.isspace()]
        ops = tuple([parse_line(line, path, place) for place, line in filled])
    finally:
        if was_enabled:
            gc.enable()
    if not ops:
        raise FormatError("the file has no operations", path, 1)
    return ops


def parse_line(text: str, path: str, line: int) -> TraceOp:
    """Read one line, with or without its line end, of a rank trace or of a scheduling plan.

    Raises
    ------
    FormatError
        If it is none; with `path`, the 1-based number `line`, and what is wrong.
    """
    text = text.rstrip("\r\n")
    head = HEAD.match(text)
    try:
        if head is None:
            message = "is not a line of a trace, such as rank:0:forward_step(stage_id=0,...)"
            raise ValueError(f"{shown(text)} {message}")
        if not text.endswith(")"):
            raise ValueError(f"the line does not end with ')' but with {shown(text[-_TAIL:])}; was it cut off?")
        return _operation(head, text[head.end() : -1], path, line)
    except ValueError as problem:
        raise FormatError(str(problem), path, line) from None


def _operation(head: re.Match[str], body: str, path: str, line: int) -> TraceOp:
    scope, number, name = head.groups()
    fields = _split(body)
    values = _by_key(fields)
    if "duration" not in values:
        raise ValueError("the line has no field 'duration'")
    shape, dtype, size_bytes = _tensor(values)
    return TraceOp(
        path=path,
        line=line,
        scope=scope,
        rank=int(number),
        op=OPERATION_NAMES.get(name, name),
        raw_op=name,
        stage_id=int(number) if scope == "stage" else _whole(values, "stage_id"),
        batch_id=_whole(values, "batch_id"),
        state=_text(values, "mg_state"),
        duration_s=_time_s(values["duration"], "duration"),
        timestamp_s=_time_s(values.get("timestamp"), "timestamp"),
        description=_text(values, "description"),
        group_kind=GROUPS.get(values.get("group_kind", "")),
        shape=shape,
        dtype=dtype,
        size_bytes=size_bytes,
        sub_ops=tuple([_sub_operation(each) for each in _list_of_strings(values.get("sub_operations"))]),
        fields=fields,
    )


def _sub_operation(text: str) -> SubOp:
    """Read one element: all but its two times comes from few alike texts, so that part is remembered."""
    before, _, rest = text.partition(",duration=")
    duration, _, rest = rest.partition(",timestamp=")
    timestamp, comma, after = rest.partition(",")
    if comma:
        duration_s, end_s = _time_s(duration, "duration"), _time_s(timestamp, "timestamp")
        return SubOp(_call(before, after), duration_s, end_s)
    # It lacks a time, or has them elsewhere.
    values = _by_key(_split(text))
    duration_s, end_s = (_time_s(values.pop(key, None), key) for key in ("duration", "timestamp"))
    return SubOp(_call("", ",".join(f"{key}={value}" for key, value in values.items())), duration_s, end_s)


@lru_cache(_MAX_CALLS)
def _call(before: str, after: str) -> Call:
    """Read an element without its times, from the texts before and after them."""
    values = _by_key(_split(f"{before},{after}" if before else after))
    source = values.get("trace_src_func")
    if not source:
        raise ValueError(f"a sub-operation has no field 'trace_src_func': {shown(after)}")
    if "duration" in values or "timestamp" in values:
        raise ValueError("a sub-operation has a time twice")
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
    )


def _split(body: str) -> _Fields:
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


def _by_key(fields: _Fields) -> dict[str, str]:
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
    """Read a list in which strings have escapes or double quotes, one string after the other."""
    if not (text.startswith("[") and text.endswith("]")):
        raise ValueError(f"sub_operations is not a list of strings: {shown(text)}")
    found, place, end = [], 1, len(text) - 1
    while place < end:
        string = _STRING.match(text, place, end)
        if string is None:
            raise ValueError(f"sub_operations: expected a quoted string, found {shown(text[place:])}")
        found.append(_ESCAPE.sub(_unescaped, string[0][1:-1]))
        place = string.end()
        if place < end:
            if text[place : place + 2] != ", " or place + 2 >= end:
                raise ValueError(f"sub_operations: expected ', ' or ']', found {shown(text[place:])}")
            place += 2
    return found


def _unescaped(match: re.Match[str]) -> str:
    *codes, plain = match.groups()
    code = next((code for code in codes if code), None)
    if code is not None and int(code, 16) <= 0x10FFFF:
        return chr(int(code, 16))
    if plain not in _PLAIN_ESCAPES:
        raise ValueError(f"sub_operations: unknown escape {shown(match[0])}")
    return _PLAIN_ESCAPES[plain]


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
    if not 0.0 <= value <= _MAX_MILLISECONDS or "_" in text or not text.isascii():
        raise ValueError(f"{what} is not a time in milliseconds: {shown(text)}")
    return value / 1e3


def _whole(values: Mapping[str, str], key: str) -> int | None:
    text = _text(values, key)
    if text is None:
        return None
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"{key} is not a whole number: {shown(text)}")
    return int(text)


@lru_cache(_MAX_SHAPES)
def _shape(text: str | None) -> tuple[int, ...] | None:
    """Read a shape such as ``[4096, 1, 5120]``."""
    if text is None or text == "None":
        return None
    if _SHAPE.fullmatch(text) is None:
        raise ValueError(f"input__shape is not a list of whole numbers: {shown(text)}")
    return tuple(int(size) for size in text[1:-1].split(",") if size)
