"""Measured training runs as jobs with a measured step: one `RunRow` per row, or the reason why there is none.

Columns are read by name in any order; docs/measurements.md describes them, and docs/jobs.md what follows from those
that are empty.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from os import PathLike
from typing import Any

from traincast.calibrate.measurements import Skipped
from traincast.calibrate.runs.models import model_from_columns
from traincast.calibrate.runs.request import ASSUMED_FRAMEWORK, nic_bytes_per_s, request_of
from traincast.calibrate.runs.run import RunRow, gpu_family, precision_class
from traincast.calibrate.runs.schema import common_columns, common_row
from traincast.calibrate.runs.steps import measured_step_s
from traincast.calibrate.tables import Row, Table
from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import cluster_for, load_cluster
from traincast.hardware.gpu import load_gpu
from traincast.job.job import JobRequest
from traincast.units import counted

COLUMNS = ("model", "gpu", "num_gpus")
"""What a file must name to be one of training runs."""

LAYOUT_COLUMNS = (
    "layers",
    "hidden",
    "heads",
    "seq_len",
    "global_batch",
    "micro_batch",
    "gpu",
    "num_gpus",
    "tp",
    "pp",
)
"""What a row must fill to have a full layout."""

_STEP_METRICS = ("iter_time_s", "tokens_per_s_per_gpu", "samples_per_s_total", "sequences_per_s_total")
MEMORY_KINDS = ("allocated", "reserved", "device")
"""What a printed memory may be; the last where nothing says it."""
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What a table of training runs holds.

    Parameters
    ----------
    rows : tuple of RunRow
        Rows that can be predicted.
    skipped : tuple of Skipped
        The others, each with its reason.
    full_layout : int
        Rows with a full layout, skipped ones among them (see `is_full_layout`).
    """

    rows: tuple[RunRow, ...]
    skipped: tuple[Skipped, ...]
    full_layout: int

    @property
    def coverage(self) -> float:
        """Share of the rows with a full layout that can be predicted; NaN without any."""
        covered = sum(row.full_layout for row in self.rows)
        return covered / self.full_layout if self.full_layout else float("nan")

    def counts(self, by: str) -> dict[str, int]:
        """Return the number of rows in each group of a grouping, the largest first."""
        return dict(Counter(row.groups[by] for row in self.rows).most_common())


def assumed_framework(run: RunRow) -> Note | None:
    """Return the note that a run's column names no known framework; None where it does."""
    return next((note for note in run.notes if note.code == ASSUMED_FRAMEWORK), None)


def assumed_frameworks(runs: Sequence[RunRow]) -> tuple[Note, ...]:
    """Return for every way in which a framework was assumed of how many runs it was, and the first of them."""
    found = [note for note in map(assumed_framework, runs) if note is not None]
    count = Counter(note.text for note in found)
    first = {note.text: note for note in reversed(found)}
    return tuple(Note(ASSUMED_FRAMEWORK, f"{counted(count[text], 'row')}: {text}", first[text].place) for text in count)


def is_runs_table(columns: Sequence[str]) -> bool:
    """Say whether a file with these columns is one of training runs: with a step, or with their memory."""
    names = common_columns(columns)
    return set(COLUMNS) <= names and bool({"measured_metric", "x_iter_time_s", "x_peak_mem_gib"} & names)


def has_steps(columns: Sequence[str]) -> bool:
    """Say whether a file with these columns holds steps of training runs."""
    names = common_columns(columns)
    return set(COLUMNS) <= names and ("x_iter_time_s" in names or {"measured_metric", "measured_value"} <= names)


def is_full_layout(row: Row) -> bool:
    """Say whether a row is a pretraining run whose shape, batch, layout and step were all published.

    The row is one of the common schema. Its layout is full if its task is pretraining (``x_task``, or no such
    column), every one of `LAYOUT_COLUMNS` is filled, and a step time can be told without counting FLOP: from
    ``x_iter_time_s``, or from a time or a rate of samples or tokens.
    """
    cells = row.cells
    rated = "measured_value" in cells and cells.get("measured_metric") in _STEP_METRICS
    measured = "x_iter_time_s" in cells or rated
    pretrain = cells.get("x_task", "pretrain") == "pretrain" and cells.get("outcome", "ok") == "ok"
    return pretrain and measured and all(name in cells for name in LAYOUT_COLUMNS)


def read_runs(table: Table, cluster: str | PathLike[str] | Cluster | None = None) -> Runs:
    """Turn a table of training runs into jobs with what was measured.

    Parameters
    ----------
    table : Table
        With columns of the common schema, or of a public table that rules bring to it.
    cluster : str, path or Cluster, optional
        Where all rows ran; rows of another GPU are skipped. By default each row's own.

    Returns
    -------
    Runs
        Every row is in it, as a run or as a skipped one.
    """
    common = replace(table, rows=tuple(common_row(row, table.columns) for row in table.rows))
    timed = has_steps(table.columns)
    ran_on = None if cluster is None else load_cluster(cluster)
    kept, skipped = common.read(lambda row: _run_of(row, timed=timed, ran_on=ran_on))
    printed = {row.place: row.cells for row in table.rows}
    return Runs(
        rows=tuple(replace(run, cells=printed[row.place]) for row, run in kept),
        skipped=skipped,
        full_layout=sum(map(is_full_layout, common.rows)),
    )


def run_of(row: Row) -> RunRow | Skipped:
    """Turn a row into a job with what was measured.

    Parameters
    ----------
    row : Row
        One row of a table.

    Returns
    -------
    RunRow or Skipped

    Raises
    ------
    TraincastError
        If the row cannot be described: its model or GPU is not known, or a cell is no number.
    """
    found = _run_of(common_row(row))
    return found if isinstance(found, Skipped) else replace(found, cells=row.cells)


def _run_of(row: Row, *, timed: bool = True, ran_on: Cluster | None = None) -> RunRow | Skipped:
    """Turn a row of the common schema into a job with what was measured; in a table of steps each row needs one."""
    cells = row.cells
    if "exclude" in cells:
        return Skipped(row.id, cells["exclude"])
    # A sweep is over layouts: a row that does not say its own is none of it.
    needed = ("seq_len", "global_batch", "num_gpus", "gpu", *(("micro_batch", "tp", "pp") if "sweep" in cells else ()))
    lacking = [name for name in needed if name not in cells]
    if lacking:
        return Skipped(row.id, f"the columns {', '.join(lacking)} are empty")
    model = model_from_columns({**cells, "model": cells.get("base_model", cells.get("model", ""))})
    ran = cells.get("outcome", "ok") == "ok"
    step_s = measured_step_s(row, model) if ran else None
    peak_bytes = row.number("x_peak_mem_gib") * GIB if "x_peak_mem_gib" in cells else None
    if ran and step_s is None and (timed or peak_bytes is None):
        return Skipped(row.id, _without_step(row))
    request, notes = request_of(row, model)
    gpu = load_gpu(cells["gpu"]).name
    if ran_on is not None and gpu != ran_on.gpu.name:
        return Skipped(row.id, f"ran on {gpu}; cluster {ran_on.name} has {ran_on.gpu.name}")
    return RunRow(
        id=row.id,
        request=request,
        cluster=ran_on or _cluster_of(row, gpu),
        measured_s=step_s,
        peak_bytes=peak_bytes,
        outcome="ok" if ran else cells["outcome"],
        full_layout=is_full_layout(row),
        notes=notes,
        groups=_groups(row, gpu, request),
        cells=cells,
        **_told(row),
    )


def _told(row: Row) -> dict[str, Any]:
    """Return what a row says of its measurement."""
    cells = row.cells
    kind = cells.get("memory_kind", MEMORY_KINDS[-1])
    if kind not in MEMORY_KINDS:
        known = ", ".join(MEMORY_KINDS)
        raise FormatError(f"column memory_kind is {kind!r}; it must be one of {known}", row.path, row.line)
    return {
        "memory_kind": kind,
        "first_stage_memory": cells.get("memory_stage") == "first",
        **{name: cells.get(name, "") for name in ("sweep", "repeat_of", "stage_layers")},
    }


def _without_step(row: Row) -> str:
    """Say why a row has no step."""
    lacking = [name for name in ("measured_metric", "measured_value") if name not in row.cells]
    if lacking:
        columns = "columns" if len(lacking) > 1 else "column"
        return f"no step time: the {columns} {' and '.join(lacking)} and x_iter_time_s are empty"
    if row.cells["measured_metric"] in ("tflops_per_gpu", "mfu_pct"):
        return "no step time: only FLOP/s are printed, and how its source counts FLOP is not known"
    return f"no step time: measured_metric {row.cells['measured_metric']!r} is none that tells it"


def _cluster_of(row: Row, gpu: str) -> Cluster:
    """Return the cluster that a row says: that of its GPU, with its nodes and network cards."""
    per_node = row.count("gpus_per_node") if "gpus_per_node" in row.cells else None
    return _cluster(gpu, per_node, nic_bytes_per_s(row), row.count("num_gpus"))


@cache
def _cluster(gpu: str, per_node: int | None, nic: float | None, gpus: int) -> Cluster:
    return cluster_for(gpu, per_node, nic, gpus)


def _groups(row: Row, gpu: str, request: JobRequest) -> Mapping[str, str]:
    """Return the name of the row's group in every grouping."""
    source, model = row.cells.get("source", "unknown"), row.cells.get("model", "unknown")
    kind = precision_class(request.precision)
    return {
        "source": source,
        "family": f"{source}, {model}, {gpu_family(gpu)}, {kind}",
        "model": model,
        "gpu": gpu,
        "precision": kind,
        "moe": "moe" if "experts" in row.cells else "dense",
        "task": row.cells.get("x_task", "pretrain"),
        "framework": str(request.framework or "unknown"),
        "layout": "full" if is_full_layout(row) else "partial",
    }
