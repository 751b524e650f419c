"""The grammar of a profiler trace: what its events say, as columns.

Kept are what runs on the GPU (``kernel``, ``gpu_memcpy``, ``gpu_memset``), the calls of the CUDA or HIP runtime that
launched it or waited for it, and the host's operators and annotations; Python functions, flows and counters are read
over. Times stay in the microseconds of the file, for seconds since an epoch would lose nanoseconds.

Letters: G pieces of work of the GPU, C calls of the runtime, H operators and annotations of the host.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import FieldInfo
from msgspec.structs import fields as fields_of

from traincast.errors import FormatError
from traincast.files import check_unpacked
from traincast.formats.kineto.events import (
    TABLE_OF,
    TABLES,
    WORK_OF,
    Arguments,
    Loose,
    decode_events,
)
from traincast.formats.kineto.stream import EventStream, malformed, no_text, too_deep
from traincast.formats.values import shown
from traincast.units import RANGES
from traincast.workload.ops import FloatArray, IntArray

T = TypeVar("T", bound=msgspec.Struct)
US_PER_S = 1e6
PARAM_COMMS = "record_param_comms"
"""The operator of the host that records a communication."""


class Communicated(NamedTuple):
    """What arguments say of a communication, as they are written; None where they are silent."""

    collective: Loose
    in_elements: Loose
    out_elements: Loose
    dtype: Loose
    group_size: Loose
    group_name: Loose
    group_purpose: Loose
    group_ranks: str | None
    first_rank: Loose
    rank_stride: Loose
    source: Loose
    target: Loose
    rank: Loose


_COMMUNICATED = attrgetter(*Communicated._fields)


class Shapes(NamedTuple):
    """What an operator was given, as JSON: the dimensions of its inputs, and their types; empty where not specified."""

    dims: bytes
    types: bytes


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace says in addition to its events."""

    schema_version: Loose = msgspec.field(name="schemaVersion", default=None)
    devices: list[dict[str, Any]] = msgspec.field(name="deviceProperties", default_factory=list)
    distributed: dict[str, Any] | None = msgspec.field(name="distributedInfo", default=None)
    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)
    """Nanoseconds since 1970 from which all times count."""
    trace_name: Loose = msgspec.field(name="traceName", default=None)


class GpuWork(Struct, frozen=True, kw_only=True):
    """What ran on the GPU, in the order of the file."""

    kind_G: IntArray
    """`traincast.formats.kineto.events.Work`."""
    name_G: IntArray
    """Index into `Trace.names`."""
    start_us_G: FloatArray
    time_us_G: FloatArray
    device_G: IntArray
    stream_G: IntArray
    correlation_G: IntArray
    """Number that its launch shares; 0 for none."""
    external_G: IntArray
    """Number of the operator of the host that launched it; 0 for none."""
    size_bytes_G: IntArray
    """Bytes of copies and sets; -1 where it is not specified."""
    communicated_G: IntArray
    """Index into `Trace.communicated`; -1 for none."""
    sequence_G: IntArray
    """Number of the collective in its group; -1 where it is not specified."""
    comms_G: IntArray
    """Index into `Trace.comms_ids`; -1 where it is not specified."""
    event_G: IntArray
    """Index in the list of events."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.kind_G)


class RuntimeCalls(Struct, frozen=True, kw_only=True):
    """Calls of the runtime on the host."""

    name_C: IntArray
    thread_C: IntArray
    start_us_C: FloatArray
    time_us_C: FloatArray
    correlation_C: IntArray
    event_C: IntArray


class HostOperators(Struct, frozen=True, kw_only=True):
    """Operators and annotations of the host."""

    name_H: IntArray
    thread_H: IntArray
    start_us_H: FloatArray
    time_us_H: FloatArray
    external_H: IntArray
    shapes_H: IntArray
    """Index into `Trace.shapes`."""
    communicated_H: IntArray
    sequence_H: IntArray
    comms_H: IntArray
    event_H: IntArray


class StreamWaits(Struct, frozen=True, kw_only=True):
    """Where a stream was made to wait for an event of another, where the profiler was asked to say it."""

    stream_W: IntArray
    for_stream_W: IntArray
    correlation_W: IntArray
    """Correlation of the call that made it wait."""
    recorded_by_W: IntArray
    """Correlation of the call that recorded the event."""
    event_W: IntArray


class Trace(Struct, frozen=True, kw_only=True):
    """One file."""

    path: Path
    document: Document
    events: int
    size_bytes: int
    """Bytes of its text, unpacked."""
    gpu: GpuWork
    calls: RuntimeCalls
    host: HostOperators
    waits: StreamWaits
    names: tuple[str, ...]
    communicated: tuple[Communicated, ...]
    comms_ids: tuple[str, ...]
    shapes: tuple[Shapes, ...]


class _Numbers(dict[Any, int]):
    """Distinct values, numbered in the order in which they come."""

    def __missing__(self, value: Hashable) -> int:
        self[value] = number = len(self)
        return number


_LONG = frozenset({"correlation", "external", "size_bytes", "sequence", "recorded_by", "event"})
_Columns = dict[str, Any]


class _Reader:
    """Turns the events of one file into columns."""

    def __init__(self) -> None:
        self.names, self.communicated, self.comms, self.shapes, self.threads = (_Numbers() for _ in range(5))
        self.parts: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
        self.kept = 0
        """Events that have become rows."""

    def add(self, events: Sequence[Any], first: int) -> None:
        """Take the next events, of which the first has that index."""
        table_I = np.fromiter(map(TABLE_OF.__getitem__, map(type, events)), "i1", len(events))
        for number, table in enumerate(TABLES):
            at = np.flatnonzero(table_I == number)
            if len(at):
                self.kept += len(at)
                columns: _Columns = getattr(self, f"_{table}")([events[each] for each in at.tolist()])
                for name, values in (columns | {"event": first + at}).items():
                    self.parts[table, name].append(_column(values, _dtype(name)))

    def table(self, name: str, table: type[T]) -> T:
        """Return the columns of a table."""
        columns = {}
        for each in table.__struct_fields__:
            column = each.rpartition("_")[0]
            columns[each] = np.concatenate([np.zeros(0, _dtype(column)), *self.parts.pop((name, column), [])])
        return table(**columns)

    def _gpu(self, rows: list[Any]) -> _Columns:
        arguments = [each.args for each in rows]
        return {
            "kind": [WORK_OF[type(each)] for each in rows],
            **self._named_and_timed(rows),
            "device": [each.device for each in arguments],
            "stream": [each.stream for each in arguments],
            "correlation": [each.correlation for each in arguments],
            "external": [each.external for each in arguments],
            "size_bytes": [each.size_bytes for each in arguments],
            **self._of_communications(arguments),
        }

    def _calls(self, rows: list[Any]) -> _Columns:
        return {
            **self._named_and_timed(rows),
            "thread": [self.threads[each.tid] for each in rows],
            "correlation": [each.args.correlation for each in rows],
        }

    def _host(self, rows: list[Any]) -> _Columns:
        arguments, shapes = [each.args for each in rows], self.shapes
        return {
            **self._named_and_timed(rows),
            "thread": [self.threads[each.tid] for each in rows],
            "external": [each.external for each in arguments],
            "shapes": [shapes[bytes(each.input_dims), bytes(each.input_types)] for each in arguments],
            **self._of_communications(arguments),
        }

    def _waits(self, rows: list[Any]) -> _Columns:
        arguments = [each.args for each in rows]
        return {
            "stream": [each.stream for each in arguments],
            "for_stream": [each.for_stream for each in arguments],
            "correlation": [each.correlation for each in arguments],
            "recorded_by": [each.recorded_by for each in arguments],
        }

    def _named_and_timed(self, rows: list[Any]) -> _Columns:
        return {
            "name": [self.names[each.name] for each in rows],
            "start_us": [each.ts for each in rows],
            "time_us": [each.dur for each in rows],
        }

    def _of_communications(self, arguments: list[Arguments]) -> _Columns:
        columns = {name: np.full(len(arguments), -1) for name in ("communicated", "sequence", "comms")}
        for at, said in enumerate(arguments):
            if said.collective is not None or said.group_name is not None:
                columns["communicated"][at] = self._communicated(said)
                columns["sequence"][at] = whole(said.sequence)
                columns["comms"][at] = -1 if said.comms_id is None else self.comms[str(said.comms_id)]
        return columns

    def _communicated(self, said: Arguments) -> int:
        values = _COMMUNICATED(said)
        try:
            return self.communicated[values]
        except TypeError:
            return self.communicated[tuple(str(each) if isinstance(each, list) else each for each in values)]


def _dtype(name: str) -> str:
    return "f8" if name.endswith("_us") else "i8" if name in _LONG else "i4"


def _column(values: Sequence[object] | IntArray, dtype: str) -> np.ndarray:
    try:
        return np.array(values, dtype=dtype)
    except (ValueError, TypeError, OverflowError):
        limit = np.iinfo(dtype).max
        return np.array([number if abs(number := whole(value)) < limit else -1 for value in values], dtype=dtype)


def whole(value: object, otherwise: int = -1) -> int:
    """Return an argument as a whole number, written as one or as text of one; else the other value."""
    try:
        return int(value, 0) if isinstance(value, str) else int(value)  # type: ignore[call-overload]
    except (ValueError, TypeError, OverflowError):
        return otherwise


def read_trace(path: Path) -> Trace:
    """Read one file.

    Raises
    ------
    FormatError
        If it cannot be read, is not a trace, ends too early, or an event that counts has no time or a negative one.
    """
    reader, events = _Reader(), 0
    stream = EventStream(path, decode_events)
    for piece in stream.pieces():
        reader.add(piece.events, piece.first)
        check_unpacked(str(path), rows=reader.kept, called="or more events of GPU and host")
        events = piece.first + len(piece.events)
    gpu, calls = reader.table("gpu", GpuWork), reader.table("calls", RuntimeCalls)
    host, waits = reader.table("host", HostOperators), reader.table("waits", StreamWaits)
    names = tuple(reader.names)
    for table in (gpu, calls, host):
        _check_times(path, table, names)
    return Trace(
        path=path,
        document=_document(path, stream.outside),
        events=events,
        size_bytes=stream.size_bytes,
        gpu=gpu,
        calls=calls,
        host=host,
        waits=waits,
        names=names,
        communicated=tuple(Communicated(*each) for each in reader.communicated),
        comms_ids=tuple(reader.comms),
        shapes=tuple(Shapes(*each) for each in reader.shapes),
    )


def _document(path: Path, outside: Sequence[tuple[int, bytes]]) -> Document:
    """Return what stands before and after the events; where both say something, the latter."""
    found: dict[str, Any] = {}
    for offset, text in outside:
        try:
            said = msgspec.json.decode(text, type=Document)
        except RecursionError:
            raise too_deep(path, offset) from None
        except msgspec.ValidationError as error:
            raise FormatError(f"the object around its events is not one of a profiler: {error}", str(path)) from None
        except msgspec.DecodeError as error:
            raise malformed(error, path, offset) from None
        except UnicodeDecodeError:
            raise no_text(text, path, offset) from None
        found |= {each.name: getattr(said, each.name) for each in fields_of(Document) if _is_said(said, each)}
    return Document(**found)


def _is_said(said: Document, each: FieldInfo) -> bool:
    return bool(getattr(said, each.name) not in (each.default, []))


def _check_times(path: Path, table: Any, names: Sequence[str]) -> None:  # noqa: ANN401 any table with times
    """Refuse events without a begin or a duration, or with a negative one."""
    columns = {name.rpartition("_")[0]: getattr(table, name) for name in table.__struct_fields__}
    start_us, time_us = columns["start_us"], columns["time_us"]
    most_us = RANGES["time"].highest * US_PER_S
    bad = np.flatnonzero(~((time_us >= 0) & (time_us <= most_us) & np.isfinite(start_us)))
    if len(bad):
        at = int(bad[0])
        name = shown(names[int(columns["name"][at])])
        what = "has no ts" if np.isnan(start_us[at]) else "has no dur"
        if np.isfinite(start_us[at]) and np.isfinite(time_us[at]):
            what = f"has a dur of {time_us[at]:g} us"
        raise FormatError(f"event {columns['event'][at]} ({name}) {what}", str(path))
