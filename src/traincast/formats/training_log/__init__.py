"""Training logs: what a framework prints while it trains, as the terminal, Slurm or a pod keeps it.

A log says how long a step took and not what it does: it is compared with a forecast.
"""

from traincast.formats.contract import FORMATS, FileKind
from traincast.formats.training_log.sniff import looks_like

NAME = "training-log"

TRAINING_LOG = FORMATS.register(NAME)(
    FileKind(
        name=NAME,
        title="training log",
        looks_like=looks_like,
        most_sure=0.95,
        reader="traincast.formats.training_log.reader",
        instead="it says how long a step took, not what is done; compare it with a job: traincast compare JOB {name}",
    )
)
