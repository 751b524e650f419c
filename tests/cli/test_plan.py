"""``traincast plan``: what it prints and refuses."""

import json


def test_the_command_prints_a_plan(call):
    words = ("plan", "--model", "llama3-8b", "--cluster", "h100", "--gpus", "16", "--global-batch", "32")
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
