"""Which operations are priced, by whose links, and what a slow rank slows down."""

import numpy as np
import pytest

import traincast
from support import HandMade, collective, compute, pipeline_rows, row, write_aicb, write_cluster
from traincast.errors import ProgramError
from traincast.job.parallel import Parallel
from traincast.workload.words import Group, Kind, Phase


def test_a_known_duration_is_kept_and_a_slow_rank_slows_only_its_computations():
    made = HandMade(Parallel(tp=2)).template(forward=[compute(3), collective(5.0)])
    result = traincast.simulate(made.workload(), cluster="h100", compute_slowdown={1: 2})
    assert result.iteration_time_s == 2 * 3 + 5
    assert [(each.algorithm, each.time_s) for each in result.collectives] == [("measured", 5.0)]
    assert [rank.compute_s for rank in result.ranks] == [3, 6]


def test_a_computation_of_unknown_duration_is_never_zero():
    made = HandMade(Parallel()).template(forward=[compute(np.nan, "mystery")])
    with pytest.raises(ProgramError, match="the duration of 'mystery' is unknown"):
        traincast.simulate(made.workload(), cluster="ideal")


def test_a_message_is_priced_between_its_two_ends(tmp_path):
    """Three stages on nodes of two: the first boundary is inside a node, the second between nodes."""
    path = write_aicb(tmp_path / "w.txt", pipeline_rows(1000, 2000, 2), pp=3, ga=2, pp_comm=1 << 24)
    cluster = write_cluster(tmp_path / "two.toml", gpus_per_node=2)
    result = traincast.simulate(path, cluster=cluster)
    priced = {each.nodes: each for each in result.collectives}
    assert sorted(priced) == [1, 2]
    assert {each.ranks for each in priced.values()} == {2}
    assert priced[1].time_s < priced[2].time_s
    # The duration in the program is that of the boundary.
    program, timeline = result.program, result.timeline
    messages = program.ops.kind_T[program.row_N] == Kind.SEND
    for boundary, nodes in ((0, 1), (1, 2)):
        spans = timeline.duration_s_N[messages & (program.virtual_stage_N == boundary)]
        assert spans.tolist() == [priced[nodes].time_s] * 4


@pytest.fixture
def gradients(tmp_path):
    """Three layers of 3000 ns backward, and a gradient of a size that does not divide by three."""
    rows = [
        row("grad_param_comm", weight_grad=(0, "REDUCESCATTER", 1_000_003)),
        *pipeline_rows(3000, 9000, 2, layers=3),
    ]
    return write_aicb(tmp_path / "w.txt", rows, ga=2, gpus=4)


def reductions(result):
    program = result.program
    at = np.flatnonzero(program.ops.group_T[program.row_N] == Group.DP)
    return at, program.ops.size_bytes_T[program.row_N[at]], program.microbatch_N[at]


def test_gradients_are_reduced_once_after_the_last_backward(gradients):
    result = traincast.simulate(gradients, cluster="ideal", busbw_bytes_per_s={"dp": 1_000_003 * 0.75 / 1e-6})
    _, sizes, microbatches = reductions(result)
    assert (sizes.tolist(), microbatches.tolist()) == ([1_000_003], [-1])
    assert result.iteration_time_s == pytest.approx(24e-6 + 1e-6, rel=1e-9)
    assert result.breakdown_s["exposed_dp"] == pytest.approx(1e-6, rel=1e-9)


@pytest.mark.parametrize(("rate_time_us", "exposed_us"), [(1, 1 / 3), (9, 3), (30, 24)])
def test_overlapped_gradients_hide_behind_the_last_backward(gradients, rate_time_us, exposed_us):
    """Three buckets, one after each layer of the last microbatch (3 us each): the last one is always exposed."""
    rate = 1_000_003 * 0.75 / (rate_time_us * 1e-6)
    result = traincast.simulate(gradients, cluster="ideal", overlap_grad_reduce=True, busbw_bytes_per_s={"dp": rate})
    at, sizes, microbatches = reductions(result)
    assert sizes.sum() == 1_000_003
    assert microbatches.tolist() == [1, 1, 1]
    assert (result.program.ops.phase_T[result.program.row_N[at]] == Phase.WEIGHT_GRADIENT).all()
    # Sizes differ by a byte, so times by 1e-6 of themselves.
    assert result.iteration_time_s == pytest.approx((24 + exposed_us) * 1e-6, rel=1e-5)
    assert result.breakdown_s["exposed_dp"] == pytest.approx(exposed_us * 1e-6, rel=1e-4)


def test_the_optimizer_waits_for_overlapped_gradients(tmp_path):
    """One layer of 9 us backward, then a reduction of 5 us that the optimizer needs."""
    rows = [
        row("grad_param_comm", weight_grad=(0, "REDUCESCATTER", 1 << 20)),
        *pipeline_rows(3000, 9000, 1),
        row("optimizer1", 500),
    ]
    path = write_aicb(tmp_path / "w.txt", rows, gpus=4)
    rates = {"dp": (1 << 20) * 0.75 / 5e-6}
    result = traincast.simulate(path, cluster="ideal", overlap_grad_reduce=True, busbw_bytes_per_s=rates)
    assert result.iteration_time_s == pytest.approx(17.5e-6, rel=1e-9)


def test_gradients_of_a_row_are_reduced_beside_what_follows_it(tmp_path):
    """Two layers of 1 us for each part; a reduction of 1.5 us after each weight gradient, then the optimizer.

    Forwards end at 2; the reductions run from 4 to 5.5, beside the first layer, and from 6 to 7.5.
    """
    layer = row("attention_layer", 1000, 1000, (1000, "ALLREDUCE", 1 << 20))
    path = write_aicb(tmp_path / "w.txt", [row("embedding_layer"), layer, layer, row("optimizer1", 500)], gpus=4)
    result = traincast.simulate(path, cluster="ideal", busbw_bytes_per_s={"dp": (1 << 20) * 1.5 / 1.5e-6})
    assert result.iteration_time_s == pytest.approx(8e-6, rel=1e-9)
    assert result.breakdown_s["exposed_dp"] == pytest.approx(1.5e-6, rel=1e-9)
