"""Measured runs become jobs by their columns: layout, step, network and what these leave out; pairs and exclusions."""

import re
import textwrap
from pathlib import Path

import pytest

from measured_tables import LLAMA
from measured_tables import run_row as row
from measured_tables import run_table as table
from traincast.calibration.columns import with_recipes
from traincast.calibration.kinds.runs import BOARD, labels_of, precision_pairs, weak_scaling_pairs
from traincast.calibration.run_jobs import _table, framework_of, year_of
from traincast.calibration.runs import (
    ALIASES,
    GROUPINGS,
    assumed_frameworks,
    holds_memory,
    holds_steps,
    is_full_layout,
    job_of_run,
    read_runs,
    run_of,
)
from traincast.calibration.tables import MeasurementTable, Row, Skipped, read_table
from traincast.errors import ConfigError, FormatError
from traincast.job.frameworks import framework_names, framework_of_year, load_framework
from traincast.job.recipes import find_recipe, recipe_run_by
from traincast.job.resolve import resolve_job


def test_a_full_row_is_the_job_it_describes():
    run = run_of(row(x_peak_mem_gib="64"))
    assert run.measured_s == 10
    assert run.peak_bytes == 64 * 2**30
    assert run.full_layout
    assert not run.notes
    assert {*GROUPINGS} == {*run.groups.__struct_fields__}
    assert run.groups.family == "dgxc-benchmarking, llama3-70b, H100, bf16"
    job = resolve_job(run.request, run.cluster)
    assert (job.parallel.dp, job.parallel.vpp, job.parallel.microbatches) == (2, 5, 64)
    assert job.framework.name == "megatron-core-2025"
    assert run.cluster.name == "h100"


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("iter_time_s", "10", 10.0),
        ("tokens_per_s_per_gpu", "1024", 128 * 8192 / (1024 * 64)),
        ("samples_per_s_total", "16", 8.0),
        ("sequences_per_s_total", "32", 4.0),
    ],
)
def test_the_step_follows_from_what_was_printed(metric, value, expected):
    assert run_of(row(measured_metric=metric, measured_value=value)).measured_s == pytest.approx(expected)


def test_a_kernel_that_attends_to_what_comes_later_computes_the_whole_square():
    plain, whole = (run_of(row(attention_causal=said)) for said in (None, "false"))
    assert plain.request.model.attention.causal
    assert not whole.request.model.attention.causal


def test_flops_are_counted_as_their_source_counts_them():
    shape = {
        "flop_count": "full+recompute",
        "model": "gpt-174.6B",
        "layers": "96",
        "hidden": "12288",
        "ffn_hidden": "49152",
        "heads": "96",
        "kv_heads": "96",
        "vocab": "51200",
        "seq_len": "2048",
        "global_batch": "1536",
        "num_gpus": "384",
        "tp": "8",
        "pp": "12",
        "vpp": None,
        "cp": None,
        "gpu": "A100-SXM-80GB",
        "framework": "Megatron-LM PTD-P (interleaved)",
        "measured_metric": "tflops_per_gpu",
        "measured_value": "153",
    }
    run = run_of(row(**shape))
    # Equation 3 of arXiv 2104.04473, recomputation inside: 96 B s l h^2 (1 + s / 6 h + V / 16 l h).
    h, s, layers, vocab, batch = 12288, 2048, 96, 51200, 1536
    flops = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    assert run.measured_s == pytest.approx(flops / (153e12 * 384), rel=1e-6)
    # Without attention and what is recomputed: 6 a weight of a matrix.
    weights = run_of(row(**shape | {"flop_count": "weights"}))
    whole = 6 * batch * s * (12 * layers * h**2 + vocab * h)
    assert weights.measured_s == pytest.approx(whole / (153e12 * 384), rel=1e-3)
    found = run_of(row(**shape | {"flop_count": None}))
    assert isinstance(found, Skipped)
    assert "how its source counts FLOP is not known" in found.reason


def test_vpp_that_is_empty_is_open_and_none_without_a_pipeline():
    assert run_of(row(vpp=None)).request.vpp is None
    assert run_of(row(pp="1", tp="8", vpp="12")).request.vpp == 1


def test_the_domain_and_the_network_of_a_row():
    assert run_of(row(gpu="GB200-NVL72", gpus_per_node="4")).cluster.gpus_per_node == 72
    assert run_of(row(gpu="GB200-NVL72", gpus_per_node="4", num_gpus="256")).cluster.ranks_per_node == 64
    slow = run_of(row(gpu="A100-SXM-80GB", nic_gbit_per_gpu="50", framework="InternEvo"))
    assert slow.cluster.inter.bandwidth_bytes_per_s < 6.25e9
    assert run_of(row(gpu="H100-96GB-HBM2e-500W")).cluster.gpu.name == "H100-96GB-HBM2e-500W"


@pytest.mark.parametrize(
    ("text", "zero", "shard"),
    [
        ("zero1", 1, None),
        ("zero1(8)", 1, 8),
        ("zero1(all dp)", 1, None),
        ("zero3 (config default)", 3, None),
        ("zero0", 0, None),
        ("fsdp", 3, None),
        ("fsdp-full", 3, None),
        ("fsdp-shard_grad_op", 2, None),
        ("fsdp-shard8", 3, 8),
        ("fsdp2-4(x cp)", 3, 8),
        ("hsdp", 3, 8),
        ("ddp/dist-opt", None, None),
        (None, None, None),
    ],
)
def test_sharding_as_sources_print_it(text, zero, shard):
    request = run_of(row(zero_or_fsdp=text, tp="1", pp="1", vpp="1")).request
    assert (request.zero, request.shard) == (zero, shard)


def test_axes_of_sharding_annotations_are_not_degrees():
    run = run_of(row(tp=None, pp=None, vpp=None, cp=None, dp=None, zero_or_fsdp="fsdp-64", framework="MaxText"))
    job = resolve_job(run.request, run.cluster)
    assert (job.parallel.tp, job.parallel.dp, job.sharding.zero, job.sharing) == (1, 64, 3, 64)
    printed = run_of(row(tp="1", pp="1", vpp=None, cp=None, dp="1", zero_or_fsdp="fsdp-64", framework="Paxml"))
    assert resolve_job(printed.request).parallel.dp == 64
    with pytest.raises(ConfigError, match="tp and pp are empty"):
        run_of(row(tp=None, pp=None))


def test_lora_is_a_task_of_its_own():
    run = run_of(row(x_task="lora"))
    assert run.request.task == run.groups.task == "lora"
    assert not run.full_layout


def test_a_full_layout_needs_every_column_and_pretraining():
    assert is_full_layout(row())
    for name in ("tp", "pp", "micro_batch", "global_batch", "layers", "seq_len"):
        assert not is_full_layout(row(**{name: None}))
    assert not is_full_layout(row(x_task="sft"))
    assert not is_full_layout(row(measured_metric="tflops_per_gpu"))


def test_every_row_is_a_run_or_skipped_with_a_reason():
    rows = [row(), row(id="x-2", gpu="H900"), row(id="x-3", global_batch=None), row(id="x-4", exclude="too old")]
    runs = read_runs(table(*rows))
    assert [run.id for run in runs.rows] == ["x-1"]
    reasons = {each.id: each.reason for each in runs.skipped}
    assert "unknown GPU 'H900'" in reasons["x-2"]
    assert reasons["x-3"] == "the columns global_batch are empty"
    assert reasons["x-4"] == "too old"
    assert sum(map(is_full_layout, rows)) == 3


def test_columns_tell_the_kind_of_file():
    assert holds_steps(tuple(LLAMA))
    assert holds_steps(("model", "gpus", "gpu", "step_time_s"))
    assert not holds_memory(tuple(LLAMA))
    assert holds_memory(("model", "gpus", "gpu", "peak_memory_gib"))
    assert not holds_steps(("op", "ranks", "size_bytes", "time_us"))


def recipe(**cells):
    return MeasurementTable("recipes.csv", ("id", *cells), (Row("recipes.csv", 2, {"id": "x-1", **cells}),))


def with_recipe(run, **cells):
    (joined,) = with_recipes(MeasurementTable("runs.csv", tuple(run.cells), (run,)), recipe(**cells)).rows
    return run_of(joined)


def test_what_a_row_says_itself_wins_over_its_recipe_with_what_hangs_on_it():
    given = row(recompute="full", tp_comm_overlap="true")
    request = with_recipe(given, recompute_granularity="selective", recompute_modules="mlp", overlap_tp="0").request
    assert (request.recompute, request.recompute_modules, request.overlap_tp) == ("full", None, True)


def test_a_recipe_writes_out_where_layers_go_unless_it_is_of_another_layout():
    layout = "E" + "t" * 20 + "|(t*20|)*2" + "t" * 20 + "L"
    assert job_of_run(with_recipe(row(vpp=None), pp_layout=layout)).pipeline.layers_Q == (20, 20, 20, 20)
    with_mtp = job_of_run(with_recipe(row(vpp=None), pp_layout=layout.replace("L", "mL")))
    assert (with_mtp.pipeline.layers_Q, with_mtp.model.mtp_layers) == ((20, 20, 20, 20), 0)
    other = with_recipe(row(), pp_layout=layout)
    assert "layout-unused" in {note.code for note in other.notes}
    assert len(job_of_run(other).pipeline.layers_Q) == 20
    counted = with_recipe(row(), account_embed="1", account_loss="1")
    assert sum(job_of_run(counted).pipeline.layers_Q) == 80


def test_recipes_of_other_rows_and_two_of_one_are_refused():
    runs = MeasurementTable("runs.csv", ("id",), (row(),))
    with pytest.raises(FormatError, match="recipe of no row"):
        with_recipes(runs, MeasurementTable("r.csv", ("id",), (Row("r.csv", 2, {"id": "y"}),)))
    with pytest.raises(FormatError, match="second recipe of x-1"):
        with_recipes(runs, MeasurementTable("r.csv", ("id",), (row(), row())))
    with pytest.raises(FormatError, match="no column id"):
        with_recipes(runs, MeasurementTable("r.csv", ("model",), (row(),)))


def test_columns_say_what_a_job_says_and_what_was_measured():
    run = run_of(
        row(
            source=None, vpp=None, cp=None, gpu="A100-SXM-80GB", framework="megatron-2022", nic_gbit_per_gpu="50",
            overlap_tp="no", cuda_graphs="Yes", grad_reduce_bytes="4", stage_layers="20 20 20 20",
            peak_memory_gib="60", memory_kind="reserved", memory_stage="first",
        )
    )  # fmt: skip
    request = run.request
    assert (request.framework, request.overlap_tp, request.cuda_graphs) == ("megatron-2022", False, True)
    assert request.grad_reduce_bytes == 4
    assert run.cluster.inter.bandwidth_bytes_per_s < 6.25e9
    assert (run.peak_bytes, run.memory_kind, run.first_stage_memory) == (60 * 2**30, "reserved", True)
    assert job_of_run(run).pipeline.layers_Q == (20, 20, 20, 20)
    assert run_of(row(exclude="the cluster was shared")).reason == "the cluster was shared"


@pytest.mark.parametrize(
    ("column", "text", "what"),
    [
        ("zero_or_fsdp", "zero7", "ZeRO has the stages 0 to 3"),
        ("zero_or_fsdp", f"zero1({'8' * 5000})", "names a group of 5000 digits"),
        ("zero_or_fsdp", f"fsdp-{'8' * 5000}", "names a group of 5000 digits"),
        ("overlap_tp", "maybe", "must be true or false"),
        ("memory_kind", "all", "must be one of allocated, reserved, device"),
        ("nic_gbit_per_gpu", "fast", "must be a positive number"),
    ],
)
def test_a_cell_that_its_column_cannot_have_is_named(column, text, what):
    runs = read_runs(table(row(**{column: text}), row(id="fine")))
    assert [run.id for run in runs.rows] == ["fine"]
    assert column in runs.skipped[0].reason
    assert what in runs.skipped[0].reason


def test_the_page_of_columns_shows_a_file_that_is_read(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "data-files.md").read_text(encoding="utf-8")
    shown = re.search(r"(?m)^    id,.*\n    .*\n", page)
    path = tmp_path / "runs.csv"
    path.write_text(textwrap.dedent(shown[0]))
    (run,) = read_runs(read_table(path)).rows
    assert (run.id, run.measured_s, run.peak_bytes) == ("monday", 14.9, 66.2 * 2**30)
    assert run.request.framework == "megatron-core-2025"
    named = set(re.findall(r"[a-z0-9_]+", " ".join(re.findall(r"(?m)^\|([^|]*`[^|]*)\|", page))))
    assert set(ALIASES) <= named


def test_memory_alone_is_enough():
    cells = {name: text for name, text in LLAMA.items() if not name.startswith("measured")}
    runs = read_runs(table(row({**cells, "peak_memory_gib": "60"})))
    assert [(run.measured_s, run.peak_bytes) for run in runs.rows] == [(None, 60 * 2**30)]


@pytest.mark.parametrize(
    ("written", "year", "framework"),
    [
        ("NeMo/Megatron-Core", "2024", "megatron-core-2024"),
        ("NeMo/Megatron-Core", "2025", "megatron-core-2025"),
        ("NeMo 24.x (Megatron-Core)", None, "megatron-core-2024"),
        ("Megatron-Bridge 25.09", None, "megatron-bridge-2025"),
        ("Megatron-Bridge 26.04.01", None, "megatron-bridge-2025"),
        ("Megatron-Bridge 26.06", None, "megatron-bridge-2025"),
        ("NVIDIA NeMo Framework Release 24.09", None, "megatron-core-2024"),
        ("Megatron-LM (2021-05)", None, "megatron-2021"),
        ("Megatron-LM (2022)", None, "megatron-2022"),
        ("Megatron-LM 2023-06", None, "megatron-2022"),
        ("Megatron-LM v3.0.2", None, "megatron-2022"),
        ("Megatron-LM core_v0.3.0", None, "megatron-2022"),
        ("Megatron-LM core_v0.7.0", None, "megatron-core-2024"),
        ("megatron_lm, 2024", None, "megatron-core-2024"),
        ("Megatron-LM", "2025", "megatron-core-2025"),
        ("Megatron-LM PTD-P (interleaved)", None, "megatron-2021"),
        ("Megatron-Core r0.8.0", None, "megatron-core-2024"),
        ("Megatron-Core 0.12", None, "megatron-core-2025"),
        ("Megatron-DeepSpeed (2022-02)", None, "megatron-deepspeed-2022"),
        ("DeepSpeed ZeRO-3", None, "deepspeed-2021"),
        ("Composer/FSDP (llm-foundry)", None, "llm-foundry-2023"),
        ("PyTorch FSDP + torch.compile (fms-fsdp)", None, "fms-fsdp-2024"),
        ("XTuner 0.1.x + DeepSpeed", None, "xtuner-2024"),
        ("Paxml + TransformerEngine", None, "maxtext-2024"),
    ],
)
def test_what_runs_write_and_their_frameworks(written, year, framework):
    found = framework_of(row(framework=written, software_year=year))
    assert (found.name, found.assumed) == (framework, "")
    assert load_framework(found.name).name == framework


@pytest.mark.parametrize(
    ("gpu", "written", "framework"),
    [
        ("V100-SXM2-32GB", "our own fork", "megatron-2021"),
        ("A100-SXM-80GB", "our own fork", "megatron-2022"),
        ("A100-SXM-80GB", None, "megatron-2022"),
        ("A100-SXM-80GB", "Megatron-LM", "megatron-2022"),
        ("A100-SXM-80GB", "our own fork of 2024", "megatron-core-2024"),
        ("L40S", "our own fork", "megatron-core-2024"),
        ("H100-SXM-80GB", "our own fork", "megatron-core-2024"),
        ("B200-SXM-180GB", "our own fork", "megatron-core-2025"),
        ("TPU-v5p", "our own fork", "maxtext-tpu-2025"),
        ("Ascend-910B", "our own fork", "mindspeed-2024"),
        ("MI300X", "our own fork", "primus-2025"),
        ("MI300X-192GB", "", "primus-2025"),
        ("Gaudi2", "our own fork", "megatron-core-2025"),
    ],
)
def test_an_unknown_framework_is_as_old_as_its_gpu(gpu, written, framework):
    """Today's framework is a quarter too fast for a run on A100 of 2022."""
    found = framework_of(row(gpu=gpu, framework=written))
    assert found.name == framework
    if not gpu.startswith("MI"):
        assert framework in found.assumed
        assert (framework or "the framework is not given") in found.assumed


def test_every_pattern_is_reached_and_every_megatron_framework_of_a_year():
    entries = _table().framework
    assert all(entry.by_year != bool(entry.framework) for entry in entries)
    named = {getattr(entry, key) for entry in entries for key in ("framework", "before_2025")} - {""}
    by_year = {framework_of(row(framework=f"Megatron-LM {year}")).name for year in range(2019, 2027)}
    assert by_year == {framework_of_year(year) for year in range(2019, 2027)}
    assert named | by_year <= set(framework_names())


def test_how_many_frameworks_were_assumed_is_said_once():
    rows = [
        row(id=f"x-{number}", framework=framework, gpu="A100-SXM-80GB")
        for number, framework in enumerate(["our fork", "our fork", "Megatron-LM (2022)", "another"])
    ]
    runs = [run_of(each) for each in rows]
    assert [note.text.partition(":")[0] for note in assumed_frameworks(runs)] == ["2 rows", "1 row"]
    assert all(note.place == "runs.csv:2" for note in assumed_frameworks(runs))
    assert [run.request.framework for run in runs] == ["megatron-2022"] * 4


def test_the_year_of_a_row():
    assert year_of(row(framework="NVIDIA NeMo Framework Release 24.09", software_year="2022")) == 2024
    assert year_of(row(software_year="2022")) == 2022
    assert year_of(row()) is None


def test_weak_scaling_pairs_share_all_but_gpus_and_batch():
    runs = [
        run_of(
            row(id=f"x-{gpus}", num_gpus=str(gpus), global_batch=str(2 * gpus), dp=str(gpus // 32), measured_value=t)
        )
        for gpus, t in ((64, "10"), (128, "10.2"), (256, "10.5"))
    ]
    other = [run_of(row(id="y", seq_len="4096", num_gpus="512", global_batch="1024")),
             run_of(row(id="z", num_gpus="512", global_batch="128"))]  # fmt: skip
    pairs = weak_scaling_pairs([*reversed(runs), *other])
    assert [(first.id, second.id) for first, second in pairs] == [("x-64", "x-128"), ("x-64", "x-256")]


def test_precision_pairs_share_all_but_the_precision():
    slow, fast = run_of(row(id="a")), run_of(row(id="b", precision="fp8", measured_value="6"))
    other = run_of(row(id="c", precision="fp8", micro_batch="2"))
    ((first, second),) = precision_pairs([fast, other, slow])
    assert (first.id, second.id) == ("a", "b")


def test_models_with_scans_have_a_board_of_their_own():
    names = ("nemotron-h-56b", "qwen3-next-80b-a3b", "Nemotron_3_Nano", "llama3-70b")
    fields = {"gpu": "H100-SXM-80GB", "num_gpus": "64", "tp": "1", "pp": "1", "ep": "1", "global_batch": "64"}
    columns = fields | {"seq_len": "8192", "precision": "fp8", "framework": "NeMo", "x_iter_time_s": "9"}
    runs = [run_of(Row("runs.csv", 2, {"id": name, "model": name, **columns})) for name in names]
    assert labels_of(runs)[BOARD] == ("hybrids", "hybrids", "hybrids", "layout not full")


def named_recipe(name="deepseek_v3_pretrain_256gpu_gb200_fp8mx_config", framework="Megatron-Bridge 26.08", **more):
    """Return a row of DeepSeek-V3 on GB200 that names its recipe, as a verification card does."""
    degrees = {"tp": "1", "pp": "4", "vpp": "4", "cp": "1", "ep": "64", "dp": "64"}
    run = {"model": "deepseek-v3", "gpu": "GB200", "num_gpus": "256", "gpus_per_node": "4", "seq_len": "4096"}
    batch = {"global_batch": "4096", "micro_batch": "1", "precision": "mxfp8", "fp8_recipe": "mxfp8"}
    shape = dict.fromkeys(("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "head_dim", "vocab"))
    return row(**shape, **run, **batch, **degrees, framework=framework, recipe=name, **more)


def test_a_row_that_names_its_recipe_has_its_settings_where_it_says_nothing():
    run = run_of(named_recipe())
    recipe = find_recipe("deepseek_v3_pretrain_256gpu_gb200_fp8mx@26.08")
    said = {name: getattr(run.request, name) for name in ("cuda_graph_impl", "moe_dispatcher", "te_op_fuser")}
    assert said == {name: recipe.fields[name] for name in said}
    assert [note.code for note in run.notes if note.code.startswith("recipe")] == ["recipe"]


def test_what_a_row_says_wins_over_its_recipe():
    request = run_of(named_recipe(cuda_graph_impl="none", moe_dispatcher="alltoall")).request
    assert (request.cuda_graph_impl, request.moe_dispatcher) == ("none", "alltoall")
    # What is captured says nothing of a run without graphs.
    assert request.cuda_graph_scope is None


def test_settings_that_a_table_of_recipes_has_said_are_not_looked_up_again():
    assert run_of(named_recipe(basis="near")).request.moe_paged_stash is None


@pytest.mark.parametrize(
    ("name", "framework"),
    [("no_such_recipe_config", "Megatron-Bridge"), ("deepseek_v3_pretrain_256gpu_gb200_fp8mx_config", "torchtitan")],
)
def test_a_recipe_that_is_not_known_or_of_other_software_is_said(name, framework):
    run = run_of(named_recipe(name, framework))
    assert run.request.moe_paged_stash is None
    assert "recipe-unknown" in [note.code for note in run.notes]


def test_the_release_that_a_framework_names_is_that_of_the_recipe():
    name = "deepseek_v3_pretrain_256gpu_b200_fp8mx_config"
    assert recipe_run_by(name, "Megatron-Bridge, container nemo:26.02").full_name.endswith("@26.02")
    assert recipe_run_by(name, "Megatron-Bridge").full_name == find_recipe(name).full_name
