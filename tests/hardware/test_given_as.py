"""A cluster may be given by its name, as the path of its file, or as the object itself; all say the same."""

from pathlib import Path

import pytest

import traincast
from calibrate_logs import nccl_log
from traincast import api
from traincast.api import calibrations
from traincast.hardware.clusters import load_cluster
from traincast.job.options import SimulateOptions
from traincast.job.request import JobRequest
from traincast.model.load import load_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "aicb_gpt_405b_1024gpu.txt"
JOB = JobRequest(model=load_model("llama3-8b"), gpus=8, tp=4, seq_length=1024, global_batch=8, zero=1)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "all_reduce.log"
    path.write_text(nccl_log([(size, 60 + size / 2e5, 60 + size / 2e5) for size in (2**20, 2**22, 2**24, 2**26)]))
    return path


ASK = {
    "simulate": lambda cluster, _: traincast.simulate(EXAMPLE, cluster=cluster).iteration_time_s,
    "predict": lambda cluster, _: traincast.predict(JOB, cluster).iteration_time_s,
    "collective": lambda cluster, _: traincast.collective("all_reduce", 2**20, cluster=cluster).rows[0].time_s,
    "validate": lambda cluster, log: traincast.validate(log, cluster).total,
}


@pytest.mark.slow
@pytest.mark.parametrize("ask", ASK.values(), ids=list(ASK))
def test_a_name_a_path_and_a_cluster_give_the_same(ask, log, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "a100"\n', encoding="utf-8")
    by_name = ask("a100", log)
    assert ask(load_cluster("a100"), log) == by_name
    assert ask(path, log) == ask(str(path), log) == by_name
    assert ask("h100", log) != by_name


def test_calibrate_starts_from_any_of_them(log, monkeypatch):
    monkeypatch.setattr(calibrations, "calibrate_cluster", lambda _, cluster, *, table: (cluster, table))
    assert api.calibrate(log, load_cluster("a100")) == api.calibrate(log, "a100") == (load_cluster("a100"), False)


def test_simai_knows_a_cluster_by_its_name():
    by_name = api.simai(EXAMPLE, SimulateOptions(cluster="a100"))
    assert api.simai(EXAMPLE, SimulateOptions(cluster=load_cluster("a100"))).total_s == by_name.total_s


def test_a_cluster_that_is_given_is_returned():
    cluster = load_cluster("a100")
    assert load_cluster(cluster) is cluster
