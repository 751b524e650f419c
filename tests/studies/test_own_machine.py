"""Jobs of one's own machine: rows that traincast reads, kernels of a profile, and what calibrating is worth."""

import gzip
import json
from pathlib import Path

import pytest

from judges.own_machine import ALL, BEFORE, BY_RUNS, Known, boards, forecast
from machine.jobs import JOBS, SHAPES
from machine.watch import attention_kernel, kernels_of
from own_machine import COLUMNS, JOBS_FILE, write
from traincast.calibration.runs import read_runs
from traincast.calibration.tables import read_table
from traincast.model.load import load_model

EXAMPLES = Path(__file__).parents[2] / "examples"


def _table(folder, seconds=None):
    """Write the table of all jobs on an H100, each with a step of so many seconds by its id, else 1."""
    measured = {"gpu": "NVIDIA H100 80GB HBM3", "peak_memory_gib": "20", "reserved_gib": "21", "outcome": "ok"}
    steps = seconds or {}
    rows = [
        dict.fromkeys(COLUMNS, "")
        | job.cells()
        | measured
        | {"memory_kind": "allocated", "step_time_s": str(steps.get(job.id, 1.0))}
        for job in JOBS
    ]
    write(folder / JOBS_FILE, rows)
    return read_runs(read_table(folder / JOBS_FILE))


def test_every_job_is_a_row_that_traincast_reads(tmp_path):
    runs = _table(tmp_path)
    assert not runs.skipped
    assert [run.id for run in runs.rows] == [job.id for job in JOBS]
    assert len({job.id for job in JOBS}) == len(JOBS)
    for run, job in zip(runs.rows, JOBS, strict=True):
        assert run.request.global_batch == job.micro_batch * job.microbatches
        assert (run.request.recompute == "full") == job.recompute


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_those_that_traincast_knows_by_these_names(name):
    model, shape = load_model(name), SHAPES[name]
    assert (model.layers, model.hidden, model.ffn_hidden, model.vocab) == (*shape[:3], shape.vocab)
    attention = model.attention
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (shape.heads, shape.kv_heads, shape.head_dim)
    assert model.tied_embeddings == shape.tied


def test_kernels_that_overlap_are_busy_once():
    def kernel(start, taken, name, kind="kernel"):
        return {"cat": kind, "ts": start, "dur": taken, "name": name}

    events = [
        kernel(0, 10, "a"),
        kernel(5, 10, "b"),
        kernel(20, 5, "a"),
        kernel(22, 1, "c"),
        kernel(0, 99, "x", "cpu_op"),
    ]
    found = kernels_of(events)
    assert found.busy_s == pytest.approx(20e-6)
    assert found.launches == 4
    assert found.names["a"] == pytest.approx(15e-6)


def test_kernels_of_a_profile_of_pytorch():
    text = gzip.decompress((EXAMPLES / "pytorch_ddp_2gpu_rank0.json.gz").read_bytes())
    found = kernels_of(json.loads(text)["traceEvents"])
    assert 0 < found.busy_s < sum(found.names.values()) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", "fa2"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "cudnn"),
        ("nvjet_tst_128x256_64x4", ""),
    ],
)
def test_attention_kernels_have_names(kernel, name):
    assert attention_kernel({kernel: 1.0}) == name


def test_runs_of_a_machine_that_is_slower_by_a_seventh_teach_it(tmp_path):
    runs = _table(tmp_path).rows
    steps = {run.id: 1.15 * forecast(run, Known(run.cluster)).forecast_s for run in runs}
    _table(tmp_path, steps)
    found = {(board.subject, board.name): board for board in boards(tmp_path)}
    before = found[f"own machine, {BEFORE}", ALL].figures
    after = found[f"own machine, {BY_RUNS}", ALL].figures
    assert before["bias"] == pytest.approx(100 * (1 / 1.15 - 1), abs=0.01)
    assert after["median"] < before["median"] / 3
