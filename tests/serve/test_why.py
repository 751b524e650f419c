"""Why not another layout: any worker answers, without the plan of the one that made it."""

import pytest

from traincast import api
from traincast.serve import answers
from traincast.serve.answers.bench import Workbench
from traincast.serve.records.plans import PlanRecord, WhyRecord

DENSE = {"model": "llama3-8b", "cluster": "h100", "gpus": 8, "global_batch": 8, "cp": 1, "pp": 1, "micro_batch": 1}
EXPERTS = {**DENSE, "model": "qwen3-30b-a3b", "gpus": 16, "global_batch": 32, "ep": 8}


def bench():
    return Workbench(lambda *_: None)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINCAST_SERVE_FOLDER", str(tmp_path))


def refuse(*_, **__):
    raise AssertionError("planned again")


@pytest.mark.parametrize("job", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_another_worker_says_why_without_planning_again(job, monkeypatch):
    plan = {"max_tp": 2, "top": 3}
    found = answers.plan(PlanRecord(job=job, plan=plan), bench())
    monkeypatch.setattr(api, "plan", refuse)
    best = found.columns["chosen"].index(True)
    row = {name: cells[best] for name, cells in found.columns.items()}
    fields = {name: row[name] for name in ("tp", "pp", "ep", "micro_batch", "recompute", "recompute_modules", "zero")}
    same = answers.why(WhyRecord(job=job, plan=plan, layout=fields), bench())
    assert same.verdict == "best"
    other = answers.why(WhyRecord(job=job, plan=plan, layout={"tp": 3 - row["tp"]}), bench())
    monkeypatch.undo()
    told = api.plan(**job, **plan, explain=({"tp": 3 - row["tp"]},)).explained[0]
    assert (other.verdict, other.text, other.change) == (told.verdict, told.text, told.change)


def test_of_many_plans_the_last_are_kept():
    ours, theirs = bench(), bench()
    for number in range(70):
        ours.keep(str(number).encode(), b"%d" % number)
    assert theirs.kept(b"69") == b"69"
    assert sum(theirs.kept(str(number).encode()) is not None for number in range(70)) == 64
