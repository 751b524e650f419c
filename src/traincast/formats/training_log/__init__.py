"""Training logs: what a framework prints while it trains, as the terminal, Slurm or a pod keeps it.

A log says how long a step took and not what it does: it is compared with a forecast.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from traincast.files import read_unpacked
from traincast.formats.contract import FORMATS, FileKind, Inspection, later

if TYPE_CHECKING:
    from traincast.formats.training_log.grammar import TrainingLog

NAME = "training-log"


def read_log(path: Path) -> "TrainingLog":
    """Read a training log, perhaps packed with gzip.

    Raises
    ------
    FormatError
        If the file cannot be read, or no line of it tells a step.
    """
    from traincast.formats.training_log.grammar import parse

    return parse(str(path), read_unpacked(path).decode("utf-8", errors="replace"))


def _inspected(path: Path) -> Inspection:
    from traincast.formats.training_log.inspection import describe

    return describe(read_log(path))


TRAINING_LOG = FORMATS.register(NAME)(
    FileKind(
        name=NAME,
        title="training log",
        looks_like=later("traincast.formats.training_log.grammar:looks_like"),
        most_sure=0.95,
        describe=_inspected,
        instead="it says how long a step took, not what is done; compare it with a job: traincast compare JOB {name}",
    )
)
