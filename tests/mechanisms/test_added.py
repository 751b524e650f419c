"""The mechanism that the page on adding adds, in six files: a flag, bytes, a longer step, and an axis of a plan."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import traincast
from traincast.hardware.clusters import load_cluster
from traincast.model.counts import parameters
from traincast.model.load import load_model

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "adding.md").read_text().partition("\n## A mechanism of training\n")[2].partition("\n## ")[0]
(FILE,) = re.findall(r"That is `src/traincast/(\S+)`", SECTION)
(CODE,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
DIFFS = re.findall(r"```diff\n--- src/traincast/(\S+)\n(.*?)```", SECTION, re.DOTALL)
RANKS, OURS = 8, parameters(load_model("llama3-8b")).total

RUN = """
import json
import traincast
from click.testing import CliRunner
from msgspec.structs import replace
from traincast.cli.main import cli
from traincast.estimate.memory import JobMemory
from traincast.hardware.clusters import load_cluster
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model
from traincast.simulation.job_step import factors_of, operator_seconds
from traincast.simulation.step import Setting
from traincast.workload.ops import OperatorCall

JOB = {"model": "llama3-8b", "gpus": 8, "seq_length": 4096, "global_batch": 8, "cluster": "h100"}
# As the program comes: what a plan would switch on has another type of moments.
JOB |= {"tuned": "out-of-the-box"}
LAYOUT = {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 1, "recompute": "full", "zero": 1, "precision": "bf16"}
LAYOUT |= {"overlap_grad_reduce": True, "overlap_param_gather": True}
BOTH = {"folded_moments": [True, False]}

def forecast(**more):
    result = traincast.predict(**JOB, **LAYOUT, **more)
    (stage,) = result.memory_bytes
    return {"step_s": result.iteration_time_s, "optimizer": stage.optimizer}

def plan(fix={}, **more):
    found = traincast.plan(**JOB, fix=LAYOUT | fix, **more)
    return [
        {"on": each.layout.folded_moments, "text": each.layout.text, "usable": each.usable_bytes,
         "rest": repr(replace(each.layout, folded_moments=False)),
         "step_s": each.step_s, "screened_s": each.screened_s,
         "peak": each.peak_bytes, "simulated": max(stage.peak for stage in each.result.memory_bytes)}
        for each in found.best
    ]

given = {name: value for name, value in JOB.items() if name not in ("model", "cluster")}
cluster = load_cluster("h100")
job = resolve_job(JobRequest(model=load_model(JOB["model"]), **given, **LAYOUT), cluster)
seconds = operator_seconds(job, cluster.gpu, factors_of(job, Setting(cluster=cluster)))

def refusal(**more):
    try:
        traincast.predict(**JOB, **more)
    except traincast.ConfigError as error:
        return str(error)

both = plan(fix=BOTH)
full = {"tp": [1, 2], "pp": [1, 2], "recompute_layers": [16, 32], "overlap_tp": True}
limit = sum(min(each["peak"] for each in both if each["on"] == on) for on in (True, False)) / 2
print(json.dumps({
    "help": CliRunner().invoke(cli, ["predict", "--help"]).output,
    "refused": refusal(folded_moments=True, optimizer="muon"),
    "off": forecast(), "on": forecast(folded_moments=True),
    # An elementwise kernel of 12 bytes for each parameter that a rank updates.
    "kernel_s": seconds.call_s(OperatorCall(family="elementwise", shape=(ELEMENTS, 1), dtype="fp32")),
    "remedies": dict(JobMemory(job).remedies(8)),
    "default": plan(), "full": plan(fix=full, space="full", top=100), "both": both,
    "tight": plan(fix=BOTH, headroom=1 - limit / both[0]["usable"]),
}))
"""


def changed(text, hunks):
    """Return a text with the lines of a change that begin with ``+`` after those before them, which it has once."""
    for hunk in hunks.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before, after = ("".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +"))
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    """Return what a copy of the package says that has the changes of the page."""
    copied = tmp_path_factory.mktemp("copied") / "traincast"
    shutil.copytree(Path(traincast.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    (copied / FILE).write_text(CODE)
    for path, hunks in DIFFS:
        (copied / path).write_text(changed((copied / path).read_text(), hunks))
    done = subprocess.run(
        [sys.executable, "-c", RUN.replace("ELEMENTS", str(-(-OURS // RANKS)))],
        cwd=copied.parent,
        env={"PYTHONPATH": str(copied.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_at_most_six_files():
    files = {FILE, *(path for path, _ in DIFFS)}
    assert len(files) == len(DIFFS) + 1 <= 6
    assert not (ROOT / "src" / "traincast" / FILE).exists()


@pytest.mark.slow
def test_it_is_a_flag_and_what_cannot_be_is_refused(added):
    assert "--folded-moments" in added["help"]
    assert "folded_moments: folds two moments in fp32: leave out muon" in added["refused"]


@pytest.mark.slow
def test_it_keeps_half_of_the_moments(added):
    spared = added["off"]["optimizer"] - added["on"]["optimizer"]
    assert spared == pytest.approx(4 * OURS / RANKS)
    # What is kept has some slack.
    assert added["remedies"]["folded moments"] == pytest.approx(spared, rel=0.1)


@pytest.mark.slow
def test_a_step_is_longer_by_its_two_kernels(added):
    longer_s = added["on"]["step_s"] - added["off"]["step_s"]
    assert longer_s == pytest.approx(2 * added["kernel_s"], rel=1e-3)
    assert longer_s > 2 * 12 * OURS / RANKS / load_cluster("h100").gpu.hbm_bytes_per_s


@pytest.mark.slow
def test_a_plan_offers_both_and_its_screen_knows_what_each_takes(added):
    assert {each["on"] for each in added["default"]} == {False}
    assert {each["on"] for each in added["full"]} == {each["on"] for each in added["both"]} == {True, False}
    for each in (*added["full"], *added["both"]):
        assert each["screened_s"] == pytest.approx(each["step_s"], rel=0.02)
        assert each["peak"] == pytest.approx(each["simulated"], rel=1e-9)
        assert ("moments folded" in each["text"]) == each["on"]
    for plan in ("full", "both"):
        pairs = list(pairs_of(added[plan]))
        assert pairs
        for off, on in pairs:
            longer_s = on["step_s"] - off["step_s"]
            assert on["screened_s"] - off["screened_s"] == pytest.approx(longer_s, rel=1e-3)
            if plan == "both":
                assert longer_s == pytest.approx(2 * added["kernel_s"], rel=1e-3)


def pairs_of(choices):
    """Yield the layouts of a plan that are there without it and with it."""
    known = {(each["rest"], each["on"]): each for each in choices}
    for (rest, on), each in known.items():
        if not on and (rest, True) in known:
            yield each, known[rest, True]


@pytest.mark.slow
def test_where_memory_is_short_a_plan_chooses_it(added):
    assert {each["on"] for each in added["tight"]} == {True}
