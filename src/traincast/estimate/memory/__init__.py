"""How much memory a job needs on every stage, whether it fits, and what would free some."""

from traincast.estimate.memory.fits import Verdict, chance_of_oom, fits, usable_bytes
from traincast.estimate.memory.job_memory import JobMemory
from traincast.estimate.memory.stage import StageMemory, saved_activations, stage_memory

__all__ = [
    "JobMemory",
    "StageMemory",
    "Verdict",
    "chance_of_oom",
    "fits",
    "saved_activations",
    "stage_memory",
    "usable_bytes",
]
