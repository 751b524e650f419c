"""The memory of a job, kept by whoever holds it: what each stage needs, and what would free some of it."""

from collections.abc import Sequence
from functools import cached_property

from traincast.estimate.memory.remedies import Remedies, offloads, remedies
from traincast.estimate.memory.stage import StageActivations, StageMemory, activations_of_stages, memory_with
from traincast.job.job import Job
from traincast.lowering.plans import plan_of_job
from traincast.mechanisms.activations import LayerModel
from traincast.schedules.plan import SchedulePlan


class JobMemory:
    """What a job needs, worked out when it is first asked for: the same on every cluster.

    The plan says in which order a stage runs, and so what is in flight; by default it is that of the job. `like` is the
    memory of a job that keeps the same activations, and differs in the types of its state alone.
    """

    def __init__(self, job: Job, plan: SchedulePlan | None = None, like: "JobMemory | None" = None) -> None:
        self.job = job
        self._plan = plan
        self._like = like
        self._remedies: dict[int, Remedies] = {}

    @cached_property
    def stages(self) -> Sequence[StageMemory]:
        """The memory of each pipeline stage."""
        return memory_with(self._layers, self.plan, self._activations)

    @cached_property
    def plan(self) -> SchedulePlan:
        """The order of its pipeline."""
        return self._plan or plan_of_job(self.job)

    @cached_property
    def _layers(self) -> LayerModel:
        return LayerModel(self.job) if self._like is None else self._like._layers.of_job(self.job)

    @cached_property
    def _activations(self) -> Sequence[StageActivations]:
        return activations_of_stages(self._layers, self.plan) if self._like is None else self._like._activations

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
