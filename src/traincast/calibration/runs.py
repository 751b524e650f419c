"""Training runs of a table: each row a job with what was measured, or the reason why there is none.

Columns are read by name in any order; docs/data-files.md describes them, and docs/jobs.md what follows from those
that are empty.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from traincast.calibration.columns import ALIASES, under_common_names
from traincast.calibration.kind import ClusterLike
from traincast.calibration.run_jobs import ASSUMED_FRAMEWORK, model_from_columns, nic_bytes_per_s, request_of
from traincast.calibration.tables import MeasurementTable, Row, Skipped
from traincast.diagnostics import Note
from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import cluster_for, load_cluster
from traincast.hardware.gpu import load_gpu
from traincast.job.job import Job
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.blocks.share import Sequences, Share
from traincast.model.counts import token_flops
from traincast.model.model import Model
from traincast.model.structure import layer_blocks, parts_of
from traincast.shipped import constant
from traincast.units import counted

COLUMNS = {"model", "gpu", "num_gpus"}
"""What a file must name to be one of training runs."""
LAYOUT_COLUMNS = {"layers", "hidden", "heads", "seq_len", "global_batch", "micro_batch", "gpu", "num_gpus", "tp", "pp"}
"""What a row must fill to have a full layout."""
MEMORY_KINDS = ("allocated", "reserved", "device")
"""What a printed memory may be; the last where nothing says it."""
HARD = "hard"
"""Column with why a row is far off where no column tells it: such rows are in all figures and in no fit."""
_STEP_METRICS = ("iter_time_s", "tokens_per_s_per_gpu", "samples_per_s_total", "sequences_per_s_total")
BY_COST = "by-cost"
"""What the column ``stage_layers`` says of `layers_by_cost`."""
GIB = 2**30


FLOP_COUNTS = {"weights": (0, 1.0), "causal": (1, 1.0), "full": (2, 1.0), "full+recompute": (2, 4 / 3)}
"""How the FLOP are counted that are divided by the step, by what ``flop_count`` says: attention not at all (0), causal
attention as its half (1) or the full square (2), and the factor for recomputed layers."""


class RunGroups(Struct, frozen=True, kw_only=True):
    """Name of a run's group in each grouping."""

    source: str
    family: str
    """Source, model, chip and precision."""
    model: str
    gpu: str
    chip: str
    """Its GPU, whatever the memory and the links."""
    precision: str
    """A type of GEMMs, or ``fp8`` and ``fp4`` for every flavour of them."""
    moe: str
    """``moe`` or ``dense``."""
    task: str
    framework: str
    layout: str
    """``full`` or ``partial`` (`is_full_layout`)."""

    def named(self, grouping: str) -> str:
        """Return the group in a grouping by its name."""
        return str(getattr(self, grouping))


GROUPINGS = RunGroups.__struct_fields__


class MeasuredRun(Struct, frozen=True, kw_only=True):
    """One measured run that can be predicted: a job, the cluster it ran on, and what was measured."""

    id: str
    request: JobRequest
    """What the row says of the job."""
    cluster: Cluster
    """Preset of its GPU or one built from the datasheet, with the node and the network cards of the row."""
    measured_s: float | None
    """Measured step; None where the run did not work (`outcome`)."""
    peak_bytes: float | None = None
    """Peak memory of a GPU as printed."""
    outcome: str = "ok"
    """``ok``, or ``crashed`` for a layout that did not run (mostly for want of memory)."""
    full_layout: bool = False
    """Whether shape, batch, layout and step were all published (`is_full_layout`)."""
    memory_kind: str = MEMORY_KINDS[-1]
    """What `peak_bytes` is: of `MEMORY_KINDS`."""
    first_stage_memory: bool = False
    """Whether `peak_bytes` is that of the first stage; else of the largest."""
    stage_layers: str = ""
    """Layers of each stage, or `BY_COST`; empty where the framework decides."""
    notes: tuple[Note, ...] = ()
    """What was assumed of what the columns leave out."""
    groups: RunGroups
    cells: Mapping[str, str]
    """The row's cells by column."""


class Runs(NamedTuple):
    """What a table of training runs holds: every row, as a run or as a skipped one."""

    rows: tuple[MeasuredRun, ...]
    skipped: tuple[Skipped, ...]


def holds_steps(columns: Sequence[str]) -> bool:
    """Say whether columns are those of training runs with their steps."""
    names = {ALIASES.get(name, name) for name in columns}
    return names >= COLUMNS and ("x_iter_time_s" in names or {"measured_metric", "measured_value"} <= names)


def holds_memory(columns: Sequence[str]) -> bool:
    """Say whether columns are those of training runs with their memory."""
    return {ALIASES.get(name, name) for name in columns} >= {*COLUMNS, "x_peak_mem_gib"}


def read_runs(table: MeasurementTable, cluster: ClusterLike | None = None) -> Runs:
    """Turn a table of training runs into jobs with what was measured.

    Parameters
    ----------
    table : MeasurementTable
        With columns of the common schema (docs/data-files.md).
    cluster : str, path or Cluster, optional
        Where all rows ran; rows of another GPU are skipped. By default each row's own.
    """
    timed = holds_steps(table.columns)
    ran_on = None if cluster is None else load_cluster(cluster)
    kept, skipped = table.read(lambda row: run_of(row, timed=timed, ran_on=ran_on))
    return Runs(tuple(run for _, run in kept), skipped)


def run_of(row: Row, *, timed: bool = True, ran_on: Cluster | None = None) -> MeasuredRun | Skipped:
    """Turn a row into a job with what was measured; in a table of steps (`timed`) each row needs one.

    Raises
    ------
    TraincastError
        If the row cannot be described: its model or GPU is not known, or a cell is not a number.
    """
    cells = under_common_names(row.cells)
    row = replace(row, cells=cells)
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
    if "memory_kind" in cells and cells["memory_kind"] not in MEMORY_KINDS:
        raise row.wrong("memory_kind", f"it must be one of {', '.join(MEMORY_KINDS)}")
    per_node = row.count("gpus_per_node") if "gpus_per_node" in cells else None
    return MeasuredRun(
        id=row.id,
        request=request,
        cluster=ran_on or constant(cluster_for, gpu, per_node, nic_bytes_per_s(row), row.count("num_gpus")),
        measured_s=step_s,
        peak_bytes=peak_bytes,
        outcome="ok" if ran else cells["outcome"],
        full_layout=is_full_layout(row),
        memory_kind=cells.get("memory_kind", MEMORY_KINDS[-1]),
        first_stage_memory=cells.get("memory_stage") == "first",
        stage_layers=cells.get("stage_layers", ""),
        notes=notes,
        groups=groups_of(row, gpu, request),
        cells=cells,
    )


def is_full_layout(row: Row) -> bool:
    """Say whether a row is a pretraining run whose shape, batch, layout and step were all published.

    Its layout is full if its task is pretraining (``x_task``, or no such column), every one of `LAYOUT_COLUMNS` is
    filled, and a step time can be told without counting FLOP: from ``x_iter_time_s``, or from a time or a rate of
    samples or tokens.
    """
    cells, metric = row.cells, row.cells.get("measured_metric")
    rated = "measured_value" in cells and metric in _STEP_METRICS
    measured = "x_iter_time_s" in cells or rated
    pretrain = cells.get("x_task", "pretrain") == "pretrain" and cells.get("outcome", "ok") == "ok"
    return pretrain and measured and cells.keys() >= LAYOUT_COLUMNS


def groups_of(row: Row, gpu: str, request: JobRequest) -> RunGroups:
    """Return the name of the row's group in every grouping."""
    source, model = row.cells.get("source", "unknown"), row.cells.get("model", "unknown")
    kind = precision_class(request.precision)
    # The first word: H100-SXM-80GB and H100-PCIe-80GB are both H100.
    chip = gpu.partition("-")[0] if not gpu.startswith("TPU") else gpu
    return RunGroups(
        source=source,
        family=f"{source}, {model}, {chip}, {kind}",
        model=model,
        gpu=gpu,
        chip=chip,
        precision=kind,
        moe="moe" if "experts" in row.cells else "dense",
        task=row.cells.get("x_task", "pretrain"),
        framework=str(request.framework or "unknown"),
        layout="full" if is_full_layout(row) else "partial",
    )


def precision_class(precision: str | None) -> str:
    """Return ``fp8`` and ``fp4`` for every flavour of them, ``unknown`` for none."""
    if precision is None:
        return "unknown"
    return {"fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}.get(precision, precision)


def is_fitted(run: MeasuredRun) -> bool:
    """Say whether the shipped factors were fitted to runs like this one: pretraining, with a full layout.

    Runs that are marked as hard are not, nor are those of a sweep over layouts.
    """
    return run.full_layout and "sweep" not in run.cells and HARD not in run.cells


def assumed_framework(run: MeasuredRun) -> Note | None:
    """Return the note that a run's column names no known framework; None where it does."""
    return next((note for note in run.notes if note.code == ASSUMED_FRAMEWORK), None)


def assumed_frameworks(runs: Sequence[MeasuredRun]) -> tuple[Note, ...]:
    """Return for every way in which a framework was assumed of how many runs it was, and the first of them."""
    found = [note for note in map(assumed_framework, runs) if note is not None]
    count = Counter(note.text for note in found)
    first = {note.text: note for note in reversed(found)}
    return tuple(Note(ASSUMED_FRAMEWORK, f"{counted(count[text], 'row')}: {text}", first[text].place) for text in count)


def measured_step_s(row: Row, model: Model) -> float | None:
    """Return the measured step in seconds, None where it cannot be told.

    It is ``measured_value``, or follows from it by its ``measured_metric``, or stands in ``x_iter_time_s``; any column
    may be missing. FLOP/s tell a step only together with ``flop_count``.

    Raises
    ------
    FormatError
        If a cell is not a positive number.
    """
    # Without its value a metric says nothing; the step may still stand in a column of its own.
    metric = row.cells.get("measured_metric") if "measured_value" in row.cells else None
    if metric == "iter_time_s":
        return row.number("measured_value")
    known = {"global_batch", "seq_len", "num_gpus"} <= set(row.cells)
    if metric in ("samples_per_s_total", "sequences_per_s_total") and known:
        return row.number("global_batch") / row.number("measured_value")
    if metric == "tokens_per_s_per_gpu" and known:
        return _tokens(row) / (row.number("measured_value") * row.count("num_gpus"))
    if "x_iter_time_s" in row.cells:
        return row.number("x_iter_time_s")
    if metric not in ("tflops_per_gpu", "mfu_pct") or not known or "flop_count" not in row.cells:
        return None
    # The source's own count of FLOP by its FLOP per second.
    if row.cells["flop_count"] not in FLOP_COUNTS:
        raise row.wrong("flop_count", f"it must be one of {', '.join(FLOP_COUNTS)}")
    squares, recompute = FLOP_COUNTS[row.cells["flop_count"]]
    flops = token_flops(model, row.count("seq_len"))
    attention = flops.attention_core * (squares if model.attention.causal else min(squares, 1))
    per_token = 3 * ((flops.matrices - flops.head + attention) * recompute + flops.head)
    value = row.number("measured_value")
    if metric == "tflops_per_gpu":
        per_gpu = value * 1e12
    else:
        # The sources that print MFU mean the bf16 peak, and ran in bf16 (PaLM, arXiv 2204.02311, appendix B).
        per_gpu = value / 100 * load_gpu(row.cells.get("gpu", "")).peak_flops_per_s("bf16")
    return _tokens(row) * per_token / (per_gpu * row.count("num_gpus"))


def _tokens(row: Row) -> float:
    return row.number("global_batch") * row.number("seq_len")


def _without_step(row: Row) -> str:
    """Say why a row has no step."""
    lacking = [name for name in ("measured_metric", "measured_value") if name not in row.cells]
    if lacking:
        columns = "columns" if len(lacking) > 1 else "column"
        return f"no step time: the {columns} {' and '.join(lacking)} and x_iter_time_s are empty"
    if row.cells["measured_metric"] in ("tflops_per_gpu", "mfu_pct"):
        return "no step time: only FLOP/s are printed, and how its source counts FLOP is not known"
    return f"no step time: measured_metric {row.cells['measured_metric']!r} is not one that tells it"


def job_of_run(run: MeasuredRun) -> Job:
    """Return the job of a run.

    Raises
    ------
    InfeasibleError
        If its layout cannot be run.
    TraincastError
        If it cannot be described.
    """
    request = run.request
    if not run.stage_layers:
        return resolve_job(request, run.cluster)
    if run.stage_layers != BY_COST:
        try:
            listed = tuple(map(int, run.stage_layers.split()))
        except ValueError:
            message = f"is {run.stage_layers!r}; write the layers of each stage like 3 3 2, or {BY_COST}"
            raise ConfigError(message, "stage_layers") from None
        return resolve_job(replace(request, stage_layers=listed), run.cluster)
    layers = layers_by_cost(request.model, request.pp or 1)
    if layers is None:
        raise InfeasibleError(f"{request.pp} stages leave one without any block")
    return resolve_job(request, run.cluster).with_values(layers_Q=layers)


def layers_by_cost(model: Model, pp: int) -> tuple[int, ...] | None:
    """Return the layers of each stage of a dense model as nanotron lays them, None where a stage gets no block at all.

    Blocks go to a stage until their cost reaches its share of the whole; the block that passes it stays. So the first
    stages get more than their share, and the last ones, with the head, fewer or none. Source: nanotron,
    src/nanotron/models/base.py (build_model) and models/llama.py (get_block_compute_costs). There a share that is met
    exactly is not passed yet; the sweep's runs of 16 layers on 2 and 4 stages, which alone meet it, end the stage: 28
    of their steps err by 7 % with the block more, and by 4 % without.
    """
    parts = parts_of(layer_blocks(model, 0), Share(model=model, sequences=Sequences(length=1)))
    layer = sum(gemm.elements for part in parts for gemm in part.gemms)
    # Embedding, layers, final norm, head, cast to fp32 and loss; those without GEMMs cost nothing.
    costs = [0, *[layer] * model.layers, 0, model.vocab * model.hidden, 0, 0]
    total = sum(costs)
    of_stage, blocks, stage = [0] * pp, [0] * pp, 0
    for block, cost in enumerate(accumulate(costs)):
        of_stage[stage] += 1 <= block <= model.layers
        blocks[stage] += 1
        if cost * pp >= total * (stage + 1) and stage + 1 < pp:
            stage += 1
    return tuple(of_stage) if all(blocks) else None
