"""The dialects of training logs, one file each; the first one whose line it is counts."""

from traincast.formats.training_log.contract import Dialect
from traincast.formats.training_log.dialects.bridge import BRIDGE
from traincast.formats.training_log.dialects.deepspeed import DEEPSPEED, PIPELINE
from traincast.formats.training_log.dialects.events import EVENTS
from traincast.formats.training_log.dialects.hugging_face import STATE, TRAINER
from traincast.formats.training_log.dialects.maxtext import MAXTEXT
from traincast.formats.training_log.dialects.megatron import MEGATRON
from traincast.formats.training_log.dialects.nemo import LIGHTNING, NEMO
from traincast.formats.training_log.dialects.tables import CSV, JSON_LINES
from traincast.formats.training_log.dialects.torchtitan import TORCHTITAN

DIALECTS = (MEGATRON, BRIDGE, MAXTEXT, TORCHTITAN, NEMO, LIGHTNING, DEEPSPEED, PIPELINE, JSON_LINES, TRAINER)
"""Those of lines, which may stand in one file."""
OF_FILES = (CSV, STATE, EVENTS)
"""Those of whole files."""


def dialect_of(name: str) -> Dialect:
    """Return the dialect of a name."""
    return next(each for each in (*DIALECTS, *OF_FILES) if each.name == name)


__all__ = ["CSV", "DIALECTS", "EVENTS", "OF_FILES", "STATE", "dialect_of"]
