import io
import re

import numpy as np
import pytest
from rich.console import Console

import traincast
from datafiles import table_path
from traincast.calibration.kind import Request, kind_of
from traincast.calibration.kinds.runs import ONE_DEVIATION, memory_of_run
from traincast.calibration.kinds.runs import predict_memory as predict
from traincast.calibration.published import read_measurements
from traincast.calibration.run_jobs import model_from_columns
from traincast.calibration.runs import holds_memory, layers_by_cost, read_runs
from traincast.estimate.memory.fits import memory_deviation
from traincast.report.terminal.accuracy import print_validation

HEADER = (
    "id,model,layers,hidden,ffn_hidden,heads,kv_heads,vocab,seq_len,gpu,nodes,num_gpus,dp,tp,pp,zero_stage,"
    "micro_batch,grad_accum,global_batch,repeat,status,mfu_pct,tokens_per_s_per_gpu,tokens_per_s_total,gpu_mem_gb,"
    "x_iter_time_s"
)
SMALL = "1B,16,2048,8192,32,32,131072,4096,H100-SXM-80GB,1,8"
ROWS = (
    f"a,{SMALL},8,1,1,1,1,32,256,0,ok,38.1,9000,72000,24.2,14.5",
    f"b,{SMALL},8,1,1,0,16,2,256,0,crashed_or_oom,,,,,",
    f"c,{SMALL},1,8,1,0,4,64,256,0,crashed_or_oom,,,,,",
    f"d,{SMALL},4,1,2,0,1,64,256,0,ok,30,8000,64000,37.0,16",
)


def sweep(tmp_path, lines=(HEADER, *ROWS)):
    """Write a sweep as nanotron prints it."""
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path):
    return read_measurements(sweep(tmp_path))


def test_runs_with_memory_are_predicted_and_crashes_counted(table):
    found = predict(table, Request())
    assert found.ids == ("a", "d")
    assert found.details["meaning"] == ("reserved", "reserved")
    parts = [sum(found.details[f"{name}_bytes"][row] for name in ("parameters", "gradients")) for row in range(2)]
    assert all(0 < part < whole for part, whole in zip(parts, found.predicted, strict=True))
    assert np.all(np.abs(found.predicted / found.measured - 1) < 0.25)
    texts = {note.code: note.text for note in found.notes}
    assert texts["infeasible-ok"].startswith("of 2 runs that ran, 0")
    assert texts["infeasible-crashed"].startswith(
        "of 2 runs that crashed, 1 are called infeasible (50.0 %); 1 are refused"
    )
    within = np.quantile(np.abs(np.log(found.measured / found.predicted)), 0.68)
    assert f"within {100 * within:.1f} %" in texts["spread"]
    assert {each.id: each.reason for each in found.skipped}["b"].endswith("cannot")
    assert {each.id: each.reason for each in found.skipped}["c"].endswith("fits")


@pytest.mark.parametrize("dropped", HEADER.split(","))
def test_no_column_of_the_sweep_crashes(dropped, tmp_path):
    keep = [index for index, name in enumerate(HEADER.split(",")) if name != dropped]
    lines = [",".join(line.split(",")[index] for index in keep) for line in (HEADER, *ROWS)]
    found = predict(read_measurements(sweep(tmp_path, lines)), Request())
    assert len(found.ids) + len(found.skipped) == len(ROWS)
    assert all(row.reason for row in found.skipped)
    needed = {"model", "layers", "hidden", "ffn_hidden", "heads", "seq_len", "gpu", "num_gpus", "tp", "pp"}
    kept = set() if dropped in needed | {"micro_batch", "global_batch", "gpu_mem_gb"} else {"a", "d"}
    assert kept <= set(found.ids) or dropped in ("id", "x_iter_time_s")


def test_worst_rows_are_in_the_unit_of_what_was_measured(tmp_path):
    path = sweep(tmp_path)
    shown = io.StringIO()
    print_validation(Console(file=shown, width=300), traincast.validate(path, kind="memory-of-runs"))
    worst = shown.getvalue().split("Worst rows")[1].split("Skipped")[0]
    assert "24.2 GiB" in worst
    assert "37 GiB" in worst
    assert re.search(r"parameters [\d.]+ GiB, gradients [\d.]+ GiB", worst)
    assert "_bytes" not in worst
    assert " s " not in worst


def test_the_printed_stage_of_nanotron_is_the_first(table):
    runs = {run.id: run for run in read_runs(table).rows}
    found = memory_of_run(runs["d"])
    assert found.stage is not None
    assert not [name for name, _ in found.stage.terms if name.startswith("logits")]
    assert found.peak_bytes == found.stage.reserved


def test_a_cluster_says_how_much_a_gpu_holds(table, tmp_path):
    small = tmp_path / "small.toml"
    small.write_text('base = "h100"\n[gpu]\nhbm_bytes = "16GB"\n')
    whole, found = predict(table, Request()), predict(table, Request(cluster=small))
    assert found.predicted.tolist() == whole.predicted.tolist()
    assert {note.code: note.text for note in found.notes}["infeasible-ok"].startswith("of 2 runs that ran, 2")


def test_files_that_also_have_steps_are_left_to_the_kind_of_steps(table):
    assert holds_memory(table.columns)
    assert kind_of(table.columns).name == "training-runs"
    without = [name for name in table.columns if name != "x_iter_time_s"]
    assert kind_of(without).name == "memory-of-runs"
    assert not holds_memory(["op", "gpu", "ranks"])


def test_nanotron_fills_early_stages_first():
    cells = dict(zip(HEADER.split(",")[1:9], SMALL.split(",")[:8], strict=True))
    model = model_from_columns({**cells, "model": "llama-1B"})
    assert layers_by_cost(model, 1) == (16,)
    split = layers_by_cost(model, 8)
    # 67 M elements a layer and 268 M of the head over 8 stages: 2.5 layers each, and the head alone at the end.
    assert split == (3, 3, 2, 3, 2, 3, 0, 0)
    assert layers_by_cost(model, 16) is None


RUNS, SWEEP = "measured_training_runs.csv", "nanotron_ultrascale_h100.csv"


@pytest.fixture(scope="module")
def published():
    return {name: predict(read_measurements(table_path(name)), Request()) for name in (RUNS, SWEEP)}


@pytest.mark.slow
@pytest.mark.parametrize("name", [RUNS, SWEEP])
def test_published_memory_is_met(name, published):
    found = published[name]
    assert np.median(np.abs(found.predicted / found.measured - 1)) <= 0.10
    counts = {
        note.code: [int(number) for number in re.findall(r"\b(\d+) (?:runs|are)", note.text)] for note in found.notes
    }
    if "infeasible-crashed" in counts:
        runs, wrong, refused = counts["infeasible-ok"]
        crashed, called, _ = counts["infeasible-crashed"]
        assert wrong <= 0.01 * runs
        assert refused <= wrong
        assert called >= 0.7 * crashed


@pytest.mark.slow
def test_the_deviation_that_chances_follow_from_is_that_of_published_runs(published):
    errors = np.concatenate([np.abs(np.log(each.measured / each.predicted)) for each in published.values()])
    assert memory_deviation() == pytest.approx(np.quantile(errors, ONE_DEVIATION), abs=max(0.01, 1 / errors.size**0.5))
