"""`traincast sweep`: a table of all points, the same bytes however often it was stopped."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import traincast

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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_sweep_that_is_killed_goes_on_and_writes_the_same_bytes(spec, tmp_path, table):
    out, journal = tmp_path / "found.csv", tmp_path / "found.csv.journal"
    with subprocess.Popen(words(spec, out, "--workers", "1", "--quiet"), stderr=subprocess.PIPE) as killed:
        while not (journal.exists() and journal.read_bytes().count(b"\n") >= 2):
            assert killed.poll() is None
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
        assert killed.stderr.read() == b""
    assert not out.exists()
    assert journal.exists()
    done = subprocess.run(words(spec, out), check=True, capture_output=True, encoding="utf-8")
    assert "48 points, 24 refused" in done.stdout
    assert out.read_bytes() == table.read_bytes()


def test_a_table_that_cannot_be_written_is_refused_before_anything_runs(spec, tmp_path, call):
    (tmp_path / "folder.csv").mkdir()
    for out, message in (
        ("folder.csv", "is a directory"),
        ("no/found.csv", "is not there"),
        ("found.txt", "must end in"),
    ):
        code, printed, told = call("sweep", spec, "--out", tmp_path / out, "--workers", 1)
        assert (code, printed) == (1, "")
        assert message in told
        assert "running" not in told


def test_a_name_as_long_as_any_may_be_is_a_table(tmp_path):
    table = tmp_path / ("a" * 251 + ".csv")
    job = {"model": "llama3-8b", "cluster": "h100", "gpus": 8, "global_batch": 8, "seq_length": 512}
    assert traincast.sweep(**job, tp=[1], workers=1, out=table) == {"ok": 1}
    assert [path.name for path in tmp_path.iterdir()] == [table.name]


PLANS = """
work = "plan"
[plan]
headroom = 0.1
fix = { micro_batch = [1, 2], cp = 1 }
most = { tp = 4, pp = 2 }
[base.batch]
seq_length = 4096
global_batch = 32
[grid]
"model.name" = ["llama3-8b", "llama3-70b"]
"cluster.name" = ["h100"]
"cluster.gpus" = [8, 16]
[prices]
h100 = 2.5
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_points_may_be_plans_and_a_killed_sweep_of_them_goes_on(tmp_path, call):
    spec, out, whole = (tmp_path / name for name in ("plans.toml", "stopped.csv", "whole.csv"))
    spec.write_text(PLANS)
    journal = tmp_path / "stopped.csv.journal"
    with subprocess.Popen(words(spec, out, "--workers", "1", "--quiet"), stderr=subprocess.DEVNULL) as killed:
        while not (journal.exists() and journal.read_bytes().count(b"\n") >= 2):
            assert killed.poll() is None
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
    for target in (out, whole):
        subprocess.run(words(spec, target), check=True, capture_output=True)
    assert out.read_bytes() == whole.read_bytes()
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["status"] for row in rows] == ["ok", "ok", "infeasible", "ok"]
    limits = ("--fix", "micro_batch=1,2", "--cp", "1", "--max-tp", "4", "--max-pp", "2", "--headroom", "0.1")
    job = "--model llama3-8b --cluster h100 --gpus 16 --seq-length 4096 --global-batch 32 --gpu-hour-price 2.5"
    best = json.loads(call("plan", *job.split(), *limits, "--json")[1])["best"][0]
    assert float(rows[1]["step_s"]) == best["step_s"]
    assert (rows[1]["layout"], rows[1]["schedule"]) == (best["text"], best["layout"]["schedule"])
    assert float(rows[1]["probability"]) == best["probability"]
    assert float(rows[1]["cost_per_1e12_tokens"]) == pytest.approx(best["training"]["cost"])


def test_a_sweep_without_a_point_that_is_ok_fails_and_says_why(tmp_path, call):
    spec = tmp_path / "none.toml"
    spec.write_text(SPEC.replace('["h100", "nowhere"]', '["nowhere"]'))
    code, out, err = call("sweep", spec, "--out", tmp_path / "found.csv", "--quiet")
    assert (code, out) == (1, "")
    assert err.startswith(
        f"error: {tmp_path / 'found.csv'} has no point that is ok: of 24 points 24 refused; the first:"
    )
    assert "nowhere" in err and err.count("\n") == 1
    assert len((tmp_path / "found.csv").read_text().splitlines()) == 25
    assert not (tmp_path / "found.csv.journal").exists()


@pytest.mark.slow
def test_parquet_holds_the_same_rows(spec, tmp_path, table):
    polars = pytest.importorskip("polars", reason="needs polars: pip install 'traincast[frames]'")
    subprocess.run(words(spec, tmp_path / "found.parquet"), check=True, capture_output=True)
    found = polars.read_parquet(tmp_path / "found.parquet")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert found.columns == list(rows[0])
    assert found["step_s"].dtype == polars.Float64
    assert found["parallel.tp"].to_list() == [1, 2, 4, 8] * 12
    assert ["" if step is None else str(step) for step in found["step_s"]] == [row["step_s"] for row in rows]


@pytest.mark.slow
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
