"""Constants fitted to measurements: of a cluster, of a job's runs, of a GPU's operators."""

from pathlib import Path
from typing import overload

from traincast.api.files import Files, StrPath, expand
from traincast.api.named import draft_of
from traincast.calibration.cluster_calibration import Calibration
from traincast.calibration.cluster_calibration import calibrate as calibrate_cluster
from traincast.calibration.operator_calibration import OperatorCalibration
from traincast.calibration.operator_calibration import calibrate_operators as fit_operators
from traincast.calibration.run_calibration import RunCalibration
from traincast.calibration.trace_calibration import calibrate_runs as fit_runs
from traincast.errors import ConfigError
from traincast.files import read_text
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import gpu_named, load_cluster
from traincast.hardware.gpu import Gpu
from traincast.job.draft import Draft
from traincast.job.options import ConstantsFile


@overload
def calibrate(files: Files, cluster: StrPath | Cluster, *, table: bool = False) -> Calibration: ...
@overload
def calibrate(
    files: Files,
    cluster: StrPath | Cluster | None = None,
    *,
    job: StrPath | Draft,
    constants: StrPath | None = None,
) -> RunCalibration: ...
@overload
def calibrate(files: Files, *, gpu: StrPath | Gpu) -> OperatorCalibration: ...


def calibrate(
    files: Files,
    cluster: StrPath | Cluster | None = None,
    *,
    gpu: StrPath | Gpu | None = None,
    job: StrPath | Draft | None = None,
    constants: StrPath | None = None,
    table: bool = False,
) -> Calibration | RunCalibration | OperatorCalibration:
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
    constants : path, optional
        With `job`: constants of operators that its forecasts are made with, as `calibrate_runs`.
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
    if gpu is not None and (cluster is not None or job is not None):
        raise ConfigError("applies to measured operators and cannot be combined with cluster or job", "gpu")
    if table and (gpu is not None or job is not None):
        raise ConfigError("is for collectives and cannot be combined with gpu or job", "table")
    if constants is not None and job is None:
        raise ConfigError("are what runs of a job are forecast with; give job, or call calibrate_runs", "constants")
    if gpu is not None:
        return calibrate_operators(files, gpu)
    if job is not None:
        return calibrate_runs(files, cluster, job, constants=constants)
    if cluster is None:
        raise ConfigError(
            "is missing; give cluster (collectives), job (training logs, traces) or gpu (kernels)", "cluster"
        )
    return calibrate_cluster(expand(files), load_cluster(cluster), table=table)


def calibrate_runs(
    files: Files,
    cluster: StrPath | Cluster | None = None,
    job: StrPath | Draft | None = None,
    *,
    constants: StrPath | None = None,
) -> RunCalibration:
    """Fit forecasts on a cluster to runs on it: training logs or traces of a job, and CSV files of training runs.

    The `profile` of the calibration is a file for ``cluster``: forecasts on it are nearer to what is measured there.
    With `constants`, the profile of `calibrate_operators`, they are made with what was measured of operators, too: then
    both files belong together.

    Examples
    --------
    >>> import traincast
    >>> ours = traincast.calibrate_runs("examples/training_runs.csv", "a100")
    >>> print(ours.profile().splitlines()[0])
    # a100 with what 4 runs of internevo-2024 on it taught (traincast calibrate).
    """
    file = None if constants is None else ConstantsFile(str(constants), read_text(Path(constants)))
    return fit_runs(expand(files), cluster, draft_of(job), file)


def calibrate_operators(files: Files, gpu: StrPath | Gpu) -> OperatorCalibration:
    """Fit the operators' constants of a GPU to measured kernels; about 20 timings per family suffice.

    Rows of other GPUs in the CSV files are left out. The `profile` of the calibration is a file for ``constants``.

    Examples
    --------
    >>> import traincast
    >>> ours = traincast.calibrate_operators("examples/kernels_a100.csv", "a100-pcie-40")
    >>> [(each.family, each.after.median_abs_error < each.before.median_abs_error) for each in ours.residuals][0]
    ('gemm', True)
    """
    return fit_operators(expand(files), gpu_named(gpu))
