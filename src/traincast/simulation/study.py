"""What was prepared for a step, kept for the next step that needs it: work, symmetry, programs, contention.

A job is simulated again and again: with other estimates, on another cluster, with a change that might save time, with
every seed of a fabric. Its work is built once, and as long as nothing but estimates differ it is laid out once. Whoever
simulates several steps holds a `Study` and hands it to each (`traincast.simulation.step.run_step` and all that leads
there); without one each step has its own, and nothing outlives it. No module keeps anything, so that threads share
nothing but what they are handed; threads that share a study find the same as one alone.

How the work of a job is built and its memory counted, whoever asks says: to simulate a file takes neither.

What a study has read, as the file of a fabric, it does not read again.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from traincast.analysis.timed_program import MOST_KEPT, graph_of
from traincast.engine.graph import Graph
from traincast.estimate.contention import NetworkAnswers
from traincast.estimate.program import OperatorSeconds
from traincast.job.job import Job
from traincast.job.parallel import Parallel
from traincast.schedules.check import checked_plan, counts_of
from traincast.schedules.plan import SchedulePlan
from traincast.workload.expand import Expansion, expansion
from traincast.workload.groups import Fold, GroupTable, rank_groups
from traincast.workload.ops import FloatArray
from traincast.workload.program import Program
from traincast.workload.words import Group
from traincast.workload.workload import Workload

_WORKLOADS, _MEMORIES, _SECONDS, _PLANS, _GROUPS, _FOLDS, _PROGRAMS = 8, 16, 4, 8, 32, 32, 4
"""How many of each a study keeps, those that were made last."""

Made = TypeVar("Made")


class _Latest(Generic[Made]):
    """The few things that were made last, by what they were made of."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: tuple[tuple[Hashable, Made], ...] = ()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what was made of something, made now if it is not there."""
        for known, made in self._items:
            if known == key:
                return made
        made = make()
        # Replaced as a whole: another thread sees the old ones or the new ones.
        self._items = ((key, made), *self._items)[: self._most]
        return made


class _LaidOut(Struct, frozen=True):
    """A program, and who follows whom in it."""

    expansion: Expansion
    graph: Graph


class Study:
    """What was prepared for the steps of a job, of files, or of many jobs.

    Examples
    --------
    >>> import traincast
    >>> study = traincast.Study()
    >>> job = {"model": "llama3-8b", "gpus": 8, "tp": 2, "global_batch": 64, "seq_length": "8k"}
    >>> steps = [traincast.predict(**job, cluster=each, study=study) for each in ("h100", "h200")]
    >>> steps[0] == traincast.predict(**job, cluster="h100")
    True
    """

    def __init__(self, networks: NetworkAnswers | None = None) -> None:
        """Begin with nothing, or with what is known of networks."""
        self.networks = networks or NetworkAnswers()
        """What is known of the links that groups share."""
        self._workloads: _Latest[Workload] = _Latest(_WORKLOADS)
        self._memories: _Latest[Any] = _Latest(_MEMORIES)
        self._seconds: _Latest[OperatorSeconds] = _Latest(_SECONDS)
        self._plans: _Latest[SchedulePlan] = _Latest(_PLANS)
        self._groups: _Latest[Mapping[Group, GroupTable]] = _Latest(_GROUPS)
        self._folds: _Latest[Fold] = _Latest(_FOLDS)
        self._programs: tuple[_LaidOut, ...] = ()

    def workload(self, key: Hashable, build: Callable[[], Workload]) -> Workload:
        """Return the work of a job, without estimates, by all that decides it, and where it is not known build it."""
        return self._workloads.get(key, build)

    def memory(self, job: Job, count: Callable[[Job], Made]) -> Made:
        """Return the memory of a job, the same on every cluster, and where it is not known count it."""
        found: Made = self._memories.get(job, lambda: count(job))
        return found

    def seconds(self, key: Hashable, make: Callable[[], OperatorSeconds]) -> OperatorSeconds:
        """Return what tells the time of operator calls, by all that decides it, with what it knows of other jobs."""
        return self._seconds.get(key, make)

    def plan(self, schedule: str, parallel: Parallel, *, pairs: bool) -> SchedulePlan:
        """Return the checked plan of a pipeline; `pairs`: passes run as one.

        Raises
        ------
        TraincastError
            As `checked_plan`.
        """
        key = counts_of(schedule, parallel, pairs=pairs)
        return self._plans.get(key, lambda: checked_plan(*key))

    def groups(
        self, parallel: Parallel, kinds: frozenset[Group], table_stages: tuple[int, ...]
    ) -> Mapping[Group, GroupTable]:
        """Return the groups of some kinds (`rank_groups`), which neither virtual stages nor microbatches change."""
        key = replace(parallel, vpp=1, microbatches=1), kinds, table_stages
        return self._groups.get(key, lambda: rank_groups(parallel, kinds, table_stages))

    def fold(self, key: Hashable, find: Callable[[], Fold]) -> Fold:
        """Return which ranks are simulated, by all that decides it, and where it is not known find it."""
        return self._folds.get(key, find)

    def program(
        self,
        workload: Workload,
        plan: SchedulePlan,
        fold: Fold,
        tables: Mapping[Group, GroupTable],
        compute_factor_W: FloatArray | None,
    ) -> tuple[Program, Graph]:
        """Return a workload as a program, and who follows whom in it.

        Raises
        ------
        ProgramError
            As `traincast.workload.expand.expand`.
        """
        for known in self._programs if compute_factor_W is None else ():
            if known.expansion.serves(workload, plan, fold, tables):
                return known.expansion.with_estimates(workload), known.graph
        made = expansion(workload, plan, fold, tables, compute_factor_W)
        graph = graph_of(made.program)
        if compute_factor_W is None and len(graph) <= MOST_KEPT:
            self._programs = (_LaidOut(made, graph), *self._programs)[:_PROGRAMS]
        return made.program, graph
