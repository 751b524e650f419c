"""``traincast predict``: from files, flags and pasted command lines to a forecast or one message."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from traincast.job.frameworks import DEFAULT_FRAMEWORK

EXAMPLE = Path(__file__).parents[2] / "examples" / "llama3_70b_512gpu.toml"
SMALL = ("--model", "llama3-8b", "--cluster", "h100", "--gpus", 16, "--tp", 4, "--pp", 2, "--seq-length", 4096,
         "--global-batch", 8)  # fmt: skip
MEGATRON = (
    *("--num-layers", 32, "--hidden-size", 4096, "--num-attention-heads", 32, "--seq-length", 4096),
    *("--max-position-embeddings", 4096, "--micro-batch-size", 1, "--global-batch-size", 8, "--bf16", "--swiglu"),
    *("--ffn-hidden-size", 14336, "--group-query-attention", "--num-query-groups", 8, "--vocab-size", 128256),
    *("--untie-embeddings-and-output-weights", "--position-embedding-type", "rope", "--normalization", "RMSNorm"),
    *("--disable-bias-linear", "--tensor-model-parallel-size", 4, "--pipeline-model-parallel-size", 2),
    *("--sequence-parallel", "--use-distributed-optimizer", "--use-flash-attn"),
)


def as_json(call, *words):
    code, out, err = call("predict", "--json", "--no-suggest", *words)
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_example_is_the_command_of_the_readme(call):
    file = as_json(call, EXAMPLE)
    flags = as_json(call, "--model", "llama3-70b", "--cluster", "h100", "--gpus", 512, "--tp", 8, "--pp", 4,
                    "--global-batch", 512, "--seq-length", 8192)  # fmt: skip
    assert file["schema"] == "traincast.result/1"
    assert file["iteration_time_s"] == flags["iteration_time_s"]
    assert file["parallel"]["world_size"] == 512
    assert 0.3 < file["mfu"] < 0.7
    assert len(file["memory_bytes"]) == 4


def test_what_is_printed_names_step_interval_rates_and_memory(call):
    code, out, _ = call("predict", EXAMPLE)
    assert code == 0
    for word in ("Step", "interval", "MFU", "peak memory", "Where the time goes", "Assumptions"):
        assert word in out
    assert call("predict", EXAMPLE, "--quiet") == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "shares"), [("bf16", " of the bf16 peak"), ("fp8", " of the 16-bit peak)")])
def test_the_header_names_the_job_and_the_peak_of_its_mfu(call, tmp_path, precision, shares):
    code, out, _ = call("predict", *SMALL, "--precision", precision, "--out", tmp_path / "run")
    head = " ".join(out.partition("Where the time goes")[0].split())
    assert code == 0
    assert (
        f"model llama3-8b, {precision}; framework {DEFAULT_FRAMEWORK} "
        "batch 8 sequences of 4,096 tokens; micro batch 1 layout" in head
    )
    assert f"of the {precision} peak" in head
    assert shares in head
    assert " ".join(call("report", tmp_path / "run")[1].partition("Where the time goes")[0].split()) == head
    compared = " ".join(call("compare", tmp_path / "run", tmp_path / "run")[1].split())
    assert f"of the {precision} peak" in compared


@pytest.mark.slow
def test_a_result_is_run_again_and_options_win_over_it(call, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    call("predict", *SMALL, "--slow", "3=1.5", "--precision", "fp8", "--out", first, "--quiet")
    assert call("predict", first, "--out", second, "--quiet") == (0, "", "")
    assert (first / "result.json").read_bytes() == (second / "result.json").read_bytes()
    found = as_json(call, first / "result.json", "--tp", 2, "--cluster", "h200", "--network", "analytical")
    assert (found["parallel"]["tp"], found["cluster"]["name"], found["job"]["precision"]) == (2, "h200", "fp8")
    assert found["run"]["options"] == {"compute_slowdown": {"3": 1.5}, "network": "analytical"}
    (first / "result.json").write_text((first / "result.json").read_text().replace('"predict"', '"simulate"'))
    code, out, err = call("predict", first)
    assert (code, out) == (1, "")
    assert "run traincast simulate on it" in err


def test_a_result_of_before_shows_its_shares_of_the_16_bit_peak(call, tmp_path):
    found = as_json(call, *SMALL, "--precision", "fp8")
    found["mfu"] = found["mfu_16_bit"]
    for key in ("mfu_peak", "mfu_16_bit", "hfu_16_bit", "job"):
        del found[key]
    (tmp_path / "result.json").write_text(json.dumps(found))
    code, out, _ = call("report", tmp_path)
    assert code == 0
    assert re.search(rf"MFU +{100 * found['mfu']:.1f} %", out)
    assert "of the 16-bit peak" in " ".join(out.split())


@pytest.mark.slow
def test_options_win_over_the_file(call):
    found = as_json(call, EXAMPLE, "--gpus", 1024, "--cluster", "h200", "--global-batch", 1024)
    assert (found["parallel"]["dp"], found["cluster"]["name"]) == (32, "h200")


@pytest.mark.slow
def test_init_writes_what_predict_reads(call, tmp_path):
    file = tmp_path / "job.toml"
    assert call("init", file)[0] == 0
    found = as_json(call, file)
    assert found["parallel"]["world_size"] == 256
    assert not [note for note in found["warnings"] if note["code"] == "out-of-memory"]


def test_pasted_flags_are_the_same_job_as_our_own(call):
    pasted = as_json(call, "--like", "megatron", "--cluster", "h100", "--gpus", 16, "--", *MEGATRON)
    # What Megatron-LM's absent flags mean.
    said = ("--zero", 1, "--vpp", 1, "--no-overlap-grad-reduce", "--no-overlap-param-gather", "--no-overlap-tp",
            "--recompute", "none", "--sequence-parallel", "--no-cuda-graphs", "--loss-kernel", "unfused")  # fmt: skip
    ours = as_json(call, *SMALL, *said)
    assert pasted["parallel"] == ours["parallel"]
    assert pasted["iteration_time_s"] == pytest.approx(ours["iteration_time_s"], rel=0.02)
    assert pasted["tflops_per_gpu"] * pasted["iteration_time_s"] == pytest.approx(
        ours["tflops_per_gpu"] * ours["iteration_time_s"], rel=1e-6
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--gpus", 8, "--global-batch", 8, "--seq-length", 64), 2, "model: is missing; give --model"),
        (("--model", "llama3-8b", "--global-batch", 8, "--seq-length", 64), 2, "gpus: is missing; give --gpus"),
        (("--model", "llama3-8b", "--gpus", 8, "--seq-length", 64), 2, "global_batch: is missing"),
        ((*SMALL, "--model", "llama9"), 1, "unknown model 'llama9'; known: "),
        ((*SMALL, "--framework", "abc"), 1, "unknown framework 'abc'; known: "),
        ((*SMALL, "--cluster", "abc"), 1, "unknown cluster 'abc'; known: "),
        ((*SMALL, "--gpus", 12), 3, "12 GPUs do not divide into tp 4 x pp 2"),
        ((*SMALL, "--global-batch", 7), 3, "a global batch of 7 sequences does not divide"),
        ((*SMALL, "--tp", 3, "--gpus", 6), 3, "tp 3 does not divide the 32 attention heads"),
        ((*SMALL, "--precision", "mxfp8"), 3, "has no matrix units for mxfp8; use fp8"),
        ((*SMALL, "--ep", 2), 1, "has no experts"),
        (("no-such-file.toml",), 1, "no-such-file.toml: cannot be read"),
        ((*SMALL, "--tp", 0), 2, "is 0; it must be a whole number from 1"),
        ((*SMALL, "--zero", 4), 2, "is 4; it must be a whole number from 0 to 3"),
        ((*SMALL, "--schedule", "zigzag"), 2, "'zigzag' is not one of them; known: 1f1b, dualpipe, dual"),
        ((*SMALL, "--expert-imbalance", 0.5), 2, "is 0.5; it must be a number from 1"),
        ((*SMALL, "--expert-imbalance", 1.5), 1, "expert_imbalance: is 1.5, but llama3-8b has no experts"),
        ((*SMALL, "--frobnicate", 1), 2, "No such option"),
        (
            ("--like", "megatron", "--strict", "--", "--num-layers", 4, "--frobnicate", 3),
            1,
            "--frobnicate 3: is not a known flag of Megatron-LM",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_message(call, words, code, said):
    found, out, err = call("predict", *words)
    assert (found, out) == (code, "")
    assert said in err
    assert err.count("rror: ") == 1


@pytest.mark.parametrize(
    ("wrong", "right", "code"),
    [("--use-distributed-optimiser", "--use-distributed-optimizer", 3), ("--num-layer", "--num-layers", 2)],
)
def test_a_refused_job_names_the_misspelt_flag_that_may_be_why(call, wrong, right, code):
    words = [wrong if word == right else word for word in MEGATRON]
    words[words.index("--hidden-size") + 1] = 16384
    got, out, err = call("predict", "--like", "megatron", "--cluster", "h100", "--gpus", 16, "--", *words)
    assert (got, out) == (code, "")
    assert f"note: {wrong}" in err
    assert f"did you mean {right}?" in err


def test_a_damaged_file_is_named_with_its_place(call, tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(EXAMPLE.read_text().replace("tp = 8", "tp = 8\ntpp = 1"))
    code, out, err = call("predict", file)
    assert (code, out) == (1, "")
    assert "parallel.tpp: is unknown" in err
    assert str(file) in err


def test_out_of_memory_is_exit_code_3_with_the_shortfall(call):
    words = ("--model", "llama3-70b", "--cluster", "h100", "--gpus", 8, "--tp", 8, "--global-batch", 8,
             "--seq-length", 8192)  # fmt: skip
    code, out, err = call("predict", *words)
    assert (code, out) == (3, "")
    assert "GiB, 79.1 GiB usable, over by " in err
    assert "--allow-oom" in err
    found = as_json(call, *words, "--allow-oom")
    assert "out-of-memory" in {note["code"] for note in found["warnings"]}
    assert max(stage["peak"] for stage in found["memory_bytes"]) > 80 * 2**30


@pytest.mark.slow
def test_a_job_near_the_limit_runs_with_the_chance_of_not_fitting(call):
    """Meta's own layout of Llama 3.1 405B (arXiv 2407.21783, table 4), with gradients in 16 bits."""
    found = as_json(call, "--model", "llama3.1-405b", "--cluster", "h100", "--gpus", 16384, "--tp", 8, "--pp", 16,
                    "--global-batch", 2048, "--seq-length", 8192, "--grad-reduce-bytes", 2)  # fmt: skip
    warning = next(note["text"] for note in found["warnings"] if note["code"] == "may-run-out-of-memory")
    stages = found["memory_bytes"]
    worst = max(stages, key=lambda stage: stage["peak"])
    need, usable = worst["peak"] / 2**30, worst["usable"] / 2**30
    assert f"needs {need:.1f} GiB, {usable:.1f} GiB usable, over by {need - usable:.1f} GiB" in warning
    assert "tp 16" not in warning
    assert f"chance of running out of memory {100 * worst['chance_of_oom']:.0f} %" in warning
    assert 0.5 < worst["chance_of_oom"] < 0.9
    assert all((stage["chance_of_oom"] > 0.5) == (stage["peak"] > stage["usable"]) for stage in stages)


def test_modules_and_types_are_said_alike_in_flags_job_files_and_pasted(call, tmp_path):
    ours = ("--recompute-modules", "core_attn,mlp", "--exp-avg-dtype", "bf16", "--zero", 1)
    file = tmp_path / "job.toml"
    told = {
        "--model": "llama3-8b",
        "--cluster": "h100",
        "--gpus": 16,
        "--tp": 2,
        "--global-batch": 32,
        "--seq-length": 4096,
    }
    file.write_text(
        '[model]\nname = "llama3-8b"\n[cluster]\nname = "h100"\ngpus = 16\n[parallel]\ntp = 2\nzero = 1\n'
        "[batch]\nglobal_batch = 32\nseq_length = 4096\n"
        '[software]\nrecompute_modules = ["core_attn", "mlp"]\nexp_avg_dtype = "bf16"\n'
    )
    found, read = as_json(call, *(word for pair in told.items() for word in pair), *ours), as_json(call, file)
    assert found["memory_bytes"] == read["memory_bytes"]
    assert found["iteration_time_s"] == read["iteration_time_s"]
    plain = as_json(call, *(word for pair in told.items() for word in pair), "--zero", 1)
    assert (
        found["hfu"]
        > found["mfu"]
        == pytest.approx(plain["mfu"] * plain["iteration_time_s"] / found["iteration_time_s"])
    )
    assert all(found["memory_bytes"][0][name] < plain["memory_bytes"][0][name] for name in ("activations", "optimizer"))


def test_a_wrong_module_lists_the_known_ones(call):
    code, out, err = call("predict", *SMALL, "--recompute-modules", "mpl")
    assert (code, out) == (2, "")
    assert "known: core_attn, mla_up_proj, layernorm, mlp, moe, moe_act, shared_experts" in err


def test_out_writes_the_whole_result(call, tmp_path):
    code, out, _ = call("predict", *SMALL, "--out", tmp_path / "run")
    assert code == 0
    assert {file.name for file in (tmp_path / "run").iterdir()} >= {"result.json", "ops.csv", "trace.json.gz"}
    assert "result.json" in out
    code, shown, _ = call("report", tmp_path / "run")
    assert code == 0
    assert shown.splitlines()[0] == out.splitlines()[0]


@pytest.mark.slow
def test_equal_inputs_give_equal_bytes_whatever_the_hash_seed():
    words = [sys.executable, "-m", "traincast.cli", "predict", "--model", "mixtral-8x7b", "--cluster", "h100",
             "--gpus", "32", "--tp", "2", "--pp", "2", "--ep", "4", "--zero", "1", "--seq-length", "2048",
             "--global-batch", "32", "--json"]  # fmt: skip
    outputs = [
        subprocess.run(words, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("0", "1", "4711")
    ]
    assert outputs[0] == outputs[1] == outputs[2]
    assert json.loads(outputs[0])["mfu"] > 0
