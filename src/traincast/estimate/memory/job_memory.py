"""The memory of a job, kept by whoever holds it: what each stage needs, and what would free some of it."""

from collections.abc import Sequence
from functools import cached_property

from traincast.estimate.memory.remedies import Remedies, offloads, remedies
from traincast.estimate.memory.stage import StageMemory, stage_memory
from traincast.job.job import Job
from traincast.lowering.plans import plan_of_job
from traincast.schedules.plan import SchedulePlan


class JobMemory:
    """What a job needs, worked out when it is first asked for: the same on every cluster.

    The plan says in which order a stage runs, and so what is in flight; by default it is that of the job.
    """

    def __init__(self, job: Job, plan: SchedulePlan | None = None) -> None:
        self.job = job
        self._plan = plan
        self._remedies: dict[int, Remedies] = {}

    @cached_property
    def stages(self) -> Sequence[StageMemory]:
        """The memory of each pipeline stage."""
        return stage_memory(self.job, self._plan or plan_of_job(self.job))

    @property
    def worst(self) -> int:
        """The stage that needs most."""
        return max(range(len(self.stages)), key=lambda stage: self.stages[stage].peak)

    @property
    def peak(self) -> float:
        """What it needs, in bytes."""
        return self.stages[self.worst].peak

    def remedies(self, gpus_per_node: int) -> Remedies:
        """Return changes that would free memory, with the bytes that each frees, best first."""
        if gpus_per_node not in self._remedies:
            self._remedies[gpus_per_node] = remedies(self.job, self.peak, gpus_per_node)
        return self._remedies[gpus_per_node]

    def offloads(self, host_bytes: float) -> Remedies:
        """Return what offloading to the host would free, where a rank has so much of its memory."""
        return offloads(self.job, self.peak, host_bytes)
