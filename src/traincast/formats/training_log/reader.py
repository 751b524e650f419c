"""What reads training logs."""

from pathlib import Path

from traincast.files import read_unpacked
from traincast.formats.contract import Inspection, Reader
from traincast.formats.training_log.grammar import TrainingLog, parse
from traincast.formats.training_log.inspection import describe


def read_log(path: Path) -> TrainingLog:
    """Read a training log, perhaps packed with gzip.

    Raises
    ------
    FormatError
        If the file cannot be read, or no line of it tells a step.
    """
    return parse(str(path), read_unpacked(path).decode("utf-8", errors="replace"))


def _inspected(path: Path) -> Inspection:
    return describe(read_log(path))


READER = Reader(describe=_inspected)
