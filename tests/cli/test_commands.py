"""The command line: what it takes, what it prints where, and how it ends."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aicb_runs import header_of, write_text
from support import row, write_aicb
from traincast import __version__, api
from traincast.cli.main import cli
from traincast.hardware.clusters import cluster_names

EXAMPLES = Path(__file__).parents[2] / "examples"
MS = 1_000_000


@pytest.fixture
def file(tmp_path):
    layer = row("attention_layer", (MS, "ALLREDUCE", 1 << 20), (MS, "ALLREDUCE", 1 << 20), (MS, "ALLREDUCE", 1 << 24))
    rows = [*[layer] * 4, row("optimizer1", (MS, "ALLREDUCE", 4))]
    header = header_of(tp=2, ep=1, pp=2, vpp=1, ga=1, all_gpus=16, checkpoints=0, checkpoint_initiates=0, pp_comm=4096)
    return write_text(tmp_path / "w.txt", header, rows)


COMMANDS = {
    "inspect": {"files", "--all", "--json"},
    "simulate": {
        "files",
        *("--cluster", "--gpus", "--world-size", "--microbatches", "--layers", "--num-layers", "--schedule"),
        *("--tp", "--tensor-model-parallel-size", "--pp", "--pipeline-model-parallel-size"),
        *("--vpp", "--num-virtual-stages-per-pipeline-rank", "--cp", "--context-parallel-size"),
        *("--ep", "--expert-model-parallel-size", "--etp", "--expert-tensor-parallel-size"),
        *("--dp", "--data-parallel-size", "--stage-roles", "--overlap-grad-reduce", "--pp-comm"),
        *("--layer-block", "--dtype", "--forward-only", "--comm", "--expert-imbalance", "--expert-loads", "--step"),
        *("--network", "--network-seeds", "--overlap-slowdown", "--gpus-used-per-node"),
        *(
            "--pricing",
            "--simai-overlap",
            "--busbw",
            "--slow",
            "--unfold",
            "--constants",
            "--out",
            "--report",
            "--analysis",
            "--verbose",
            "--what-if",
            "--jitter",
            "--seeds",
            "--goodput",
            "--suggest",
            "--json",
            "--quiet",
        ),
    },
    "watch": {
        *("log", "--once", "--json", "--on-alarm", "--openmetrics", "--gpus", "--global-batch", "--seq-length"),
        *("--job", "--cluster", "--quiet"),
    },
    "convert": {
        *("files", "--to", "--option", "--model", "--force", "--cluster", "--json", "--quiet"),
        *("--gpus", "--world-size", "--microbatches", "--layers", "--num-layers", "--schedule"),
        *("--tp", "--tensor-model-parallel-size", "--pp", "--pipeline-model-parallel-size"),
        *("--vpp", "--num-virtual-stages-per-pipeline-rank", "--cp", "--context-parallel-size"),
        *("--ep", "--expert-model-parallel-size", "--etp", "--expert-tensor-parallel-size"),
        *("--dp", "--data-parallel-size", "--stage-roles", "--overlap-grad-reduce", "--pp-comm"),
        *("--layer-block", "--dtype", "--forward-only", "--comm", "--expert-imbalance", "--expert-loads", "--step"),
        *("--network", "--network-seeds", "--overlap-slowdown", "--gpus-used-per-node"),
        *("--busbw", "--slow", "--unfold", "--constants"),
    },
    "predict": {
        *(
            "words",
            "--like",
            "--strict",
            "--cluster",
            "--model",
            "--gpus",
            "--world-size",
            "--global-batch",
            "--global-batch-size",
        ),
        *(
            "--micro-batch",
            "--micro-batch-size",
            "--local-batch",
            "--seq-length",
            "--tp",
            "--tensor-model-parallel-size",
        ),
        *("--pp", "--pipeline-model-parallel-size", "--vpp", "--num-virtual-stages-per-pipeline-rank"),
        *("--cp", "--context-parallel-size", "--cp-kind", "--ep", "--expert-model-parallel-size"),
        *("--etp", "--expert-tensor-parallel-size", "--schedule", "--sequence-parallel", "--zero", "--shard"),
        *("--first-stage-layers", "--decoder-first-pipeline-num-layers", "--last-stage-layers"),
        *("--decoder-last-pipeline-num-layers", "--overlap-grad-reduce", "--overlap-param-gather"),
        *("--overlap-p2p", "--overlap-tp", "--tp-comm-overlap", "--grad-reduce-bytes", "--recompute"),
        *("--recompute-layers", "--recompute-num-layers", "--precision", "--attention-kernel", "--cuda-graphs"),
        *("--offload-optimizer", "--optimizer-offload-fraction", "--offload-parameters"),
        *("--offload-activations", "--cpu-offloading-num-layers", "--offload-modules"),
        *("--overlap-offload", "--overlap-cpu-optimizer-d2h-h2d"),
        *("--recompute-granularity", "--recompute-method", "--recompute-modules", "--precision-aware-optimizer"),
        *("--recompute-keeps",),
        *("--use-precision-aware-optimizer", "--main-grads-dtype", "--main-params-dtype", "--exp-avg-dtype"),
        *("--exp-avg-sq-dtype",),
        *("--framework", "--year", "--task", "--lora-rank", "--lora-targets", "--packed-length"),
        *("--packed-lengths", "--cp-splits-packs"),
        *("--local-steps", "--outer-bits", "--outer-fragments", "--overlap-outer", "--offload-outer"),
        *("--optimizer", "--muon-steps", "--muon-num-ns-steps", "--muon-tp-mode", "--muon-owned"),
        *("--expert-imbalance", "--vocab-multiple"),
        *("--make-vocab-size-divisible-by", "--network", "--network-seeds", "--overlap-slowdown"),
        *(
            "--sharp",
            "--deduplicated-dispatch",
            "--reshard-after-forward",
            "--param-gather-bytes",
            "--gpus-used-per-node",
            "--strict",
        ),
        *(
            "--busbw",
            "--slow",
            "--unfold",
            "--constants",
            "--allow-oom",
            "--fail-on-oom-risk",
            "--apply",
            "--out",
            "--report",
            "--json",
            "--quiet",
        ),
        *(
            "--fp8-recipe",
            "--fp8-attention",
            "--launch-blocking",
            "--fp8-lm-head",
            "--fp8-output-proj",
            "--bf16-first-last",
            "--first-last-layers-bf16",
            "--tuned",
        ),
        *("--cuda-graph-impl", "--cuda-graph-scope", "--moe-dispatcher", "--moe-paged-stash"),
        *("--moe-a2a-overlap", "--overlap-moe-expert-parallel-comm", "--moe-shared-expert-overlap"),
        *("--moe-dispatch-dtype", "--delay-wgrad", "--delay-wgrad-compute", "--moe-routing"),
        *("--fused-permute", "--moe-permute-fusion", "--fused-router", "--moe-router-fusion"),
        *(
            "--te-op-fuser",
            "--use-transformer-engine-op-fuser",
            "--unfused",
            "--step-checks",
            "--loss-kernel",
            "--loss-tiles",
            "--dropout",
            "--one-hot-embedding",
        ),
        *("--pipeline-layout", "--pipeline-model-parallel-layout", "--mtp-layers", "--mtp-num-layers"),
        *("--embedding-as-layer", "--account-for-embedding-in-pipeline-split"),
        *("--head-as-layer", "--account-for-loss-in-pipeline-split"),
        *("--analysis", "--verbose", "--what-if", "--jitter", "--seeds", "--goodput", "--suggest"),
    },
    "init": {"file", "--force"},
    "compare": {"a", "b", "--cluster", "--html", "--json", "--ranks"},
    "calibrate": {"files", "--cluster", "--gpu", "--job", "--constants", "--out", "--table", "--json"},
    "validate": {"files", "--cluster", "--by", "--cv", "--kind", "--job", "--out", "--json", "--recipes"},
    "collective": {"op", "--size", "--gpus", "--nodes", "--cluster", "--algorithm", "--json"},
    "operator": {
        *("family", "--batch", "--m", "--n", "--k", "--rows", "--groups", "--queries", "--seq", "--keys"),
        *("--heads", "--kv-heads", "--qk-dim", "--head-dim", "--v-dim", "--width", "--tokens", "--state", "--elements"),
        *("--hidden", "--vocabulary", "--vocab", "--experts", "--topk", "--parameters", "--dtype", "--gpu"),
        *("--direction", "--causal", "--window", "--option", "--constants", "--json"),
        *("--flops", "--bytes", "--key-dim", "--value-dim", "--dim", "--channels", "--tensors"),
    },
    "report": {"file", "--html", "--serve", "--out", "--report", "--analysis", "--json", "--verbose", "--quiet"},
    "serve": {"files", "--port", "--host", "--token", "--browser", "--mcp"},
    "models": {"names", "--seq-length", "--json"},
    "recipes": {"words"},
    "clusters": {"names", "--json"},
}
COMMANDS["measure"] = (
    COMMANDS["predict"]
    - {"--network", "--network-seeds", "--overlap-slowdown", "--gpus-used-per-node", "--busbw", "--slow"}
    - {"--unfold", "--constants", "--allow-oom", "--fail-on-oom-risk", "--report", "--json", "--analysis", "--what-if"}
    - {"--jitter", "--seeds", "--goodput", "--suggest", "--verbose", "--apply"}
) | {"--minutes", "--spread", "--script"}
COMMANDS["validate"] |= {"--ranking", "--leave-out"}
COMMANDS["completion"] = {"shell"}
COMMANDS["schema"] = {"document"}
COMMANDS["man"] = set()
RUN = {"--tokens", "--gpu-hour-price", "--currency", "--gpu-power", "--pue", "--grid-intensity"}
COMMANDS["predict"] |= {*RUN, "--recipe"}
COMMANDS["simulate"] |= {*RUN, "--tokens-per-step"}
COMMANDS["compare"] |= {*RUN, "--goodput"}
COMMANDS["sweep"] = {"spec", "--out", "--on", "--workers", "--restart", "--quiet"}
COMMANDS["check"] = (
    COMMANDS["predict"]
    - {"--network", "--network-seeds", "--overlap-slowdown", "--busbw", "--slow", "--unfold", "--constants", *RUN}
    - {"--allow-oom", "--fail-on-oom-risk", "--report", "--analysis", "--what-if", "--gpus-used-per-node"}
    - {"--jitter", "--seeds", "--goodput", "--suggest", "--verbose", "--out", "--apply"}
) | {"--job", "--baseline", "--baseline-job", "--between", "--fail-above", "--causes", "--junit", "--format"}
COMMANDS["plan"] = (
    COMMANDS["predict"]
    - {"--network", "--network-seeds", "--overlap-slowdown", "--busbw", "--slow", "--unfold", "--constants"}
    - {"--allow-oom", "--fail-on-oom-risk", "--report", "--analysis", "--what-if", "--gpus-used-per-node"}
    - {"--jitter", "--seeds", "--goodput", "--suggest", "--verbose"}
) | {
    *(
        "--space",
        "--allow-offload",
        "--fix",
        "--max-tp",
        "--max-pp",
        "--max-cp",
        "--max-ep",
        "--max-micro-batch",
        "--max-vpp",
        "--max-etp",
        "--max-shard",
        "--max-zero",
        "--max-recompute-layers",
        "--headroom",
        "--top",
    ),
    *("--explain", "--from", "--goodput", "--workers", *RUN),
    *("--tokens-per-parameter", "--days", "--budget", "--rank-by"),
}
for name in COMMANDS.keys() - {"schema", "completion", "man"}:
    COMMANDS[name] = COMMANDS[name] | {"--plain", "--verbose", "--quiet"}
"""Every command with its arguments and options; what is pinned here is a promise to scripts."""


def test_the_commands_and_options_are_these():
    context = cli.make_context("traincast", [], resilient_parsing=True)
    found = {
        name: {option for each in cli.get_command(context, name).params for option in each.opts}
        for name in cli.list_commands(context)
    }
    assert found == COMMANDS


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)])
def test_help_names_every_option(call, words):
    code, out, err = call(*words, "--help")
    assert (code, err) == (0, "")
    arguments = {"shell", "document", "spec", "files", "names", "file", "a", "b", "op", "family", "words"}
    wanted = COMMANDS[words[0]] - arguments if words else set(COMMANDS)
    assert all(each in out for each in wanted)
    assert call(*words, "-h")[1] == out


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)])
def test_no_option_is_there_for_an_earlier_name(call, words):
    assert not re.search(r"\b(old|earlier|former) name|deprecated", call(*words, "--help")[1], re.IGNORECASE)


def test_version(call):
    assert call("--version") == (0, f"traincast {__version__}\n", "")


# --- what is printed where


def test_json_is_one_document_and_nothing_else(call, file):
    code, out, err = call("simulate", file, "--cluster", "h100", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == "traincast.result/1"
    assert document["iteration_time_s"] == api.simulate(file, cluster="h100").iteration_time_s
    assert json.loads(call("inspect", file, "--json")[1])["schema"] == "traincast.inspection/1"
    assert json.loads(call("clusters", "--json")[1])["schema"] == "traincast.clusters/1"


def test_quiet_prints_nothing_and_still_writes(call, file, tmp_path):
    assert call("simulate", file, "--quiet") == (0, "", "")
    assert call("simulate", file, "--quiet", "--out", tmp_path / "out") == (0, "", "")
    assert (tmp_path / "out" / "result.json").is_file()


def test_a_run_without_a_cluster_says_which_it_took(call, file):
    document = json.loads(call("simulate", file, "--json")[1])
    assert {note["code"] for note in document["warnings"]} >= {"cluster-default"}
    assert {note["code"] for note in document["assumptions"]} >= {"cluster-default"}
    document = json.loads(call("simulate", file, "--json", "--cluster", "h100")[1])
    assert "cluster-default" not in {note["code"] for note in document["warnings"] + document["assumptions"]}


def test_out_writes_the_files_and_says_so(call, file, tmp_path):
    out_dir = tmp_path / "new" / "out"
    code, out, err = call("simulate", file, "--out", out_dir)
    assert (code, err) == (0, "")
    names = {"result.json", "ops.csv", "trace.json.gz"}
    assert {path.name for path in out_dir.iterdir()} >= names
    # rich wraps nothing here: paths stay whole, so that they can be copied.
    assert all(f"wrote {out_dir / name}\n" in out for name in names)
    assert json.loads(call("simulate", file, "--json", "--out", out_dir)[1])["schema"] == "traincast.result/1"


@pytest.mark.parametrize("words", [["--gpus", "3"], ["--cluster", "nowhere"], ["--slow", "16=2"]])
def test_out_leaves_nothing_behind_on_failure(call, file, tmp_path, words):
    code, out, err = call("simulate", file, "--out", tmp_path / "out", *words)
    assert code in (1, 3)
    assert out == ""
    assert err.startswith("error: ")
    assert not (tmp_path / "out").exists()


def test_out_on_a_file_is_an_error(call, file):
    code, out, err = call("simulate", file, "--out", file)
    assert (code, out) == (1, "")
    assert err == f"error: {file} is a file; name a directory for the output\n"
    assert file.read_text().startswith("HYBRID")


def test_report_prints_what_the_run_printed(call, file, tmp_path):
    direct = call("simulate", file, "--cluster", "h100")
    call("simulate", file, "--cluster", "h100", "--out", tmp_path / "out", "--quiet")
    assert direct[0] == 0
    assert call("report", tmp_path / "out" / "result.json") == direct
    assert call("report", tmp_path / "out") == direct


def test_every_file_of_an_inspection_is_described(call, file):
    code, out, err = call("inspect", file, EXAMPLES / "aicb_scaled_512gpu.txt")
    assert (code, err) == (0, "")
    assert "aicb_scaled_512gpu.txt" in out
    assert "w.txt" in out
    assert out.startswith("2 files\n")


def test_of_many_files_the_first_and_last_are_shown(call, file):
    traces = EXAMPLES / "megatron_pp4_tp2"
    out = call("inspect", traces)[1]
    assert out.startswith("8 files: traces of 8 ranks of 8 by the file names\n")
    assert [int(rank) for rank in re.findall(r"^  rank (\d)", out, re.MULTILINE)] == [0, 7]
    assert re.search(r"^\.\.\. 6 files more, with \d+ warnings \(--all shows them\)$", out, re.MULTILINE)
    every = call("inspect", traces, "--all")[1]
    assert [int(rank) for rank in re.findall(r"^  rank (\d)", every, re.MULTILINE)] == list(range(8))
    assert "--all" not in every
    document = json.loads(call("inspect", traces, "--json")[1])
    assert document["schema"] == "traincast.inspections/1"
    assert [each["schema"] for each in document["files"]] == ["traincast.inspection/1"] * 8
    two = call("inspect", traces / "*rank[02]_*")[1]
    assert two.startswith("2 files: traces of 2 ranks of 8 by the file names\n")
    assert call("inspect", file, file, file, file)[1].startswith("4 files\n")


def test_a_stray_file_in_a_folder_comes_with_a_pattern(call, file, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"x_rank{rank}.txt").write_text(file.read_text())
    for name, text in (("notes.txt", "hello\n"), ("empty.txt", ""), ("topology", "9 8 1 8 9 H100\n0\n")):
        (folder / name).write_text(text)
        for command in ("simulate", "inspect")[: 1 if name == "topology" else 2]:
            code, out, err = call(command, folder)
            assert (code, out) == (1, "")
            assert err.startswith(f"error: {folder / name}:")
            assert err.endswith(f"give a pattern such as '{folder}/*rank*.txt'\n")
        assert "pattern" not in call("simulate", folder / name)[2]
        (folder / name).unlink()


def test_notes_show_short_places_and_pipes_get_no_trailing_blanks(call):
    outputs = [
        call("simulate", EXAMPLES / "aicb_scaled_512gpu.txt")[1],
        call("inspect", EXAMPLES / "megatron_pp4_tp2")[1],
        call("clusters")[1],
    ]
    for out in outputs:
        assert all(line == line.rstrip() for line in out.splitlines())
    assert "(aicb_scaled_512gpu.txt:1)" in " ".join(outputs[0].split())
    assert str(EXAMPLES) not in outputs[0]


def test_clusters_by_name_show_their_numbers(call, tmp_path):
    out = call("clusters", "h100", "a100")[1]
    assert re.search(r"^  gpu\.hbm_bytes +80 GB +\[\d+\]$", out, re.MULTILINE)
    assert "NVIDIA H100 datasheet" in out
    assert "\na100: " in out
    assert [each["name"] for each in json.loads(call("clusters", "h100", "--json")[1])["clusters"]] == ["h100"]
    assert call("clusters", "nowhere")[0] == 1
    path = tmp_path / "mine.toml"
    path.write_text('base = "h100"\ndescription = "ours"\n[inter]\nbandwidth_bytes_per_s = "100Gb/s"\n')
    assert re.search(r"^  inter\.bandwidth_bytes_per_s +12\.5 GB/s", call("clusters", path)[1], re.MULTILINE)
    assert "clusters NAME..." in call("clusters")[1].splitlines()[-1]


# --- flags


@pytest.mark.slow
@pytest.mark.parametrize(
    ("short", "long", "value"),
    [
        ("--tp", "--tensor-model-parallel-size", 4),
        ("--pp", "--pipeline-model-parallel-size", 4),
        ("--vpp", "--num-virtual-stages-per-pipeline-rank", 2),
        ("--cp", "--context-parallel-size", 2),
        ("--ep", "--expert-model-parallel-size", 2),
        ("--etp", "--expert-tensor-parallel-size", 1),
        ("--dp", "--data-parallel-size", 8),
        ("--gpus", "--world-size", 64),
    ],
)
def test_megatrons_names_equal_the_short_ones(call, file, short, long, value):
    default = json.loads(call("simulate", file, "--json")[1])
    one, other = (json.loads(call("simulate", file, "--json", flag, value)[1]) for flag in (short, long))
    assert one == other
    assert one["parallel"] != default["parallel"]
    key = {"--gpus": "world_size"}.get(short, short.lstrip("-"))
    assert one["parallel"][key] == value


def test_a_typed_bus_bandwidth_goes_before_that_of_a_file(call, file, tmp_path):
    rates = tmp_path / "busbw.yaml"
    rates.write_text("mine\nTP:\nallreduce,: 300\nallgather,: 300\nreducescatter,: 300\nDP:\nallreduce,: 20\n")

    def step(*words):
        return json.loads(call("simulate", file, "--json", "--cluster", "h100", *words)[1])["breakdown_s"]

    filed = step("--busbw", rates)
    typed = step("--busbw", rates, "--busbw", "TP=1GB/s")
    assert typed == step("--busbw", "tp=1GB/s", "--busbw", rates)
    assert typed["exposed_tp"] > 2 * filed["exposed_tp"] > 0
    # What is exposed of it depends on what it has to run beside.
    assert typed["exposed_dp"] == pytest.approx(filed["exposed_dp"], rel=0.05)


def test_flags_change_what_they_say(call, file):
    def step(*words):
        return json.loads(call("simulate", file, "--json", "--cluster", "h100", *words)[1])

    base = step()
    assert step("--busbw", "tp=1GB/s")["breakdown_s"]["exposed_tp"] > base["breakdown_s"]["exposed_tp"]
    assert step("--busbw", "tp.all_reduce=1GB/s")["breakdown_s"]["exposed_tp"] > base["breakdown_s"]["exposed_tp"]
    assert step("--busbw", "tp=1GB/s", "--busbw", "dp=1Gb/s")["iteration_time_s"] > base["iteration_time_s"]
    assert step("--slow", "3=2")["iteration_time_s"] > base["iteration_time_s"] + 0.008
    assert len(step("--unfold")["ranks"]) == 16
    assert step("--unfold")["iteration_time_s"] == base["iteration_time_s"]
    assert step("--schedule", "gpipe")["parallel"]["schedule"] == "gpipe"
    assert step("--microbatches", "6")["parallel"]["microbatches"] == 6
    assert step("--pp-comm", "1GiB")["breakdown_s"]["exposed_pp"] > base["breakdown_s"]["exposed_pp"]
    assert step("--cluster", "ideal")["cluster"]["ideal"] is True


def test_a_cluster_file_is_taken(call, file, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "h100"\ndescription = "ours"\n[inter]\nbandwidth_bytes_per_s = "100Gb/s"\n')
    assert json.loads(call("simulate", file, "--json", "--cluster", path)[1])["cluster"]["name"] == "mine"


# --- wrong usage: 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--no-such-flag"], "--no-such-flag"),
        (["--tp", "0"], "--tp"),
        (["--tp", "two"], "two"),
        (["--microbatches", "-1"], "--microbatches"),
        (["--busbw", "nonsense"], "GROUP=RATE"),
        (["--busbw", "tp=fast"], "300GB/s"),
        (["--busbw", "tp=-1GB/s"], "300GB/s"),
        (["--busbw", "nvlink=1GB/s"], "known: tp, cp"),
        (["--busbw", "tp.copy=1GB/s"], "unknown operation 'copy'; known: all_reduce"),
        (["--busbw", "tp=1GB/s", "--busbw", "tp=2GB/s"], "twice for tp"),
        (["--slow", "first=2"], "7=1.3"),
        (["--slow", "7"], "7=1.3"),
        (["--slow", "7=0"], "is 0; it must be a number from 1e-06 to 1,000,000"),
        (["--slow", "7=nan"], "not a rank and a factor"),
        (["--slow", "7=2", "--slow", "7=3"], "twice for 7"),
        (["--stage-roles", "none"], "as-written"),
        (["--pp-comm", "much"], "64MiB"),
        (["--dtype", "int3"], "bf16"),
    ],
)
def test_wrong_usage_ends_with_two(call, file, words, said):
    code, out, err = call("simulate", file, *words)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: traincast simulate")
    assert said in err


@pytest.mark.parametrize(
    "words", [[], ["nothing"], ["--nope"], ["simulate"], ["inspect"], ["report"], ["report", "a", "b"]]
)
def test_wrong_commands_end_with_two(call, words):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: ")


# --- errors: 1 and 3, one message on stderr


@pytest.mark.parametrize("command", ["simulate", "inspect"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ":1: the file is empty"),
        (b"\n\n \n", ":1: the file is empty"),
        (bytes(range(256)) * 20, ":1: not a file of a known format (tried aicb: "),
        (b"hello world\n", ":1: not a file of a known format (tried aicb: "),
        (b"MICRO\n1\n", ":2: the file has no rows"),
        (b"MICRO\n1\nx -1 1 NONE 0 1 NONE 0 1 ALLSUM 1 1\n", ":3: column 10 (weight-gradient communication): "),
        (b"MICRO\n1\nx -1 1 NONE 0 1\n", ":3: a row has 12 fields"),
    ],
)
def test_a_bad_file_is_named_with_its_line(call, tmp_path, command, content, said):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    code, out, err = call(command, path)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {path}{said}"), err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["simulate", "inspect", "report"])
def test_what_is_no_readable_file_says_so(call, tmp_path, monkeypatch, command):
    said = f"{tmp_path}: is a folder without files"
    if command == "report":
        said = f"{tmp_path / 'result.json'}: cannot be read: No such file or directory"
    assert call(command, tmp_path) == (1, "", f"error: {said}\n")
    absent = tmp_path / "absent.txt"
    assert call(command, absent) == (1, "", f"error: {absent}: cannot be read: No such file or directory\n")
    locked = tmp_path / "locked.txt"
    locked.write_text("MICRO")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(locked))

    monkeypatch.setattr(os, "open", refuse)
    assert call(command, locked) == (1, "", f"error: {locked}: cannot be read: Permission denied\n")


@pytest.mark.parametrize("words", [["--layers", "9"], ["--dtype", "bf16"], ["--forward-only"]])
def test_an_option_that_means_nothing_to_the_file_is_refused(call, file, words):
    code, out, err = call("simulate", file, *words)
    assert code in (1, 2)
    assert out == ""
    assert words[0].lstrip("-").replace("-", "_") in err.replace("-", "_")


def test_loads_of_experts(call, file, tmp_path):
    code, out, _ = call("simulate", file, "--expert-loads", "1,2", "--json")
    assert code == 0
    assert "expert-loads-unused" in {note["code"] for note in json.loads(out)["warnings"]}
    for words, said in (
        (["--expert-loads", "1,two"], "'1,two' is not a list of numbers, such as 1.0,0.8,1.2"),
        (["--expert-loads", "1,"], "is not a list of numbers"),
        (["--expert-loads", "1,-2"], "is -2; it must be a number from 0"),
        (["--expert-loads", "1,2", "--expert-imbalance", "2"], "give one of the two"),
        (["--expert-imbalance", "0.5"], "is 0.5; it must be a number from 1"),
    ):
        code, out, err = call("simulate", file, *words)
        assert (code, out) == (2, "")
        assert said in " ".join(err.split())
    layer = [row("attention", MS, MS, MS), row("moe_expert", (MS, "ALLTOALL_EP", 4096), (MS, "ALLTOALL_EP", 4096))]
    experts = write_aicb(tmp_path / "experts.txt", layer, ep=2, gpus=4)
    code, out, _ = call("simulate", experts, "--cluster", "ideal", "--expert-loads", "3,1", "--json")
    assert code == 0
    assert json.loads(out)["iteration_time_s"] == pytest.approx((3 + 1.5 * 2) * 1e-3)
    code, out, err = call("simulate", experts, "--expert-loads", "1,2,3")
    assert (code, out) == (1, "")
    assert err == "error: expert_loads: gives 3 loads, but there are 2 expert ranks (ep); give one for each\n"


def test_names_that_nobody_knows_list_the_known(call, file):
    code, out, err = call("simulate", file, "--cluster", "h101")
    assert (code, out) == (1, "")
    assert err == f"error: unknown cluster 'h101'; known: {', '.join(cluster_names())}; did you mean h100?\n"
    code, out, err = call("simulate", file, "--schedule", "dualpipe2")
    assert (code, out) == (1, "")
    assert err.startswith("error: unknown schedule 'dualpipe2'; known: 1f1b, dualpipe, dualpipe_v, gpipe, ")
    assert err.endswith("; did you mean dualpipe or dualpipe_v?\n")


def test_a_rank_outside_the_world_is_an_error(call, file):
    code, out, err = call("simulate", file, "--slow", "16=2")
    assert (code, out) == (1, "")
    assert "rank 16 is outside the world of 16 ranks" in err


@pytest.mark.parametrize("words", [["--gpus", "17"], ["--vpp", "5"], ["--tp", "32"], ["--ep", "3"]])
def test_an_infeasible_job_ends_with_three_and_its_arithmetic(call, file, words):
    code, out, err = call("simulate", file, *words)
    assert (code, out) == (3, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words[1] in err


def test_two_workloads_are_no_run(call, file):
    code, out, err = call("simulate", file, file)
    assert (code, out) == (1, "")
    assert "one file for a whole run" in err


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"schema": "traincast.result/2"}', b"\xff\xfe", b"MICRO\n1\n"]
)
def test_report_refuses_what_is_no_result(call, tmp_path, content):
    path = tmp_path / "result.json"
    path.write_bytes(content)
    code, out, err = call("report", path)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {path}: ")
    assert "traincast.result/1" in err


def test_a_bug_is_one_line_too(call, file, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(api, "simulate", fail)
    code, out, err = call("simulate", file)
    assert (code, out) == (1, "")
    assert err.startswith("error: internal error: ZeroDivisionError: oops; ")
    assert "TRAINCAST_DEBUG=1" in err
    assert err.count("\n") == 1


# --- processes


def spawn(*words, stdout=subprocess.PIPE, **environment):
    """Start Python with some words."""
    return subprocess.Popen(
        [sys.executable, *map(str, words)], stdout=stdout, stderr=subprocess.PIPE, env={**os.environ, **environment}
    )


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_trouble(file):
    for words in (["simulate", file], ["simulate", file, "--json", "--unfold"], ["clusters"]):
        with spawn("-m", "traincast.cli", *words) as process:
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode in (0, 1)


@pytest.mark.slow
def test_a_full_disk_is_one_message(file):
    with Path("/dev/full").open("wb") as full, spawn("-m", "traincast.cli", "simulate", file, stdout=full) as process:
        err = process.stderr.read()
    assert process.returncode == 1
    assert err.startswith(b"error: ")
    assert b"No space left" in err
    assert err.count(b"\n") == 1


@pytest.mark.slow
def test_a_terminal_that_cannot_show_a_bar_gets_ascii(file):
    out, err = spawn("-m", "traincast.cli", "simulate", file, PYTHONIOENCODING="ascii").communicate()
    assert err == b""
    assert out.isascii()
    assert out.startswith(b"Step ")
    assert b"\x1b" not in out


def test_debug_shows_the_traceback(file):
    process = spawn("-m", "traincast.cli", "simulate", file, "--cluster", "h101", TRAINCAST_DEBUG="1")
    assert b"Traceback" in process.communicate()[1]
    assert process.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["simulate", "predict", "collective", "operator", "validate", "calibrate", "models"]
)
def test_a_number_of_5000_digits_is_refused_by_every_option_in_one_short_line(command, call, file):
    others = {"predict": EXAMPLES / "llama3_70b_512gpu.toml", "collective": "all_reduce", "operator": "gemm"}
    context = cli.make_context("traincast", [], resilient_parsing=True)
    for option in cli.get_command(context, command).params:
        if not option.opts[0].startswith("--") or option.is_flag or option.opts[0] == "--json":
            continue
        given = [] if command == "models" else [others.get(command, file)]
        code, out, err = call(command, *given, option.opts[0], "8" * 5000, *(["8"] * (option.nargs - 1)))
        said = err.strip().splitlines()[-1]
        assert (code in (1, 2, 3), out) == (True, ""), option.opts
        assert len(said) < 700, option.opts
        assert "internal error" not in said, said


@pytest.mark.slow
def test_a_report_is_written_again_with_its_operations(tmp_path, call):
    out, again = tmp_path / "out", tmp_path / "again"
    assert call("simulate", "examples/megatron_pp4_tp2", "--out", out, "--quiet")[0] == 0
    assert json.loads(call("report", out, "--json")[1]) == json.loads((out / "result.json").read_text())
    assert "Ranks that keep others waiting" in call("report", out, "--analysis", "--out", again)[1]
    for name in ("result.json", "trace.json.gz", "ops.csv"):
        assert (again / name).read_bytes() == (out / name).read_bytes()


def test_what_cannot_be_run_again_is_written_without_its_operations(tmp_path, call):
    out, again = tmp_path / "out", tmp_path / "again"
    call("simulate", "examples/megatron_pp4_tp2", "--out", out, "--quiet")
    document = json.loads((out / "result.json").read_text())
    document["run"] = None
    (out / "result.json").write_text(json.dumps(document))
    code, said, _ = call("report", out, "--out", again)
    assert code == 0
    assert "left out" in said
    assert [each.name for each in again.iterdir()] == ["result.json"]
