"""Names as people type them: case and spelling do not tell them apart; a wrong one is told the near ones."""

import json

import pytest
from click.testing import CliRunner

from support import fabric_of_table
from traincast import api
from traincast.cli.main import cli
from traincast.errors import ConfigError, UnknownNameError
from traincast.estimate.operators.families import FAMILIES
from traincast.hardware.clusters import cluster_names, load_cluster
from traincast.hardware.dtypes import DTYPE_BYTES, PRECISIONS, bytes_per_element
from traincast.hardware.fabric import TOPOLOGIES
from traincast.hardware.gpu import gpu_names, load_gpu
from traincast.job.frameworks import framework_names, load_framework
from traincast.job.options import make_options
from traincast.model.load import find_model, model_names
from traincast.names import find_name, known_names, nearest, plain
from traincast.report.files import REPORTS
from traincast.schedules.schedule import SCHEDULES
from traincast.workload.words import operation_named


@pytest.mark.parametrize(
    "names",
    [
        cluster_names(),
        framework_names(),
        model_names(),
        gpu_names(),
        TOPOLOGIES.names(),
        SCHEDULES.names(),
        FAMILIES.names(),
    ],
)
def test_no_two_known_names_differ_in_spelling_alone(names):
    by_plain = {}
    for name in names:
        by_plain.setdefault(plain(name), set()).add(name)
    assert [each for each in by_plain.values() if len(each) > 1] == []
    for name in names:
        assert find_name(name, names) == name


@pytest.mark.parametrize(
    ("typed", "known", "found"),
    [
        ("H100", cluster_names(), "h100"),
        ("rail-optimized", TOPOLOGIES.names(), "rail-optimised"),
        ("Rail_Optimised", TOPOLOGIES.names(), "rail-optimised"),
        ("FP8-Block", PRECISIONS, "fp8_block"),
        ("1F1B", ("gpipe", "1f1b"), "1f1b"),
        ("h10", cluster_names(), None),
        ("", cluster_names(), None),
    ],
)
def test_case_and_spelling_do_not_tell_names_apart(typed, known, found):
    assert find_name(typed, known) == found


def test_the_nearest_come_first_and_none_where_nothing_is_like_it():
    assert nearest("hh100", cluster_names())[0] == "h100"
    assert nearest("llama3-70", model_names())[0] == "llama3-70b"
    assert nearest("qqqqqq", cluster_names()) == []
    assert nearest("", cluster_names()) == []
    assert known_names("qqqqqq", ["a", "b"]) == "known: a, b"
    assert len(known_names("llama3-70", model_names())) < 120
    assert "llama3-70b" in known_names("", model_names())


def test_everything_with_a_name_takes_its_spellings():
    assert load_cluster("H100").name == "h100"
    assert load_gpu("h100-sxm-80gb") == load_gpu("H100_SXM_80GB")
    assert load_framework("Megatron_Core_2025").name == "megatron-core-2025"
    assert find_model("llama3_70b") == "llama3-70b"
    assert SCHEDULES.get("1F1B") is SCHEDULES.get("1f1b")
    assert REPORTS.get(REPORTS.names()[0].upper()) is REPORTS.get(REPORTS.names()[0])
    assert bytes_per_element("BF16") == DTYPE_BYTES["bf16"]
    assert operation_named("All-Reduce") == operation_named("allreduce")
    assert fabric_of_table({"kind": "Rail-Optimized", "nodes_per_leaf": 4, "routing": "ECMP"}, "x").routing == "ecmp"
    assert make_options(network="Flow", comm="Model", stage_roles="As_Written", busbw_bytes_per_s={"TP": 1.0})
    assert api.operator("GEMM", "H100", m=64, n=64, k=64, dtype="BF16").call.family == "gemm"


@pytest.mark.parametrize(
    ("ask", "near"),
    [
        (lambda: load_cluster("h1000"), "did you mean h100"),
        (lambda: load_gpu("H10O-SXM-80GB"), "did you mean H100-SXM-80GB"),
        (lambda: load_framework("megatron-core-205"), "did you mean megatron-core-2025"),
        (lambda: api.models(["lama3-70b"]), "did you mean llama3-70b"),
        (lambda: SCHEDULES.get("interleaving"), "did you mean interleaved"),
        (lambda: api.operator("gem", "h100", m=1), "did you mean gemm"),
        (lambda: operation_named("all_reduc"), "did you mean all_reduce"),
        (lambda: fabric_of_table({"kind": "fattree2"}, "x"), "did you mean fat-tree"),
        (lambda: fabric_of_table({"kind": "torus", "dim": [2]}, "x"), "did you mean dims"),
        (lambda: bytes_per_element("bf1"), "did you mean bf16"),
        (lambda: make_options(networks="flow"), "did you mean network"),
        (lambda: make_options(network="flows"), "did you mean flow"),
        (lambda: make_options(stage_roles="as-writen"), "did you mean as-written"),
        (lambda: make_options(busbw_bytes_per_s={"tpp": 1.0}), "did you mean tp"),
    ],
)
def test_a_wrong_name_lists_the_near_ones(ask, near):
    with pytest.raises((ConfigError, UnknownNameError), match=near):
        ask()


def test_files_say_what_a_wrong_key_is_near(tmp_path):
    job, cluster = tmp_path / "job.toml", tmp_path / "cluster.toml"
    job.write_text("[batch]\nseq_lenght = 8192\n")
    with pytest.raises(ConfigError, match=r"batch\.seq_lenght: is unknown; .* did you mean seq_length\?"):
        api.predict(job)
    cluster.write_text('base = "H100"\n[inter]\nhop_latency = 3e-6\n')
    with pytest.raises(ConfigError, match="did you mean hop_latency_s"):
        load_cluster(str(cluster))


JOB = ("--model", "LLaMA3_8B", "--cluster", "H100", "--gpus", "8", "--tp", "4", "--global-batch", "8", "--json")


def run(*words):
    return CliRunner().invoke(cli, [*words], catch_exceptions=True)


def test_the_command_line_takes_them_too(tmp_path):
    words = ("--precision", "BF16", "--recompute", "Full", "--schedule", "1F1B", "--framework", "Eager")
    spelled = json.loads(run("Predict", *JOB, "--seq-length", "2k", *words).stdout)
    usual = json.loads(
        run("predict", *JOB, "--seq-length", "2048", "--precision", "bf16", "--recompute", "full", "--schedule", "1f1b",
            "--framework", "eager").stdout
    )  # fmt: skip
    # What was typed is kept as it was typed.
    assert {**spelled, "run": None} == {**usual, "run": None}
    job = tmp_path / "job.toml"
    job.write_text('[model]\nname = "Llama3 8B"\n[batch]\nseq_length = "2k"\n[software]\nprecision = "BF16"\n')
    from_file = json.loads(run("predict", str(job), *JOB[2:], "--recompute", "full", "--framework", "eager").stdout)
    assert from_file["iteration_time_s"] == usual["iteration_time_s"]


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("predic",), "did you mean predict?"),
        (("predict", *JOB, "--precision", "bf61"), "did you mean bf16"),
        (("predict", *JOB, "--seq-length", "8kB"), "write it like 8192, 8k (8,192) or 1M (1,048,576)"),
        (("predict", *JOB, "--seq-length", "0"), "is not a number of tokens"),
        (("predict", "--like", "megatrn", "--", "--bf16"), "did you mean megatron?"),
    ],
)
def test_wrong_usage_lists_the_near_ones(words, near):
    result = run(*words)
    assert result.exit_code in (1, 2)
    assert near in " ".join(result.output.replace("│", " ").split()) + str(result.exception)
