"""From a small trace to a large forecast: factors on a job's classes of work, fitted to what a measured run computed.

The job says which operators each stage runs in each pass; what these take by the estimates, class by class, is held
against the measured time of the pass. A trace of kernels says the operators itself. The factors that bring estimates
nearest to measurements are solved for as those of whole runs are (`traincast.calibration.run_factors.solve`), from the
same priors: what no row can tell apart moves together, and what no row shows stays near 1.

A pass lasts as long as its kernels, or as the host needs to launch them, whichever is longer; the factor of what binds
is fitted.

Letters: I rows, K factors.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from statistics import median

import numpy as np
from msgspec.structs import replace

from traincast.calibration import run_calibration
from traincast.calibration.measured_passes import Estimates, MeasuredPass, computations_of, measured_passes
from traincast.calibration.run_calibration import FittedRun, RunCalibration
from traincast.calibration.run_factors import solve
from traincast.diagnostics import Note
from traincast.errors import CalibrationError, ConfigError, FormatError
from traincast.estimate.factors import whole_deviation
from traincast.estimate.measured import measured_class, of_pass, operator_name
from traincast.formats.contract import Format, MeasuredComputations
from traincast.formats.open import identify
from traincast.hardware.cluster import Cluster, RunFactor
from traincast.hardware.clusters import load_cluster
from traincast.hardware.gpu import find_gpu
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.job.options import ConstantsFile
from traincast.job.request import JobRequest
from traincast.simulation.reproducible import DEFAULT_CLUSTER, decide
from traincast.simulation.step import Setting
from traincast.units import format_share
from traincast.workload.ops import FloatArray

NOISE = 0.02
"""Deviation of the median of a pass: repeats of a traced run differ by 1 % (docs/published-runs.md)."""
DOUBTFUL = 0.15
"""Median residual beyond which the job is hardly the one that was traced."""
_OWN = 0.5
"""Of the deviation that a class of work has, what its passes have apart from each other."""
_ROUNDS = 30


def calibrate_trace(
    paths: Sequence[Path],
    job: Job | JobRequest | Draft,
    cluster: str | PathLike[str] | Cluster | None = None,
    constants: ConstantsFile | None = None,
) -> RunCalibration:
    """Fit factors on the classes of work of a job to what a measured run of it computed.

    Parameters
    ----------
    paths : sequence of Path
        The traces of one run, of some of its ranks or all.
    job : Job, JobRequest or Draft
        What was trained, laid out as it was traced.
    cluster : str, path or Cluster, optional
        Where it ran; by default where the job says. What traces taught of it before is dropped.
    constants : ConstantsFile, optional
        Constants of operators that estimates are made with: the factors hold together with them.

    Raises
    ------
    FormatError
        If the files cannot be read, or do not say what was computed.
    ConfigError
        If the run was laid out otherwise than the job.
    CalibrationError
        If nothing that the job runs was measured.
    """
    said = cluster or (job.cluster if isinstance(job, Draft) else None)
    base = load_cluster(said or DEFAULT_CLUSTER)
    base = replace(base, run_factors=tuple(each for each in base.run_factors if not of_pass(each.cost_class)))
    _, _, decided, _ = decide(job, base)
    measured, estimates = computations_of(paths), Estimates(decided, Setting(cluster=base, constants=constants))
    _check_layout(measured, decided, paths)
    rows, skipped = measured_passes(measured.rows, estimates)
    if not rows:
        what = f": {skipped[0].reason} ({skipped[0].id})" if skipped else ""
        raise CalibrationError(f"nothing that {decided.model.name} runs was measured{what}", rows=0, needed_rows=1)
    factors, deviations = _fit(rows)
    own = _own_factors(rows, factors, deviations, decided.framework.name, f"fitted to {', '.join(measured.files[:1])}")
    passes = tuple(
        FittedRun(id=row.name, measured_s=row.time_s, before_s=row.estimate_s({}), after_s=row.estimate_s(factors))
        for row in rows
    )
    unnamed = () if said else (Note("cluster-default", f"no cluster was given; taken as {base.name}"),)
    return RunCalibration(
        files=measured.files,
        base=base,
        cluster=replace(base, run_factors=(*base.run_factors, *own)),
        framework=decided.framework.name,
        runs=passes,
        skipped=skipped,
        notes=(*unnamed, *measured.notes, *_other_gpu(measured.gpu, base), *_doubts(passes, decided)),
        of_passes=True,
    )


def _own_factors(
    rows: Sequence[MeasuredPass],
    factors: Mapping[str, float],
    deviations: Mapping[str, float],
    framework: str,
    source: str,
) -> tuple[RunFactor, ...]:
    """Return the factors of classes that took any time, those of the largest share of it first."""
    total_s, operators = math.fsum(row.time_s for row in rows), _operators(rows)
    slopes = [(row.time_s / total_s, row.slopes(factors)) for row in rows]
    shares = {name: math.fsum(share * each.get(name, 0.0) for share, each in slopes) for name in factors}
    return tuple(
        RunFactor(
            framework=framework,
            cost_class=name,
            factor=float(f"{factors[name]:.4g}"),
            deviation=float(f"{deviations[name]:.4g}"),
            source=source,
            operators=operators.get(name, ()),
        )
        for name in sorted(factors, key=lambda name: (-shares[name], name))
        if shares[name] > 0
    )


def calibrate_runs(
    paths: Sequence[Path],
    cluster: str | PathLike[str] | Cluster | None = None,
    job: Draft | None = None,
    constants: ConstantsFile | None = None,
) -> RunCalibration:
    """Fit the factors of a cluster to the traces of a run of a job, or to the steps of whole runs on it.

    Raises
    ------
    TraincastError
        As `calibrate_trace` and `traincast.calibration.run_calibration.calibrate_runs`.
    """
    if is_trace(paths[0]):
        if job is None:
            text = f"{paths[0]} is a trace: give the job that ran, with its layout, job=..."
            raise ConfigError(text).typed(job="--job")
        return calibrate_trace(paths, job, cluster, constants)
    return run_calibration.calibrate_runs(paths, cluster, job, constants)


def is_trace(path: Path) -> bool:
    """Say whether a file holds a workload or trace, and not measurements."""
    try:
        return isinstance(identify(path), Format)
    except FormatError:
        return False


def _check_layout(measured: MeasuredComputations, job: Job, paths: Sequence[Path]) -> None:
    """Refuse a job that was laid out otherwise than the run: its stages do other work."""
    if all(each.call is not None for each in measured.rows):
        return
    for name in ("tp", "pp", "ep") if measured.parallel is not None else ():
        traced, said = getattr(measured.parallel, name), getattr(job.parallel, name)
        if traced != said:
            raise ConfigError(f"is {said} in the job, but {paths[0]} was traced with {traced}", f"parallel.{name}")
    most = max(each.rank for each in measured.rows)
    if most >= job.parallel.world_size:
        text = f"is {job.parallel.world_size} in the job, but {paths[0]} is of a run with a rank {most}, counted from 0"
        raise ConfigError(text, "gpus")
    stage = max(each.stage for each in measured.rows)
    if stage >= job.parallel.pp:
        text = f"is {job.parallel.pp} in the job, but {paths[0]} is of a run with a stage {stage}, counted from 0"
        raise ConfigError(text, "parallel.pp")
    if job.parallel.vpp != 1:
        text = f"is {job.parallel.vpp} in the job, but a trace of passes has one chunk of layers on each stage"
        raise ConfigError(f"{text}; give vpp = 1", "parallel.vpp")


def _fit(rows: Sequence[MeasuredPass]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the factor of each class of work, and the deviation of its logarithm that is left."""
    keys = sorted({name for row in rows for name in (*row.seconds, *row.host)})
    prior_KK, mean_K = _prior(keys), np.zeros(len(keys))
    weight_I = np.array([row.time_s for row in rows])
    weight_I = weight_I / weight_I.mean()
    log_K, deviation_K = np.zeros(len(keys)), np.zeros(len(keys))
    for _ in range(_ROUNDS):
        factors = dict(zip(keys, np.exp(log_K).tolist(), strict=True))
        slope_IK = np.array([[row.slopes(factors).get(name, 0.0) for name in keys] for row in rows])
        residual_I = np.array([math.log(row.time_s / row.estimate_s(factors)) for row in rows])
        found = solve(slope_IK, residual_I, weight_I, prior_KK, log_K, mean_K, NOISE)
        # Half a step: where host and kernels take turns in binding, whole ones would jump between the two.
        moved_K, log_K = np.abs(found.log_factor_K - log_K), (log_K + found.log_factor_K) / 2
        deviation_K = found.deviation_K
        if moved_K.max(initial=0.0) < 1e-4:
            break
    factors = np.exp(log_K).tolist()
    return dict(zip(keys, factors, strict=True)), dict(zip(keys, deviation_K.tolist(), strict=True))


def _prior(keys: Sequence[str]) -> FloatArray:
    """Return the covariance of the factors' logarithms before any row is seen.

    All computation of passes shares what clocks do, the passes and families of a class what its kernels do; a part of
    that each pass has alone, and each family of what memory binds as much again. The optimizer shares nothing: what a
    framework adds to its kernels says nothing of others.
    """
    kinds = [name.rpartition(" ")[0] for name in keys]
    classes = ["memory" if kind.startswith("memory ") else kind for kind in kinds]
    alone = [name.endswith(" step") for name in keys]
    clocks = [0.0 if name.startswith("host ") else whole_deviation("compute") ** 2 for name in keys]
    covariance_KK = np.zeros((len(keys), len(keys)))
    for row, name in enumerate(classes):
        own = whole_deviation(name) ** 2
        family = own if name != kinds[row] else 0.0
        covariance_KK[row, row] = clocks[row] + own * (1 + _OWN**2) + family
        for column in range(len(keys)):
            if row != column and not (alone[row] or alone[column]):
                alike = (own if name == classes[column] else 0.0) + (family if kinds[row] == kinds[column] else 0.0)
                covariance_KK[row, column] = min(clocks[row], clocks[column]) + alike
    return covariance_KK


def _operators(rows: Iterable[MeasuredPass]) -> dict[str, tuple[str, ...]]:
    """Return the operators that were measured by their class of work and pass."""
    found: dict[str, set[str]] = defaultdict(set)
    for call in (call for row in rows for call in row.calls):
        found[measured_class(call)].add(operator_name(call))
    return {name: tuple(sorted(operators)) for name, operators in found.items()}


def _other_gpu(name: str, cluster: Cluster) -> Iterator[Note]:
    """Say where the files name another GPU than the cluster's."""
    found = find_gpu(name) if name else None
    if found is not None and found.name != cluster.gpu.name:
        text = f"the traces are of {name}, but {cluster.name} has {cluster.gpu.name}; give their cluster (--cluster)"
        yield Note("other-gpu", text)


def _doubts(passes: Sequence[FittedRun], job: Job) -> Iterator[Note]:
    """Yield what looks wrong with a calibration."""
    error = median(abs(each.after_s / each.measured_s - 1) for each in passes)
    if error > DOUBTFUL:
        text = f"the measured passes are still {format_share(error, 0)} off in the median with factors"
        yield Note("calibration-doubtful", f"{text}: the job is hardly the one that was traced")
    if job.precision.dtype == "fp16":
        text = "an update in fp16 is skipped where gradients overflow; the factor sums step may be of a skipped one"
        yield Note("update-skipped", text)
