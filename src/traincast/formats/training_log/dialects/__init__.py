"""The dialects of training logs, one file each; the first one whose line it is counts."""

from traincast.formats.training_log.dialects.bridge import BRIDGE
from traincast.formats.training_log.dialects.maxtext import MAXTEXT
from traincast.formats.training_log.dialects.megatron import MEGATRON
from traincast.formats.training_log.dialects.nemo import LIGHTNING, NEMO
from traincast.formats.training_log.dialects.torchtitan import TORCHTITAN

DIALECTS = (MEGATRON, BRIDGE, MAXTEXT, TORCHTITAN, NEMO, LIGHTNING)
