"""Open what the user names: regular files of a bounded size, texts and documents of a bounded depth.

Every reader comes through here, so that a link to an endless device, a pipe that nobody writes to, a packed
file that expands to gigabytes or a document of a million nested tables is refused before it is read.
"""

import csv
import errno
import hashlib
import io
import json
import math
import os
import re
import stat
import sys
import tomllib
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Literal, TypeVar

from msgspec import Struct

from traincast.errors import FormatError
from traincast.units import format_size

MOST_BYTES = 2**28
"""Largest workload, trace or result; those that are known have some megabytes."""

MOST_TRACE_BYTES = 2**34
"""Largest trace that is read in pieces, and the most that it expands to: some four minutes of reading."""

MOST_ROWS = 2**22
"""Rows of a table that is read as a whole, packed or not: a row takes some hundreds of bytes."""

MOST_UNPACKED_BYTES = 2**30
"""Bytes of the columns of a table that is packed in a format of its own."""

MOST_EXPANSION = 100
"""How many times its size a packed file may have unpacked; traces have 10 to 40."""

FREE_BYTES = 2**24
"""Up to so many bytes unpacked no expansion is too much: reading them costs nothing."""

MOST_DOCUMENT_BYTES = 4 * 2**20
"""Largest TOML or JSON document that describes something; the longest config.json known has 0.1 MB."""

MOST_DEPTH = 32
"""Most parts of a dotted TOML key; a description has four at most. Their cost is quadratic."""

T = TypeVar("T")

_GZIP = b"\x1f\x8b"
"""How a gzip file begins (RFC 1952, section 2.3.1)."""
_CHUNK = 2**20
_LONG_NUMBER = re.compile(r"\d[\d_]{4299}")
"""A number longer than Python reads (sys.int_info.default_max_str_digits)."""
_PART = r"""(?:(?<![\w-])[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(rf"{_PART}(?:[ \t]*+\.[ \t]*+(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')){{{MOST_DEPTH},}}")


def read_head(path: Path, count: int, most: int = MOST_BYTES) -> bytes:
    """Return at most `count` of the first bytes of a regular file.

    Raises
    ------
    FormatError
        If it cannot be opened or read, is not a regular file, or is larger than `most` bytes.
    """
    try:
        with os.fdopen(_opened(path, most), "rb") as stream:
            # What looks like a file may still not give its bytes: /proc/self/mem, a disk that fails.
            # A file of /proc that has nothing to give yet gives None.
            return stream.read(count) or b""
    except OSError as error:
        raise FormatError(f"cannot be read: {_reason(error)}", str(path)) from None


def open_to_follow(path: Path) -> BinaryIO:
    """Open a regular file of any size that others still write to (errors as `read_head`)."""
    return os.fdopen(_opened(path, sys.maxsize), "rb")


def _opened(path: Path, most: int) -> int:
    """Return the handle of a regular file of at most so many bytes (errors as `read_head`)."""
    shown = str(path)
    try:
        # Without O_NONBLOCK the opening of a pipe waits for somebody who writes to it.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise FormatError(f"cannot be read: {_reason(error)}", shown) from None
    except ValueError as error:
        raise FormatError(f"cannot be read: {error}", shown) from None
    return _regular(handle, shown, most)


def _regular(handle: int, shown: str, most: int) -> int:
    """Return an open file that is a regular one and not too large; else close it and complain."""
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_size <= most:
        return handle
    os.close(handle)
    if stat.S_ISDIR(status.st_mode):
        raise FormatError(f"cannot be read: {os.strerror(errno.EISDIR)}", shown)
    if stat.S_ISREG(status.st_mode):
        raise FormatError(f"has {format_size(status.st_size)}; {format_size(most)} is the limit", shown)
    raise FormatError("is a pipe or device; write its content to a file and give that", shown)


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file (errors as `read_head`)."""
    # Files of /proc say that they have no bytes.
    data = read_head(path, most + 1, most)
    if len(data) > most:
        raise FormatError(f"has more than {format_size(most)}, the limit", str(path))
    return data


def read_unpacked(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file, perhaps packed with gzip (errors as `read_head` and `unpacked`)."""
    return unpacked(read_bytes(path, most), str(path), most)


def read_text(path: Path, most: int = MOST_DOCUMENT_BYTES, *, encoding: str = "utf-8") -> str:
    """Return the text of a file, each line with a plain end (errors as `read_head` and `decoded`)."""
    text = decoded(read_bytes(path, most), str(path), encoding=encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def decoded(data: bytes, shown: str, *, encoding: str = "utf-8") -> str:
    """Return bytes as text, or raise FormatError with the byte that is not text."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise FormatError(f"is not UTF-8 text: {error.reason} at byte {error.start}", shown) from error


def unpacked(data: bytes, shown: str, most: int = MOST_BYTES) -> bytes:
    """Return the content of a gzip file; anything else comes back as it is.

    Raises
    ------
    FormatError
        If it is damaged, or expands to more than `most` bytes.
    """
    if not data.startswith(_GZIP):
        return data
    return b"".join(_inflated([data], shown, most))


def chunks_of(path: Path, size: int, most: int = MOST_TRACE_BYTES) -> Iterator[bytes]:
    """Yield the content of a regular file in pieces of about a size, so that it is never in memory as a whole.

    That of a gzip file comes unpacked.

    Raises
    ------
    FormatError
        If it cannot be read, is larger than `most` bytes or expands to more, or is a damaged gzip file.
    """
    chunks = _chunks(path, size, most)
    head = next(chunks, b"")
    yield from _inflated(chain([head], chunks), str(path), most) if head.startswith(_GZIP) else chain([head], chunks)


def _chunks(path: Path, size: int, most: int) -> Iterator[bytes]:
    """Yield the bytes of a regular file in pieces of a size (errors as `read_head`)."""
    try:
        with os.fdopen(_opened(path, most), "rb") as stream:
            while chunk := stream.read(size):
                yield chunk
    except OSError as error:
        raise FormatError(f"cannot be read: {_reason(error)}", str(path)) from None


def _inflated(chunks: Iterable[bytes], shown: str, most: int) -> Iterator[bytes]:
    """Yield what the pieces of a gzip file hold (errors as `unpacked`)."""
    inner, size, packed = None, 0, 0
    try:
        for chunk in chunks:
            packed += len(chunk)
            # Zeros may fill up what follows a member.
            data = chunk if inner else chunk.lstrip(b"\0")
            while data:
                inner = inner or zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
                piece = inner.decompress(data, _CHUNK)
                data = inner.unconsumed_tail
                if inner.eof:
                    data, inner = inner.unused_data.lstrip(b"\0"), None
                size += len(piece)
                _check_expansion(shown, packed, size, most)
                yield piece
    except zlib.error as error:
        raise FormatError(f"is not a complete gzip file: {error}", shown) from None
    if inner:
        raise FormatError("is not a complete gzip file: it ends too early", shown)


def _check_expansion(shown: str, packed: int, size: int, most: int) -> None:
    """Refuse what expands to more bytes than are read, or to more than any file that somebody means."""
    if size > most:
        raise FormatError(f"expands to more than {format_size(most)}, the limit", shown)
    if size > max(FREE_BYTES, MOST_EXPANSION * packed):
        text = f"expands to more than {MOST_EXPANSION} times its size; unpack it yourself if it is meant"
        raise FormatError(text, shown)


def check_unpacked(shown: str, *, rows: int = 0, size_bytes: int = 0, called: str = "rows") -> None:
    """Refuse a table of more rows or bytes than are read, before it is unpacked.

    Parameters
    ----------
    shown : str
        Its path, for messages.
    rows : int
        Rows that it says it has.
    size_bytes : int
        Bytes that it has when unpacked.
    called : str
        What its rows are.

    Raises
    ------
    FormatError
        With the number, the limit, and what to do.
    """
    if rows > MOST_ROWS:
        raise FormatError(f"has {rows:,} {called}; {MOST_ROWS:,} is the limit: cut it to fewer", shown)
    if size_bytes > MOST_UNPACKED_BYTES:
        text = f"has more than {format_size(MOST_UNPACKED_BYTES)} unpacked, the limit; cut it to fewer rows"
        raise FormatError(text, shown)


def csv_rows(text: str, shown: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV text, the header first, each with its 1-based last line; lines may end in any way.

    Raises
    ------
    FormatError
        If it has too many rows, or one of them is not a row of a CSV; with its line.
    """
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    check_unpacked(shown, rows=plain.count("\n") - plain.endswith("\n"))
    # strict: a quote that is never closed is an error, not one long cell.
    rows = csv.reader(io.StringIO(plain, newline=""), strict=True)
    try:
        for row in rows:
            yield rows.line_num, row
    except csv.Error as error:
        raise FormatError(f"is not CSV: {error}", shown, rows.line_num) from None


def unpacked_head(data: bytes, most: int) -> bytes:
    """Return at most so many bytes of what the beginning of a gzip file holds; anything else comes back as it is.

    Nothing comes back where it is damaged.
    """
    if not data.startswith(_GZIP):
        return data
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(data, most)
    except zlib.error:
        return b""


def _finite(text: str) -> float:
    """Read a number of a TOML file; one that is too large for a float is refused, ``inf`` is left to the caller."""
    value = float(text)
    if math.isinf(value) and "inf" not in text:
        raise ValueError(f"{text} is too large")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file (errors as `read_head` and `parse_toml`)."""
    return parse_toml(read_text(path), str(path))


def parse_toml(text: str, shown: str) -> dict[str, Any]:
    """Return the tables of a TOML text; `shown` is its file, for messages.

    Raises
    ------
    FormatError
        If it is not TOML, a key or value is nested too deeply, or a number has thousands of digits; the
        message says where.
    """
    deep = _DEEP_KEY.search(text)
    if deep is not None:
        line = text.count("\n", 0, deep.start()) + 1
        raise FormatError(f"a dotted key has more than {MOST_DEPTH} parts", shown, line)
    try:
        return tomllib.loads(text, parse_float=_finite)
    except RecursionError as error:
        raise FormatError("is not TOML that can be read: nested too deeply", shown) from error
    except tomllib.TOMLDecodeError as error:
        line_of = re.search(r"at line (\d+)", str(error))
        raise FormatError(f"is not TOML: {error}", shown, int(line_of[1]) if line_of else None) from error
    except ValueError as error:
        long = _LONG_NUMBER.search(text)
        place = None if long is None else text.count("\n", 0, long.start()) + 1
        raise FormatError("is not TOML that can be read: a number or date is out of range", shown, place) from error


def read_json(path: Path) -> object:
    """Return the value of a JSON document (errors as `read_head` and `parse_json`)."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str, shown: str) -> object:
    """Return the value of a JSON text.

    Raises
    ------
    FormatError
        If it is not JSON, is nested too deeply, or a number has thousands of digits.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FormatError(f"is not JSON: {error.msg}", shown, error.lineno) from error
    except (RecursionError, ValueError) as error:
        raise FormatError("is not JSON that can be read: nested too deeply or a number too long", shown) from error


@contextmanager
def warnings_of_python(action: Literal["error", "ignore"]) -> Iterator[None]:
    """Ignore what Python says of a text that it parses, such as an unknown escape, or make an error of it.

    The filters of warnings are those of the whole process: two threads that changed them at the same time would leave
    them changed.
    """
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter(action)
        yield


_FILTERS, _STDERR = Lock(), Lock()


@contextmanager
def without_stderr() -> Iterator[None]:
    """Keep what a library writes to the standard error stream itself, such as how it gave up, off the terminal."""
    with _STDERR:
        try:
            kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        except OSError:
            # The process has no such stream.
            yield
            return
        try:
            os.dup2(nothing, 2)
            yield
        finally:
            with suppress(OSError):
                os.dup2(kept, 2)
            os.close(kept)
            os.close(nothing)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


class InputFile(Struct, frozen=True):
    """A file that a run was read from.

    Parameters
    ----------
    path : str
        As it was given.
    format : str
        Name of its format: that of a workload (``aicb``, ``echo``, ...), or one of `DESCRIPTIONS`.
    sha256 : str
        Hexadecimal digest of its bytes.
    """

    path: str
    format: str
    sha256: str


LOADS = "expert-loads"
"""Format of rank traces that say nothing but the loads of experts; a workload of its own they are ``echo``."""

CONSTANTS = "constants"
"""Format of constants of operators."""

DESCRIPTIONS = (
    "job",
    "training-log",
    "torchtitan",
    "deepspeed",
    "maxtext",
    "accelerate",
    "bridge",
    "nemo",
    "model",
    "hugging-face",
    "cluster",
    "topology",
    "framework",
    CONSTANTS,
)
"""Formats of files that describe a run, in addition to those that hold a workload."""


def input_of(path: str | Path, form: str, data: bytes | None = None) -> InputFile:
    """Return a file with the digest of its bytes, which are read where they are not given.

    Raises
    ------
    FormatError
        If it cannot be read, is not a regular file or too large.
    """
    digest = hashlib.sha256()
    for chunk in _chunks(Path(path), _CHUNK, MOST_TRACE_BYTES) if data is None else (data,):
        digest.update(chunk)
    return InputFile(str(path), form, digest.hexdigest())


def named_file(name: str, known: Iterable[str], form: str) -> tuple[InputFile, ...]:
    """Return the file that a name or path stands for; nothing where it is a known name, or no regular file."""
    return () if name in known or not Path(name).is_file() else (input_of(name, form),)


def model_file(name: str, known: Iterable[str]) -> tuple[InputFile, ...]:
    """Return the file of a model by its path; of a directory its ``config.json``."""
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    return named_file(str(path), known, "hugging-face" if path.suffix == ".json" else "model")
