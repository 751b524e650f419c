"""What the ranks of a measured run computed, next to what the estimates of its job say: the rows of a calibration.

The job says which operators each stage runs in each pass; a trace of kernels says the operators itself. Of the times of
a pass or an operator the median counts, over microbatches, ranks and layers; ranks that others held up, and those that
held them up, are left out.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from msgspec import Struct

from traincast.calibration.tables import Skipped
from traincast.errors import FormatError
from traincast.estimate.factors import host_class
from traincast.estimate.measured import in_pass, measured_class, operator_name
from traincast.formats.contract import Computation, MeasuredComputations
from traincast.formats.open import identify_run
from traincast.job.job import Job
from traincast.job.options import LayoutOptions
from traincast.lowering.plans import plan_of_job
from traincast.simulation.job_step import estimated_work, factors_of, operator_seconds, placed
from traincast.simulation.step import Setting
from traincast.workload.experts import expert_rank_W
from traincast.workload.ops import OperatorCall
from traincast.workload.words import CostClass, Kind, Phase
from traincast.workload.workload import Workload

STRAGGLER = 1.25
"""A rank that takes so many times its stage's median in a pass is slow, and tells nothing of the others."""


class MeasuredPass(Struct, frozen=True, kw_only=True):
    """One row of the fit: a pass of a rank over its stage, or an operator, with the median of its times."""

    name: str
    time_s: float
    seconds: Mapping[str, float]
    """Estimate by class of work and pass, as `traincast.estimate.profile.measured_class` tells them apart."""
    host: Mapping[str, float]
    """What the host needs to launch it meanwhile, by class of work."""
    calls: frozenset[OperatorCall]
    """The operators that it runs."""

    def estimate_s(self, factors: Mapping[str, float]) -> float:
        """Return what it is estimated to take with factors on top."""
        return max(_scaled(self.seconds, factors), _scaled(self.host, factors))

    def slopes(self, factors: Mapping[str, float]) -> Mapping[str, float]:
        """Return the change of the logarithm of the estimate with that of each factor: the shares of what binds."""
        compute_s, host_s = _scaled(self.seconds, factors), _scaled(self.host, factors)
        binding, total_s = (self.seconds, compute_s) if compute_s >= host_s else (self.host, host_s)
        return {name: time_s * factors.get(name, 1.0) / total_s for name, time_s in binding.items()}


def _scaled(seconds: Mapping[str, float], factors: Mapping[str, float]) -> float:
    return math.fsum(time_s * factors.get(name, 1.0) for name, time_s in seconds.items())


def computations_of(paths: Sequence[Path]) -> MeasuredComputations:
    """Return what the ranks of a traced run computed: the passes of rank traces, or recorded kernels that say a shape.

    Raises
    ------
    FormatError
        If the files are of no trace, or cannot be read.
    """
    form = identify_run(paths, paths)
    computed = form.loaded().computations
    if computed is not None:
        found = computed(paths)
    else:
        workload = form.read(paths, LayoutOptions())
        files = tuple(each.path for each in workload.inputs)
        found = MeasuredComputations(workload.parallel, tuple(_recorded(workload)), files)
    if not found.rows:
        text = f"is {form.title} that holds no computations that were measured and say what they ran"
        how = "give rank traces, or profiles that were made with record_shapes=True"
        raise FormatError(f"{text}; {how}", str(paths[0]))
    return found


def _recorded(workload: Workload) -> Iterator[Computation]:
    """Yield the kernels of a recorded program that say their operator and their time."""
    program = workload.program
    if program is None or program.recorded is None:
        return
    ops, row_N = program.ops, program.row_N
    own_N, known_N = program.recorded.duration_s_N, ops.duration_s_T[row_N]
    duration_N = np.where(np.isnan(own_N), known_N, own_N)
    stage_N = program.stage_N
    for at in np.flatnonzero((ops.kind_T[row_N] == Kind.COMPUTE) & (duration_N > 0)).tolist():
        row = int(row_N[at])
        calls = ops.calls_T[row]
        if calls is None or len(calls) != 1 or calls[0][1] != 1:
            continue
        phase, microbatch = Phase(int(ops.phase_T[row])), int(program.microbatch_N[at])
        rank = int(program.rank_N[at])
        yield Computation(rank, int(stage_N[at]), phase, microbatch, float(duration_N[at]), calls[0][0])


class Estimates:
    """What a job's stages are estimated to take in each pass."""

    def __init__(self, job: Job, setting: Setting) -> None:
        cluster, _ = placed(job, setting)
        factors = factors_of(job, setting)
        self.workload, _ = estimated_work(job, cluster.gpu, factors, cluster.ranks_per_node)
        self.cost, self.placement = operator_seconds(job, cluster.gpu, factors), plan_of_job(job).placement[0]

    def stage(self, stage: int, phase: Phase) -> tuple[dict[str, float], dict[str, float], frozenset[OperatorCall]]:
        """Return the seconds of a pass over a stage by class of work, of its kernels and of the host; its operators."""
        template, ops = self.workload.templates[0], self.workload.ops
        if phase is Phase.STEP:
            segments = [int(template.end_P[stage])]
        else:
            passes_QM = template.forward_QM if phase is Phase.FORWARD else template.backward_QM
            segments = [int(passes_QM[q, 0]) for q, holder in enumerate(self.placement) if holder == stage]
        kernels: dict[str, float] = defaultdict(float)
        host: dict[str, float] = defaultdict(float)
        calls: set[OperatorCall] = set()
        for row in (int(row) for at in segments if at >= 0 for row in self.workload.segments[at]):
            for call, count in ops.calls_T[row] or ():
                kernels[measured_class(call)] += self.cost.call_s(call, count)
                calls.add(call)
            cost = CostClass(int(ops.cost_class_T[row]))
            if ops.kind_T[row] == Kind.GAP and cost is CostClass.HOST_LAYERS:
                host[in_pass(host_class(cost), Phase(int(ops.phase_T[row])))] += float(ops.duration_s_T[row])
        return dict(kernels), dict(host), frozenset(calls)


def measured_passes(
    computations: Iterable[Computation], estimates: Estimates
) -> tuple[list[MeasuredPass], tuple[Skipped, ...]]:
    """Return a row for each pass of each rank, and for each operator, with the median of their times."""
    passes: dict[tuple[int, Phase, int], list[float]] = defaultdict(list)
    kernels: dict[OperatorCall, list[float]] = defaultdict(list)
    for each in computations:
        if each.call is not None:
            kernels[each.call].append(each.time_s)
        else:
            passes[each.stage, each.phase, each.rank].append(each.time_s)
    medians = {key: median(times) for key, times in passes.items()}
    rows: list[MeasuredPass] = []
    skipped: list[Skipped] = []
    parallel = estimates.workload.parallel
    place_W, usual_s = expert_rank_W(parallel), dict[tuple[int, Phase, int], float]()
    for stage, phase, rank in medians:
        # Ranks with other experts may have other loads.
        alike = (key for key in medians if key[:2] == (stage, phase) and place_W[key[2]] == place_W[rank])
        usual_s[stage, phase, rank] = _usual(medians[key] for key in alike)
    slow = {key for key, time_s in medians.items() if time_s > STRAGGLER * usual_s[key]}
    held_up = {(stage, phase, rank // parallel.tp) for stage, phase, rank in slow}
    updates = [time_s / _total(estimates, key) for key, time_s in medians.items() if key[1] is Phase.STEP]
    for key, time_s in medians.items():
        stage, phase, rank = key
        name = f"{phase.name.lower()}, stage {stage}, rank {rank}"
        if key in slow:
            skipped.append(Skipped(name, f"takes {time_s / usual_s[key]:.2f} x what ranks like it take"))
            continue
        if (stage, phase, rank // parallel.tp) in held_up:
            skipped.append(Skipped(name, "waits for a slow rank of its tensor parallel group"))
            continue
        if phase is Phase.STEP and time_s / _total(estimates, key) > STRAGGLER * min(updates):
            skipped.append(Skipped(name, "waits for other ranks before its update"))
            continue
        seconds, host, calls = estimates.stage(stage, phase)
        if seconds:
            rows.append(MeasuredPass(name=name, time_s=time_s, seconds=seconds, host=host, calls=calls))
    for call, times_s in kernels.items():
        seconds = {measured_class(call): len(times_s) * estimates.cost.call_s(call)}
        time_s = len(times_s) * median(times_s)
        own = frozenset({call})
        rows.append(MeasuredPass(name=operator_name(call), time_s=time_s, seconds=seconds, host={}, calls=own))
    return rows, tuple(skipped)


def _total(estimates: Estimates, key: tuple[int, Phase, int]) -> float:
    """Return the estimated seconds of a pass; infinite where it runs nothing."""
    return math.fsum(estimates.stage(key[0], key[1])[0].values()) or math.inf


def _usual(times_s: Iterable[float]) -> float:
    """Return the median of ranks; of two the faster one's."""
    ordered = sorted(times_s)
    return ordered[(len(ordered) - 1) // 2]
