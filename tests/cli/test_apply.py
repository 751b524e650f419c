"""``--apply`` writes the job that advice makes, and running it takes what was promised."""

import json

import pytest

JOB = (
    *("predict", "--model", "llama3-8b", "--cluster", "h100", "--gpus", "16", "--tp", "2", "--pp", "2"),
    *("--global-batch", "16", "--seq-length", "4096", "--recompute", "full", "--no-overlap-grad-reduce"),
    "--no-overlap-param-gather",
)


@pytest.mark.parametrize(
    ("kind", "all_of_it"), [("advice", False), pytest.param("all-advice", True, marks=pytest.mark.slow)]
)
def test_a_job_that_was_written_takes_what_was_promised(call, tmp_path, kind, all_of_it):
    file = tmp_path / "ours.toml"
    code, out, _ = call(*JOB, "--json", "--apply", f"{kind}={file}")
    assert code == 0
    advice = [each for each in json.loads(out)["advice"] if each["taken"] and (all_of_it or each["same_numbers"])]
    again = json.loads(call("predict", file, "--json", "--no-suggest")[1])
    assert again["iteration_time_s"] == pytest.approx(advice[-1]["iteration_time_s"])
    assert ('precision = "fp8"' in file.read_text()) == all_of_it


@pytest.mark.slow
def test_it_is_written_next_to_the_result_and_from_one_that_is_read_again(call, tmp_path):
    out = tmp_path / "out"
    assert call(*JOB, "--apply", "advice", "--out", out, "--quiet")[0] == 0
    first = (out / "advised.job.toml").read_text()
    assert 'name = "h100"' in first
    assert "llama3-8b" in first
    again = tmp_path / "again.toml"
    assert call("predict", out, "--apply", f"advice={again}", "--quiet")[0] == 0
    assert again.read_text() == first


def test_flags_become_a_job_file_with_their_model(call, tmp_path):
    file = tmp_path / "job.toml"
    flags = (
        "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
        "--micro-batch-size 1 --global-batch-size 16 --bf16 --vocab-size 32000 --recompute-granularity full "
        "--recompute-method uniform --recompute-num-layers 1"
    )
    words = ("predict", "--like", "megatron", "--cluster", "h100", "--gpus", "8", "--apply", f"advice={file}", "--json")
    code, out, err = call(*words, "--", *flags.split())
    assert code == 0, err
    result = json.loads(out)
    taken = [each for each in result["advice"] if each["taken"] and each["same_numbers"]]
    assert taken
    assert all(each["words_of"] == "Megatron-LM" for each in taken)
    again = json.loads(call("predict", file, "--json", "--no-suggest")[1])
    assert again["iteration_time_s"] == pytest.approx(taken[-1]["iteration_time_s"])


def test_it_must_be_known_and_have_a_place(call):
    assert call(*JOB, "--apply", "advice")[0] == 2
    code, _, err = call(*JOB, "--apply", "advise=x.toml")
    assert code == 2
    assert "advice" in err


def test_without_suggestions_there_is_no_advice(call):
    code, out, _ = call(*JOB, "--json", "--no-suggest")
    assert code == 0
    assert json.loads(out)["advice"] == []


def test_the_terminal_says_flags_what_they_save_and_the_rest_below(call):
    out = " ".join(call(*JOB)[1].split())
    at = [out.index(each) for each in ("What to change", "What changes the numbers", "If the hardware or the code")]
    assert at == sorted(at)
    assert "--overlap-grad-reduce" in out
    assert "--apply advice writes the job so" in out
