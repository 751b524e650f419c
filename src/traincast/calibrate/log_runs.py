"""Training logs of jobs that the user describes, as measured runs."""

from dataclasses import replace
from pathlib import Path

from traincast.analysis.comparison import logged_side
from traincast.calibrate.kind import ClusterLike
from traincast.calibrate.runs import MeasuredRun, groups_of, job_of_run
from traincast.calibrate.tables import LOG_COLUMN, Row, Skipped, Table
from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.formats.training_log import read_log
from traincast.hardware.clusters import load_cluster
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.simulation.recorded import DEFAULT_CLUSTER


def read_log_runs(
    table: Table, job: Draft | None, cluster: ClusterLike | None = None
) -> tuple[list[MeasuredRun], tuple[Skipped, ...]]:
    """Turn training logs into runs of a job with the steps that they tell.

    Parameters
    ----------
    table : Table
        Whose rows are logs (`LOG_COLUMN`).
    job : Draft
        The job that all of them ran.
    cluster : str, path or Cluster, optional
        Where; by default where the job says.

    Returns
    -------
    runs : list of MeasuredRun
    skipped : tuple of Skipped
        Logs that tell no step.

    Raises
    ------
    ConfigError
        If there is no job.
    TraincastError
        If the job cannot be described.
    """
    if job is None:
        raise ConfigError("a training log does not say what was trained; give the job (--job JOB)", table.path)
    request, where = job.request(), load_cluster(cluster or job.cluster or DEFAULT_CLUSTER)
    assumed = (
        () if cluster or job.cluster else (Note("cluster-default", f"no cluster was given; taken as {where.name}"),)
    )
    base = MeasuredRun(id="", request=request, cluster=where, measured_s=None, groups={}, cells={})
    known = said_of_job(job_of_run(base))

    def run(row: Row) -> MeasuredRun:
        log = read_log(Path(row.cells[LOG_COLUMN]))
        side = logged_side(log, row.id, known)
        cells = {"source": Path(row.path).name, "model": request.model.name, "x_task": request.task}
        cells |= {"experts": "1"} if request.model.experts else {}
        return replace(
            base,
            id=row.id,
            measured_s=side.step_s,
            groups=groups_of(replace(row, cells=cells), where.gpu.name, request),
            cells=cells,
            notes=(*assumed, *side.notes, *side.warnings),
        )

    kept, skipped = table.read(run)
    return [each for _, each in kept], skipped


def said_of_job(job: Job) -> dict[str, int]:
    """Return what a job says of its run, in the words of a training log."""
    parallel = job.parallel
    said = {"gpus": parallel.world_size, "layers": job.model.layers, "hidden": job.model.hidden}
    said |= {name: getattr(parallel, name) for name in ("tp", "pp", "vpp", "cp", "ep")}
    return said | {name: getattr(job, name) for name in ("global_batch", "micro_batch", "seq_length")}
