"""What a user's runs teach of a cluster: forecasts on it move to what was measured, and are surer."""

import json
import math

import pytest

from traincast import api
from traincast.calibration.run_calibration import calibrate_runs
from traincast.errors import CalibrationError
from traincast.hardware.clusters import load_cluster
from traincast.job.job_file import read_job_file
from traincast.report.json import result_from_json, to_json
from training_logs import megatron_line, megatron_settings

JOB = """\
[model]
name = "llama3-8b"
[parallel]
tp = {tp}
pp = {pp}
[batch]
seq_length = 4096
global_batch = 64
[cluster]
name = "h100"
gpus = 16
[software]
framework = "{framework}"
"""


@pytest.fixture
def job(tmp_path):
    """Write a job and return its path."""

    def write(tp=2, pp=1, framework="megatron-core-2025"):
        path = tmp_path / f"tp{tp}_pp{pp}_{framework}.toml"
        path.write_text(JOB.format(tp=tp, pp=pp, framework=framework))
        return path

    return write


@pytest.fixture
def log(tmp_path):
    """Write the log of a run whose steps take a time and return its path."""

    def write(step_s, name="run.log", **settings):
        path = tmp_path / name
        lines = [megatron_line(step, 1e3 * step_s, batch=64) for step in range(1, 31)]
        path.write_text("\n".join([megatron_settings(**settings), *lines]) + "\n")
        return path

    return write


def width(result):
    return math.log(result.interval.high_s / result.interval.low_s)


@pytest.mark.parametrize("ratio", [0.9, 1.0, 1.15])
def test_a_forecast_moves_most_of_the_way_and_no_further_and_is_as_sure(job, log, tmp_path, ratio):
    before = api.predict(job())
    found = api.calibrate_runs(log(ratio * before.iteration_time_s), job=job())
    (run,) = found.runs
    assert run.before_s == before.iteration_time_s
    assert run.measured_s == pytest.approx(ratio * before.iteration_time_s, rel=1e-4)
    moved = math.log(run.after_s / run.before_s)
    assert abs(moved) <= abs(math.log(ratio)) + 1e-3
    assert abs(moved) >= 0.6 * abs(math.log(ratio)) - 1e-3
    profile = tmp_path / "mine.toml"
    profile.write_text(found.profile())
    after = api.predict(job(), profile)
    assert after.iteration_time_s == pytest.approx(run.after_s, rel=1e-9)
    # Of a GPU that many runs were fitted to a single log tells little more: the interval stays as wide, within a tenth.
    assert width(after) < 1.1 * width(before)
    assert [note.code for note in after.assumptions].count("run-factors") == 1


def test_what_a_run_taught_is_of_use_for_another_layout_and_not_for_another_framework(job, log, tmp_path):
    slow = 1.15 * api.predict(job()).iteration_time_s
    profile = tmp_path / "mine.toml"
    profile.write_text(api.calibrate_runs(log(slow), job=job()).profile())
    other = job(tp=1, pp=2)
    assert 1.05 < api.predict(other, profile).iteration_time_s / api.predict(other).iteration_time_s < 1.15
    foreign = job(framework="torchtitan-2025")
    found = api.predict(foreign, profile)
    assert found.iteration_time_s == api.predict(foreign).iteration_time_s
    assert "run-factors-unused" in [note.code for note in found.assumptions]


def test_more_runs_say_more(job, log):
    slow = 1.15 * api.predict(job()).iteration_time_s
    one = api.calibrate_runs(log(slow), job=job())
    three = api.calibrate_runs([log(slow, f"{n}.log") for n in range(3)], job=job())
    assert len(three.runs) == 3
    assert abs(three.runs[0].after_s - slow) < abs(one.runs[0].after_s - slow)
    deviation = [
        next(f.deviation for f in each.cluster.run_factors if f.cost_class == "compute") for each in (one, three)
    ]
    assert deviation[1] < deviation[0]


def test_a_table_of_runs_teaches_the_same(job, log, tmp_path):
    slow = round(1.15 * api.predict(job()).iteration_time_s, 4)
    table = tmp_path / "runs.csv"
    columns = "model,gpu,num_gpus,seq_length,global_batch,tp,pp,framework,step_time_s"
    table.write_text(f"{columns}\nllama3-8b,H100-SXM-80GB,16,4096,64,2,1,megatron-core-2025,{slow}\n")
    assert api.kind_of_measurements(table) == "training-runs"
    assert api.kind_of_measurements(log(slow)) == "training-logs"
    by_table, by_log = api.calibrate_runs(table, "h100"), api.calibrate_runs(log(slow), job=job())
    assert by_table.runs[0].after_s == pytest.approx(by_log.runs[0].after_s, rel=1e-3)


def test_a_profile_and_its_results_are_read_again(job, log, tmp_path):
    slow = 1.1 * api.predict(job()).iteration_time_s
    found = api.calibrate_runs(log(slow), job=job())
    profile = tmp_path / "mine.toml"
    profile.write_text(found.profile())
    assert load_cluster(profile).run_factors == found.cluster.run_factors
    # What was fitted before is dropped: a second fit to the same run says the same.
    assert api.calibrate_runs(log(slow), profile, job()).cluster.run_factors == found.cluster.run_factors
    result = api.predict(job(), profile)
    again = api.run_again(result_from_json(to_json(result), "result.json"))
    assert to_json(again) == to_json(result)


def test_a_run_that_is_another_is_told_of(job, log):
    found = api.calibrate_runs(log(3 * api.predict(job()).iteration_time_s, seq_length=8192), job=job())
    assert {"far-off", "log-contradicts"} <= {note.code for note in found.notes}


def test_what_cannot_be_fitted_is_refused(job, log, tmp_path):
    with pytest.raises(CalibrationError, match="give the job that it is of"):
        api.calibrate_runs(log(1.0), "h100")
    broken = tmp_path / "empty.log"
    broken.write_text(megatron_settings(seq_length=4096) + "\n")
    with pytest.raises(CalibrationError, match="no run can be used: no line tells"):
        api.calibrate_runs(broken, job=job())
    table = tmp_path / "runs.csv"
    columns = "model,gpu,num_gpus,seq_length,global_batch,tp,pp,framework,step_time_s"
    rows = "".join(f"llama3-8b,H100-SXM-80GB,16,4096,64,2,1,{each},1.0\n" for each in ("megatron-core-2025", "eager"))
    table.write_text(f"{columns}\n{rows}")
    with pytest.raises(CalibrationError, match="several frameworks"):
        calibrate_runs([table], "h100")


def test_a_log_is_validated_with_its_job(job, log):
    step_s = api.predict(job()).iteration_time_s
    found = api.validate(log(1.25 * step_s), job=job())
    assert (found.kind, found.total.rows, found.total.evaluated) == ("training-logs", 1, 1)
    assert found.total.bias == pytest.approx(0.8 - 1, abs=1e-3)
    assert found.total.interval_coverage in (0.0, 1.0)
    assert [note.code for note in found.notes] == ["warm-up"]
    assert api.validate(log(step_s), job=read_job_file(str(job()))).total.interval_coverage == 1.0
    with pytest.raises(CalibrationError, match="give the job that it is of"):
        api.validate(log(step_s))


def test_on_the_command_line(job, log, tmp_path, capsys):
    from traincast.cli.main import main

    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main(list(map(str, words)))
        return ended.value.code, *capsys.readouterr()

    path, out = log(1.1 * api.predict(job()).iteration_time_s), tmp_path / "mine.toml"
    code, said, err = call("calibrate", path, "--job", job(), "--out", out)
    assert (code, err) == (0, "")
    assert "h100 fitted to 1 run of megatron-core-2025" in said
    assert f"use it with --cluster {out}" in " ".join(said.split())
    code, said, _ = call("calibrate", path, "--job", job(), "--json")
    document = json.loads(said)
    assert document["schema"] == "traincast.run_calibration/1"
    assert [run["id"] for run in document["runs"]] == [str(path)]
    assert {factor["framework"] for factor in document["factors"]} == {"megatron-core-2025"}
    assert call("validate", path, "--job", job())[0] == 0
    assert call("calibrate", path, "--job", job(), "--gpu", "h100")[0] == 2
    assert call("calibrate", path, "--job", job(), "--table")[0] == 2
    assert call("calibrate", path)[0] == 2
