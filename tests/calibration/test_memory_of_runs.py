import io
import re

import numpy as np
import pytest
from rich.console import Console

import traincast
from traincast.calibration.kind import Request, kind_of
from traincast.calibration.kinds.runs import predict_memory as predict
from traincast.calibration.run_jobs import model_from_columns
from traincast.calibration.run_memory import memory_of_run
from traincast.calibration.runs import holds_memory, layers_by_cost, read_runs
from traincast.calibration.tables import read_table
from traincast.report.terminal.accuracy import print_validation

HEADER = (
    "id,model,base_model,layers,hidden,ffn_hidden,heads,kv_heads,vocab,seq_len,gpu,num_gpus,tp,pp,sharding,micro_batch,"
    "global_batch,precision,recompute,cp,vpp,sequence_parallel,overlap_tp,stage_layers,framework,sweep,outcome,"
    "peak_memory_gib,memory_kind,memory_stage,step_time_s"
)
SMALL = "1B,llama-1B,16,2048,8192,32,32,131072,4096,H100-SXM-80GB,8"
ROWS = tuple(
    f"{name},{SMALL},{tp},{pp},zero{zero},{micro},256,bf16,none,1,1,{split},{split},by-cost,nanotron,ours,{measured}"
    for name, tp, pp, zero, micro, split, measured in (
        ("a", 1, 1, 1, 1, "", "ok,24.2,reserved,first,14.5"),
        ("b", 1, 1, 0, 16, "", "crashed,,reserved,first,"),
        ("c", 8, 1, 0, 4, "true", "crashed,,reserved,first,"),
        ("d", 1, 2, 0, 1, "", "ok,26.8,reserved,first,16"),
    )
)


def sweep(tmp_path, lines=(HEADER, *ROWS)):
    """Write a sweep over layouts, two of which did not run."""
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path):
    return read_table(sweep(tmp_path))


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
    found = predict(read_table(sweep(tmp_path, lines)), Request())
    assert len(found.ids) + len(found.skipped) == len(ROWS)
    assert all(row.reason for row in found.skipped)
    needed = {
        "model",
        "base_model",
        "layers",
        "hidden",
        "ffn_hidden",
        "heads",
        "seq_len",
        "gpu",
        "num_gpus",
        "tp",
        "pp",
    }
    kept = set() if dropped in needed | {"micro_batch", "global_batch", "peak_memory_gib"} else {"a", "d"}
    assert kept <= set(found.ids) or dropped in ("id", "step_time_s")


def test_worst_rows_are_in_the_unit_of_what_was_measured(tmp_path):
    path = sweep(tmp_path)
    shown = io.StringIO()
    print_validation(Console(file=shown, width=300), traincast.validate(path, kind="memory-of-runs"))
    worst = shown.getvalue().split("Worst rows")[1].split("Skipped")[0]
    assert "24.2 GiB" in worst
    assert "26.8 GiB" in worst
    assert re.search(r"parameters [\d.]+ GiB, gradients [\d.]+ GiB", worst)
    assert "_bytes" not in worst
    assert " s " not in worst


def test_the_printed_stage_may_be_the_first(table):
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
    without = [name for name in table.columns if name != "step_time_s"]
    assert kind_of(without).name == "memory-of-runs"
    assert not holds_memory(["op", "gpu", "ranks"])


def test_nanotron_fills_early_stages_first():
    cells = dict(zip(HEADER.split(",")[1:9], SMALL.split(",")[:8], strict=True))
    model = model_from_columns({**cells, "model": cells["base_model"]})
    assert layers_by_cost(model, 1) == (16,)
    split = layers_by_cost(model, 8)
    # 67 M elements a layer and 268 M of the head over 8 stages: 2.5 layers each, and the head alone at the end.
    assert split == (3, 2, 3, 2, 3, 2, 1, 0)
    assert layers_by_cost(model, 16) is None


def test_a_share_that_is_met_exactly_ends_a_stage():
    """The head costs as much as four layers, so that 16 of them are 20 to be shared by 2 and by 4."""
    cells = dict(zip(HEADER.split(",")[1:9], SMALL.split(",")[:8], strict=True))
    model = model_from_columns({**cells, "model": cells["base_model"]})
    assert layers_by_cost(model, 2) == (10, 6)
    assert layers_by_cost(model, 4) == (5, 5, 5, 1)


@pytest.mark.parametrize(("billions", "tied"), [("1.34", True), ("1.61", False), ("", False)])
def test_printed_parameters_say_whether_the_head_is_tied(billions, tied):
    cells = dict(zip(HEADER.split(",")[1:9], SMALL.split(",")[:8], strict=True))
    assert model_from_columns({**cells, "model": cells["base_model"], "params_b": billions}).tied_embeddings is tied


@pytest.mark.parametrize(
    ("step_s", "said", "waits"), [("16", "", True), ("120", "", False), ("16", "false", False), ("120", "true", True)]
)
def test_nothing_waits_where_the_host_stalled(step_s, said, waits, tmp_path):
    """128 microbatches of 0.04 s of work each: in 120 s something else takes the time, whatever it is."""
    row = f"e,{SMALL},8,1,zero0,2,256,bf16,none,1,1,true,true,,nanotron,ours,ok,10,reserved,first,{step_s},{said}"
    found = read_runs(read_table(sweep(tmp_path, (f"{HEADER},host_ahead", row)))).rows
    stage = memory_of_run(found[0]).stage
    assert stage is not None
    assert any(name.startswith("waiting outputs") for name, _ in stage.terms) is waits
