"""Columns of a Parquet file, read by polars once its rows and unpacked bytes are known to be few enough.

A file of a megabyte can hold columns of gigabytes, so its metadata are read first, and the header of each page: what
that says is what a reader sets aside. Source: apache/parquet-format, src/main/thrift/parquet.thrift (the numbers of
fields), and apache/thrift, doc/specs/thrift-compact-protocol.md.
"""

import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincast.errors import FormatError
from traincast.files import check_unpacked, without_stderr

_MAGIC = b"PAR1"
_MOST_FOOTER_BYTES = 2**24
_MOST_PAGES = 2**16
"""Pages of all columns; a usual one holds a megabyte."""
_MOST_DEPTH = 16
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_WHOLES = (4, 5, 6)


def is_parquet(data: bytes) -> bool:
    """Say whether bytes begin as a Parquet file does."""
    return data.startswith(_MAGIC)


def read_columns(data: bytes, names: Sequence[str], shown: str) -> Mapping[str, Any]:
    """Return columns of a file as polars has them.

    Parameters
    ----------
    data : bytes
        The file.
    names : sequence of str
        The columns to read; no other is unpacked.
    shown : str
        Its path, for messages.

    Raises
    ------
    FormatError
        If it is damaged or too large, has no such column, or polars is not installed.
    """
    try:
        import polars
    except ImportError:
        text = "is a Parquet file, which needs polars: pip install 'traincast[frames]', or convert it to CSV"
        raise FormatError(text, shown) from None
    check_size(data, names, shown)
    try:
        with without_stderr():
            frame = polars.read_parquet(io.BytesIO(data), columns=list(names), use_pyarrow=False)
    except BaseException as error:
        # polars gives up with something that is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FormatError(f"cannot be read as Parquet: {reason}", shown) from None
    return {name: frame[name] for name in names}


def check_size(data: bytes, names: Sequence[str], shown: str) -> None:
    """Refuse a file of which some columns are too large unpacked, by what its metadata and pages say.

    Raises
    ------
    FormatError
        If they have too many rows or bytes, a column is missing, or the metadata are damaged.
    """
    try:
        rows, chunks = _chunks(data)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, struct.error):
        raise FormatError("cannot be read as Parquet: its metadata are damaged", shown) from None
    check_unpacked(shown, rows=rows)
    known = {name for name, _ in chunks}
    for name in names:
        if name not in known:
            text = f"has no column {name}; a straggler trace has {', '.join(names)}"
            raise FormatError(text, shown, 1)
    pages = size_bytes = 0
    values = dict.fromkeys(names, 0)
    for name, chunk in chunks:
        if name not in values:
            continue
        try:
            for held, unpacked_bytes in _pages(data, chunk):
                pages += 1
                size_bytes += unpacked_bytes
                values[name] += held
                check_unpacked(shown, rows=values[name], size_bytes=size_bytes)
                if pages > _MOST_PAGES:
                    raise FormatError(f"has more than {_MOST_PAGES:,} pages, the limit; write it in larger ones", shown)
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, struct.error):
            raise FormatError(f"cannot be read as Parquet: the pages of column {name} are damaged", shown) from None


def _chunks(data: bytes) -> tuple[int, list[tuple[str, dict[int, Any]]]]:
    """Return the rows of a file, and the name and metadata of each chunk of a column."""
    size = int.from_bytes(data[-8:-4], "little")
    if data[-4:] != _MAGIC or not 0 < size <= min(len(data) - 12, _MOST_FOOTER_BYTES):
        raise ValueError(size)
    footer, _ = _read_struct(data, len(data) - 8 - size)
    groups = footer[4]
    rows = max(footer[3], sum(group[3] for group in groups))
    chunks = [chunk[3] for group in groups for chunk in group[1]]
    return rows, [(b".".join(chunk[3]).decode(), chunk) for chunk in chunks]


def _pages(data: bytes, chunk: Mapping[int, Any]) -> Iterator[tuple[int, int]]:
    """Yield the values that each page of a chunk holds, none for a dictionary, and its bytes when unpacked."""
    at = min(each for each in (chunk[9], chunk.get(11, 0)) if each > 0)
    end = at + chunk[7]
    if end > len(data):
        raise ValueError(end)
    while at < end:
        header, at = _read_struct(data, at)
        packed, unpacked = header[3], header[2]
        if packed < 0 or unpacked < 0:
            raise ValueError(packed)
        at += packed
        yield header.get(5, header.get(8, {1: 0}))[1], unpacked


def _read_struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the fields of a struct by number, and where it ends."""
    if depth > _MOST_DEPTH:
        raise ValueError(depth)
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        kind, step = head & 15, head >> 4
        if not kind:
            return fields, at
        if step:
            number += step
        else:
            number, at = _read_whole(data, at)
        if kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        else:
            fields[number], at = _read_value(data, at, kind, depth + 1)


def _read_value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in _WHOLES:
        return _read_whole(data, at)
    if kind in (_TRUE, _FALSE, _BYTE):
        return data[at], at + 1
    if kind == _DOUBLE:
        return struct.unpack_from("<d", data, at)[0], at + 8
    if kind == _BINARY:
        size, at = _read_varint(data, at)
        if size > len(data) - at:
            raise ValueError(size)
        return data[at : at + size], at + size
    if kind == _STRUCT:
        return _read_struct(data, at, depth)
    if kind not in (_LIST, _SET) or depth > _MOST_DEPTH:
        raise ValueError(kind)
    size, kind = data[at] >> 4, data[at] & 15
    at += 1
    if size == 15:
        size, at = _read_varint(data, at)
    if size > len(data) - at:
        raise ValueError(size)
    values = []
    for _ in range(size):
        value, at = _read_value(data, at, kind, depth + 1)
        values.append(value)
    return values, at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError(value)


def _read_whole(data: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at
