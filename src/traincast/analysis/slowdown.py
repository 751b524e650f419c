"""How much longer measured steps took than without stragglers, and which types, workers and stages made it so.

Every step is replayed: as it was, without the pauses between its operations, and as if every operation took what its
type usually takes, over all ranks and steps: the mean of computations, the median of communications. What a type, a
data parallel rank or a stage costs is the replay in which all but its own operations take that time, over the replay
in which all do. Of messages a send and its receive are one type in each pass.

* S: mean step without pauses over the mean step in which every operation takes the time of its type (eq. 1)
* S_t, of a type (eq. 2); S_s, of a stage; of a data parallel rank; S_w, of a worker: the lesser of those of its data
  parallel rank and its stage (eq. 4)
* M_W: share of the slowdown that goes away when the 3 % of workers of highest S_w are mended (eq. 5)
* M_S: the same of the last stage

Source: Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI 2025, arXiv
2505.05713; where the paper leaves it open as in analyzer/ of ByteDance-Seed/StragglerAnalysis.

Letters: N operations of a step, K replays of it, C types.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from msgspec import Struct

from traincast.analysis.summary import Slowdowns
from traincast.analysis.timed_program import graph_of
from traincast.engine.graph import Graph
from traincast.engine.many import steps_of
from traincast.workload.ops import BoolArray, FloatArray, IntArray, distinct
from traincast.workload.program import Program
from traincast.workload.words import Kind, Phase

SLOWEST = 0.03
"""Share of the workers that `M_W` mends, at least one."""
NOTHING = 1e-3
"""Share of a step below which nothing is lost that could be shared out."""
OWN = (Kind.COMPUTE, Kind.GAP, Kind.COPY)
"""Kinds of operations that take the mean of their type; the others, communications, the median."""
PAUSE = "gap"
"""Name of what the host, or nothing that was recorded, adds before an operation."""


class StepOps(Struct, frozen=True):
    """One measured step: what ran, and how long each operation takes by itself."""

    number: int
    program: Program
    duration_s_N: FloatArray
    """Of a communication the transfer."""


class Replays:
    """Some steps, ready to be replayed with other durations."""

    def __init__(self, steps: Iterable[StepOps], ranks_per_stage: int) -> None:
        """Take the steps; ranks of a stage are told apart by their place in it."""
        self.steps = list(steps)
        self.graphs: list[Graph] = [graph_of(each.program) for each in self.steps]
        programs = [each.program for each in self.steps]
        self.duration_s_N = np.concatenate([each.duration_s_N for each in self.steps])
        self.step_N = np.repeat([each.number for each in self.steps], list(map(len, programs)))
        self.kind_N = np.concatenate([program.ops.kind_T[program.row_N] for program in programs])
        self.phase_N = np.concatenate([program.ops.phase_T[program.row_N] for program in programs])
        self.stage_N = np.concatenate([program.stage_N for program in programs])
        self.rank_N = np.concatenate([program.rank_N for program in programs])
        self.microbatch_N = np.concatenate([program.microbatch_N for program in programs])
        self.met_N = np.concatenate([program.rendezvous_N >= 0 for program in programs])
        self.place_N = self.rank_N % ranks_per_stage
        self.names, self.name_N = _names(programs)
        pauses = [number for number, name in enumerate(self.names) if name in (PAUSE, "host")]
        self.pause_N: BoolArray = (self.kind_N == Kind.GAP) & np.isin(self.name_N, pauses)
        self.unpaused_s_N = np.where(self.pause_N, 0.0, self.duration_s_N)
        self.usual_s_N = self._usual()

    def _usual(self) -> FloatArray:
        """Return what the type of each operation usually takes."""
        usual_s_N = self.unpaused_s_N.copy()
        own_N = np.isin(self.kind_N, OWN)
        for number in distinct(self.name_N).tolist():
            for chosen_N, usual in ((own_N, np.mean), (~own_N, np.median)):
                at = np.flatnonzero((self.name_N == number) & chosen_N & ~self.pause_N)
                if len(at):
                    usual_s_N[at] = usual(self.unpaused_s_N[at])
        return usual_s_N

    def types(self) -> list[str]:
        """Return the label of the type of each operation's name."""
        labels = []
        for number, name in enumerate(self.names):
            at = int(np.flatnonzero(self.name_N == number)[0])
            message = Kind(int(self.kind_N[at])) in (Kind.SEND, Kind.RECV)
            labels.append(f"{Phase(int(self.phase_N[at])).name.lower()}-pp-comm" if message else name)
        return labels

    def mean_steps(self, durations_s: Sequence[FloatArray]) -> FloatArray:
        """Return the mean over the steps of each of some replays, in seconds, [K]; see `all_steps`."""
        mean_s_K: FloatArray = self.all_steps(durations_s).mean(axis=0)
        return mean_s_K

    def all_steps(self, durations_s: Sequence[FloatArray]) -> FloatArray:
        """Return each step of some replays, in seconds, [steps, K]; a replay has durations of all operations."""
        found, begin = [], 0
        for each, graph in zip(self.steps, self.graphs, strict=True):
            end = begin + len(each.program)
            found.append(steps_of(graph, np.stack([duration[begin:end] for duration in durations_s], axis=1)))
            begin = end
        return np.stack(found)


def _names(programs: Sequence[Program]) -> tuple[list[str], IntArray]:
    """Return the names of all operations, and which of them each has."""
    numbers: dict[str, int] = {}
    columns = []
    for program in programs:
        number_T = np.array([numbers.setdefault(name, len(numbers)) for name in program.ops.name_T], dtype=np.int64)
        columns.append(number_T[program.row_N])
    name_N = np.concatenate(columns)
    used, name_N = np.unique(name_N, return_inverse=True)
    names = list(numbers)
    return [names[number] for number in used.tolist()], name_N


def slowdowns(replays: Replays) -> Slowdowns:
    """Return what the replays of some measured steps say."""
    labels = replays.types()
    label_N = np.array([sorted(set(labels)).index(label) for label in labels])[replays.name_N]
    kept = _kept(replays, label_N) + _kept(replays, replays.stage_N) + _kept(replays, replays.place_N)
    steps_s = replays.all_steps([replays.duration_s_N, replays.unpaused_s_N, replays.usual_s_N, *kept])
    step_s_K = steps_s.mean(axis=0)
    numbers = [str(each.number) for each in replays.steps]
    step_s, unpaused_s, usual_s = step_s_K[:3].tolist()
    found = iter((step_s_K[3:] / usual_s).tolist() if usual_s > 0 else [1.0] * len(kept))
    by_type = {name: next(found) for name in sorted(set(labels))}
    by_type.pop(PAUSE, None)
    by_stage = {int(stage): next(found) for stage in distinct(replays.stage_N)}
    by_place = {int(place): next(found) for place in distinct(replays.place_N)}
    by_rank = {
        int(rank): min(by_stage[int(replays.stage_N[at])], by_place[int(replays.place_N[at])])
        for rank, at in zip(*np.unique(replays.rank_N, return_index=True), strict=True)
    }
    slowest = sorted(by_rank, key=lambda rank: (-by_rank[rank], rank))
    worst = slowest[: math.ceil(SLOWEST * len(slowest))]
    last = int(replays.stage_N.max())
    mended = [
        np.where(chosen_N, replays.usual_s_N, replays.unpaused_s_N)
        for chosen_N in (np.isin(replays.rank_N, worst), replays.stage_N == last)
    ]
    lost_s = unpaused_s - usual_s
    is_slow = lost_s > NOTHING * unpaused_s
    m_w, m_s = ((unpaused_s - each) / lost_s if is_slow else 0.0 for each in replays.mean_steps(mended).tolist())
    return Slowdowns(
        steps=len(replays.steps),
        step_s=step_s,
        without_pauses_s=unpaused_s,
        usual_s=usual_s,
        slowdown=unpaused_s / usual_s if usual_s > 0 else 1.0,
        pauses=step_s / unpaused_s if unpaused_s > 0 else 1.0,
        by_type=by_type,
        by_stage={str(stage): each for stage, each in by_stage.items()},
        by_dp_rank={str(number): each for number, each in enumerate(by_place.values())},
        by_rank={str(rank): by_rank[rank] for rank in slowest[:64]},
        m_w=m_w,
        m_s=m_s,
        steps_s=dict(zip(numbers, steps_s[:, 0].tolist(), strict=True)),
        steps_without_pauses_s=dict(zip(numbers, steps_s[:, 1].tolist(), strict=True)),
    )


def _kept(replays: Replays, what_N: IntArray) -> list[FloatArray]:
    """Return, for each value of a column, durations that are the usual ones but for operations of that value."""
    same: Callable[[int], BoolArray] = lambda value: what_N == value  # noqa: E731
    return [np.where(same(value), replays.unpaused_s_N, replays.usual_s_N) for value in distinct(what_N).tolist()]
