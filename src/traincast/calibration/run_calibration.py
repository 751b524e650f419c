"""Fit forecasts on a cluster to the user's own runs there, and write what they taught into its file for ``--cluster``.

What differs between clusters of one kind has a factor of its own: all computation, transfers over each kind of group,
what the host does (classes with ``own`` in ``data/training/cost_classes.toml``). Of its logarithm a normal
distribution says what is known before: 0, with the deviation that the factors that come with traincast have left and
that of one cluster among its peers. Measured steps are the forecast ones but for `NOISE`. So one run moves a forecast
most of the way to what was measured, in what the step consists of; runs with other layouts tell the classes apart.

Letters: I runs, C classes of work.
"""

import math
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.calibration.cluster_calibration import cluster_toml
from traincast.calibration.log_runs import read_log_runs
from traincast.calibration.run_factors import NOISE, Forecast, Solution, forecast_runs, solve
from traincast.calibration.runs import MeasuredRun, read_runs
from traincast.calibration.tables import LOG_COLUMN, Skipped, read_table
from traincast.diagnostics import Note
from traincast.errors import CalibrationError
from traincast.estimate.factors import factors_on, keys_of, own_deviation, prior_deviation
from traincast.estimate.measured import of_pass
from traincast.hardware.cluster import Cluster, RunFactor
from traincast.hardware.clusters import load_cluster
from traincast.job.draft import Draft
from traincast.job.options import ConstantsFile
from traincast.simulation.reproducible import DEFAULT_CLUSTER
from traincast.units import counted, format_share, format_time

_ROUNDS = 2
"""Times that the runs are forecast again: a step is not quite the product of its classes' factors."""
_LEAST_SLOPE = 0.01
"""A class that is less of every step is left alone."""
_FAR = 0.1
"""Error after the fit, as a fraction, from which it is told."""


class FittedRun(Struct, frozen=True, kw_only=True):
    """One run, or one pass of a traced run: its measured time, and its forecast before and after the fit."""

    id: str
    measured_s: float
    before_s: float
    after_s: float


class RunCalibration(Struct, frozen=True, kw_only=True):
    """A cluster with what runs on it taught."""

    files: tuple[str, ...]
    base: Cluster
    cluster: Cluster
    """The base with the factors."""
    framework: str
    """That of the runs, and of the jobs that the factors speak for."""
    runs: tuple[FittedRun, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[Note, ...]
    of_passes: bool = False
    """Whether `runs` are the passes of a traced run (`traincast.calibration.trace_calibration`)."""

    def __repr__(self) -> str:
        """Say what was fitted to what, in a line."""
        return f"<RunCalibration: {self.base.name} fitted to {counted(len(self.runs), 'run')}>"

    @property
    def counted_runs(self) -> str:
        """How many there are: ``3 runs``."""
        return counted(len(self.runs), *(("pass", "passes") if self.of_passes else ("run",)))

    def profile(self) -> str:
        """Return the cluster as a TOML file for ``--cluster``, with its residuals as comments."""
        return cluster_toml(self.cluster, [*self._comments()])

    def _comments(self) -> Iterator[str]:
        yield f"{self.base.name} with what {self.counted_runs} of {self.framework} on it taught (traincast calibrate)."
        yield "Measured time, and its forecast before and with the factors at the end:"
        for run in self.runs:
            times = ", ".join(map(format_time, (run.measured_s, run.before_s, run.after_s)))
            yield f"  {run.id}: {times}"


def calibrate_runs(
    paths: Sequence[str | PathLike[str]],
    cluster: str | PathLike[str] | Cluster | None = None,
    job: Draft | None = None,
    constants: ConstantsFile | None = None,
) -> RunCalibration:
    """Fit the factors of a cluster to runs on it.

    Parameters
    ----------
    paths : sequence of paths
        Training logs, all of `job`, and CSV files of training runs.
    cluster : str, path or Cluster, optional
        Where all of them ran; what was fitted to runs on it before is dropped. By default where the job says.
    job : Draft, optional
        What the logs are of.
    constants : ConstantsFile, optional
        Constants of operators that the forecasts are made with, before and after: the factors hold together with them.

    Raises
    ------
    CalibrationError
        If no run can be used, or they are of several frameworks.
    TraincastError
        If a file cannot be read, or the job not described.
    """
    said = cluster or (job.cluster if job is not None else None)
    base = load_cluster(said or DEFAULT_CLUSTER)
    base = replace(base, run_factors=tuple(each for each in base.run_factors if of_pass(each.cost_class)))
    runs, skipped = _runs_in(paths, job, base)
    before = forecast_runs(runs, [factors_on(base)] * len(runs), constants=constants)
    skipped += [Skipped(run.id, each.reason) for run, each in zip(runs, before, strict=True) if each.step_s is None]
    kept = [(run, each) for run, each in zip(runs, before, strict=True) if each.step_s is not None]
    if not kept:
        why = f": {skipped[0].reason} ({skipped[0].id})" if skipped else ""
        raise CalibrationError(f"no run can be used{why}", rows=0, needed_rows=1)
    frameworks = sorted({each.framework for _, each in kept})
    if len(frameworks) > 1:
        raise CalibrationError(f"the runs are of several frameworks ({', '.join(frameworks)}); calibrate each alone")
    rows = [run for run, _ in kept]
    fitted, after = _fit(rows, [each for _, each in kept], base, _source(paths, constants), constants)
    unnamed = () if said else (Note("cluster-default", f"no cluster was given; taken as {base.name}"),)
    return RunCalibration(
        files=tuple(map(str, paths)),
        base=base,
        cluster=fitted,
        framework=frameworks[0],
        runs=tuple(
            FittedRun(
                id=run.id, measured_s=run.measured_s or 0.0, before_s=old.step_s or 0.0, after_s=new.step_s or 0.0
            )
            for (run, old), new in zip(kept, after, strict=True)
        ),
        skipped=tuple(skipped),
        notes=(*unnamed, *dict.fromkeys(note for run in rows for note in run.notes), *_far(rows, after)),
    )


def _runs_in(
    paths: Sequence[str | PathLike[str]], job: Draft | None, base: Cluster
) -> tuple[list[MeasuredRun], list[Skipped]]:
    """Return the runs with a measured step that files hold, and what is left out of them."""
    runs: list[MeasuredRun] = []
    skipped: list[Skipped] = []
    for path in paths:
        table = read_table(Path(path))
        found, left_out = read_log_runs(table, job, base) if LOG_COLUMN in table.columns else read_runs(table, base)
        runs += [run for run in found if run.measured_s is not None]
        skipped += left_out
    return runs, skipped


def _source(paths: Sequence[str | PathLike[str]], constants: ConstantsFile | None) -> str:
    """Return what factors are fitted to, and what they hold together with."""
    by = f" with --constants {constants.name}" if constants else ""
    return f"fitted to {', '.join(map(str, paths))}{by}"


def _fit(
    rows: Sequence[MeasuredRun],
    before: Sequence[Forecast],
    base: Cluster,
    source: str,
    constants: ConstantsFile | None,
) -> tuple[Cluster, list[Forecast]]:
    """Return the cluster with its factors, and the forecasts with them."""
    answered = {name for each in before for name, slope in each.slopes.items() if slope >= _LEAST_SLOPE}
    classes = sorted(name for name in answered if own_deviation(name))
    prior_C = np.array([_prior_deviation(name, base, before[0].framework) for name in classes])
    log_C, cluster, forecasts = np.zeros(len(classes)), base, list(before)
    for _ in range(_ROUNDS):
        slope_IC = np.array([[each.slopes.get(name, 0.0) for name in classes] for each in forecasts])
        pairs = zip(rows, forecasts, strict=True)
        residual_I = np.log([(run.measured_s or 1.0) / (each.step_s or 1.0) for run, each in pairs])
        found = solve(slope_IC, residual_I, np.ones(len(rows)), prior_C, log_C, np.zeros(len(classes)), NOISE)
        log_C = found.log_factor_K
        own = _factors(classes, found, before[0].framework, source)
        cluster = replace(base, run_factors=(*base.run_factors, *own))
        again = [replace(run, cluster=replace(run.cluster, run_factors=cluster.run_factors)) for run in rows]
        forecasts = forecast_runs(again, [factors_on(cluster)] * len(again), constants=constants)
    return cluster, forecasts


def _far(rows: Sequence[MeasuredRun], after: Sequence[Forecast]) -> Iterator[Note]:
    """Yield a note for each run whose forecast is still far off."""
    for run, each in zip(rows, after, strict=True):
        share = (each.step_s or 0.0) / (run.measured_s or 1.0) - 1
        if abs(share) > _FAR:
            text = (
                f"the forecast is still {format_share(abs(share))} too {'long' if share > 0 else 'short'}: one cluster "
                "differs from its peers by less; was this the job that ran, and were its GPUs well?"
            )
            yield Note("far-off", text, run.id)


def _prior_deviation(cost_class: str, cluster: Cluster, framework: str) -> float:
    """Return how far the time of a class of work may be from its estimate, as the deviation of its logarithm."""
    table = factors_on(cluster).factors
    keys = keys_of(cost_class, cluster.gpu, framework)
    known = [table[key].deviation if key in table else prior_deviation(key) for key in keys]
    return math.hypot(own_deviation(cost_class), *known)


def _factors(classes: Sequence[str], found: Solution, framework: str, source: str) -> Iterator[RunFactor]:
    for name, log, deviation in zip(classes, found.log_factor_K.tolist(), found.deviation_K.tolist(), strict=True):
        yield RunFactor(
            framework=framework,
            cost_class=name,
            factor=float(f"{math.exp(log):.4g}"),
            deviation=float(f"{deviation:.4g}"),
            source=source,
        )
