"""A whole check of logs: what they tell, against a forecast or a good run."""

import re
from pathlib import Path

import pytest

import traincast
from checking.runs import write_log
from traincast.checking.verdict import Word
from traincast.errors import ConfigError, FormatError

JOB = {"model": "llama3-8b", "cluster": "h100", "gpus": 16, "tp": 2, "pp": 2, "global_batch": 16, "seq_length": 4096}
EXAMPLES = Path(__file__).parents[2] / "examples" / "check"
FIELDS = ("gpus", "tp", "pp", "global_batch", "seq_length")


@pytest.fixture(scope="module")
def forecast():
    return traincast.predict(**JOB)


@pytest.fixture
def log(tmp_path, forecast):
    """Write a log of a run that takes `factor` of the forecast."""

    def write(name, factor, **more):
        return write_log(tmp_path / name, factor * forecast.iteration_time_s, **more)

    return write


def test_a_log_of_the_forecast_itself_is_as_expected(log):
    found = traincast.check(log("run.log", 1.0), **JOB)
    assert (found.verdict.word, found.exit_code) == (Word.AS_EXPECTED, 0)
    assert found.verdict.ratio == pytest.approx(1.0, abs=0.01)
    assert found.verdict.low < 1 < found.verdict.high
    assert found.measured.left_out[0].reason == "warm-up"
    assert found.causes == ()


def test_a_step_far_beyond_the_interval_is_slower_and_has_causes(log, forecast):
    factor = 1.2 * forecast.interval.high_s / forecast.iteration_time_s
    found = traincast.check(log("run.log", factor), **JOB)
    assert (found.verdict.word, found.exit_code) == (Word.SLOWER, 4)
    assert found.causes
    assert all(each.step_s > found.expected.step_s for each in found.causes)


def test_what_a_forecast_cannot_tell_a_baseline_can(log):
    good, slow = log("good.log", 1.4), log("slow.log", 1.4 * 1.06, seed=1)
    assert traincast.check(slow, baseline=good, causes=False, **JOB).exit_code == 4
    assert traincast.check(good, baseline=slow, causes=False, **JOB).verdict.word is Word.FASTER
    assert traincast.check(good, baseline=good, causes=False, **JOB).exit_code == 0
    allowed = traincast.check(slow, baseline=good, fail_above="10%", causes=False, **JOB)
    assert (allowed.exit_code, allowed.verdict.allowed) == (0, 0.1)


def test_a_change_of_the_job_is_part_of_what_a_baseline_expects(log, forecast):
    twice = {**JOB, "global_batch": 32}
    after_s = traincast.predict(**twice).iteration_time_s
    good = log("good.log", 1.1)
    slow = log("twice.log", 1.1 * after_s / forecast.iteration_time_s, batch=32)
    before = traincast.Draft(model=JOB["model"], cluster="h100", fields={name: JOB[name] for name in FIELDS})
    after = before.under(traincast.Draft(fields={"global_batch": 32}))
    found = traincast.check(slow, after, baseline=good, baseline_job=before, causes=False)
    assert found.exit_code == 0
    assert found.verdict.ratio == pytest.approx(1.0, abs=0.02)


def test_too_few_steps_tell_nothing(log):
    found = traincast.check(log("run.log", 1.0, points=2), causes=False, **JOB)
    assert (found.verdict.word, found.exit_code) == (Word.CANNOT_TELL, 5)


def test_an_overlap_that_is_off_is_the_first_cause(tmp_path, forecast):
    on_s = forecast.iteration_time_s
    off_s = traincast.predict(overlap_grad_reduce=False, overlap_param_gather=False, **JOB).iteration_time_s
    good, slow = (write_log(tmp_path / name, step_s, noise=0.001) for name, step_s in (("good", on_s), ("slow", off_s)))
    found = traincast.check(slow, baseline=good, **JOB)
    assert found.exit_code == 4
    assert found.causes[0].kind == "overlap"
    assert "gradients" in found.causes[0].name
    assert found.causes[0].explains == pytest.approx(1.0, abs=0.1)


def test_logs_of_several_nodes_are_one_run_and_one_of_another_run_is_told(log):
    logs = [log(f"node{rank}.log", 1.0, seed=rank) for rank in range(3)]
    found = traincast.check(logs, causes=False, **JOB)
    assert found.exit_code == 0
    assert len(found.measured.logs) == 3
    assert not any(note.code == "log-apart" for note in found.warnings)
    other = traincast.check([*logs, log("other.log", 1.2)], causes=False, **JOB)
    (told,) = [note for note in other.warnings if note.code == "log-apart"]
    assert told.place.endswith("other.log")


def test_steps_of_checkpoints_do_not_count_and_are_told(log):
    found = traincast.check(log("run.log", 1.0, slow=(10, 20, 30)), causes=False, **JOB)
    assert found.exit_code == 0
    assert {each.reason: each.count for each in found.measured.left_out}["spike"] == 3


def test_flops_of_a_log_are_checked_in_the_count_that_it_means(log, forecast):
    mine = traincast.check(log("run.log", 1.0, tflops=forecast.tflops_per_gpu), causes=False, **JOB).figures[0]
    assert (mine.name, mine.word) == ("FLOP/s", "as expected")
    assert "half" in mine.definition
    assert mine.low < mine.measured < mine.high
    other = traincast.check(log("other.log", 1.0, tflops=1.5 * forecast.tflops_per_gpu), causes=False, **JOB)
    assert other.figures[0].word == "counted otherwise"


def test_what_log_and_job_say_otherwise_is_told(log):
    found = traincast.check(log("run.log", 1.0, world=(32, 8, 1, 2, 2)), causes=False, **JOB)
    assert any(note.code == "log-contradicts" and "gpus is 32" in note.text for note in found.warnings)


def test_a_log_without_arguments_needs_a_job_and_a_job_of_a_baseline_needs_its_logs(log):
    run = log("run.log", 1.0)
    with pytest.raises(FormatError, match="does not list the arguments"):
        traincast.check(run)
    with pytest.raises(ConfigError, match="baseline"):
        traincast.check(run, baseline_job=traincast.Draft(model="llama3-8b"), **JOB)


def test_a_baseline_of_other_arguments_is_forecast_by_its_own(tmp_path):
    text = (EXAMPLES / "last_good.log").read_text()
    other = tmp_path / "other.log"
    # Both take as long, but one had half of the batch to do: the other should take about twice as long.
    other.write_text(re.sub(r"(global_batch_size \.+) 128", r"\1 64", text))
    found = traincast.check(EXAMPLES / "last_good.log", cluster="h100", baseline=other, causes=False)
    assert found.verdict.word is Word.FASTER
    assert 0.45 < found.verdict.ratio < 0.65


def test_starts_are_told_and_each_warms_up(tmp_path):
    (tmp_path / "twice.log").write_text(2 * (EXAMPLES / "last_good.log").read_text())
    found = traincast.check(tmp_path / "twice.log", cluster="h100", causes=False)
    assert any("started 2 times" in note.text for note in found.warnings)
    assert {each.reason: each.count for each in found.measured.left_out}["warm-up"] > 2


def test_a_change_is_judged_before_anything_runs():
    draft = traincast.Draft(model=JOB["model"], cluster="h100", fields={name: JOB[name] for name in FIELDS})
    worse = draft.under(traincast.Draft(fields={"recompute": "full"}))
    found = traincast.check_change(draft, worse)
    assert (found.verdict.word, found.measured) == (Word.SLOWER, None)
    assert traincast.check_change(worse, draft).verdict.word is Word.FASTER
    assert traincast.check_change(draft, draft).exit_code == 0
