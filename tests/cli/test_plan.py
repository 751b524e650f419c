"""``traincast plan``: what it prints and refuses."""

import csv
import json
import re

import pytest


def test_the_command_prints_a_plan(call, made_once):
    made_once("plan")
    words = ("plan", "--model", "llama3-8b", "--cluster", "h100", "--gpus", "16", "--global-batch", "32", "--cp", "1")
    code, out, err = call(*words, "--max-pp", "2", "--tp", "2", "--fix", "micro_batch=1,2")
    assert (code, err) == (0, "")
    assert out.startswith("Run TP")
    code, out, err = call(*words, "--max-pp", "2", "--tp", "2", "--fix", "micro_batch=1,2", "--json")
    document = json.loads(out)
    assert document["schema"] == "traincast.plan/1"
    assert {each["layout"]["micro_batch"] for each in document["best"]} <= {1, 2}
    assert max(each["layout"]["pp"] for each in document["best"]) <= 2
    assert document["best"][0]["result"]["iteration_time_s"] == document["best"][0]["step_s"]
    assert document["feasible"] <= document["evaluated"]
    assert call(*words, "--fix", "tp")[0] == 2


SEVERAL = (
    "plan",
    "--global-batch",
    "32",
    "--seq-length",
    "2048",
    "--max-pp",
    "2",
    "--fix",
    "micro_batch=1",
    "--tp",
    "2",
    "--cp",
    "1",
)


@pytest.mark.slow
def test_several_cases_are_compared_in_one_table(call, tmp_path, made_once):
    made_once("plans")
    words = (*SEVERAL, "--model", "llama3-8b", "--model", "llama3.2-1b", "--gpus", "8:16")
    prices = ("--gpu-hour-price", "h100=2", "--gpu-hour-price", "a100=1", "--cluster", "h100", "--cluster", "a100")
    code, out, err = call(*words, *prices, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert out.startswith("llama3-8b: the most tokens/s with 16 GPUs of h100")
    assert "cost of" in out
    code, out, err = call(*words, *prices, "--json")
    document = json.loads(out)
    cases = [(each["model"], each["cluster"], each["layout"]["gpus"]) for each in document["best"]]
    assert len(set(cases)) == len(cases) == len(document["plans"]) == 8
    assert (document["model"], document["gpus"], document["global_batch"]) == (None, None, 32)
    assert document["evaluated"] == sum(each["evaluated"] for each in document["plans"])
    for each in document["best"]:
        price = {"h100": 2, "a100": 1}[each["cluster"]]
        assert each["training"]["tokens"] == 1e12
        assert each["training"]["cost"] == pytest.approx(price * each["training"]["gpu_hours"])
    lines = list(csv.DictReader((tmp_path / "out" / "plan.csv").read_text().splitlines()))
    assert {(line["model"], line["cluster"], int(line["gpus"])) for line in lines} == set(cases)
    assert sum(int(line["pareto"]) for line in lines) == len(document["pareto"])
    assert (tmp_path / "out" / "llama3-8b_a100_8.megatron.txt").is_file()


def test_a_case_without_a_layout_does_not_stop_the_others(call):
    code, out, _ = call(*SEVERAL, "--model", "llama3-8b", "--cluster", "h100", "--gpus", "9,8", "--json")
    document = json.loads(out)
    assert code == 0
    assert [each["gpus"] for each in document["plans"]] == [8]
    (refused,) = document["refused"]
    assert refused["gpus"] == 9 and "divides 9 GPUs" in refused["reason"]
    code, out, err = call(*SEVERAL, "--model", "llama3-8b", "--cluster", "h100", "--gpus", "9,11")
    assert (code, out) == (3, "")
    assert "1 further case cannot" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--gpus", "9:7"), 2, "9:7"),
        (("--gpus", "8:x"), 2, "8:x"),
        (("--gpus", "1:100000000:1"), 2, "larger steps"),
        (("--gpus", "0"), 2, "0"),
        (("--gpus", "8", "--gpu-hour-price", "h200=2"), 1, "'h200' is not a cluster of this plan"),
        (("--gpus", "8", "--gpu-hour-price", "cheap"), 2, "not a price"),
        (("--gpus", "8", "--cluster", "a100", "--gpu-hour-price", "h100=2"), 1, "a100 has no price"),
        (("--gpus", "8", "--currency", "EUR"), 2, "price"),
        (("--gpus", "8", "--gpu-hour-price", "2", "--gpu-hour-price", "3"), 2, "need a cluster each"),
        (("--gpus", "8", "--gpu-hour-price", "-1"), 2, "-1"),
    ],
)
def test_wrong_cases_are_named(call, words, code, said):
    found, out, err = call(*SEVERAL, "--model", "llama3-8b", "--cluster", "h100", *words)
    assert (found, out) == (code, "")
    assert said in err


@pytest.mark.slow
def test_a_table_of_models_marks_and_says_what_differs_alone(call, made_once):
    made_once("plans")
    words = ("--cluster", "h100", "--global-batch", "16", "--seq-length", "2048", "--cp", "1", "--max-pp", "1")
    models = ("--model", "llama3-8b", "--model", "llama3.2-1b")
    code, out, _ = call("plan", *models, "--gpus", "16", *words)
    assert code == 0
    assert "the most tokens/s" not in out, "there is one case of each model"
    for title in re.findall(r"Also in the Pareto set.*", out):
        assert re.search(r"of llama3(-8b|\.2-1b)$", title)
    assert not re.search(r"^ *\* .*$", out, re.MULTILINE) or "(* in the Pareto set" in out
    several = call("plan", *models, "--gpus", "8,16", *words)[1]
    assert several.count("the most tokens/s") == 2
    brief = call("plan", *models, "--gpus", "8,16", *words, "--quiet")[1].splitlines()
    assert len(brief) == 4
    assert all(re.match(r"llama3\S+ on \d+ GPUs of h100: TP\d .*; step .*; memory .* usable$", line) for line in brief)


def test_the_layout_to_run_is_marked_wherever_it_stands(call):
    out = call("plan", "--model", "llama3-8b", "--gpus", "16", "--cluster", "h100", "--global-batch", "16")[1]
    layout = re.search(r"^Run (.*)$", out, re.MULTILINE)[1].split(",")[0]
    tables = re.split(r"^(Layouts|Less memory)", out, flags=re.MULTILINE)[2::2]
    marked = [re.findall(r"^ *> .*$", table, re.MULTILINE) for table in tables]
    assert len(tables) >= 1
    assert all(len(each) <= 1 for each in marked)
    assert layout in marked[0][0]


def test_what_would_do_is_said_in_words_of_the_shell_and_in_the_document(call):
    words = ("--model", "llama3-8b", "--cluster", "h100", "--gpus", "1", "--global-batch", "16", "--seq-length", "2048")
    code, out, err = call("plan", *words, "--json")
    document = json.loads(out)
    assert code == document["exit_code"] == 3
    assert "what would do: --offload-optimizer 1 (TP1" in err and "--gpus 2 (" in err
    assert [each["field"] for each in document["remedies"]] == ["offload_optimizer", "gpus"]
    assert document["needed"] > document["limit"] > max(each["peak_bytes"] for each in document["remedies"])


GOAL = ("plan", "--global-batch", "32", "--seq-length", "2048", "--tp", "1", "--pp", "1", "--cp", "1",
        "--micro-batch", "1")  # fmt: skip


def test_days_and_money_are_answered_in_a_sentence_a_table_and_the_document(call, made_once):
    made_once("plans")
    words = (
        *GOAL,
        "--cluster",
        "h100",
        "--model",
        "llama3.2-1b,llama3.2-3b",
        "--gpus",
        "8",
        "--budget",
        "1K",
        "--gpu-hour-price",
        "2",
    )
    code, out, err = call(*words, "--currency", "EUR")
    assert (code, err) == (0, "")
    assert re.match(r"Within 1,000 EUR: llama3\.2-1b on 8 GPUs of h100: 24\.72 B tokens in [\d.]+ days", out)
    assert re.search(r"^ +x  llama3\.2-3b", out, re.MULTILINE) and re.search(r"^ +>  llama3\.2-1b", out, re.MULTILINE)
    assert "20 tokens a parameter (compute-optimal, arXiv 2203.15556)" in out
    document = json.loads(call(*words, "--currency", "EUR", "--json")[1])
    goal = document["goal"]
    assert [each["model"] for each in goal["runs"]] == ["llama3.2-3b", "llama3.2-1b"]
    assert goal["chosen"] == goal["runs"][1]
    (largest,) = goal["largest"]
    assert goal["runs"][1]["parameters"] < largest["parameters"] < goal["runs"][0]["parameters"]


def test_limits_that_no_run_meets_end_with_3_and_say_by_how_much(call, made_once):
    made_once("plans")
    words = (*GOAL, "--cluster", "h100", "--model", "llama3.2-1b", "--gpus", "8,16", "--days", "0.001")
    code, out, _ = call(*words, "--quiet")
    assert code == 3
    assert re.match(r"No run is within 0\.001 days; the nearest: llama3\.2-1b on 16 GPUs of h100: .* days", out)
    assert out.count("\n") == 1
    code, out, _ = call(*words, "--json")
    assert (code, json.loads(out)["goal"]["chosen"]) == (3, None)


def test_clusters_between_commas_are_ranked_each_with_its_gpus(call):
    words = (*GOAL, "--model", "llama3.2-1b", "--cluster", "b200,h100", "--gpus", "b200=8,16", "--rank-by", "cost")
    code, out, err = call(*words, "--gpu-hour-price", "h100=2", "--gpu-hour-price", "b200=2", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["rank_by"] == "cost"
    cases = [(each["cluster"], each["gpus"]) for each in document["ranked"]]
    assert sorted(cases) == [("b200", 8), ("h100", 16)]
    assert cases == [(each["cluster"], each["layout"]["gpus"]) for each in document["best"]]
    assert [each["figure"] for each in document["ranked"]] == [each["training"]["cost"] for each in document["best"]]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--gpus", "8", "--budget", "1M"), 1, "give --gpu-hour-price"),
        (("--gpus", "8", "--budget", "lots"), 2, "not a sum of money"),
        (("--gpus", "8", "--days", "0"), 2, "--days"),
        (("--gpus", "8", "--rank-by", "days"), 2, "orders several cases"),
        (("--gpus", "8,16", "--rank-by", "cost"), 1, "give --gpu-hour-price"),
        (("--gpus", "=8"), 2, "names no cluster"),
        (("--gpus", "h200=8"), 1, "'h200' is not a cluster of this plan"),
        (("--gpus", "8", "--tokens", "1T", "--tokens-per-parameter", "20"), 1, "give one of them"),
    ],
)
def test_wrong_questions_are_named(call, words, code, said):
    found, out, err = call(*GOAL, "--cluster", "h100", "--model", "llama3.2-1b", *words)
    assert (found, out) == (code, "")
    assert said in err
