"""What reads training logs: files in pieces, so that only their steps are in memory."""

import codecs
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from traincast.errors import FormatError
from traincast.files import MOST_BYTES, chunks_of
from traincast.formats.contract import Inspection, Reader
from traincast.formats.training_log.dialects import EVENTS, STATE
from traincast.formats.training_log.dialects.events import Damage, entries_of_events, is_event_file
from traincast.formats.training_log.dialects.hugging_face import entries_of_state, is_document
from traincast.formats.training_log.inspection import describe
from traincast.formats.training_log.lines import LogLines
from traincast.formats.training_log.record import TrainingLog
from traincast.units import format_size

CUT = "\0"
"""Stands where a text ends before its line does."""
_CHUNK = 2**20
_HEAD_BYTES = 2**16
"""Bytes that tell what kind of file it is."""
_BLOCK = 2**16
"""Characters that are looked through at once."""
_NOWHERE = 2**62
"""Place of what a block does not have, which `str.find` calls -1: -1 modulo this is beyond every place."""
_MOST_HELD = 2**20
"""Characters without an end of a line that are kept until it comes; what follows is not of a step."""


def read_log(path: Path) -> TrainingLog:
    """Read a training log, perhaps packed with gzip.

    Raises
    ------
    FormatError
        If the file cannot be read, or no line of it tells a step.
    """
    return read_chunks(str(path), chunks_of(path, _CHUNK))


def parse(path: str, text: str) -> TrainingLog:
    """Read the text of a log; `path` is where it came from, for messages.

    Raises
    ------
    FormatError
        If no line tells a step.
    """
    return read_chunks(path, [text.encode("utf-8", errors="replace")])


def read_chunks(path: str, chunks: Iterable[bytes]) -> TrainingLog:
    """Read the bytes of a log in pieces; `path` is where they come from, for messages.

    Raises
    ------
    FormatError
        If no line tells a step.
    """
    lines, pieces, head = LogLines(path), iter(chunks), b""
    while len(head) < _HEAD_BYTES and (piece := next(pieces, b"")):
        head += piece
    chunks = chain([head], pieces)
    if is_event_file(head):
        return _of_events(lines, chunks)
    if is_document(head.decode("utf-8", errors="replace")):
        return _of_document(lines, chunks)
    decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
    number, held = 1, ""
    for chunk in chunks:
        text = held + decode(chunk)
        end = text.rfind("\n") + 1
        number = _feed(lines, text[:end], number)
        held = text[end:]
        # A progress bar rewrites one line for hours.
        if (done := held.rfind("\r") + 1) and done > _MOST_HELD // 2:
            _feed(lines, held[:done], number)
            held = held[done:]
        held = held[:_MOST_HELD]
    # A last line without an end may have been cut within a number: what must end a line does not end this one.
    if held := held + decode(b"", True):
        _feed(lines, held + CUT, number)
    return lines.log()


def _of_events(lines: LogLines, chunks: Iterable[bytes]) -> TrainingLog:
    """Read an event file; its lines are records."""
    for number, found in entries_of_events(chunks):
        if isinstance(found, Damage):
            lines.warnings.add("record-damaged", f"{found.what}; it is passed over", number)
        else:
            lines.take(EVENTS, found, number=number)
    return lines.log()


def _of_document(lines: LogLines, chunks: Iterable[bytes]) -> TrainingLog:
    """Read a document with a list of entries."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > MOST_BYTES:
            raise FormatError(f"has more than {format_size(MOST_BYTES)}, the limit of a document", lines.path)
    for number, found in entries_of_state(data.decode("utf-8", errors="replace")):
        if found is None:
            lines.warnings.add("step-cut", "the document ends within an entry", number)
        else:
            lines.take(STATE, found, number=number)
    return lines.log()


def _feed(lines: LogLines, text: str, number: int) -> int:
    """Take in the lines of a text, of which the first has a number; return that of the line after it."""
    at = 0
    while at < len(text):
        block = text[at : (text.find("\n", at + _BLOCK) + 1) or len(text)]
        at += len(block)
        number = _feed_block(lines, block, number)
    return number


def _feed_block(lines: LogLines, block: str, number: int) -> int:
    """Take in a block of lines; most have nothing that is looked for, and are not even parted."""
    at, last = 0, number + block.count("\n")
    next_of: dict[str, int] = {}
    while at < len(block):
        if words := lines.words:
            for word in words:
                if next_of.get(word, -1) < at:
                    next_of[word] = block.find(word, at) % _NOWHERE
            nearest = min(map(next_of.__getitem__, words))
            if nearest >= len(block):
                break
            begin = max(at, block.rfind("\n", at, nearest) + 1)
            number += block.count("\n", at, begin)
            at = begin
        end = block.find("\n", at) % _NOWHERE
        line = block[at:end]
        for part in line.split("\r") if "\r" in line else (line,):
            if part:
                lines.feed(part, number)
        at, number = end + 1, number + 1
    return last


def _inspected(path: Path) -> Inspection:
    return describe(read_log(path))


READER = Reader(describe=_inspected)
