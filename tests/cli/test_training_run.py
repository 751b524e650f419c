"""Options of a whole run on the command line."""

import json

import pytest


def test_a_file_needs_the_tokens_of_a_step(call):
    file = "examples/aicb_gpt_405b_1024gpu.txt"
    words = ("simulate", file, "--cluster", "h100", "--no-suggest", "--tokens", "15T")
    code, out, err = call(*words)
    assert (code, out) == (1, "")
    assert "does not say how many tokens a step trains on" in err
    code, out, _ = call(*words, "--tokens-per-step", "16M", "--json")
    run, step_s = json.loads(out)["training_run"], json.loads(out)["iteration_time_s"]
    assert run["days"] == pytest.approx(15e12 / 16e6 * step_s / 86400)
    assert run["days_low"] is None


def test_a_run_again_says_the_same_of_the_run(tmp_path, call):
    words = ("predict", "--model", "llama3-8b", "--cluster", "h100", "--gpus", "8", "--tp", "8", "--global-batch", "8")
    out = tmp_path / "out"
    assert call(*words, "--seq-length", "4096", "--tokens", "2T", "--out", out, "--quiet")[0] == 0
    first = json.loads((out / "result.json").read_text())["training_run"]
    assert json.loads(call("predict", out, "--json")[1])["training_run"] == first
    assert "A run of 2 T tokens" in call("report", out)[1]
    traces = "examples/megatron_pp4_tp2"
    code, _, err = call("compare", traces, traces, "--tokens", "1T")
    assert code == 1
    assert "neither side says" in err
