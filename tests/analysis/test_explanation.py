"""Why a step took so long: who waits for whom, skew apart from transfer, overlap, the roof, memory over time."""

import numpy as np
import pytest

from support import HandMade, collective, compute, expanded, timed, wait
from traincast import api
from traincast.analysis.communication import communication_table, overlap_of_ranks
from traincast.analysis.explanation import explain, short_form
from traincast.analysis.memory_curve import Saved, memory_curves
from traincast.analysis.roofline import roofline
from traincast.analysis.timed_program import timed_program
from traincast.analysis.waiting import waiting
from traincast.job.parallel import Parallel
from traincast.workload.words import Phase

EXAMPLES = ("examples/megatron_pp4_tp2", "examples/aicb_gpt_405b_1024gpu.txt")


def unequal():
    """Two ranks of 1 s and 3 s that meet for 0.5 s, and go on for 1 s."""
    hand = HandMade(Parallel(tp=2))
    hand.template([compute(1.0), collective(0.5)], [compute(1.0)])
    hand.template([compute(3.0), collective(0.5)], [compute(1.0)])
    program = expanded(hand.workload([0, 1]))
    return program, timed(program)


def test_the_early_rank_waits_for_the_late_one():
    told = waiting(timed_program(*unequal()))
    for pairs in (told.direct, told.root):
        assert (pairs.rank_K.tolist(), pairs.other_K.tolist(), pairs.time_s_K.tolist()) == ([0], [1], [2.0])
        assert pairs.matrix(np.array([0, 1])).tolist() == [[0.0, 2.0], [0.0, 0.0]]


def test_skew_is_apart_from_transfer():
    (row,) = communication_table(*unequal())
    assert (row.group, row.op, row.ranks, row.runs) == ("tp", "all_reduce", 2, 1)
    assert (row.transfer_s, row.skew_s, row.wait_s) == (0.5, 2.0, 2.0)
    assert row.algbw_bytes_per_s == 16.0
    assert row.busbw_bytes_per_s == 16.0


def test_whoever_stands_at_the_end_of_a_chain_keeps_all_waiting():
    """Three stages of 1 s: stage 0 waits for its gradient, while stage 1 waits for that of stage 2."""
    hand = HandMade(Parallel(pp=3))
    hand.template([compute(1.0)], [compute(1.0)])
    program = expanded(hand.workload())
    told = waiting(timed_program(program, timed(program)))
    direct = told.direct.matrix(np.arange(3))
    root = told.root.matrix(np.arange(3))
    # Stage 0 waits from 1 to 5 s, for stage 1; in that time stage 1 works for 2 s and waits for stage 2 for 2 s.
    assert direct[0].tolist() == [0.0, 4.0, 0.0]
    assert root[0].tolist() == [0.0, 2.0, 2.0]
    assert direct.sum(axis=1).tolist() == pytest.approx(root.sum(axis=1).tolist())


@pytest.mark.parametrize("path", EXAMPLES)
def test_all_waiting_is_told_once(path):
    """What a rank waits for all others is its bubble and its exposed waiting."""
    result = api.simulate(path, cluster="h100")
    told = waiting(result.timed)
    for pairs in (told.direct, told.root):
        waited = pairs.matrix(result.program.rank_R).sum(axis=1)
        for rank, waited_s in zip(result.ranks, waited, strict=True):
            assert waited_s == pytest.approx(rank.breakdown_s["bubble"] + rank.wait_s, rel=1e-9)


@pytest.mark.parametrize("path", EXAMPLES)
def test_what_the_path_consists_of_sums_to_the_step(path):
    result = api.simulate(path, cluster="h100")
    assert sum(each.time_s for each in result.analysis.critical_path) == pytest.approx(result.iteration_time_s)
    told = explain(result.timed)
    assert short_form(result.timed) == result.analysis
    assert told.slack_s_N[told.path.op_H].max() == 0.0


def test_the_straggler_of_a_measured_run_keeps_all_waiting():
    result = api.simulate(EXAMPLES[0])
    worst, second, *_ = result.analysis.kept_waiting
    assert (worst.rank, worst.stage) == (7, 3)
    assert worst.time_s > 3 * second.time_s


def test_a_transfer_beside_a_computation_is_overlapped():
    hand = HandMade(Parallel(tp=2))
    hand.template([collective(1.5, blocking=False), compute(1.0), wait()], [compute(1.0)])
    program = expanded(hand.workload())
    for each in overlap_of_ranks(program, timed(program)):
        assert (each.comm_s, each.overlapped_s, each.overlap) == (1.5, 1.0, pytest.approx(2 / 3))


def test_a_computation_stands_below_the_roof():
    hand = HandMade(Parallel(microbatches=2))
    hand.template([compute(2.0, flops=6.0, bytes_moved=3.0)], [compute(1.0, "other", Phase.BACKWARD)])
    program = expanded(hand.workload())
    known, unknown = roofline(program, timed(program))
    assert (known.runs, known.time_s, known.flops, known.flops_per_s, known.intensity) == (2, 4.0, 12.0, 3.0, 2.0)
    assert (known.bound(6.0, 3.0), known.of_roof(6.0, 3.0)) == ("compute", 0.5)
    assert (known.bound(6.0, 2.0), known.of_roof(6.0, 2.0)) == ("memory", 0.75)
    assert (unknown.flops, unknown.bound(1.0, 1.0), unknown.of_roof(1.0, 1.0)) == (None, None, None)


def test_a_stage_holds_what_1f1b_has_in_flight():
    """Stage p of P holds min(P - p, M) microbatches (Korthikanti et al. 2022, section 4.2.3)."""
    hand = HandMade(Parallel(pp=4, microbatches=8))
    hand.template([compute(1.0)], [compute(2.0, phase=Phase.BACKWARD)])
    program = expanded(hand.workload())
    saved = {virtual: Saved(all_bytes=10.0, for_weights_bytes=5.0) for virtual in range(4)}
    curves = memory_curves(program, timed(program), saved, dict.fromkeys(range(4), 100.0))
    assert [curve.in_flight_H.max() for curve in curves] == [4, 3, 2, 1]
    for curve in curves:
        assert curve.in_flight_H[-1] == 0
        assert curve.size_bytes_H.max() == 100.0
        assert curve.size_bytes_H[-1] == 100.0 - 10.0 * curve.in_flight_H.max()


def test_input_gradients_free_what_only_they_need():
    hand = HandMade(Parallel())
    hand.template([compute(1.0)], [compute(1.0, phase=Phase.BACKWARD), compute(1.0, phase=Phase.WEIGHT_GRADIENT)])
    program = expanded(hand.workload())
    (curve,) = memory_curves(program, timed(program), {0: Saved(all_bytes=8.0, for_weights_bytes=3.0)})
    assert curve.time_s_H.tolist() == [0.0, 2.0, 3.0]
    assert curve.size_bytes_H.tolist() == [8.0, 3.0, 0.0]
