"""`traincast sweep`: a table of all points, the same bytes however often it was stopped."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest

SPEC = """
[base.batch]
seq_length = 4096
global_batch = 64
[base.cluster]
gpus = 16
[grid]
"model.name" = ["llama3-8b", "llama3-70b"]
"batch.micro_batch" = [1, 2, 4]
"cluster.name" = ["h100", "nowhere"]
"parallel.tp" = [1, 2, 4, 8]
[prices]
h100 = 2.5
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The table of a sweep that nobody stopped."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "sweep.toml").write_text(SPEC)
    subprocess.run(words(folder / "sweep.toml", folder / "found.csv"), check=True, capture_output=True)
    return folder / "found.csv"


def words(spec, out, *more):
    return [sys.executable, "-m", "traincast.cli", "sweep", str(spec), "--out", str(out), *more]


def test_every_point_has_a_row_that_predict_agrees_with(table, call):
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 48
    assert [row["status"] for row in rows[4:8]] == ["refused"] * 4
    assert "nowhere" in rows[4]["message"]
    assert rows[24]["status"] == "infeasible"
    assert "does not fit" in rows[24]["message"]
    row = rows[1]
    job = "--model llama3-8b --cluster h100 --gpus 16 --tp 2 --seq-length 4096 --global-batch 64 --micro-batch 1"
    _, out, _ = call("predict", *job.split(), "--json")
    assert float(row["step_s"]) == json.loads(out)["iteration_time_s"]
    assert float(row["step_low_s"]) < float(row["step_s"]) < float(row["step_high_s"])
    hours = 1e12 / float(row["tokens_per_s_per_gpu"]) / 3600
    assert float(row["gpu_hours_per_1e12_tokens"]) == pytest.approx(hours)
    assert float(row["cost_per_1e12_tokens"]) == pytest.approx(2.5 * hours)
    assert not table.with_name("found.csv.journal").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_sweep_that_is_killed_goes_on_and_writes_the_same_bytes(spec, tmp_path, table):
    out, journal = tmp_path / "found.csv", tmp_path / "found.csv.journal"
    with subprocess.Popen(words(spec, out, "--workers", "1", "--quiet"), stderr=subprocess.DEVNULL) as killed:
        while not (journal.exists() and journal.read_bytes().count(b"\n") >= 2):
            assert killed.poll() is None
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
    assert not out.exists()
    assert journal.exists()
    done = subprocess.run(words(spec, out), check=True, capture_output=True, encoding="utf-8")
    assert "48 points, 24 refused" in done.stdout
    assert out.read_bytes() == table.read_bytes()


def test_parquet_holds_the_same_rows(spec, tmp_path, table):
    polars = pytest.importorskip("polars", reason="needs polars: pip install 'traincast[frames]'")
    subprocess.run(words(spec, tmp_path / "found.parquet"), check=True, capture_output=True)
    found = polars.read_parquet(tmp_path / "found.parquet")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert found.columns == list(rows[0])
    assert found["step_s"].dtype == polars.Float64
    assert found["parallel.tp"].to_list() == [1, 2, 4, 8] * 12
    assert ["" if step is None else str(step) for step in found["step_s"]] == [row["step_s"] for row in rows]


@pytest.mark.parametrize(
    ("out", "more", "message"),
    [
        ("found.txt", (), "must end in .csv or .parquet"),
        ("found.csv", ("--on", "slurm"), "slurm"),
        ("found.csv", ("--on", "local://there"), "has no address"),
        ("nowhere/found.csv", (), "cannot be written"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_runs(spec, tmp_path, out, more, message):
    done = subprocess.run(words(spec, tmp_path / out, *more), check=False, capture_output=True, encoding="utf-8")
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / out).exists()
