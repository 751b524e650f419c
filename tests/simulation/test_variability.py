"""The step over seeds of jitter, and the engine for many runs at once."""

import numpy as np
import pytest

import traincast
from traincast.engine import run
from traincast.engine.graph import build_graph
from traincast.engine.many import run_many
from traincast.errors import ConfigError, DeadlockError, ProgramError

RUN = "examples/megatron_pp4_tp2"


def graph_of(program):
    return build_graph(program.stream_N, program.edge_src_E, program.edge_dst_E, program.rendezvous_N)


def test_many_runs_at_once_are_those_of_the_engine_bit_by_bit():
    program = traincast.simulate(RUN).program
    graph = graph_of(program)
    duration_NK = np.random.default_rng(3).exponential(1e-3, (len(program), 5))
    ends_NK = run_many(graph, duration_NK)
    for column in range(5):
        assert np.array_equal(ends_NK[:, column], run(graph, duration_NK[:, column], "reference")[2])


def test_many_runs_refuse_what_the_engine_refuses():
    empty = np.zeros(0, dtype=np.int64)
    graph = build_graph(np.array([0, 1]), np.array([0, 1]), np.array([1, 0]), np.array([-1, -1]))
    with pytest.raises(DeadlockError):
        run_many(graph, np.ones((2, 3)))
    with pytest.raises(ProgramError, match="unknown"):
        run_many(build_graph(np.array([0]), empty, empty, np.array([-1])), np.array([[np.nan]]))


def test_jitter_spreads_the_step_and_more_of_it_spreads_it_more():
    plain = traincast.simulate(RUN)
    assert plain.variability is None
    little, much = (traincast.simulate(RUN, jitter=jitter, seeds=16) for jitter in (0.01, 0.2))
    assert little.iteration_time_s == much.iteration_time_s == plain.iteration_time_s
    for told in (little.variability, much.variability):
        assert told.min_s <= told.p05_s <= told.median_s <= told.p95_s <= told.max_s
        assert told.min_s <= told.mean_s <= told.max_s
    assert little.variability.deviation_s < much.variability.deviation_s
    # Whoever meets waits for the slowest: what varies makes a step longer in the mean.
    assert plain.iteration_time_s < much.variability.mean_s


def test_without_jitter_worth_the_name_every_seed_is_the_step():
    told = traincast.simulate(RUN, jitter=1e-12, seeds=3).variability
    step_s = traincast.simulate(RUN).iteration_time_s
    assert (told.min_s, told.max_s) == pytest.approx((step_s, step_s), rel=1e-9)


def test_the_same_seeds_give_the_same_spread_and_run_again_too():
    once = traincast.simulate(RUN, jitter=0.1, seeds=4)
    assert traincast.simulate(RUN, jitter=0.1, seeds=4).variability == once.variability
    assert traincast.run_again(once).variability == once.variability
    assert traincast.simulate(RUN, jitter=0.1, seeds=5).variability != once.variability


def test_a_lone_rank_has_the_mean_of_its_computations():
    # One rank waits for nobody: the mean step is the step, within what 64 seeds of many computations leave.
    job = traincast.api.Draft(
        model="llama3-8b", cluster="h100", fields={"gpus": 1, "seq_length": 512, "global_batch": 1}
    )
    result = traincast.predict(job, options=traincast.StepOptions(jitter=0.2, seeds=64), allow_oom=True)
    assert result.variability.mean_s == pytest.approx(result.iteration_time_s, rel=0.02)


def test_what_is_no_jitter_is_refused():
    for options in ({"jitter": -0.1}, {"jitter": 0.1, "seeds": 0}, {"failures": "soon"}):
        with pytest.raises(ConfigError):
            traincast.simulate(RUN, **options)
