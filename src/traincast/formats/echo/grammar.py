"""Read the lines of a rank trace: ``rank:0:forward_step(key=value,...,sub_operations=[...])``.

Source: fwyc0573/Megatron-LM, the tracer's commands (the writer); the values are unquoted, so the
rules of `fields` decide where one ends.
"""

import gc
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from traincast.errors import FormatError
from traincast.files import read_bytes
from traincast.formats.echo.fields import (
    by_key,
    dtype,
    list_of_strings,
    shape,
    split_fields,
    text_or_none,
    time_s,
    whole,
)
from traincast.formats.echo.lines import Call, SubOp, TraceOp
from traincast.formats.echo.vocabulary import (
    COMMUNICATIONS,
    DTYPE_BYTES,
    GROUPS,
    OPERATION_NAMES,
    SUB_OPERATION_FIELDS,
)
from traincast.formats.values import check_lines, shown
from traincast.units import LARGEST_WHOLE
from traincast.workload.words import Operation

HEAD = re.compile(r"(rank|stage):(0|[1-9][0-9]{0,8}):([A-Za-z_][A-Za-z0-9_]{0,63})\(", re.ASCII)
"""How a line starts."""

_MAX_CALLS = 65536
_TAIL = 20


def load(path: Path) -> tuple[TraceOp, ...]:
    """Read a file from disk (see `parse`); undecodable bytes are replaced, and fail where they matter."""
    return parse(str(path), read_bytes(path).decode("utf-8", errors="replace"))


def parse(path: str, text: str) -> tuple[TraceOp, ...]:
    """Read the text of a trace.

    Parameters
    ----------
    path : str
        Where the text came from, for messages.
    text : str
        One operation per line. Empty lines, a byte-order mark and carriage returns are passed over.

    Returns
    -------
    tuple of TraceOp
        In the order of the file, which is the order of the program.

    Raises
    ------
    FormatError
        With the line of the first thing that cannot be read.
    """
    check_lines(text, path)
    lines = text.removeprefix("\ufeff").split("\n")
    with _no_garbage_collection():
        ops = tuple(
            [parse_line(line, path, place) for place, line in enumerate(lines, 1) if line and not line.isspace()]
        )
    if not ops:
        raise FormatError("the file has no operations", path, 1)
    return ops


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause the collector: it would walk the growing trace, which has no cycles, again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse_line(text: str, path: str, line: int) -> TraceOp:
    """Read one line.

    Parameters
    ----------
    text : str
        The line, with or without its line end.
    path : str
        File it comes from, for messages and for `TraceOp.path`.
    line : int
        1-based line in it.

    Returns
    -------
    TraceOp

    Raises
    ------
    FormatError
        If it is not a line of a rank trace or of a scheduling plan; with what is wrong.
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
    fields, gaps = split_fields(body)
    values = by_key(fields)
    if "duration" not in values:
        raise ValueError("the line has no field 'duration'")
    get = values.get
    sizes, element = shape(get("input__shape")), dtype(get("input__dtype"))
    group = get("group_kind")
    return TraceOp(
        path=path,
        line=line,
        scope=scope,
        rank=int(number),
        op=OPERATION_NAMES.get(name, name),
        raw_op=name,
        stage_id=int(number) if scope == "stage" else whole(get("stage_id"), "stage_id"),
        batch_id=whole(get("batch_id"), "batch_id"),
        state=text_or_none(get("mg_state")),
        duration_s=time_s(values["duration"], "duration"),
        timestamp_s=time_s(get("timestamp"), "timestamp"),
        description=text_or_none(get("description")),
        group_kind=None if group is None else GROUPS.get(group),
        shape=sizes,
        dtype=element,
        size_bytes=_size_bytes(sizes, element),
        sub_ops=_sub_operations(get("sub_operations")),
        fields=fields,
        gaps=gaps,
    )


def _size_bytes(sizes: tuple[int, ...] | None, element: str | None) -> int | None:
    if sizes is None or element not in DTYPE_BYTES:
        return None
    size_bytes = math.prod(sizes) * DTYPE_BYTES[element]
    if size_bytes > LARGEST_WHOLE:
        raise ValueError(f"the shape {'x'.join(map(str, sizes))} is more than the 2^53 bytes that any tensor has")
    return size_bytes


def _sub_operations(text: str | None) -> tuple[SubOp, ...]:
    if text is None or text == "None":
        return ()
    return tuple([_sub_operation(each) for each in list_of_strings(text)])


def _sub_operation(text: str) -> SubOp:
    """Read one element: all but its two times comes from few alike texts, so that part is remembered."""
    before, _, rest = text.partition(",duration=")
    duration, _, rest = rest.partition(",timestamp=")
    timestamp, comma, after = rest.partition(",")
    if not comma:
        return _unusual_sub_operation(text)
    duration_s, timestamp_s = time_s(duration, "duration"), time_s(timestamp, "timestamp")
    return SubOp(_call(before, after), duration_s, timestamp_s)


def _unusual_sub_operation(text: str) -> SubOp:
    """Read an element that lacks a time or has them elsewhere."""
    values = by_key(split_fields(text)[0])
    duration_s, timestamp_s = (time_s(values.pop(key, None), key) for key in ("duration", "timestamp"))
    return SubOp(_call("", ",".join(f"{key}={value}" for key, value in values.items())), duration_s, timestamp_s)


@lru_cache(_MAX_CALLS)
def _call(before: str, after: str) -> Call:
    """Read an element without its times, from the texts before and after them."""
    values = by_key(split_fields(f"{before},{after}" if before else after)[0])
    if not values.get("trace_src_func"):
        raise ValueError(f"a sub-operation has no field 'trace_src_func': {shown(after)}")
    if "duration" in values or "timestamp" in values:
        raise ValueError("a sub-operation has a time twice")
    sizes, element = shape(values.get("input__shape")), dtype(values.get("input__dtype"))
    source, func_name = values["trace_src_func"], text_or_none(values.get("func_name"))
    group_name, comm_name = (text_or_none(values.get(key)) for key in ("group", "comm_func"))
    return Call(
        source=source,
        shape=sizes,
        dtype=element,
        func_name=func_name,
        group=None if group_name is None else GROUPS.get(group_name),
        group_name=group_name,
        comm=Operation.NONE if comm_name is None else COMMUNICATIONS.get(comm_name, Operation.NONE),
        comm_name=comm_name,
        size_bytes=_size_bytes(sizes, element),
        is_async=source.endswith("_async") or (func_name or "").endswith("_async"),
        extra=tuple([item for item in values.items() if item[0] not in SUB_OPERATION_FIELDS]),
    )
