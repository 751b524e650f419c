"""What reads training logs: files in pieces, so that only their steps are in memory."""

import codecs
from collections.abc import Iterable
from pathlib import Path

from traincast.files import chunks_of
from traincast.formats.contract import Inspection, Reader
from traincast.formats.training_log.inspection import describe
from traincast.formats.training_log.lines import LogLines
from traincast.formats.training_log.record import TrainingLog

CUT = "\0"
"""Stands where a text ends before its line does."""
_CHUNK = 2**20
_BLOCK = 2**14
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
