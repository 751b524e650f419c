"""The layouts of Hugging Face's ultra-scale sweep with nanotron: 1B to 80B Llama models on 8 to 512 H100.

Sequence-parallel TP, 1F1B, no recomputation, bf16 and as many key/value heads as heads stand in the script that made
the sweep, not in the file. Source: huggingface/nanotron, scripts/scaling_benchmarks.py.
"""

from collections.abc import Iterable, Sequence
from functools import cache

from traincast.calibrate.measurements import Skipped
from traincast.calibrate.runs.run import RunRow, gpu_family
from traincast.calibrate.tables import Row
from traincast.errors import FormatError
from traincast.hardware.cluster import Cluster
from traincast.hardware.gpu_clusters import cluster_for
from traincast.hardware.gpus import load_gpu
from traincast.spec.job import JobRequest
from traincast.spec.model_columns import model_from_columns

ENVELOPE_MFU = 0.20
"""Runs below it are noise of the sweep: its repeats differ by up to 60 x (docs/measured.md, noise)."""

_COLUMNS = {"zero_stage", "grad_accum", "status", "mfu_pct"}
_NEEDED = ("model", "gpu", "num_gpus", "seq_len", "global_batch", "micro_batch", "tp", "pp")
_SIBLING = ("model", "num_gpus", "dp", "tp", "pp", "micro_batch", "grad_accum")
GIB = 2**30


def is_nanotron(columns: Sequence[str]) -> bool:
    """Say whether a file with these columns is the sweep of nanotron: it has all but one of `_COLUMNS`."""
    return len(_COLUMNS & set(columns)) >= len(_COLUMNS) - 1


def nanotron_run(row: Row) -> RunRow | Skipped:
    """Turn a row of ``nanotron_ultrascale_h100.csv`` into a job, with its step where it ran.

    Parameters
    ----------
    row : Row
        One row.

    Returns
    -------
    RunRow or Skipped
        Crashed layouts are runs without a step; those whose batch is not the printed one, and those that lack
        what a layout needs, are skipped.

    Raises
    ------
    TraincastError
        If a cell is no number.
    """
    status = row.cells.get("status", "")
    if status.endswith("_gbs_mismatch"):
        return Skipped(row.id, "dp x micro batch x accumulation is not the printed global batch: it has no step time")
    lacking = [name for name in _NEEDED if name not in row.cells]
    if lacking:
        return Skipped(row.id, f"the columns {', '.join(lacking)} are empty")
    crashed = status == "crashed_or_oom"
    if not crashed and "x_iter_time_s" not in row.cells:
        return Skipped(row.id, "it has no step time")
    request = _request(row)
    gpu = load_gpu(row.cells["gpu"]).name
    size = row.cells["model"]
    return RunRow(
        id=row.id,
        request=request,
        cluster=_cluster(gpu, request.gpus),
        measured_s=None if crashed else row.number("x_iter_time_s"),
        # The plot prints MiB / 1024 as GB, as nanotron's logger does.
        peak_bytes=row.number("gpu_mem_gb") * GIB if "gpu_mem_gb" in row.cells else None,
        outcome="crashed" if crashed else "ok",
        full_layout=not crashed,
        groups={
            "source": "nanotron",
            "family": f"nanotron, {size}, {gpu_family(gpu)}, bf16",
            "model": size,
            "gpu": gpu,
            "precision": "bf16",
            "moe": "dense",
            "task": "pretrain",
            "stack": "nanotron-2024",
            "layout": "full",
        },
        cells=row.cells,
    )


def _request(row: Row) -> JobRequest:
    size = row.cells["model"]
    model = model_from_columns({**row.cells, "model": f"llama-{size}"})
    return JobRequest(
        model=model,
        gpus=row.count("num_gpus"),
        seq_length=row.count("seq_len"),
        global_batch=row.count("global_batch"),
        micro_batch=row.count("micro_batch"),
        tp=row.count("tp"),
        pp=row.count("pp"),
        cp=1,
        vpp=1,
        zero=_zero_stage(row),
        sequence_parallel=row.count("tp") > 1,
        recompute="none",
        precision="bf16",
        stack="nanotron-2024",
    )


def _zero_stage(row: Row) -> int | None:
    """Return the stage of ZeRO; None, which leaves it to the stack, where it is not printed."""
    text = row.cells.get("zero_stage")
    if text is None:
        return None
    if text not in ("0", "1", "2", "3"):
        raise FormatError(f"column zero_stage is {text!r}; it must be 0, 1, 2 or 3", row.path, row.line)
    return int(text)


def fastest_siblings(runs: Iterable[RunRow], least_mfu: float = ENVELOPE_MFU) -> tuple[RunRow, ...]:
    """Return of each layout the fastest run that is above an MFU; siblings differ in ZeRO stage and repeat alone.

    Parameters
    ----------
    runs : iterable of RunRow
        Runs of the sweep.
    least_mfu : float
        Share of the peak, as the sweep counts it.
    """
    best: dict[tuple[str, ...], RunRow] = {}
    for run in runs:
        mfu = _mfu(run)
        if run.measured_s is None or mfu <= least_mfu:
            continue
        key = tuple(run.cells.get(name, "") for name in _SIBLING)
        held = best.get(key)
        if held is None or held.measured_s is None or run.measured_s < held.measured_s:
            best[key] = run
    return tuple(best.values())


def _mfu(run: RunRow) -> float:
    """Return the share of the peak that a run prints, 0 where it prints none."""
    try:
        return float(run.cells.get("mfu_pct", "0")) / 100
    except ValueError:
        return 0.0


@cache
def _cluster(gpu: str, gpus: int) -> Cluster:
    return cluster_for(gpu, 8, None, gpus)
