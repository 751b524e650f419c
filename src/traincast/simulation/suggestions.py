"""The few changes that would shorten a step most, each with what it saves and how sure that is.

What the critical path spends on a kind of work is how the step answers to it (`traincast.simulation.confidence`), and
so how much a change of it can save at most. The likeliest changes by that are tried: the step runs again with them,
for another chain may be nearly as long. A change is written as ``--what-if`` takes it.

Half of a communication is what twice the bandwidth would give, a tenth of the computation what better kernels might;
a rank or stage that takes longer than its peers is brought to them; options of files that are off are turned on, those
of jobs are `traincast.simulation.advice`. Of a measured step what mends its causes comes first.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from traincast.analysis.summary import Suggestion
from traincast.engine import run
from traincast.engine.graph import Graph
from traincast.errors import TraincastError
from traincast.estimate.factors import chip_of, factors_on
from traincast.hardware.cluster import Cluster
from traincast.job.changes import WorkEdit, parse_change
from traincast.job.fields import fields
from traincast.job.options import LayoutOptions
from traincast.progress import parts
from traincast.schedules.schedule import usual_schedule
from traincast.simulation.edits import edited
from traincast.simulation.result import Result
from traincast.simulation.widths import UNMEASURED_LINK, Z, shipped_widths
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Group, Kind, Operation, Provenance

MOST_OPS = 300_000
"""Operations of a step up to which changes are tried."""
SHOWN = 3
_TRIED = 4
_TURNED = 2
"""Options that are tried at most: each builds and simulates another step."""
_WORTH_TURNING = 0.02
"""Share of the step that an option must be about to be tried."""
_LEAST = 0.001
"""Share of the step that a kind of work must take of the path for a change of it to be tried."""
_LEAST_SAVED = 0.0002
_COMPUTE = ("forward", "backward", "weight_gradient", "recompute", "step")
_NO_COMMUNICATION = (*_COMPUTE, "host", "copy")
SHORTENS: Mapping[str, str] = {each.name: each.shortens for each in fields() if each.shortens}
"""The work that an option shortens, as a what-if names it; of virtual stages the messages that a stage waits for."""
_OF_REPLICAS = (Group.DP, Group.EDP, Group.SHARD, Group.REPLICA)
_LONG_STAGE = 1.1
"""Computation of a stage over the median of the others from which it is long."""

Spread = Callable[[str], float]
"""Standard deviation of the logarithm of what is known of a kind of work: of a kind of group, ``compute``, ``host``."""


class Option(NamedTuple):
    """Something that is off and might be on."""

    change: str
    what: str
    """Kind of work that it shortens; ``bubble`` of the pipeline."""
    hides: frozenset[Operation] = frozenset()
    """Of communication that it hides and does nothing else: operations over groups of data parallel ranks."""


class _Candidate(Struct, frozen=True):
    change: str
    what: str
    at_most_s: float


def suggestions(
    result: Result, spread: Spread, options: Sequence[Option], rerun: Callable[[str], float], engine: str = "auto"
) -> tuple[Suggestion, ...]:
    """Return the changes that save most, the best first; nothing of a step that is too long to try them."""
    timed = result.timed
    if timed is None or result.analysis is None or len(timed.program) > MOST_OPS:
        return ()
    program, timeline, graph = timed.program, timed.timeline, timed.graph
    step_s, on_path = result.iteration_time_s, _on_path(result)
    found: list[tuple[_Candidate, float]] = []
    likely = sorted(_candidates(result, on_path), key=lambda each: -each.at_most_s)
    mended = {_place_of(each.change) for each in result.causes}
    worth = [
        each for each in likely if each.at_most_s >= _LEAST_SAVED * step_s and _place_of(each.change) not in mended
    ]
    for candidate in parts(worth[:_TRIED], 0.0, 0.5):
        edit = parse_change(candidate.change)
        if not isinstance(edit, WorkEdit) or (not edit.like and candidate.at_most_s <= _shown_from_s(found)):
            continue
        try:
            duration_s_N = edited(program, timeline.duration_s_N, [edit])
        except TraincastError:
            continue  # there is nothing to compare with
        ends_N = run(graph, duration_s_N, engine)[2]
        found.append((candidate, step_s - float(ends_N.max(initial=0.0))))
    turned = sorted(options, key=lambda each: -_share(result, on_path, each.what))
    turned = [each for each in turned if _share(result, on_path, each.what) >= _WORTH_TURNING][:_TURNED]
    for option in parts(turned, 0.5, 1.0):
        if option.hides and _if_hidden_s(program, timeline, graph, option, engine) <= _shown_from_s(found):
            continue
        try:
            found.append((_Candidate(option.change, option.what, step_s), step_s - rerun(option.change)))
        except TraincastError:
            continue  # it cannot run that way
    # What mends a cause has run with the causes.
    mending = [(_Candidate(each.change, "", each.saving_s), each.saving_s) for each in result.causes if each.change]
    others = sorted(found, key=lambda each: -each[1])
    best = [each for each in (*mending, *others) if each[1] >= _LEAST_SAVED * step_s]
    return tuple(_suggestion(candidate, saving_s, spread) for candidate, saving_s in best[:SHOWN])


def _place_of(change: str) -> tuple[object, ...]:
    """Return the work that a change is about: what mends a cause is not halved in addition."""
    edit = parse_change(change) if change else None
    return (edit.work, edit.ranks, edit.stages) if isinstance(edit, WorkEdit) else (change,)


def _shown_from_s(found: Sequence[tuple[_Candidate, float]]) -> float:
    """Return the saving above which a change is shown besides those that were found: what saves less is not tried."""
    return sorted((saving_s for _, saving_s in found), reverse=True)[SHOWN - 1] if len(found) >= SHOWN else -math.inf


def _if_hidden_s(program: Program, timeline: Timeline, graph: Graph, option: Option, engine: str) -> float:
    """Return what the step saves if what an option hides takes no time, which is more than the option saves."""
    ops = program.ops
    hidden_T = np.isin(ops.group_T, _OF_REPLICAS) & np.isin(ops.operation_T, sorted(option.hides))
    ends_N = run(graph, np.where(hidden_T[program.row_N], 0.0, timeline.duration_s_N), engine)[2]
    return timeline.step_s - float(ends_N.max(initial=0.0))


def _suggestion(candidate: _Candidate, saving_s: float, spread: Spread) -> Suggestion:
    factor = float(np.exp(Z * spread(candidate.what)))
    return Suggestion(
        change=candidate.change,
        saving_s=saving_s,
        low_s=saving_s / factor,
        high_s=saving_s * factor,
    )


def _on_path(result: Result) -> Mapping[str, float]:
    """Return the seconds of the critical path by kind of work."""
    sums: dict[str, float] = {}
    for each in result.analysis.critical_path if result.analysis else ():
        sums[each.what] = sums.get(each.what, 0.0) + each.time_s
    return sums


def _share(result: Result, on_path: Mapping[str, float], what: str) -> float:
    if not result.iteration_time_s:
        return 0.0
    time_s = result.breakdown_s["bubble"] if what == "bubble" else on_path.get(what, 0.0)
    return time_s / result.iteration_time_s


def _candidates(result: Result, on_path: Mapping[str, float]) -> Iterator[_Candidate]:
    """Yield changes of how long work takes, with what each can save at most."""
    least_s = _LEAST * result.iteration_time_s
    for what, time_s in on_path.items():
        if what not in _NO_COMMUNICATION and time_s >= least_s:
            yield _Candidate(f"{what}_comm*0.5", what, 0.5 * time_s)
    if on_path.get("host", 0.0) >= least_s:
        yield _Candidate("host*0.5", "host", 0.5 * on_path["host"])
    compute_s = sum(on_path.get(each, 0.0) for each in _COMPUTE)
    yield _Candidate("compute*0.9", "compute", 0.1 * compute_s)
    slow = max(result.stragglers, key=lambda each: each.cost_s, default=None)
    if slow is not None:
        yield _Candidate(f"rank{slow.rank}.own=peers", "compute", compute_s * (1 - 1 / slow.slowdown))
    # A stage is long because its slow rank is: that rank is the cause.
    yield from (
        each for each in _long_stage(result) if slow is None or not each.change.startswith(f"stage{slow.stage}.")
    )


def _long_stage(result: Result) -> Iterator[_Candidate]:
    """Yield the change of the stage that computes longest to what the others compute."""
    of_stage: dict[int, float] = {}
    for rank in result.ranks:
        of_stage[rank.stage] = min(rank.compute_s, of_stage.get(rank.stage, rank.compute_s))
    if len(of_stage) < 2:
        return
    longest = max(of_stage, key=lambda stage: of_stage[stage])
    others = sorted(time_s for stage, time_s in of_stage.items() if stage != longest)
    # The median; that of numpy loads masked arrays first.
    usual_s = (others[(len(others) - 1) // 2] + others[len(others) // 2]) / 2
    if usual_s > 0 and of_stage[longest] > _LONG_STAGE * usual_s:
        yield _Candidate(f"stage{longest}.own=peers", "compute", of_stage[longest] - usual_s)


def spread_of_files(result: Result, cluster: Cluster) -> Spread:
    """Return the uncertainty of the times of a file's step: none for measured ones, that of links for estimates."""
    seen = any(key[0] == "chip" and key[1] == chip_of(cluster.gpu) for key in factors_on(cluster).factors)
    deviation = shipped_widths()["transfers"] if seen else UNMEASURED_LINK
    program = result.program
    estimated: set[str] = set()
    if program is not None:
        ops = program.ops
        estimated_T = np.flatnonzero(ops.provenance_T == Provenance.PRICED)
        for kind, group in set(zip(ops.kind_T[estimated_T].tolist(), ops.group_T[estimated_T].tolist(), strict=True)):
            estimated.add("compute" if kind == Kind.COMPUTE else Group(group).name.lower())
    return lambda what: deviation if what in estimated else 0.0


def options_of_files(result: Result, layout: LayoutOptions) -> list[Option]:
    """Return what is off in a step of files and might be on; what means nothing to them cannot be tried."""
    found = []
    if not layout.overlap_grad_reduce and result.measured_s is None:
        found.append(
            Option("overlap_grad_reduce=true", "dp", frozenset({Operation.ALL_REDUCE, Operation.REDUCE_SCATTER}))
        )
    parallel = result.parallel
    one_chunk = parallel.vpp == 1 and parallel.schedule == usual_schedule()
    if one_chunk and parallel.pp > 1 and result.measured_s is None:
        found.append(Option("vpp=2", "bubble"))
    return found
