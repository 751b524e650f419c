"""Layouts of a plan that are simulated: by the engine that pays, with the same results whichever it is."""

import pytest
from msgspec.structs import replace

from traincast.hardware.clusters import load_cluster
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model
from traincast.planning import simulator
from traincast.planning.changes import layout_of
from traincast.simulation.step import Setting
from traincast.simulation.study import Study

CLUSTER = load_cluster("h100")
REQUEST = JobRequest(model=load_model("llama3-8b"), gpus=16, global_batch=32, seq_length=4096)


@pytest.fixture(scope="module")
def layouts():
    jobs = (resolve_job(replace(REQUEST, tp=tp, pp=2, vpp=vpp), CLUSTER) for tp, vpp in ((1, 1), (2, 4), (4, 8)))
    return [layout_of(job) for job in jobs]


def test_layouts_take_what_a_forecast_of_their_job_takes(layouts):
    found = simulator.Simulator(REQUEST, Setting(cluster=CLUSTER), Study())
    plain = simulator.Simulator(REQUEST, Setting(cluster=CLUSTER, engine="reference"), Study())
    for each in layouts:
        assert found(each)[0].iteration_time_s == plain(each)[0].iteration_time_s


def test_an_engine_that_is_asked_for_stays(layouts):
    found = simulator.Simulator(REQUEST, Setting(cluster=CLUSTER, engine="reference"), Study())
    found(layouts[0])
    assert found.setting.engine == "reference"
