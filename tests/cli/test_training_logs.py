"""Training logs on the command line: what they are, and beside a forecast."""

import gzip
import json

import pytest

from traincast import api
from training_logs import megatron_line, megatron_settings, megatron_world, torchtitan_line

JOB = """\
[model]
name = "llama3-8b"
[parallel]
tp = 4
pp = 2
[batch]
seq_length = 4096
global_batch = 128
[cluster]
name = "h100"
gpus = 64
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


@pytest.fixture(scope="module")
def forecast_s(tmp_path_factory):
    path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_text(JOB)
    return api.predict(path).iteration_time_s


@pytest.fixture
def log(tmp_path):
    """A log of 55 steps of 1.0 s after 10 of 5 s, in 5 ms around it."""

    def write(name="run.log", *, seq_length=4096, batch=128, middle_ms=1000):
        lines = [megatron_world(world=64), megatron_settings(seq_length=seq_length)]
        lines += [megatron_line(step, 5000, batch=batch) for step in range(1, 11)]
        lines += [megatron_line(step, middle_ms + step % 11 - 5, tflops=400, batch=batch) for step in range(11, 66)]
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def test_inspect_describes_a_log(call, log):
    code, out, err = call("inspect", log())
    assert (code, err) == (0, "")
    said = " ".join(out.split())
    assert "training log of Megatron-LM" in said
    assert "65 lines of steps, 1 start, 1 printing rank" in said
    assert "gpus 64, tp 4, pp 2, cp 1, global_batch 128, seq_length 4096" in said
    assert "step 1 s from 995 ms to 1.005 s (5th to 95th percentile), tokens/s/GPU 8,192, TFLOP/s/GPU 400.0" in said


def test_a_job_is_forecast_and_put_beside_the_log(call, log, job, forecast_s):
    code, out, err = call("compare", job, log(), "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["a"]["what"], found["b"]["what"]) == ("simulated", "measured")
    assert found["step_s"] == pytest.approx(
        {"a": forecast_s, "b": 1.0, "difference": 1 - forecast_s, "relative": 1 / forecast_s - 1}, rel=1e-3
    )
    assert found["b"]["how"] == "median of 55 lines of Megatron-LM"
    assert found["b"]["interval"]["level"] == 0.9
    assert found["b"]["tokens_per_s_per_gpu"] == pytest.approx(128 * 4096 / 64, rel=1e-3)
    assert [note["code"] for note in found["b"]["notes"]] == ["warm-up"]
    assert found["b"]["warnings"] == found["ranks"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("middle_ms", "where"), [(1000, "within"), (10_000, "above"), (100, "below")])
def test_it_says_whether_the_measured_step_is_what_was_expected(call, log, job, middle_ms, where):
    for sides in ((job, log(middle_ms=middle_ms)), (log(middle_ms=middle_ms), job)):
        out = call("compare", *sides)[1]
        assert f"The measured step is {where} the interval of the forecast." in out


def test_a_result_and_a_packed_log_are_compared_too(call, log, job, tmp_path):
    assert call("predict", job, "--no-suggest", "--out", tmp_path / "out", "--quiet")[0] == 0
    packed = tmp_path / "run.log.gz"
    packed.write_bytes(gzip.compress(log().read_bytes()))
    found = api.compare(tmp_path / "out", packed)
    assert found.step.b_s == 1.0
    assert api.compare(packed, log(middle_ms=1100)).step.relative == pytest.approx(0.1)


def test_a_log_of_another_job_is_warned_of(call, log, job):
    code, out, err = call("compare", job, log(seq_length=8192, batch=256))
    assert (code, err) == (0, "")
    said = " ".join(out.split())
    assert "global_batch is 256 in the log and 128 on the other side" in said
    assert "seq_length is 8192 in the log and 4096 on the other side" in said


def test_tokens_per_second_alone_need_the_job(call, job, tmp_path):
    path = tmp_path / "titan.log"
    rate = 128 * 4096 / 64 / 1.25
    lines = [torchtitan_line(step, rate, coloured=False) for step in (1, *range(10, 201, 10))]
    path.write_text("\n".join(line.partition("INFO - ")[2] for line in lines) + "\n")
    assert "not specified: gpus, global_batch, seq_length, step" in " ".join(call("inspect", path)[1].split())
    assert api.compare(job, path).step.b_s == pytest.approx(1.25, rel=1e-3)
    code, _, err = call("compare", path, path)
    assert (code, "compare it with a job" in " ".join(err.split())) == (1, True)


def test_a_log_is_no_workload(call, log):
    code, _, err = call("simulate", log())
    assert (code, "traincast compare JOB run.log" in " ".join(err.split())) == (1, True)


def test_a_cluster_is_that_of_a_job(call, log, job):
    assert call("compare", job, log(), "--cluster", "a100")[1].startswith("Step A")
    code, _, err = call("compare", log(), log(), "--cluster", "a100")
    assert (code, "--cluster" in err) == (2, True)


def test_a_log_that_begins_with_thousands_of_warnings_is_known_all_the_same(call, log, job):
    path = log()
    noise = "".join(f"W0301 10:00:00.{n:06d} site-packages/somewhere.py:79 some library warns\n" for n in range(3000))
    path.write_text(noise + path.read_text())
    assert len(noise) > 2**17
    assert "training log of Megatron-LM" in call("inspect", path)[1]
    assert api.compare(job, path).step.b_s == 1.0
    assert api.validate(path, job=job).total.rows == 1
    other = path.with_name("noise.txt")
    other.write_text(noise)
    assert "not a file of a known format" in " ".join(call("inspect", other)[2].split())


def test_only_a_log_that_describes_its_job_is_compared_alone(call, log, job):
    code, _, err = call("compare", log())
    assert (code, "give a job file" in " ".join(err.split())) == (1, True)
    code, _, err = call("compare", job)
    assert (code, "Only a training log" in " ".join(err.split())) == (2, True)
