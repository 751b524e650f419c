"""What is done of a sweep, on disk: a line for each finished chunk, so that a killed sweep goes on where it was.

The first line says of which sweep, and how it is cut into chunks; each other one has the number of a chunk and its
rows. A line is whole or, at the end of a journal whose writer was killed, cut off and left out.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from traincast.errors import ConfigError, FormatError
from traincast.files import MOST_TRACE_BYTES, chunks_of
from traincast.sweeps.rows import Row

SCHEMA = "traincast.sweep-journal/1"


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a journal."""

    schema: str = SCHEMA
    fingerprint: str
    """Of the sweep."""
    version: str
    """Of traincast: what another one forecasts may differ."""
    points: int
    chunk: int
    """Points of a chunk."""


class _Line(msgspec.Struct, frozen=True):
    chunk: int
    rows: list[Row]


class Journal:
    """The journal of a sweep that runs; nobody else writes to it meanwhile."""

    def __init__(self, path: Path, heading: Heading, *, restart: bool = False) -> None:
        """Open a journal, or begin it where there is none.

        Parameters
        ----------
        path : Path
            The journal.
        heading : Heading
            Of which sweep it is.
        restart : bool
            Forget what it holds, once nobody else has it.

        Raises
        ------
        ConfigError
            If it belongs to another sweep, another sweep writes to it now, or it cannot be written.
        FormatError
            If it is not a journal.
        """
        self.path, self.rows_of = path, {}
        self._stream = _locked(path)
        try:
            if restart:
                self._stream.truncate(0)
            self._read(heading)
        except BaseException:
            self._stream.close()
            raise

    rows_of: dict[int, list[Row]]
    """Rows of every chunk that is done."""

    def add(self, chunk: int, rows: Sequence[Row]) -> None:
        """Write down that a chunk is done; when this returns it is on disk."""
        self._append(msgspec.json.encode(_Line(chunk, list(rows))))
        self.rows_of[chunk] = list(rows)

    def close(self, *, remove: bool = False) -> None:
        """Close it; delete it where what it held is stored elsewhere."""
        with suppress(OSError):
            if remove and _is_of(self.path, self._stream):
                self.path.unlink(missing_ok=True)
        with suppress(OSError):
            self._stream.close()

    def _append(self, line: bytes) -> None:
        try:
            left = memoryview(line + b"\n")
            while left:
                left = left[self._stream.write(left) :]
            os.fsync(self._stream.fileno())
        except OSError as error:
            text = (
                f"cannot be written: {error.strerror or error}; what it holds so far stays, and the sweep goes on there"
            )
            raise ConfigError(text, str(self.path)) from None

    def _read(self, heading: Heading) -> None:
        data = b"".join(chunks_of(self.path, 2**20, MOST_TRACE_BYTES))
        lines = data.split(b"\n")
        if lines.pop():
            # Cut off in the middle: what follows begins a line of its own.
            self._stream.truncate(len(data) - len(data.rpartition(b"\n")[2]))
        if not lines:
            self._append(msgspec.json.encode(heading))
            return
        try:
            found = msgspec.json.decode(lines[0], type=Heading)
            for line in lines[1:]:
                done = msgspec.json.decode(line, type=_Line)
                self.rows_of[done.chunk] = done.rows
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FormatError(f"is not a journal of a sweep ({error}); move it away", str(self.path)) from None
        if found != heading:
            raise ConfigError(_otherwise(found, heading), str(self.path))


def _otherwise(found: Heading, heading: Heading) -> str:
    if found.fingerprint != heading.fingerprint:
        what = "belongs to another sweep"
    elif found.version != heading.version:
        what = f"was written by traincast {found.version}, and this is {heading.version}"
    else:
        what = f"has chunks of {found.chunk} points, not of {heading.chunk}"
    return f"{what}; --restart starts over"


def _locked(path: Path) -> BinaryIO:
    """Return a journal, open and ours alone (errors as `Journal`)."""
    while True:
        try:
            # Unbuffered: what could not be written is not tried again when it is closed.
            stream = path.open("ab", buffering=0)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        try:
            _lock(stream, path)
            # Whoever had the lock may have taken the file away before letting go of it.
            if _is_of(path, stream):
                return stream
        except BaseException:
            stream.close()
            raise
        stream.close()


def _is_of(path: Path, stream: BinaryIO) -> bool:
    """Return whether what stands at a path is the file that is open."""
    try:
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except FileNotFoundError:
        return False


def _lock(stream: BinaryIO, path: Path) -> None:
    """Keep others out, where the system can."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError("belongs to a sweep that is running", str(path)) from None
