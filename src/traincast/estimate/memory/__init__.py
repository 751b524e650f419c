"""How much memory a job needs on every stage, whether it fits, and what would free some."""

from traincast.estimate.memory.fits import Verdict, fits, usable_bytes
from traincast.estimate.memory.stage import StageMemory, stage_memory

__all__ = ["StageMemory", "Verdict", "fits", "stage_memory", "usable_bytes"]
