"""Published training runs as jobs with a measured step: one `RunRow` per row, or the reason why there is none.

Columns are read by name in any order; what they leave out follows the rules of `traincast.calibrate.runs.request`,
each use of one listed among the row's notes. The rules are listed in docs/jobs.md, published runs as jobs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from traincast.calibrate.measurements import Skipped
from traincast.calibrate.runs.nanotron import is_nanotron, nanotron_run
from traincast.calibrate.runs.network import nic_bytes_per_s
from traincast.calibrate.runs.remarks import remarks
from traincast.calibrate.runs.request import ASSUMED_STACK, request_of
from traincast.calibrate.runs.run import RunRow, gpu_family, precision_class
from traincast.calibrate.runs.steps import measured_step_s
from traincast.calibrate.tables import Row, Table
from traincast.diagnostics import Note
from traincast.hardware.cluster import Cluster
from traincast.hardware.gpu_clusters import cluster_for
from traincast.hardware.gpus import load_gpu
from traincast.spec.job import JobRequest
from traincast.spec.model_columns import model_from_columns
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


def assumed_stack(run: RunRow) -> Note | None:
    """Return the note that a run's framework does not tell its stack; None where it does."""
    return next((note for note in run.notes if note.code == ASSUMED_STACK), None)


def assumed_stacks(runs: Sequence[RunRow]) -> tuple[Note, ...]:
    """Return for every way in which a stack was assumed of how many runs it was, and the first of them."""
    found = [note for note in map(assumed_stack, runs) if note is not None]
    count = Counter(note.text for note in found)
    first = {note.text: note for note in reversed(found)}
    return tuple(Note(ASSUMED_STACK, f"{counted(count[text], 'row')}: {text}", first[text].place) for text in count)


def is_runs_table(columns: Sequence[str]) -> bool:
    """Say whether a file with these columns is one of training runs."""
    names = set(columns)
    return set(COLUMNS) <= names and bool({"measured_metric", "x_iter_time_s"} & names)


def is_full_layout(row: Row) -> bool:
    """Say whether a row is a pretraining run whose shape, batch, layout and step were all published.

    It is one if its task is pretraining (``x_task``, or no such column), every one of `LAYOUT_COLUMNS` is
    filled, and a step time can be told without counting FLOP: from ``x_iter_time_s``, or from a time or a
    rate of samples or tokens.
    """
    cells = row.cells
    rated = "measured_value" in cells and cells.get("measured_metric") in _STEP_METRICS
    measured = "x_iter_time_s" in cells or rated
    pretrain = cells.get("x_task", "pretrain") == "pretrain" and cells.get("status", "ok") == "ok"
    return pretrain and measured and all(name in cells for name in LAYOUT_COLUMNS)


def read_runs(table: Table) -> Runs:
    """Turn a table of training runs into jobs with a measured step.

    Parameters
    ----------
    table : Table
        With the columns of ``measured_training_runs.csv`` or ``nanotron_ultrascale_h100.csv``.

    Returns
    -------
    Runs
        Every row is in it, as a run or as a skipped one.
    """
    nanotron = is_nanotron(table.columns)
    kept, skipped = table.read(nanotron_run if nanotron else run_of)
    return Runs(
        rows=tuple(run for _, run in kept),
        skipped=skipped,
        full_layout=sum(map(_counted_as_nanotron if nanotron else is_full_layout, table.rows)),
    )


def run_of(row: Row) -> RunRow | Skipped:
    """Turn a row of ``measured_training_runs.csv`` into a job with a measured step.

    Parameters
    ----------
    row : Row
        One row.

    Returns
    -------
    RunRow or Skipped

    Raises
    ------
    TraincastError
        If the row cannot be described: its model or GPU is not known, or a cell is no number.
    """
    remark = remarks().get(row.id)
    if remark is not None and remark.status == "exclude":
        return Skipped(row.id, f"excluded: {remark.reason}")
    lacking = [name for name in ("seq_len", "global_batch", "num_gpus", "gpu") if name not in row.cells]
    if lacking:
        return Skipped(row.id, f"the columns {', '.join(lacking)} are empty")
    model = model_from_columns(row.cells)
    step_s = measured_step_s(row, model)
    if step_s is None:
        return Skipped(row.id, _without_step(row))
    request, notes = request_of(row, model)
    gpu = load_gpu(row.cells["gpu"]).name
    nic = nic_bytes_per_s(row)
    per_node = row.count("gpus_per_node") if "gpus_per_node" in row.cells else None
    peak = row.number("x_peak_mem_gib") * GIB if "x_peak_mem_gib" in row.cells else None
    return RunRow(
        id=row.id,
        request=request,
        cluster=_cluster(gpu, per_node, nic, request.gpus),
        measured_s=step_s,
        peak_bytes=peak,
        full_layout=is_full_layout(row),
        remark=remark,
        notes=notes,
        groups=_groups(row, gpu, request),
        cells=row.cells,
    )


def _without_step(row: Row) -> str:
    """Say why a row has no step."""
    lacking = [name for name in ("measured_metric", "measured_value") if name not in row.cells]
    if lacking:
        columns = "columns" if len(lacking) > 1 else "column"
        return f"no step time: the {columns} {' and '.join(lacking)} and x_iter_time_s are empty"
    if row.cells["measured_metric"] in ("tflops_per_gpu", "mfu_pct"):
        return "no step time: only FLOP/s are printed, and how its source counts FLOP is not known"
    return f"no step time: measured_metric {row.cells['measured_metric']!r} is none that tells it"


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
        "stack": str(request.stack or "unknown"),
        "layout": "full" if is_full_layout(row) else "partial",
    }


def _counted_as_nanotron(row: Row) -> bool:
    return row.cells.get("status", "ok") == "ok" and "x_iter_time_s" in row.cells
