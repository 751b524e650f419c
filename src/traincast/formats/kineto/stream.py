"""Read the list of events of a profiler trace in pieces, so that no more than a piece of it is in memory.

A trace is one JSON object; its list ``traceEvents`` is nearly all of it. The list is cut where one event ends and the
next begins, and each piece is decoded as a list of its own. A cut is guessed by the look of the text and proven by the
decoder: a string or an inner list that was cut through does not decode, and then the text is read token by token.

Source: Trace Event Format (Google), "JSON Object Format"; pytorch/kineto, libkineto/src/output_json.cpp, writes some
keys before the list and some after it (``distributedInfo`` on either side).
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from traincast.errors import FormatError
from traincast.files import chunks_of

E = TypeVar("E")
"""What an event is decoded as."""

PIECE_BYTES = 2**20
"""Text that is decoded at once."""
MOST_EVENT_BYTES = 2**26
"""Largest single event, and most text before or after the list."""

_KEY = b"traceEvents"
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|["{}\[\]]', re.DOTALL)
"""A string, a string that does not end, or a bracket."""
_NEXT = re.compile(rb"\s*,\s*\{")
"""What follows the end of an event where another one follows."""
_COLON = re.compile(rb"\s*:\s*")
_BYTE = re.compile(r" \(byte (\d+)\)")
_PATH = re.compile(r" - at `\$\[(\d+)\](?:\.([^`]*))?`")
_TRIES = 8


class Piece(NamedTuple, Generic[E]):
    """Some events that follow each other."""

    first: int
    """Index of the first one in the list, from 0."""
    events: list[E]


class EventStream(Generic[E]):
    """The events of one file, piece by piece.

    Parameters
    ----------
    path : Path
        A trace, which may be packed by gzip.
    decode : callable
        Decodes a list of events, or raises an error of msgspec.
    """

    def __init__(self, path: Path, decode: Callable[[bytes], list[E]]) -> None:
        self.path, self.decode = path, decode
        self.size_bytes = 0
        """Bytes of the text so far, unpacked."""
        self.outside: list[tuple[int, bytes]] = []
        """The object without its list: what stands before it, and once all pieces are read what stands after it, with
        the byte at which it begins."""
        self._chunks = chunks_of(path, PIECE_BYTES)
        self._buffer = b""
        self._offset = 0
        """Where the buffer begins in the text."""

    def pieces(self) -> Iterator[Piece[E]]:
        """Yield the events in their order.

        Raises
        ------
        FormatError
            If the file cannot be read, is not a JSON object with a list of events, or ends too early; with the byte, or
            the index of the event.
        """
        self._find_list()
        first, ended = 0, False
        while not ended:
            events, ended = self._next(first)
            yield Piece(first, events)
            first += len(events)
        self._rest()

    def _next(self, first: int) -> tuple[list[E], bool]:
        """Return the events of the next piece, and whether the list ends with them."""
        self._fill(PIECE_BYTES)
        cut = self._likely_cut()
        if cut:
            try:
                return self._decoded(cut), False
            except msgspec.ValidationError as error:
                raise self._wrong(error, first) from None
            except msgspec.DecodeError:
                pass
        while not (sure := self._sure_cut())[0]:
            self._check_so_far()
            if len(self._buffer) > MOST_EVENT_BYTES:
                raise self._error("an event of more than 64 MiB begins", 0)
            if not self._fill(2 * max(PIECE_BYTES, len(self._buffer))):
                raise self._error("is cut off: its list of events does not end; the text ends", len(self._buffer))
        try:
            return self._decoded(*sure), sure[1]
        except msgspec.ValidationError as error:
            raise self._wrong(error, first) from None
        except msgspec.DecodeError as error:
            raise malformed(error, self.path, self._offset) from None

    def _check_so_far(self) -> None:
        """Refuse text that no further text makes JSON."""
        try:
            msgspec.json.decode(self._buffer, type=list[msgspec.Raw])
        except RecursionError:
            raise too_deep(self.path, self._offset) from None
        except msgspec.DecodeError as error:
            if "truncated" not in str(error):
                raise malformed(error, self.path, self._offset) from None

    def _decoded(self, cut: int, closed: bool = False) -> list[E]:
        """Decode the buffer up to a cut, and drop it; the buffer then begins as a list does."""
        text = b"".join((memoryview(self._buffer)[:cut], b"]"))
        try:
            events = self.decode(text)
        except UnicodeDecodeError:
            raise no_text(text, self.path, self._offset) from None
        except RecursionError:
            raise too_deep(self.path, self._offset) from None
        self._offset += cut + 1
        self._buffer = self._buffer[cut + 1 :]
        if not closed:
            self._offset -= 1
            self._buffer = b"[" + self._buffer
        return events

    def _fill(self, wanted: int) -> bool:
        """Read on until the buffer has so many bytes; return whether it has grown."""
        parts, size = [self._buffer], len(self._buffer)
        while size < wanted and (chunk := next(self._chunks, b"")):
            parts.append(chunk)
            size += len(chunk)
        self.size_bytes += size - len(self._buffer)
        self._buffer = b"".join(parts)
        return len(parts) > 1

    def _likely_cut(self) -> int:
        """Return where a comma near the end of the buffer seems to stand between two events; 0 where none is found."""
        end = len(self._buffer)
        for _ in range(_TRIES):
            end = self._buffer.rfind(b"}", 0, end)
            following = _NEXT.match(self._buffer, end + 1) if end > 0 else None
            if following is not None:
                return self._buffer.index(b",", end)
        return 0

    def _sure_cut(self) -> tuple[int, bool]:
        """Return where the last comma between two events stands, or the end of the list, and whether it is that."""
        depth, cut = 0, 0
        for token in _TOKEN.finditer(self._buffer):
            text = token[0]
            if text in b"{[":
                depth += 1
            elif text in b"}]":
                depth -= 1
                if not depth:
                    return token.start(), True
                following = _NEXT.match(self._buffer, token.end()) if depth == 1 else None
                if following is not None:
                    cut = self._buffer.index(b",", token.end())
            elif text == b'"':
                break
        return cut, False

    def _find_list(self) -> None:
        """Read up to the list of events, and keep what stands before it."""
        while not self._begins():
            size = len(self._buffer)
            if size > MOST_EVENT_BYTES or not self._fill(2 * max(PIECE_BYTES, size)):
                raise self._error(
                    "is not a profiler trace: it has no list 'traceEvents'; the text ends", self.size_bytes
                )

    def _begins(self) -> bool:
        """Look for the list in the buffer, and drop what is before it where it is there."""
        self._fill(PIECE_BYTES)
        depth = 0
        for token in _TOKEN.finditer(self._buffer):
            text = token[0]
            if text in b"{[":
                depth += 1
            elif text in b"}]":
                depth -= 1
            elif text == b'"':
                return False
            elif depth == 1 and text[1:-1] == _KEY:
                colon = _COLON.match(self._buffer, token.end())
                if colon is None or colon.end() == len(self._buffer):
                    return False
                if self._buffer[colon.end() : colon.end() + 1] != b"[":
                    raise self._error("'traceEvents' is not a list", colon.end())
                before = self._buffer[: token.start()].rstrip().removesuffix(b",")
                self.outside.append((0, before + b"}"))
                self._offset, self._buffer = colon.end(), self._buffer[colon.end() :]
                return True
        return False

    def _rest(self) -> None:
        """Read what follows the list, and keep it."""
        while self._fill(len(self._buffer) + PIECE_BYTES):
            if len(self._buffer) > MOST_EVENT_BYTES:
                raise self._error("more than 64 MiB follow the list of events, which ends", 0)
        after = self._buffer.lstrip().removeprefix(b",")
        self.outside.append((self._offset + len(self._buffer) - len(after) - 1, b"{" + after))

    def _wrong(self, error: msgspec.ValidationError, first: int) -> FormatError:
        """Return the error of an entry that is not an event, with its index."""
        text = str(error)
        found = _PATH.search(text)
        if found is None:
            return self._error(f"holds something that is not an event: {text}", 0)
        what = text[: found.start()]
        field = f" ({found[2]})" if found[2] else ""
        return FormatError(f"event {first + int(found[1])}{field}: {what[:1].lower()}{what[1:]}", str(self.path))

    def _error(self, text: str, place: int) -> FormatError:
        return FormatError(f"{text} at byte {self._offset + place}", str(self.path))


def no_text(data: bytes, path: Path, offset: int) -> FormatError:
    """Return the error of bytes that are not text and begin at a byte of a file."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return FormatError(f"is not UTF-8 text: {error.reason} at byte {offset + error.start}", str(path))
    return FormatError(f"is not UTF-8 text at byte {offset}", str(path))


def too_deep(path: Path, offset: int) -> FormatError:
    """Return the error of what is nested deeper than can be read, somewhere after a byte of a file."""
    return FormatError(f"is not JSON that can be read: nested too deeply after byte {offset}", str(path))


def malformed(error: msgspec.DecodeError, path: Path, offset: int) -> FormatError:
    """Return the error of text that is not JSON and begins at a byte of a file."""
    text = str(error)
    found = _BYTE.search(text)
    reason = _BYTE.sub("", text).removeprefix("JSON is malformed: ")
    return FormatError(f"is not JSON: {reason} at byte {offset + int(found[1] if found else 0)}", str(path))
