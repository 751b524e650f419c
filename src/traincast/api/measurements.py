"""Predictions against measurements, constants fitted to them, and measuring on a GPU of one's own."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from traincast.api.files import Files, JobLike, StrPath, expand
from traincast.api.named import described, job_under
from traincast.errors import ConfigError
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import gpu_named, load_cluster
from traincast.hardware.gpu import Gpu
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.job.request import JobRequest
from traincast.job.words import JOB_WORDS, said_of_job, sorted_out, takes

if TYPE_CHECKING:
    from traincast.calibration.cluster_calibration import Calibration
    from traincast.calibration.collective_comparison import CollectiveComparison
    from traincast.calibration.operator_calibration import OperatorCalibration
    from traincast.calibration.run_calibration import RunCalibration
    from traincast.calibration.validate import Validation
    from traincast.measuring.timing import Summary


def compare_collectives(a: StrPath, b: StrPath) -> "CollectiveComparison":
    """Put measured collectives of two files side by side: logs or reports of nccl-tests, or tables.

    Examples
    --------
    >>> from traincast import api
    >>> compared = api.compare_collectives("examples/all_reduce_a100.csv", "examples/all_reduce_a100.csv")
    >>> len(compared.pairs), compared.median_relative
    (22, 0.0)
    """
    from traincast.calibration.collective_comparison import compare_collectives as compare_files

    return compare_files(a, b)


def kind_of_measurements(path: StrPath) -> str | None:
    """Return what a file of measurements, or the first of a folder or pattern, holds; None where it holds none.

    ``collectives``, ``operators``, ``training-logs``, ``training-runs``, ``memory-of-runs`` or ``traces``.

    Examples
    --------
    >>> from traincast import api
    >>> api.kind_of_measurements("examples/all_reduce_a100.csv"), api.kind_of_measurements("examples/training_runs.csv")
    ('collectives', 'training-runs')
    >>> api.kind_of_measurements("examples/megatron_pp4_tp2")
    'traces'
    """
    from traincast.calibration.kind import kind_of_file
    from traincast.calibration.trace_calibration import is_trace

    first = expand(path)[0]
    return "traces" if is_trace(first) else kind_of_file(first)


def validate(
    path: Files,
    cluster: StrPath | Cluster | None = None,
    by: Sequence[str] | str = (),
    cv: str | None = None,
    *,
    kind: str | None = None,
    job: StrPath | Draft | None = None,
    recipes: StrPath | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "Validation":
    """Predict every measurement in a file and say how far off the predictions are.

    Parameters
    ----------
    path : path, or sequence of paths
        A CSV file, whose columns say what was measured, a log of nccl-tests, or a training log; or several of one
        kind. A folder or pattern stands for its files.
    cluster : str, path or Cluster, optional
        Cluster that all rows ran on; by default each row's GPU says its preset.
    by : sequence of str, optional
        Groupings to show, such as ``("gpu", "op")``, or ``("gpu+op",)`` for both at once; a text as after ``--by``; all
        that there are by default.
    cv : str, optional
        A grouping: the constants are fitted again without each of its groups, and predict it.
    kind : str, optional
        What to predict where a file holds several things: ``training-runs``, ``memory-of-runs``.
    job : path or Draft, optional
        What was trained, of a training log.
    recipes : path, optional
        A CSV file of further columns of the rows, by their ``id``: settings of the recipes that they ran. What a row
        says itself wins.
    progress : callable, optional
        Told how many rows are predicted, and of how many.

    Examples
    --------
    >>> import traincast
    >>> found = traincast.validate("examples/kernels_a100.csv")
    >>> found.total.evaluated, found.total.median_abs_error < 0.2
    (8, True)
    """
    from traincast.calibration.validate import validate as validate_file

    job = _draft(job)
    shown = [name.strip() for name in by.split(",")] if isinstance(by, str) else by
    return validate_file(expand(path), cluster, shown, cv, kind=kind, job=job, recipes=recipes, progress=progress)


@overload
def calibrate(files: Files, cluster: StrPath | Cluster, *, table: bool = False) -> "Calibration": ...
@overload
def calibrate(files: Files, cluster: StrPath | Cluster | None = None, *, job: StrPath | Draft) -> "RunCalibration": ...
@overload
def calibrate(files: Files, *, gpu: StrPath | Gpu) -> "OperatorCalibration": ...


def calibrate(
    files: Files,
    cluster: StrPath | Cluster | None = None,
    *,
    gpu: StrPath | Gpu | None = None,
    job: StrPath | Draft | None = None,
    table: bool = False,
) -> "Calibration | RunCalibration | OperatorCalibration":
    """Fit the constants of a cluster to measured collectives; of a job to its runs; of a GPU to measured kernels.

    Parameters
    ----------
    files : path, or sequence of paths
        Logs of nccl-tests and CSV files, all of one cluster; what they do not show stays as it is in `cluster`.
    cluster : str, path or Cluster
        What is fitted. The `profile` of the calibration is a file for ``cluster``.
    gpu : str, path or Gpu, optional
        Fit the operators of this GPU instead, as `calibrate_operators`.
    job : path or Draft, optional
        Fit to training logs or traces of this job instead, as `calibrate_runs`, which also takes CSV files of runs.
    table : bool
        Keep the measured times of collectives in the profile, too; just these groups then take them.

    Raises
    ------
    ConfigError
        If none of `cluster`, `job` and `gpu` is given, or some that cannot be combined.

    Examples
    --------
    >>> import traincast
    >>> ours = traincast.calibrate("examples/all_reduce_a100.csv", "a100")
    >>> of_all = ours.residuals[0]
    >>> of_all.after.median_abs_error < 0.03 < of_all.before.median_abs_error
    True
    """
    from traincast.calibration.cluster_calibration import calibrate as calibrate_cluster

    if gpu is not None and (cluster is not None or job is not None):
        raise ConfigError("is of measured operators and cannot be combined with cluster or job", "gpu")
    if table and (gpu is not None or job is not None):
        raise ConfigError("is for collectives and cannot be combined with gpu or job", "table")
    if gpu is not None:
        return calibrate_operators(files, gpu)
    if job is not None:
        return calibrate_runs(files, cluster, job)
    if cluster is None:
        raise ConfigError(
            "is missing; give cluster (collectives), job (training logs, traces) or gpu (kernels)", "cluster"
        )
    return calibrate_cluster(expand(files), load_cluster(cluster), table=table)


def calibrate_runs(
    files: Files, cluster: StrPath | Cluster | None = None, job: StrPath | Draft | None = None
) -> "RunCalibration":
    """Fit forecasts on a cluster to runs on it: training logs or traces of a job, and CSV files of training runs.

    The `profile` of the calibration is a file for ``cluster``: forecasts on it are nearer to what is measured there.

    Examples
    --------
    >>> import traincast
    >>> ours = traincast.calibrate_runs("examples/training_runs.csv", "a100")
    >>> print(ours.profile().splitlines()[0])
    # a100 with what 4 runs of internevo-2024 on it taught (traincast calibrate).
    """
    from traincast.calibration.trace_calibration import calibrate_runs as fit

    return fit(expand(files), cluster, _draft(job))


def calibrate_operators(files: Files, gpu: StrPath | Gpu) -> "OperatorCalibration":
    """Fit the operators' constants of a GPU to measured kernels; about 20 timings per family suffice.

    Rows of other GPUs in the CSV files are left out. The `profile` of the calibration is a file for ``constants``.

    Examples
    --------
    >>> import traincast
    >>> ours = traincast.calibrate_operators("examples/kernels_a100.csv", "a100-pcie-40")
    >>> [(each.family, each.after.median_abs_error < each.before.median_abs_error) for each in ours.residuals][0]
    ('gemm', True)
    """
    from traincast.calibration.operator_calibration import calibrate_operators as fit

    return fit(expand(files), gpu_named(gpu))


@takes(JOB_WORDS)
def measure(
    job: JobLike | None = None,
    out: StrPath | None = None,
    cluster: StrPath | Cluster | None = None,
    *,
    like: str | None = None,
    strict: bool = False,
    minutes: float = 10.0,
    spread: float = 0.01,
    tell: Callable[[str], None] | None = None,
    **words: Any,  # noqa: ANN401
) -> "Summary":
    """Time what a job runs on this machine's GPU, with its PyTorch; under torchrun its collectives.

    Parameters
    ----------
    job, cluster, like, strict, **words
        The job, as of `traincast.predict`.
    out : path
        The CSV file that is written, and continued where it is there; `calibrate` reads it.
    minutes : float
        Time after which nothing further is begun.
    spread : float
        Half the 95 % interval of a median over it, at which its repetitions end.
    tell : callable, optional
        Told a line about each operator or collective.

    Raises
    ------
    MeasurementError
        If there is no PyTorch or GPU here, or the file is another's.

    Examples
    --------
    >>> import traincast
    >>> try:
    ...     traincast.measure("examples/llama3_70b_512gpu.toml", "operators.csv")
    ... except traincast.MeasurementError:
    ...     print("no GPU here, or no PyTorch")
    no GPU here, or no PyTorch
    """
    from traincast.measuring.of_job import measure_job

    if out is None:
        raise ConfigError("is missing; name the CSV file for the times", "out")
    found = _job(job, like, words, strict=strict)
    return measure_job(found, Path(out), cluster, minutes=minutes, spread=spread, tell=tell or (lambda _: None))


@takes(JOB_WORDS)
def measuring_script(
    job: JobLike | None = None,
    cluster: StrPath | Cluster | None = None,
    *,
    like: str | None = None,
    strict: bool = False,
    **words: Any,  # noqa: ANN401
) -> str:
    """Return a Python script that does what `measure` does where traincast is not installed, for this job alone.

    Examples
    --------
    >>> from traincast import api
    >>> text = api.measuring_script("examples/llama3_70b_512gpu.toml")
    >>> "needs PyTorch alone" in text
    True
    """
    from traincast.measuring.of_job import script_of_job

    return script_of_job(_job(job, like, words, strict=strict), cluster)


def _job(job: JobLike | None, like: str | None, words: Mapping[str, Any], *, strict: bool) -> Job | JobRequest | Draft:
    """Return a job with what keywords say instead."""
    (said,) = sorted_out(words, JOB_WORDS)
    return job_under(job, said_of_job(said), like, strict=strict)


def _draft(job: StrPath | Draft | None) -> Draft | None:
    return described(job) if isinstance(job, (str, PathLike)) else job
