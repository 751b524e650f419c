"""One cause has one figure: as cause, in the table, as suggestion and as what-if; and it is what mending it saves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traincast
from straggler_tables import one_f_one_b, trace, write

FORWARD_S = 0.05


def of_run(tmp_path, run, *, slow=lambda *_: 1.0):
    """Simulate a 1F1B run whose computations take a few per cent more or less each, and some much more."""
    noise = np.random.default_rng(run["seed"])
    usual = {}

    def forward_s(step, rank, stage, microbatch):
        key = step, rank, stage, microbatch
        if key not in usual:
            usual[key] = FORWARD_S * noise.normal(1.0, run["noise"])
        return usual[key] * slow(rank, stage)

    rows = trace(
        forward_s,
        dp=run["dp"],
        pp=run["pp"],
        microbatches=run["microbatches"],
        steps=run["steps"],
        pause_s=lambda *_: run["pause_s"],
        schedule=one_f_one_b,
    )
    tmp_path.mkdir(exist_ok=True)
    return traincast.simulate(write(tmp_path / "trace.csv", rows), cluster="h100", suggest=True)


RUNS = st.fixed_dictionaries(
    {
        "dp": st.integers(2, 4),
        "pp": st.integers(1, 5),
        "microbatches": st.integers(3, 9),
        "steps": st.sampled_from([(3,), (3, 5), (2, 3, 4)]),
        "noise": st.sampled_from([0.0, 0.01, 0.02]),
        "pause_s": st.sampled_from([0.0, 2e-5, 4e-4]),
        "seed": st.integers(0, 99),
    }
)


def one_figure(result, change, tmp_path):
    """Check that everything that speaks of the first cause says the same, and return its figure."""
    cause = result.causes[0]
    assert cause.change == change
    assert result.suggestions[0].change == change
    assert result.suggestions[0].saving_s == pytest.approx(cause.saving_s, rel=1e-9)
    assert cause.share == pytest.approx(cause.saving_s / result.iteration_time_s)
    assert cause.share <= 1
    tried = traincast.simulate(tmp_path / "trace.csv", cluster="h100", what_if=change)
    assert tried.what_if[0].saving_s == pytest.approx(cause.saving_s, rel=1e-9)
    return cause.saving_s


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(RUNS, st.data())
def test_a_slow_rank_costs_what_the_run_without_it_is_faster(tmp_path_factory, run, data):
    tmp_path = tmp_path_factory.mktemp("run")
    culprit = data.draw(st.integers(0, run["dp"] - 1)), data.draw(st.integers(0, run["pp"] - 1))
    factor = data.draw(st.sampled_from([1.3, 1.6, 2.5]))
    slow = of_run(tmp_path / "slow", run, slow=lambda *place: factor if place == culprit else 1.0)
    healthy = of_run(tmp_path / "healthy", run)
    rank = culprit[1] * run["dp"] + culprit[0]
    saving_s = one_figure(slow, f"rank{rank}.own=peers", tmp_path / "slow")
    truth_s = slow.iteration_time_s - healthy.iteration_time_s
    assert saving_s == pytest.approx(truth_s, rel=0.1, abs=0.01 * slow.iteration_time_s)
    (straggler,) = (each for each in slow.stragglers if each.rank == rank)
    assert straggler.cost_s == pytest.approx(saving_s, rel=1e-9)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(RUNS.filter(lambda run: run["pp"] > 2), st.data())
def test_a_long_stage_costs_what_the_run_without_it_is_faster(tmp_path_factory, run, data):
    tmp_path = tmp_path_factory.mktemp("run")
    stage = data.draw(st.integers(0, run["pp"] - 1))
    slow = of_run(tmp_path / "slow", run, slow=lambda _, at: 1.6 if at == stage else 1.0)
    healthy = of_run(tmp_path / "healthy", run)
    saving_s = one_figure(slow, f"stage{stage}.own=peers", tmp_path / "slow")
    truth_s = slow.iteration_time_s - healthy.iteration_time_s
    assert saving_s == pytest.approx(truth_s, rel=0.1, abs=0.01 * slow.iteration_time_s)


def test_two_slow_ranks_are_one_cause_that_mends_both(tmp_path):
    run = {"dp": 4, "pp": 2, "microbatches": 4, "steps": (1,), "noise": 0.0, "pause_s": 0.0, "seed": 1}
    slow = of_run(tmp_path, run, slow=lambda rank, stage: 2.0 if (rank, stage) in ((1, 0), (3, 1)) else 1.0)
    healthy = of_run(tmp_path / "healthy", run)
    saving_s = one_figure(slow, "rank1,7.own=peers", tmp_path)
    assert saving_s == pytest.approx(slow.iteration_time_s - healthy.iteration_time_s, rel=0.02)


def test_receives_that_a_framework_launches_late_leave_no_pause_of_the_host(tmp_path):
    run = {"dp": 2, "pp": 4, "microbatches": 6, "steps": (1,), "noise": 0.0, "pause_s": 0.0, "seed": 1}
    result = of_run(tmp_path, run)
    ops = result.columns()
    assert ops["duration_s"][ops["name"] == "gap"].sum() < 1e-3
