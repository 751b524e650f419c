"""Training logs of jobs that the user describes, as measured runs."""

from pathlib import Path

from msgspec.structs import replace

from traincast.analysis.logged import logged_side
from traincast.calibration.kind import ClusterLike
from traincast.calibration.runs import MeasuredRun, groups_of, job_of_run
from traincast.calibration.tables import LOG_COLUMN, MeasurementTable, Row, Skipped
from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.formats.training_log.facts import FACTS
from traincast.formats.training_log.job import draft_of_log
from traincast.formats.training_log.reader import read_log
from traincast.hardware.clusters import load_cluster
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.simulation.reproducible import DEFAULT_CLUSTER


def read_log_runs(
    table: MeasurementTable, job: Draft | None = None, cluster: ClusterLike | None = None
) -> tuple[list[MeasuredRun], tuple[Skipped, ...]]:
    """Turn training logs into runs of a job with the steps that they tell.

    Parameters
    ----------
    table : MeasurementTable
        Whose rows are logs (`LOG_COLUMN`).
    job : Draft, optional
        The job that all of them ran; by default the one that each describes by its arguments.
    cluster : str, path or Cluster, optional
        Where; by default where the job says.

    Returns
    -------
    runs : list of MeasuredRun
    skipped : tuple of Skipped
        Logs that tell no step, or no job where none is given.
    """

    def run(row: Row) -> MeasuredRun:
        log = read_log(Path(row.cells[LOG_COLUMN]))
        draft = job or draft_of_log(log)
        if draft is None:
            raise ConfigError("the log does not say what was trained; give the job that it is of")
        said = cluster or draft.cluster
        request, where = draft.request(), load_cluster(said or DEFAULT_CLUSTER)
        notes = [note for note in draft.notes if note.code == "job-from-log"]
        if not said:
            notes.append(Note("cluster-default", f"no cluster was given; taken as {where.name}"))
        cells = {"source": Path(row.path).name, "model": request.model.name, "x_task": request.task}
        cells |= {"experts": "1"} if request.model.experts else {}
        groups = groups_of(replace(row, cells=cells), where.gpu.name, request)
        found = MeasuredRun(id=row.id, request=request, cluster=where, measured_s=None, groups=groups, cells=cells)
        side = logged_side(log, row.id, said_of_job(job_of_run(found)))
        return replace(found, measured_s=side.step_s, notes=(*notes, *side.notes, *side.warnings))

    kept, skipped = table.read(run)
    return [each for _, each in kept], skipped


def said_of_job(job: Job) -> dict[str, int]:
    """Return what a job says of its run, in the words of a training log."""
    said = {"gpus": job.parallel.world_size, "layers": job.model.layers, "hidden": job.model.hidden}
    return said | {name: job.decided(name) for name in FACTS if name not in said}
