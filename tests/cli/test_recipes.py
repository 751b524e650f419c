"""``--recipe`` of predict and plan, and ``traincast recipes``."""

import json

import traincast

NAME = "qwen3_30b_a3b_pretrain_8gpu_gb200_fp8mx"


def test_a_recipe_is_forecast_and_options_win(call):
    document = json.loads(call("predict", "--recipe", NAME, "--json")[1])
    assert document["job"]["moe_dispatcher"] == "hybridep"
    assert any(note["code"] == "recipe" for note in document["assumptions"])
    other = json.loads(call("predict", "--recipe", NAME, "--moe-dispatcher", "alltoall", "--json")[1])
    assert other["job"]["moe_dispatcher"] == "alltoall"
    assert document["parallel"] == other["parallel"]


def test_a_recipe_is_a_keyword_too():
    said = {"recipe": NAME, "suggest": False}
    found = traincast.predict(**said)
    assert found.parallel.ep == 8
    assert traincast.predict(**said, micro_batch=1).job.micro_batch == 1


def test_a_recipe_is_planned_anew(call):
    words = ("--fix", "tp=1", "--max-pp", "1", "--max-cp", "1", "--top", "1", "--json")
    document = json.loads(call("plan", "--recipe", NAME, *words)[1])
    assert document["had_layout"]["ep"] == 8
    assert document["had_step_s"] > 0


def test_an_unknown_recipe_names_those_near_it(call):
    code, out, err = call("predict", "--recipe", NAME[:-1])
    assert (code, out) == (1, "")
    assert f"did you mean {NAME}" in err


def test_recipes_are_listed_by_parts_of_their_names(call):
    out = call("recipes", "qwen3", "gb200", "26.08")[1]
    assert f"{NAME}@26.08" in out
    assert "gb300" not in out
    assert len(call("recipes")[1].splitlines()) > 500


def test_a_level_of_effort_is_a_flag(call):
    words = ("--model", "llama3-8b", "--cluster", "h100", "--gpus", "8", "--tp", "2", "--seq-length", "4096")
    steps = {}
    for level in ("out-of-the-box", "usual", "best"):
        document = json.loads(call("predict", *words, "--global-batch", "16", "--tuned", level, "--json")[1])
        steps[level] = document["iteration_time_s"]
        assert any(note["code"].startswith("tuned-") for note in document["assumptions"])
    assert steps["usual"] == steps["best"] < steps["out-of-the-box"]
    assert call("predict", *words, "--global-batch", "16", "--tuned", "much")[0] == 2
