"""What the endpoints answer is what the command line and Python say of the same job."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import traincast
from traincast import report
from traincast.job.fields import FIELDS
from traincast.serve.endpoints import ENDPOINTS

EXAMPLES = Path(__file__).parents[2] / "examples"


def forecast(**words):
    return traincast.predict(model="llama3-8b", cluster="h100", gpus=16, global_batch=64, seq_length="4k", **words)


def test_a_form_has_every_field_of_a_job(server):
    told = server.get("/api/about").json()
    assert [each["name"] for each in told["fields"]] == [each.name for each in FIELDS.values() if "job" in each.of]
    assert {each["name"] for each in told["models"]} == {each.name for each in traincast.models()}
    assert {each["name"] for each in told["clusters"]} == {each.name for each in traincast.clusters()}
    tp = next(each for each in told["fields"] if each["name"] == "tp")
    assert (tp["flag"], tp["takes"], tp["least"], tp["limited"]) == ("--tp", "count", 1, True)


def test_a_forecast_is_that_of_python_in_the_words_of_the_terminal(server, job):
    found, same = server.answer("forecast", job=job), forecast(tp=2)
    assert found["result"]["iteration_time_s"] == same.iteration_time_s
    assert found["result"]["breakdown_s"] == same.breakdown_s
    assert found["shown"]["step"]["value"] == same.iteration_time_s
    printed = io.StringIO()
    with redirect_stdout(printed):
        report.print_result(report.console_for(), same)
    lines = [" ".join(line.split()) for line in printed.getvalue().splitlines()]
    assert found["shown"]["headline"] == lines[0]
    for name, text in found["shown"]["facts"]:
        assert f"{name} {text}"[:60] in " ".join(lines)
    for part in found["shown"]["breakdown"]:
        assert any(line.startswith(f"{part['label']} {part['text']} {part['share_text']}") for line in lines)
    assert found["assumptions"]
    assert found["command"] == (
        "traincast predict --model llama3-8b --cluster h100 --gpus 16 --global-batch 64 --seq-length 4k --tp 2"
    )


def test_what_is_wrong_is_said_with_its_field(server, job):
    error = server.error("forecast", job={**job, "gpus": "many"})
    assert (error["kind"], error["where"]) == ("config", "gpus")
    assert "whole number" in error["hint"]
    assert server.error("forecast", job={**job, "tq": "2"})["kind"] == "unknown_name"
    assert server.error("forecast", job={})["where"] == "model"
    assert server.error("forecast", job=3)["kind"] == "request"


def test_a_job_that_does_not_fit_says_by_how_much(server, job):
    error = server.error("forecast", 409, job={**job, "model": "llama3-70b", "gpus": "8"})
    assert error["kind"] == "infeasible"
    assert error["over"] == pytest.approx(error["needed"] - error["limit"])
    assert error["unit"] == "bytes"
    allowed = server.answer("forecast", job={**job, "model": "llama3-70b", "gpus": "8", "allow_oom": True})
    assert allowed["shown"]["memory"][0]["peak"]["value"] == error["needed"]


def test_advice_that_is_applied_saves_what_it_says(server, job):
    told = server.answer("advice", job=job)
    step = server.answer("forecast", job=job)["shown"]["step"]["value"]
    first = next(each for each in told["advice"] if each["taken"])
    after = server.answer("forecast", job={**job, **first["apply"]})["shown"]["step"]["value"]
    assert step - after == pytest.approx(first["saving"]["value"])
    assert first["saving"]["low"] <= first["saving"]["value"] <= first["saving"]["high"]


def test_an_assumption_costs_what_the_forecast_with_another_value_says(server, job):
    step = server.answer("forecast", job=job)["shown"]["step"]["value"]
    found = server.answer("assumptions", job=job)["assumptions"]
    tried = next(each for each in found if each["field"] == "overlap_grad_reduce")
    (other,) = tried["others"]
    after = server.answer("forecast", job={**job, "overlap_grad_reduce": other["value"]})["shown"]["step"]["value"]
    assert other["step"]["value"] == after
    assert tried["may_cost"]["value"] == pytest.approx(abs(after - step) / step)


def test_a_plan_tells_how_far_it_is_and_has_the_layouts_of_python(server, job):
    del job["tp"]
    plan = {"top": 3, "tokens": "1T", "fix": "cp=1 micro_batch=1"}
    *before, (kind, told) = server.events(server.answer("plan", job=job, plan=plan)["task"])
    assert kind == "done"
    shares = [each["share"] for kind, each in before if kind == "progress"]
    assert shares == sorted(shares)
    same = traincast.plan(
        model="llama3-8b", cluster="h100", gpus=16, global_batch=64, seq_length="4k", top=3, tokens="1T",
        fix={"cp": (1,), "micro_batch": (1,)},
    )  # fmt: skip
    assert told["headline"] == f"Run {same.best[0].layout.text}"
    assert [each["text"] for each in told["best"]] == [each.layout.text for each in same.shown]
    columns = told["columns"]
    assert {len(column) for column in columns.values()} == {len(columns["text"])}
    assert sum(columns["simulated"]) == len(same.shown)
    assert set(columns["cp"]) == {1}
    chosen = next(each for each in told["best"] if each["chosen"])
    assert server.answer("forecast", job=chosen["job"])["shown"]["step"] == chosen["step"]
    why = server.answer("why", job=job, plan=plan, layout={"tp": 8})
    assert (why["verdict"], why["asked"]) == ("slower", "tp 8")


def test_scenarios_are_compared_with_the_interval_of_their_difference(server, job):
    other = {**job, "cluster": "h200"}
    told = server.answer(
        "compare",
        scenarios=[{"name": "A", "job": job}, {"name": "same", "job": job}, {"name": "H200", "job": other},
                   {"name": "wrong", "job": {**job, "tp": "3"}}],
    )  # fmt: skip
    pairs = {(each["a"], each["b"]): each for each in told["differences"]}
    assert pairs[0, 1]["text"] == "the same"
    assert set(pairs) == {(0, 1), (0, 2), (1, 2)}
    a, b = (told["scenarios"][at]["figures"]["step"]["value"] for at in (0, 2))
    assert pairs[0, 2]["ratio"] == pytest.approx(b / a)
    assert pairs[0, 2]["low"] < pairs[0, 2]["ratio"] < pairs[0, 2]["high"]
    assert told["scenarios"][3]["error"]["kind"] in ("infeasible", "config")


def test_a_step_scales_along_gpus_with_the_batch_or_with_its_share(server, job):
    job["tp"] = "4"
    strong = server.answer("scaling", job=job, along="gpus", values=[16, 32])["points"]
    weak = server.answer("scaling", job=job, along="gpus", values=[16, 32], keep="share")["points"]
    assert strong[1]["figures"]["step"]["value"] < 0.6 * strong[0]["figures"]["step"]["value"]
    assert weak[1]["figures"]["step"]["value"] == pytest.approx(weak[0]["figures"]["step"]["value"], rel=0.1)
    assert strong[0]["efficiency"]["value"] == 1
    longer = server.answer("scaling", job=job, along="seq_length", values=["4k", "8k", "no"])["points"]
    assert longer[1]["figures"]["step"]["value"] > longer[0]["figures"]["step"]["value"]
    assert longer[2]["error"]


def test_a_what_if_is_that_of_python(server, job):
    found = server.answer("whatif", job=job, expression="tp_comm*0.5")["what_if"][0]
    (same,) = forecast(tp=2, what_if="tp_comm*0.5").what_if
    assert (found["change"], found["saving"]["value"]) == (same.change, same.saving_s)


@pytest.mark.parametrize("form", ["job.toml", "command", "python", "result.json", "csv", "svg", "megatron", "bridge"])
def test_a_job_is_exported(server, job, form, tmp_path):
    found = server.answer("export", job=job, **{"as": form})
    assert found["text"].strip()
    if form in ("job.toml", "result.json"):
        path = tmp_path / found["name"]
        path.write_text(found["text"])
        assert traincast.predict(path).iteration_time_s == forecast(tp=2).iteration_time_s
    if form == "python":
        made = {}
        exec(found["text"], made)  # noqa: S102
        assert made["result"].iteration_time_s == forecast(tp=2).iteration_time_s


PASTED = [
    ("torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
     "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 "
     "--global-batch-size 64 --tensor-model-parallel-size 2 --bf16 --frobnicate 3", {"tp": 2, "gpus": 16}),
    ("--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 "
     "--global-batch-size 64 --tensor-model-parallel-size 2 --bf16", {"tp": 2, "global_batch": 64}),
    ('[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n[parallelism]\n'
     'tensor_parallel_degree = 2\n[optimizer]\nname="AdamW"\n', {"tp": 2, "model": "llama3-8b"}),
    ("traincast predict --model llama3-8b --gpus=16 --no-overlap-p2p --seq-length 8k", {"gpus": "16", "overlap_p2p": False}),
    ((EXAMPLES / "llama3_70b_512gpu.toml").read_text(), {"tp": 8, "pp": 4, "gpus": 512, "cluster": "h100"}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "fields"), PASTED)
def test_what_is_pasted_fills_the_form(server, text, fields):
    found = server.answer("read", text=text)
    assert {name: found["job"].get(name) for name in fields} == fields
    if "frobnicate" in text:
        assert any("frobnicate" in each["text"] for each in found["not_understood"])


def test_a_pasted_model_is_forecast(server, job):
    config = (
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,'
        ' "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,'
        ' "tie_word_embeddings": false}'
    )
    read = server.answer("read", text=config, name="config.json")["job"]
    found = server.answer("forecast", job={**job, **read})
    assert found["shown"]["step"]["value"] == pytest.approx(forecast(tp=2).iteration_time_s)
    own = server.answer("read", text=PASTED[0][0])["job"]
    assert server.answer("forecast", job={**own, "cluster": "h100", "allow_oom": True})["shown"]["step"]["value"] > 0
    assert server.error("read", text=" ")["where"] == "text"


def test_the_straggler_of_the_bundled_traces_is_found(server):
    task = server.answer("explain", example="megatron_pp4_tp2")["task"]
    told = server.end_of(task)
    assert told["kind"] == "run"
    assert told["measured"]["value"] == pytest.approx(3.8555, abs=1e-4)
    assert [each["rank"] for each in told["stragglers"]] == [7]
    assert any(each["title"].startswith("Critical path") for each in told["sections"])
    assert all(not each["path"].startswith("/") for each in told["files"])
    timeline = server.answer("timeline", task=task)
    assert timeline["header"]["result"]["iteration_time_s"] == told["shown"]["step"]["value"]
    tried = server.answer("whatif", task=task, expression="rank7.compute=peers")["what_if"][0]
    assert tried["saving"]["value"] == pytest.approx(told["stragglers"][0]["cost_s"], rel=0.01)


def test_files_are_explained_under_the_names_that_a_page_gives_them(server):
    files = [(f"run/{each.name}", each.read_bytes()) for each in sorted((EXAMPLES / "megatron_pp4_tp2").iterdir())]
    found = server.upload("explain", files, {"cluster": "h100"})
    assert found.status == 202
    told = server.end_of(found.json()["task"])
    assert told["files"][0]["path"].startswith("run/")
    assert {each["path"] for each in told["result"]["inputs"]} == {path for path, _ in files}
    result = traincast.simulate(EXAMPLES / "megatron_pp4_tp2", cluster="h100")
    assert told["shown"]["step"]["value"] == result.iteration_time_s


def test_a_result_a_log_and_a_job_are_told_apart(server, job):
    result = server.answer("export", job=job, **{"as": "result.json"})["text"].encode()
    told = server.end_of(server.upload("explain", [("result.json", result)]).json()["task"])
    assert (told["kind"], told["has_timeline"]) == ("result", True)
    log = server.done("explain", example="today.log")
    assert log["kind"] == "log"
    assert log["measured"]["value"] > 0
    toml = (EXAMPLES / "llama3_70b_512gpu.toml").read_bytes()
    read = server.end_of(server.upload("explain", [("job.toml", toml)]).json()["task"])
    assert (read["kind"], read["reading"]["job"]["tp"]) == ("job", 8)
    table = server.upload("explain", [("a.csv", (EXAMPLES / "all_reduce_a100.csv").read_bytes())]).json()["task"]
    assert server.end_of(table)["kind"] == "other"
    *_, (kind, failed) = server.events(server.upload("explain", [("a.bin", b"\0\1\2")]).json()["task"])
    assert (kind, failed["error"]["kind"]) == ("failed", "format")


def test_a_log_is_checked(server):
    log = (EXAMPLES / "check" / "today.log").read_text()
    found = server.answer("check", log=log, job={})
    same = traincast.check(EXAMPLES / "check" / "today.log")
    assert (found["verdict"], found["exit_code"]) == (same.verdict.word.value, same.exit_code)


def test_every_example_works(server):
    for each in server.get("/api/examples").json()["examples"]:
        if each["view"] == "explain":
            server.done("explain", example=each["name"])
        elif each["view"] == "forecast":
            assert server.answer("forecast", job={**each["job"], "allow_oom": True})["shown"]["headline"]


def test_the_interface_is_described(server):
    told = server.get("/schema/openapi.json").json()
    assert {f"/api/{name}" for name in ENDPOINTS} <= set(told["paths"])
    assert all(each["summary"] for path in told["paths"].values() for each in path.values())


def test_a_plan_has_the_command_line_that_prints_it(server, job):
    del job["tp"]
    plan = {"fix": "cp=1 micro_batch=1", "max_tp": "4", "clusters": "h100, h200", "allow_offload": "true", "top": "2"}
    told = server.done("plan", job=job, plan=plan)
    assert told["command"] == (
        "traincast plan --model llama3-8b --cluster h100,h200 --gpus 16 --global-batch 64 --seq-length 4k --max-tp 4 "
        "--allow-offload --top 2 --fix cp=1 --fix micro_batch=1"
    )
    assert {each["job"]["cluster"] for each in told["best"]} == {"h100", "h200"}
    assert max(told["columns"]["tp"]) <= 4
    error = server.answer("plan", job=job, plan={"fix": "tp"})["task"]
    *_, (kind, failed) = server.events(error)
    assert (kind, failed["error"]["where"]) == ("failed", "fix")


def test_layouts_are_told_as_they_are_found(server, job):
    del job["tp"]
    events = list(server.events(server.answer("plan", job=job, plan={})["task"]))
    points = [told["columns"] for kind, told in events if kind == "points"]
    assert points
    *_, (_, answer) = events
    found = {text for each in points for text in each["text"]}
    assert {text for text in answer["columns"]["text"] if text in found}
    assert all(len(each["step_s"]) == len(each["text"]) == len(each["tp"]) for each in points)


def test_documents_have_their_schemas(server):
    assert server.get("/documents").json() == sorted(report.DOCUMENTS)
    assert server.get("/documents/result").json() == json.loads(report.encode(report.schema("result")))
    assert server.get("/documents/none").status == 404
    page = server.get("/interface")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
