"""Read the lines of a log as they are written: across rotation, truncation and pauses, never writing to it.

A file that was renamed is read to its end before the new one of its name is opened (``logrotate``); one that became
shorter is read from its beginning (``copytruncate``). A name that is missing for a while is waited for.
"""

import codecs
import gzip
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from traincast.errors import FormatError
from traincast.files import open_to_follow

_PIECE_BYTES = 2**18
_LONGEST = 2**20
"""Bytes without the end of a line that are kept until it comes; what follows is not of a step."""
_PATIENCE_S = 5.0
"""How long a pipe may be silent before that is said."""
STANDARD_INPUT = Path("-")


def lines_as_written(path: Path, *, once: bool) -> Iterator[str | None]:
    """Yield the lines of a log, and None whenever it has not more yet; with `once` it ends there.

    Parameters
    ----------
    path : Path
        A text file, with `once` perhaps packed with gzip, or ``-`` for standard input, which ends when it is closed.
    once : bool
        Whether the end of the file is the end.

    Raises
    ------
    FormatError
        If the file cannot be opened at first, or is not a regular one.
    """
    if path == STANDARD_INPUT:
        yield from _lines_of(sys.stdin.buffer, once=once)
        return
    file = written = open_to_follow(path)
    if once and path.suffix == ".gz":
        file = cast("BinaryIO", gzip.GzipFile(fileobj=written))
    try:
        parts = _Lines()
        while True:
            while piece := file.read(_PIECE_BYTES):
                yield from parts.take(piece)
            if once:
                yield from parts.rest()
                return
            if (fresh := _replaced(path, file)) is not None:
                # What was written between the last read and the renaming.
                while piece := file.read(_PIECE_BYTES):
                    yield from parts.take(piece)
                yield from parts.rest()
                file.close()
                file = fresh
            else:
                yield None
    finally:
        file.close()
        written.close()


def _replaced(path: Path, file: BinaryIO) -> BinaryIO | None:
    """Return the file that has the name now, if it is another one or starts over."""
    try:
        now, ours = path.stat(), os.fstat(file.fileno())
        if (now.st_ino, now.st_dev) != (ours.st_ino, ours.st_dev) or now.st_size < file.tell():
            return open_to_follow(path)
    except (OSError, FormatError):
        # Between two files of a rotation, or a file system that is away.
        return None
    return None


def _lines_of(file: BinaryIO, *, once: bool) -> Iterator[str | None]:
    """Yield the lines of a pipe as soon as each is whole; None where nothing came for a while, but not with `once`."""
    parts = _Lines()
    while True:
        if not once and not select.select([file], [], [], _PATIENCE_S)[0]:
            yield None
            continue
        piece = os.read(file.fileno(), _PIECE_BYTES)
        if not piece:
            yield from parts.rest()
            return
        yield from parts.take(piece)


class _Lines:
    """Parts pieces of bytes at the ends of lines."""

    def __init__(self) -> None:
        self._held = ""
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode

    def take(self, piece: bytes) -> Iterator[str]:
        """Yield the lines that a piece completes; a progress bar ends its own with a carriage return."""
        *whole, held = (self._held + self._decode(piece)).replace("\r", "\n").split("\n")
        self._held = held[:_LONGEST]
        yield from filter(None, whole)

    def rest(self) -> Iterator[str]:
        """Yield what has no end; the next piece begins another file."""
        held, self._held = self._held, ""
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        if held:
            yield held
