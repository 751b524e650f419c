"""Predictions against measurements, constants fitted to them, and measuring on a GPU of one's own."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincast.api.files import Files, JobLike, StrPath, expand
from traincast.api.named import described
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import gpu_named, load_cluster
from traincast.hardware.gpu import Gpu
from traincast.job.draft import Draft

if TYPE_CHECKING:
    from traincast.calibrate.cluster_calibration import Calibration
    from traincast.calibrate.collective_comparison import CollectiveComparison
    from traincast.calibrate.operator_calibration import OperatorCalibration
    from traincast.calibrate.run_calibration import RunCalibration
    from traincast.calibrate.validate import Validation
    from traincast.measure.timing import Summary


def compare_collectives(a: StrPath, b: StrPath) -> "CollectiveComparison":
    """Put measured collectives of two files side by side: logs or reports of nccl-tests, or tables.

    Examples
    --------
    >>> from traincast import api
    >>> compared = api.compare_collectives("examples/all_reduce_a100.csv", "examples/all_reduce_a100.csv")
    >>> len(compared.pairs), compared.median_relative
    (22, 0.0)
    """
    from traincast.calibrate.collective_comparison import compare_collectives as compare_files

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
    from traincast.calibrate.kind import kind_of_file
    from traincast.calibrate.trace_calibration import is_trace

    first = expand(path)[0]
    return "traces" if is_trace(first) else kind_of_file(first)


def validate(
    path: Files,
    cluster: StrPath | Cluster | None = None,
    by: Sequence[str] = (),
    leave_out: str | None = None,
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
        Groupings to show, such as ``("gpu", "op")``, or ``("gpu+op",)`` for both at once; all
        that there are by default.
    leave_out : str, optional
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
    from traincast.calibrate.validate import validate as validate_file

    job = _draft(job)
    return validate_file(expand(path), cluster, by, leave_out, kind=kind, job=job, recipes=recipes, progress=progress)


def calibrate(files: Files, cluster: StrPath | Cluster, *, table: bool = False) -> "Calibration":
    """Fit the constants of a cluster to measured collectives.

    Files are logs of nccl-tests and CSV files, all of one cluster; what they do not show stays as it is in `cluster`.
    With `table` the profile keeps the measured times too, which just these groups then take. The `profile` of the
    calibration is a file for ``cluster``.

    Examples
    --------
    >>> import traincast
    >>> ours = traincast.calibrate("examples/all_reduce_a100.csv", "a100")
    >>> of_all = ours.residuals[0]
    >>> of_all.after.median_abs_error < 0.03 < of_all.before.median_abs_error
    True
    """
    from traincast.calibrate.cluster_calibration import calibrate as calibrate_cluster

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
    from traincast.calibrate.trace_calibration import calibrate_runs as fit

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
    from traincast.calibrate.operator_calibration import calibrate_operators as fit

    return fit(expand(files), gpu_named(gpu))


def measure(job: JobLike, out: StrPath, **limits: Any) -> "Summary":  # noqa: ANN401
    """Time what a job runs on this machine's GPU, with its PyTorch; see `traincast.measure.of_job.measure_job`.

    Examples
    --------
    >>> import traincast
    >>> try:
    ...     traincast.measure("examples/llama3_70b_512gpu.toml", "operators.csv")
    ... except traincast.MeasurementError:
    ...     print("no GPU here, or no PyTorch")
    no GPU here, or no PyTorch
    """
    from traincast.measure.of_job import measure_job

    return measure_job(job, Path(out), **limits)


def measuring_script(job: JobLike, cluster: StrPath | Cluster | None = None) -> str:
    """Return a Python script that does what `measure` does where traincast is not installed, for this job alone.

    Examples
    --------
    >>> from traincast import api
    >>> text = api.measuring_script("examples/llama3_70b_512gpu.toml")
    >>> "needs PyTorch alone" in text
    True
    """
    from traincast.measure.of_job import script_of_job

    return script_of_job(job, cluster)


def _draft(job: StrPath | Draft | None) -> Draft | None:
    return described(job) if isinstance(job, (str, PathLike)) else job
