"""What a study keeps of one forecast for the next changes none of them, whatever ran before."""

import pytest

from traincast.hardware.clusters import load_cluster
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model
from traincast.report.json import to_json
from traincast.simulation import job_step
from traincast.simulation import study as studies
from traincast.simulation.forecast import forecast
from traincast.simulation.step import Setting
from traincast.simulation.study import Study

H100, A100 = load_cluster("h100"), load_cluster("a100")


def job(**given):
    said = {"gpus": 32, "tp": 2, "pp": 4, "seq_length": 2048, "global_batch": 64} | given
    return resolve_job(JobRequest(model=load_model("llama3-8b"), **said), H100)


RUNS = [
    (job(), Setting(cluster=H100)),
    (job(), Setting(cluster=A100)),
    (job(), Setting(cluster=H100, compute_slowdown={3: 1.5})),
    (job(vpp=2), Setting(cluster=H100)),
    (job(), Setting(cluster=H100, unfold=True)),
    (job(schedule="zb_h1"), Setting(cluster=H100)),
    (job(zero=1), Setting(cluster=H100)),
    (job(seq_length=1024), Setting(cluster=H100)),
    (job(seq_length=4096, sequence_parallel=False), Setting(cluster=A100)),
    (job().with_values(recompute="full"), Setting(cluster=A100)),
    (job(), Setting(cluster=H100)),
]


def forecast_of(run, study=None):
    return to_json(forecast(*run, allow_oom=True, study=study))


@pytest.mark.slow
def test_a_forecast_is_the_same_whatever_ran_before():
    alone = [forecast_of(run) for run in RUNS]
    assert len(set(alone)) == len(RUNS) - 1
    study = Study()
    for _ in range(2):
        assert [forecast_of(run, study) for run in RUNS] == alone
    assert [forecast_of(run, study) for run in reversed(RUNS)] == alone[::-1]


def counted_calls(monkeypatch):
    built = []
    for home, name in ((job_step, "build_workload"), (studies, "expansion"), (studies, "graph_of")):
        genuine = getattr(home, name)

        def counted(*given, name=name, genuine=genuine):
            built.append(name)
            return genuine(*given)

        monkeypatch.setattr(home, name, counted)
    return built


def test_jobs_that_differ_in_sizes_alone_are_laid_out_once(monkeypatch):
    built, study = counted_calls(monkeypatch), Study()
    for length in (1024, 2048, 4096):
        forecast(job(seq_length=length), RUNS[0][1], study=study)
    assert sorted(built) == [*["build_workload"] * 3, "expansion", "graph_of"]
    forecast(job(vpp=2), RUNS[0][1], study=study)
    assert built.count("expansion") == 2, "another order is another program"


def test_the_work_of_a_job_is_built_once_for_several_clusters(monkeypatch):
    built, study = counted_calls(monkeypatch), Study()
    for run in RUNS[:2]:
        forecast(*run, study=study)
    assert sorted(built) == ["build_workload", "expansion", "graph_of"]
    forecast(*RUNS[0])
    assert len(built) == 6, "without a study nothing is kept"
