"""Public tables of runs are brought to the columns that the product reads: rules, recipes, remarks on single rows."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from datafiles import table_path
from measured_tables import run_row as row
from measured_tables import run_table as table
from published.facts import BASES, run_facts
from published.network import card_gbit_per_gpu
from published.reading import (
    common_row,
    in_common_schema,
    published_rules,
    read_published,
    remarks,
    with_own_recipes,
)
from traincast.calibration.columns import ALIASES, read_measurements, with_recipes
from traincast.calibration.kinds.runs import BOARD, fastest_repeats, labels_of, precision_pairs, weak_scaling_pairs
from traincast.calibration.run_jobs import year_of
from traincast.calibration.runs import is_fitted, is_full_layout, read_runs
from traincast.calibration.runs import run_of as run_of_row
from traincast.calibration.tables import MeasurementTable, Row, Skipped, read_table
from traincast.errors import TraincastError
from traincast.files import unpacked
from traincast.job.resolve import resolve_job

NANO = {
    "id": "n-1", "model": "8B", "layers": "32", "hidden": "4096", "ffn_hidden": "14336", "heads": "32",
    "kv_heads": "32", "vocab": "131072", "seq_len": "4096", "gpu": "H100-SXM-80GB", "nodes": "1", "num_gpus": "8",
    "dp": "2", "tp": "4", "pp": "1", "zero_stage": "1", "micro_batch": "2", "grad_accum": "64", "global_batch": "256",
    "status": "ok", "mfu_pct": "30", "x_iter_time_s": "20", "gpu_mem_gb": "40",
}  # fmt: skip


def run_of(row):
    """Read a row as its source prints it."""
    return run_of_row(common_row(row))


def test_vpp_that_is_empty_is_open_unless_the_source_has_none():
    assert run_of(row(vpp=None)).request.vpp is None
    bloom = run_of(row(id="paper-mt-nlg-001", vpp=None, framework="Megatron-DeepSpeed"))
    assert bloom.request.vpp == 1


def test_the_network_of_a_source():
    slow = run_of(row(id="internevo-999", gpu="A100-SXM-80GB", framework="InternEvo"))
    assert slow.cluster.inter.bandwidth_bytes_per_s < 6.25e9


@pytest.mark.parametrize(
    ("framework", "notes", "name"),
    [
        ("torchtitan 2024-12", "eager, no compile", "torchtitan-eager-2024"),
        ("torchtitan 2024-12", "compile", "torchtitan-2025"),
        ("Megatron-LM @23e00ed + TE 2.11", None, "megatron-core-2025"),
    ],
)
def test_a_framework_that_notes_or_commits_tell(framework, notes, name):
    assert run_of(row(framework=framework, notes=notes, source_url_or_repo_path=None)).request.framework == name


def test_flops_are_counted_as_their_source_counts_them():
    assert common_row(row(id="megatron-sc21-table2-001")).cells["flop_count"] == "full+recompute"
    assert "flop_count" not in common_row(row(id="somewhere-001")).cells


def test_a_remark_says_why_a_row_is_far_off():
    assert common_row(row(id="megatron-sc21-table2-001")).cells["hard"].startswith("DeepSpeed ZeRO-3 of 2021")
    assert "hard" not in common_row(row(id="megatron-sc21-table1-001")).cells


def test_the_year_of_a_round_of_mlperf_and_of_a_tag():
    mlperf = row(id="mlperf-training-v3.1-001", framework="NVIDIA NeMo", source_url_or_repo_path=None)
    assert year_of(common_row(mlperf)) == 2023
    tagged = row(framework="NeMo", source_url_or_repo_path="NVIDIA/dgxc-benchmarking@v24.11:llama3/README.md")
    assert year_of(common_row(tagged)) == 2024


def test_facts_of_runs_say_where_they_stand():
    facts = run_facts()
    sweep = "nanotron_ultrascale_h100.csv"
    tables = ("measured_training_runs.csv", "tpu_runs.csv", "amd_other.csv", "mlperf_v6.csv", sweep)
    ids = {each.id for name in tables for each in read_table(table_path(name)).rows}
    wholes = {name.rpartition("-")[0] for name in ids}
    assert {each.id for each in facts if not each.id.endswith("-*")} <= ids
    assert {each.id.removesuffix("-*") for each in facts if each.id.endswith("-*")} <= wholes
    assert all(each.stands.startswith(BASES) and len(each.stands) > 10 for each in facts)
    assert len({(each.id, each.column) for each in facts}) == len(facts)


def test_no_rule_is_for_one_source():
    assert not [rule.why for rule in published_rules() if {"source", "id"} & {*rule.when, *rule.unless}]


@pytest.mark.slow
def test_what_is_known_of_a_run_does_not_come_from_its_source_or_notes():
    tables = map(table_path, ("measured_training_runs.csv", "recipe_settings.csv"))
    raw = read_measurements(*tables)
    blank = ("source", "source_url_or_repo_path", "notes")
    told, untold = (read_runs(in_common_schema(each)).rows for each in (raw, without(raw, blank)))
    assert [each.request for each in told] == [each.request for each in untold]


def without(table, names):
    rows = (replace(each, cells={k: v for k, v in each.cells.items() if k not in names}) for each in table.rows)
    return replace(table, rows=tuple(rows))


def test_every_column_that_a_rule_fills_is_described():
    page = (Path(__file__).parents[2] / "docs" / "data-files.md").read_text(encoding="utf-8")
    named = set(re.findall(r"[a-z0-9_]+", " ".join(re.findall(r"(?m)^\|([^|]*`[^|]*)\|", page))))
    filled = {name for rule in published_rules() for name in rule.set} | set(ALIASES)
    filled |= {each.column for each in run_facts()}
    assert filled - {"source"} <= named


def recipe(**cells):
    return MeasurementTable("recipes.csv", ("id", *cells), (Row("recipes.csv", 2, {"id": "x-1", **cells}),))


def with_recipe(run, **cells):
    (joined,) = with_recipes(MeasurementTable("runs.csv", tuple(run.cells), (run,)), recipe(**cells)).rows
    return run_of_row(common_row(joined))


@pytest.mark.parametrize(
    ("text", "per_node", "gigabytes"),
    [
        ("NVLink intra; 400 Gb/s RDMA per GPU", "8", 50),
        ("1600 Gbps node-node RoCE", "8", 25),
        ("400 Gb/s per node", "8", 6.25),
        ("NVLink4; 8x50 GB/s IB", "8", 50),
        ("NVLink3; 4x Omni-Path 100 Gb/s per 8-GPU node", "8", 6.25),
        ("GCP A3 (8x200 Gb/s GPUDirect-TCPX)", "8", 25),
        ("NVLINK Gen4; Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s", "8", 50),
        ("NVLINK Gen5; 4x ConnectX-7 IB NDR 400 Gb/s", "4", 50),
        ("NVLINK Gen4 900 GB/s + NVSWITCH Gen3; ConnectX-6 25Gb/s Ethernet", "8", None),
        ("NVLINK Gen4; Data bandwidth for GPU-PCIe: 504 GB/s; PCIe-NIC: 500 GB/s", "8", None),
        ("Giga Ethernet", "8", None),
        ("", "8", None),
    ],
)
def test_network_cards_as_sources_print_them(text, per_node, gigabytes):
    found = card_gbit_per_gpu({"interconnect": text, "gpus_per_node": per_node})
    assert found == (None if gigabytes is None else pytest.approx(gigabytes * 8))


@pytest.mark.parametrize(
    ("printed", "gpu", "notes", "row_id", "precision"),
    [
        ("bf16", "H100-SXM-80GB", "", "x", "bf16"),
        ("fp8", "H100-SXM-80GB", "", "x", "fp8"),
        ("fp8", "B200-SXM", 'table precision label "MXFP8"', "x", "mxfp8"),
        ("fp8", "H100-SXM-80GB", "recipe precision=FP8-subchannel", "x", "fp8_block"),
        ("fp4", "B200-SXM", "", "x", "nvfp4"),
        (None, "H100-SXM-80GB", "", "mlperf-training-v4.0-001", "fp8"),
        (None, "H100-SXM-80GB", "", "x", None),
    ],
)
def test_precision_and_its_flavour(printed, gpu, notes, row_id, precision):
    run = run_of(row(id=row_id, precision=printed, gpu=gpu, notes=notes or None))
    assert run.request.precision == precision


def test_grok_splits_its_experts():
    grok = row(model="grok1-314b", layers="64", hidden="6144", ffn_hidden="32768", heads="48", head_dim="128",
               vocab="131072", experts="8", topk="2", moe_ffn="32768", ep="8", pp="1", vpp="1", cp="1")  # fmt: skip
    assert run_of(grok).request.etp == 4


def test_remarks_have_a_status_and_a_reason():
    found = remarks()
    # Left out of all figures; in all of them and in no fit; kept, but its columns or its run are doubtful; kept, with
    # an effect no column tells.
    statuses = ("exclude", "hard", "suspect", "unexplained")
    assert all(each["status"] in statuses and len(each["reason"]) > 20 for each in found)


def test_remarks_and_recipes_are_of_rows_that_exist():
    names = ("measured_training_runs.csv", "nanotron_ultrascale_h100.csv", "recipe_settings.csv")
    rows = {name: {row.id for row in read_table(table_path(name)).rows} for name in names}
    others = {row.id for name in ("tpu_runs.csv", "amd_other.csv") for row in read_table(table_path(name)).rows}
    assert {each["id"] for each in remarks()} <= rows["measured_training_runs.csv"] | others
    assert rows["recipe_settings.csv"] <= rows["measured_training_runs.csv"]
    listed = unpacked(table_path("nanotron_spoilt_ids.txt").read_bytes(), "ids").decode().splitlines()
    spoilt = {line for line in listed if line.strip() and not line.startswith("#")}
    assert spoilt
    assert spoilt <= rows["nanotron_ultrascale_h100.csv"]


def test_a_hard_run_is_in_all_figures_and_in_no_fit():
    plain, hard = read_runs(table(*map(common_row, (row(), row(id="xtuner-megatron-moe-010"))))).rows
    assert (is_fitted(plain), is_fitted(hard)) == (True, False)
    assert hard.measured_s == plain.measured_s
    assert labels_of([plain, hard])["fit"] == ("fitted to", "too far off")


def test_rules_fill_in_what_is_empty_and_leave_what_is_said():
    said = {name: "1" for rule in published_rules() if not rule.replace for name in rule.set}
    for rule in published_rules():
        assert len(rule.why) > 10
        assert rule.replace or not rule.filled(said)
    printed = row(precision="fp4", notes="non-overlap; async TP", vpp="3")
    cells = common_row(printed).cells
    assert (cells["precision"], cells["vpp"], cells["overlap_tp"]) == ("nvfp4", "3", "true")
    assert cells["overlap_grad_reduce"] == "false"
    assert printed.cells["precision"] == "fp4"


def test_every_rule_is_for_some_public_row():
    names = ("measured_training_runs.csv", "nanotron_ultrascale_h100.csv")
    runs, sweep = (read_table(table_path(name)) for name in names)
    others = [read_table(table_path(name)) for name in ("tpu_runs.csv", "amd_other.csv")]
    latest = with_own_recipes(read_table(table_path("mlperf_v6.csv")))
    tables = [with_recipes(runs, read_table(table_path("recipe_settings.csv"))), sweep, *others, latest]
    idle = [
        rule.why
        for rule in published_rules()
        if not any(rule.holds(each.cells, found.columns) for found in tables for each in found.rows)
    ]
    assert not idle


def test_a_recipe_says_what_the_row_leaves_open():
    said = {
        "cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "attn+mlp", "recompute_granularity": "selective",
        "recompute_modules": "core_attn+mlp", "tp_comm_overlap": "0", "grad_reduce_dtype": "fp32",
        "moments_dtype": "bf16", "fp8_recipe": "current", "fp8_param_gather": "1", "fsdp": "none",
        "cp_comm_type": "a2a+p2p",
    }  # fmt: skip
    request = with_recipe(row(precision="fp8"), **said).request
    assert (request.cuda_graph_impl, request.cuda_graph_scope) == ("transformer_engine", ("attn", "mlp"))
    assert (request.recompute, request.recompute_modules) == ("selective", ("core_attn", "mlp"))
    assert (request.overlap_tp, request.grad_reduce_bytes, request.exp_avg_dtype) == (False, 4, "bf16")
    assert (request.fp8_recipe, request.param_gather_bytes) == ("current", 1)
    assert (request.zero, request.cp_kind) == (None, "all_to_all")
    assert with_recipe(row(precision="fp8", gpu="B200-SXM-180GB"), fp8_recipe="mxfp8").request.precision == "mxfp8"


def test_rows_of_the_nanotron_sweep():
    run = run_of(row(NANO))
    assert (run.measured_s, run.outcome, run.request.zero) == (20, "ok", 1)
    job = resolve_job(run.request, run.cluster)
    assert (job.parallel.dp, job.parallel.microbatches) == (2, 64)
    assert job.framework.name == "nanotron-2024"
    crashed = run_of(row(NANO, status="crashed_or_oom", x_iter_time_s=None, mfu_pct=None, gpu_mem_gb=None))
    assert (crashed.measured_s, crashed.outcome) == (None, "crashed")
    mismatch = run_of(row(NANO, status="ok_gbs_mismatch", x_iter_time_s=None))
    assert isinstance(mismatch, Skipped)


def test_the_fastest_sibling_stands_for_its_layout():
    tried = (
        {"id": "a", "zero_stage": "0", "x_iter_time_s": "20", "mfu_pct": "30"},
        {"id": "b", "zero_stage": "1", "x_iter_time_s": "18", "mfu_pct": "33"},
        {"id": "c", "x_iter_time_s": "90", "mfu_pct": "6", "micro_batch": "1", "grad_accum": "128"},
    )
    runs = [run_of(row(NANO, **each)) for each in tried]
    assert [run.id for run in fastest_repeats(runs)] == ["b"]
    # Below 20 % MFU a run is noise of the sweep.
    alone = run_of(row(NANO, **tried[2] | {"mfu_pct": "21"}))
    assert {run.id for run in fastest_repeats([*runs, alone])} == {"b", "c"}
    assert labels_of(runs)[BOARD] == ("others", "best", "others")


@pytest.mark.slow
def test_the_published_runs_are_covered():
    table = read_published(table_path("measured_training_runs.csv"))
    runs, full = read_runs(table), sum(map(is_full_layout, table.rows))
    assert full > 850
    assert sum(run.full_layout for run in runs.rows) >= 0.95 * full
    resolved = 0
    for run in (each for each in runs.rows if each.full_layout):
        try:
            resolve_job(run.request, run.cluster)
        except TraincastError:
            continue
        resolved += 1
    assert resolved / full >= 0.95
    assert len(weak_scaling_pairs(runs.rows)) > 50
    assert len(precision_pairs(runs.rows)) > 50


@pytest.mark.slow
def test_the_sweep_of_nanotron_is_covered():
    runs = read_runs(read_published(table_path("nanotron_ultrascale_h100.csv")))
    assert len(runs.rows) + len(runs.skipped) == 2599
    refused = 0
    for run in (each for each in runs.rows if each.outcome == "ok"):
        try:
            resolve_job(run.request, run.cluster)
        except TraincastError:
            refused += 1
    assert refused <= 0.01 * sum(each.outcome == "ok" for each in runs.rows)
    assert len(fastest_repeats(runs.rows)) > 100


@pytest.mark.parametrize(
    ("framework", "said", "mtp_layers"),
    [("Megatron-Bridge 26.08", None, None), ("NeMo AutoModel (PyTorch)", None, "0"), ("NeMo AutoModel", "1", "1")],
)
def test_layers_that_predict_further_tokens_are_counted_by_megatron_alone(framework, said, mtp_layers):
    assert common_row(row(framework=framework, mtp_layers=said)).cells.get("mtp_layers") == mtp_layers


@pytest.mark.parametrize(
    ("said", "filled"),
    [
        ({"act_offload": "cpu_layers:40"}, {"offload_activations": "40"}),
        ({"act_offload": "fine_grained:core_attn+moe_act"}, {"offload_modules": "core_attn+moe_act"}),
        ({"act_offload": "none", "optim_offload": "0"}, {}),
        ({"optim_offload": "0.5"}, {"offload_optimizer": "0.5"}),
        ({"optim_offload": "1"}, {"offload_optimizer": "1"}),
    ],
)
def test_what_recipes_offload(said, filled):
    cells = common_row(Row("runs.csv", 2, said)).cells
    assert {name: text for name, text in cells.items() if name.startswith("offload")} == filled
