"""Open what the user names: regular files of a bounded size, texts and documents of a bounded depth.

Every reader comes through here, so that a link to an endless device, a pipe that nobody writes to, a packed
file that expands to gigabytes or a document of a million nested tables is refused before it is read.
"""

import csv
import errno
import gzip
import hashlib
import io
import json
import math
import os
import re
import stat
import tomllib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from traincast.errors import FormatError
from traincast.units import format_size

MOST_BYTES = 2**28
"""Largest workload, trace or result; those that are known have some megabytes."""

MOST_DOCUMENT_BYTES = 4 * 2**20
"""Largest TOML or JSON document that describes something; the longest config.json known has 0.1 MB."""

MOST_DEPTH = 32
"""Most parts of a dotted TOML key; a description has four at most. Their cost is quadratic."""

T = TypeVar("T")

SHIPPED = resources.files("traincast") / "data"
"""The files that come with traincast, which need no guard."""

_GZIP = b"\x1f\x8b"
"""How a gzip file begins (RFC 1952, section 2.3.1)."""
_CHUNK = 2**20
_LONG_NUMBER = re.compile(r"\d[\d_]{4299}")
"""A number longer than Python reads (sys.int_info.default_max_str_digits)."""
_PART = r"""(?:(?<![\w-])[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(rf"{_PART}(?:[ \t]*+\.[ \t]*+(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')){{{MOST_DEPTH},}}")


def shipped_text(path: str) -> str:
    """Return the text of a shipped file by its path below `SHIPPED`."""
    return (SHIPPED / path).read_text(encoding="utf-8")


def shipped_rows(path: str) -> Iterable[dict[str, str]]:
    """Return the rows of a shipped CSV file by column."""
    return csv.DictReader(io.StringIO(shipped_text(path)))


def shipped_toml(path: str, kind: type[T]) -> T:
    """Return a shipped TOML file as a value of some type."""
    return msgspec.toml.decode(shipped_text(path), type=kind)


def read_head(path: Path, count: int, most: int = MOST_BYTES) -> bytes:
    """Return at most `count` of the first bytes of a regular file.

    Raises
    ------
    FormatError
        If it cannot be opened or read, is no regular file, or is larger than `most` bytes.
    """
    shown = str(path)
    try:
        # Without O_NONBLOCK the opening of a pipe waits for somebody who writes to it.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(_regular(handle, shown, most), "rb") as stream:
            # What looks like a file may still not give its bytes: /proc/self/mem, a disk that fails.
            return stream.read(count)
    except OSError as error:
        raise FormatError(f"cannot be read: {_reason(error)}", shown) from None
    except ValueError as error:
        raise FormatError(f"cannot be read: {error}", shown) from None


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
    """Return bytes as text, or raise FormatError with the byte that is none."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise FormatError(f"is not UTF-8 text: {error.reason} at byte {error.start}", shown) from error


def unpacked(data: bytes, shown: str, most: int = MOST_BYTES) -> bytes:
    """Return the content of a gzip file; what is none comes back as it is.

    Raises
    ------
    FormatError
        If it is damaged, or expands to more than `most` bytes.
    """
    if not data.startswith(_GZIP):
        return data
    found: list[bytes] = []
    size = 0
    try:
        while data:
            inner = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            while not inner.eof:
                piece = inner.decompress(data, _CHUNK)
                data = inner.unconsumed_tail if not inner.eof else inner.unused_data.lstrip(b"\0")
                size += len(piece)
                if size > most:
                    raise FormatError(f"expands to more than {format_size(most)}, the limit", shown)
                if not piece and not data and not inner.eof:
                    raise EOFError("it ends too early")
                found.append(piece)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(f"is no whole gzip file: {error}", shown) from None
    return b"".join(found)


def unpacked_head(data: bytes, most: int) -> bytes:
    """Return at most so many bytes of what the beginning of a gzip file holds; what is none comes back as it is.

    Nothing comes back where it is damaged.
    """
    if not data.startswith(_GZIP):
        return data
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(data, most)
    except (zlib.error, gzip.BadGzipFile):
        return b""


def _finite(text: str) -> float:
    """Read a number of a TOML file; one that is too large for a float is refused, ``inf`` is left to who reads it."""
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


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


@dataclass(frozen=True, slots=True)
class InputFile:
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

DESCRIPTIONS = ("job", "torchtitan", "model", "hugging-face", "cluster", "topology", "framework")
"""Formats of files that describe a run, beside those that hold a workload."""


def input_of(path: str | Path, form: str, data: bytes | None = None) -> InputFile:
    """Return a file with the digest of its bytes, which are read where they are not given.

    Raises
    ------
    FormatError
        If it cannot be read, is no regular file or too large.
    """
    read = read_bytes(Path(path)) if data is None else data
    return InputFile(str(path), form, hashlib.sha256(read).hexdigest())


def named_file(name: str, known: Iterable[str], form: str) -> tuple[InputFile, ...]:
    """Return the file that a name or path stands for; nothing where it is a known name, or no regular file."""
    return () if name in known or not Path(name).is_file() else (input_of(name, form),)


def model_file(name: str, known: Iterable[str]) -> tuple[InputFile, ...]:
    """Return the file of a model by its path; of a directory its ``config.json``."""
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    return named_file(str(path), known, "hugging-face" if path.suffix == ".json" else "model")
