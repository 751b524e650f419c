"""How much memory a job needs on every stage, whether it fits, and what would free some."""

from traincast.estimate.memory.fits import Verdict, fits, usable_bytes
from traincast.estimate.memory.stage import StageMemory, stage_memory
from traincast.estimate.memory.uncertainty import chance_of_oom

__all__ = ["StageMemory", "Verdict", "chance_of_oom", "fits", "stage_memory", "usable_bytes"]
