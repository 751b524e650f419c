"""What reads training logs: files in pieces, so that only their steps are in memory."""

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path

from traincast.files import chunks_of
from traincast.formats.contract import Inspection, Reader
from traincast.formats.training_log.inspection import describe
from traincast.formats.training_log.lines import LogLines
from traincast.formats.training_log.record import TrainingLog

CUT = "\0"
"""Stands where a text ends before its line does."""
_CHUNK = 2**20
_MOST_HELD = 2**20
"""Characters without an end of a line that are kept until it comes; what follows is not of a step."""


def read_log(path: Path) -> TrainingLog:
    """Read a training log, perhaps packed with gzip.

    Raises
    ------
    FormatError
        If the file cannot be read, or no line of it tells a step.
    """
    return _read(str(path), chunks_of(path, _CHUNK))


def parse(path: str, text: str) -> TrainingLog:
    """Read the text of a log; `path` is where it came from, for messages.

    Raises
    ------
    FormatError
        If no line tells a step.
    """
    return _read(path, [text.encode("utf-8", errors="replace")])


def _read(path: str, chunks: Iterable[bytes]) -> TrainingLog:
    lines = LogLines(path)
    for number, text in _lines(chunks):
        lines.feed(text, number)
    return lines.log()


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """Yield what stands in the lines of a text with their numbers; a carriage return parts a line, too."""
    decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
    number, held = 1, ""
    for chunk in chunks:
        *whole, held = (held + decode(chunk)).split("\n")
        for line in whole:
            if "\r" in line:
                yield from ((number, part) for part in line.split("\r") if part)
            elif line:
                yield number, line
            number += 1
        if "\r" in held:
            *parts, held = held.split("\r")
            yield from ((number, part) for part in parts if part)
        held = held[:_MOST_HELD]
    # A last line without an end may have been cut within a number: what must end a line does not end this one.
    if held := held + decode(b"", True):
        yield number, held + CUT


def _inspected(path: Path) -> Inspection:
    return describe(read_log(path))


READER = Reader(describe=_inspected)
