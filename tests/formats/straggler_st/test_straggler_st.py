"""Traces of the straggler study: read as recorded steps, replayed, and the cause of what is lost named."""

import json
from pathlib import Path

import numpy as np
import pytest

import traincast
from straggler_tables import trace, write
from traincast.errors import FormatError

SAMPLE = Path(__file__).parents[4] / "shared/samples/straggler_st"


def flat(*_):
    return 0.05


def simulated(tmp_path, rows, **options):
    return traincast.simulate(write(tmp_path / "trace.csv", rows), cluster="h100", **options)


def names(result):
    return [cause.name for cause in result.causes]


def test_a_step_is_replayed_as_it_was_measured(tmp_path):
    jittered = np.random.default_rng(1)
    rows = trace(lambda *_: 0.05 * jittered.uniform(0.9, 1.1), dp=3, pp=4, pause_s=lambda *_: 1e-3)
    result = simulated(tmp_path, rows, step=3)
    measured = max(row["start_ts"] + row["duration"] for row in rows if row["step"] == 3) - 300.0
    assert result.measured_s == pytest.approx(measured, abs=3e-6)
    assert result.iteration_time_s == pytest.approx(measured, rel=1e-4)
    assert result.parallel.pp, result.parallel.dp == (4, 3)


def test_without_stragglers_nothing_is_lost_and_no_cause_is_named(tmp_path):
    result = simulated(tmp_path, trace(flat, dp=2, pp=2))
    assert result.slowdown.slowdown == pytest.approx(1.0, abs=2e-3)
    assert names(result) == []


def test_a_slow_worker_is_named(tmp_path):
    result = simulated(
        tmp_path, trace(lambda _, rank, stage, __: 0.12 if (rank, stage) == (2, 1) else 0.05, dp=4, pp=4)
    )
    assert names(result) == ["slow worker"]
    assert result.causes[0].ranks == (6,)
    assert result.slowdown.m_w > 0.5
    assert max(result.slowdown.by_rank, key=result.slowdown.by_rank.get) == "6"


@pytest.mark.parametrize("dp", [1, 2, 4])
def test_a_long_last_stage_is_named(tmp_path, dp):
    result = simulated(tmp_path, trace(lambda _, __, stage, ___: 0.08 if stage == 3 else 0.05, dp=dp, pp=4))
    assert names(result) == ["long last stage"]
    assert result.slowdown.m_s > 0.5


def test_a_long_stage_that_is_not_the_last_is_told_apart(tmp_path):
    result = simulated(tmp_path, trace(lambda _, __, stage, ___: 0.08 if stage == 1 else 0.05, pp=4))
    assert names(result) == ["long stage"]
    assert result.causes[0].stages == (1,)


def test_sequences_of_unequal_lengths_are_named(tmp_path):
    lengths = np.random.default_rng(4)
    time_of = {
        (step, rank, microbatch): lengths.uniform(0.03, 0.1)
        for step in (3, 5, 7)
        for rank in range(4)
        for microbatch in range(8)
    }
    rows = trace(lambda step, rank, _, m: time_of[step, rank, m], dp=4, pp=2, microbatches=8, steps=(3, 5, 7))
    result = simulated(tmp_path, rows)
    assert names(result) == ["unequal sequence lengths"]
    assert "correlation of 1.00" in result.causes[0].evidence


def test_slow_communication_is_named(tmp_path):
    rows = trace(flat, steps=(1, 2, 3, 4, 5), reduce_s=lambda step, _: 0.5 if step in (2, 4) else 0.01)
    result = simulated(tmp_path, rows)
    assert names(result) == ["slow communication"]
    assert "grads-reduce-scatter" in result.causes[0].evidence


def test_pauses_of_the_host_are_named(tmp_path):
    result = simulated(tmp_path, trace(flat, pause_s=lambda *_: 0.02))
    assert names(result) == ["host pauses"]
    assert result.slowdown.pauses > 1.1


def test_only_one_rank_of_each_tensor_parallel_group_is_recorded(tmp_path):
    rows = trace(flat, dp=2, pp=2, tp=4)
    path = write(tmp_path / "trace.csv", rows, {"dp_size": 2, "pp_size": 2, "tp_size": 4, "dsp_size": 1, "vpp_size": 1})
    result = traincast.simulate(path, cluster="h100")
    assert (result.parallel.world_size, result.parallel.tp, len(result.ranks)) == (16, 4, 4)
    assert "ranks-not-recorded" in [note.code for note in result.assumptions]
    # The same degrees follow from the rows where nothing describes them.
    path.with_name("meta.yaml").unlink()
    assert traincast.simulate(path, cluster="h100").parallel == result.parallel


def test_waiting_for_ranks_that_were_not_recorded_is_no_slow_communication(tmp_path):
    rows = [row for row in trace(flat, dp=2, pp=3) if row["rank"] == 0]
    assert names(simulated(tmp_path, rows)) == []


def test_a_step_can_be_chosen_and_one_that_is_not_there_is_refused(tmp_path):
    path = write(tmp_path / "trace.csv", trace(lambda step, *_: 0.01 * step))
    assert traincast.simulate(path, cluster="h100", step=5).measured_s > traincast.simulate(path, step=3).measured_s
    with pytest.raises(FormatError, match="has no step 4"):
        traincast.simulate(path, step=4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"optype": "forward"}, "optype 'forward' is not known"),
        ({"duration": "-1"}, "duration is -1"),
        ({"start_ts": "soon"}, "start_ts is 'soon'"),
        ({"rank": "1.5"}, "rank is 1.5"),
        ({"stage": "7"}, "is of stage 7"),
    ],
)
def test_a_damaged_row_is_refused_with_its_line(tmp_path, change, says):
    rows = trace(flat)
    path = write(tmp_path / "trace.csv", rows, {"dp_size": 2, "pp_size": 2, "tp_size": 1, "dsp_size": 1})
    lines = path.read_text().splitlines()
    header = lines[0].split(",")
    cells = lines[9].split(",")
    for name, value in change.items():
        cells[header.index(name)] = value
    path.write_text("\n".join([*lines[:9], ",".join(cells), *lines[10:]]))
    with pytest.raises(FormatError, match=says) as caught:
        traincast.simulate(path)
    assert caught.value.line == 10


def test_the_published_trace_gives_the_published_slowdowns():
    pytest.importorskip("polars")
    if not SAMPLE.is_dir():
        pytest.skip("the published trace is not here")
    published = json.loads((SAMPLE / "published_results.json").read_text())
    workload = traincast.read(SAMPLE)
    measured = {str(number): step.timeline.step_s for number, step in workload.steps}
    assert measured == pytest.approx(published["step_t_base"], rel=5e-3)
    result = traincast.simulate(workload, cluster="h100")
    told = result.slowdown
    assert told.steps == 32
    for key, ours in (("step_t_base", told.steps_s), ("step_t_nodelay", told.steps_without_pauses_s)):
        assert ours == pytest.approx(published[key], rel=5e-3)
    assert told.step_s == pytest.approx(np.mean(list(published["step_t_base"].values())), rel=5e-3)
    assert told.without_pauses_s == pytest.approx(np.mean(list(published["step_t_nodelay"].values())), rel=5e-3)
    assert told.slowdown == pytest.approx(published["blocking_slowdown"], abs=0.01)
    assert told.by_type == pytest.approx(published["blocking_decompose_by_optype"], abs=0.01)
    assert told.by_stage == pytest.approx(published["blocking_decompose_by_stage"], abs=0.01)
    assert told.by_dp_rank == pytest.approx(published["blocking_decompose_by_dp_rank"], abs=0.01)
    assert (told.m_w, told.m_s) == pytest.approx((published["M_W"], published["M_S"]), abs=0.01)
    assert names(result) == ["long last stage"]
