"""Moments of streams: what an emitter makes of operations is what a rank would take for them."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from job_parts import TINY, job_of
from traincast.estimate.contention import OVERLAP_SLOWDOWN
from traincast.lowering.launches import Launches
from traincast.lowering.work import Exchange
from traincast.model.blocks.part import Gemm, Kernel
from traincast.planning.screen.costs import Operators, PassCosts
from traincast.planning.screen.moments import MomentEmitter, ShareRates
from traincast.planning.screen.timed import Busy, TimedExchange, Wait
from traincast.workload.words import CostClass, Group, Operation, Phase, Stream

SLOWED = OVERLAP_SLOWDOWN["communication"]


class Links:
    """So many seconds for a byte; where groups sit is told by that, but for those of context parallel ranks."""

    def __init__(self, slowness=1.0):
        self.slowness, self.asked = slowness, []

    def told(self, kind):
        return None if kind is Group.CP else self.slowness

    def seconds(self, kind, _operation, size_bytes):
        self.asked.append((kind, len(size_bytes)))
        return np.asarray(size_bytes, dtype=np.float64) * self.slowness


def emitter(shares=1, known=None, *, host=1.0, held=0.0, overlap_tp=False, **job):
    copies = {Stream.OFFLOAD_OUT: 2.0, Stream.OFFLOAD_IN: 4.0, Stream.HOST_MEMORY: 8.0}
    which = np.zeros(shares, dtype=np.int64)
    rates = ShareRates(None, (Links(),), which, lambda *_: host, copies, held)
    job = job_of(TINY, gpus=8, tp=2, **job)
    share = SimpleNamespace(tp=np.full(shares, 2), etp=1, execution=SimpleNamespace(ranks_per_node=8))
    return MomentEmitter(job, share, rates, np.full(shares, overlap_tp), known)


def computing(*seconds, slowed=0.0):
    time_s = np.array(seconds, dtype=np.float64)
    return PassCosts(runs=True, compute_s_K=time_s, slowed_s_K=slowed * time_s)


def exchange(size, group=Group.CP):
    return Exchange(group, Operation.ALL_GATHER, np.array([size]))


def seconds(emit, rows):
    return np.asarray(emit.seconds(rows)).item()


def test_gemms_and_kernels_of_layouts_take_what_they_take_alone_each_so_often():
    emit = emitter()
    alone = SimpleNamespace(
        prepare=list,
        call_s=lambda call: math.prod(call.shape),
        alone=lambda _: [SimpleNamespace(bound="compute")],
    )
    emit.rates.operators = Operators(alone)
    gemm = Gemm(m=2, n=np.array([[3], [5]]), k=7, dtype="bf16")
    kernel = Kernel(family="optimizer", shape=(np.array([[0], [11]]),), dtype="bf16")
    rows = emit.runs("update", Phase.STEP, [(gemm, 10), (kernel, 1)])
    assert emit.seconds(rows).tolist() == [[420], [711]]


def test_what_blocks_follows_what_precedes_it_and_what_is_launched_runs_meanwhile():
    emit = emitter()
    work = emit.compute("work", Phase.FORWARD, computing(3))
    assert seconds(emit, work + emit.exchange(exchange(5))) == 8
    launched = emit.copy("out", Phase.FORWARD, Stream.OFFLOAD_OUT, np.array([[10]]))
    assert seconds(emit, launched + work) == 3
    assert seconds(emit, launched + work + emit.wait(Stream.OFFLOAD_OUT)) == 5
    assert seconds(emit, launched + work + emit.wait(Stream.OFFLOAD_OUT, where=np.array([False]))) == 3
    assert seconds(emit, emit.overlapped(launched, work)) == 5
    # One stream does one thing after the other.
    assert seconds(emit, emit.overlapped(launched + launched, work)) == 10


def test_computing_and_exchanging_slow_each_other_down_while_both_run():
    emit = emitter()
    work = emit.compute("work", Phase.FORWARD, computing(4, slowed=0.25))
    short, long = (emit.exchange(exchange(size), blocking=False) for size in (2, 10))
    assert seconds(emit, emit.overlapped(short, work)) == pytest.approx(4 + 0.25 * 2)
    assert seconds(emit, emit.overlapped(long, work)) == pytest.approx(10 + SLOWED * 4)
    # Copies to the host do not use the network.
    copied = emit.copy("out", Phase.FORWARD, Stream.OFFLOAD_OUT, np.array([[4]]))
    assert seconds(emit, emit.overlapped(copied, work)) == 4


def test_a_dispatcher_holds_multiprocessors_while_it_sends():
    emit = emitter(held=0.5)
    work = emit.compute("work", Phase.FORWARD, computing(4))
    sent = emit.exchange(exchange(2, Group.EP), blocking=False)
    assert seconds(emit, emit.overlapped(sent, work)) == pytest.approx(4 + 0.5 * 2)


def test_the_host_launches_while_its_work_runs_and_waits_add_to_it():
    emit = emitter(host=2.0)
    one_s = Launches(1).seconds(emit.job.framework)
    work = emit.compute("work", Phase.FORWARD, computing(100 * one_s))
    host = Launches(80, waits=3.0)
    idle_s = host.idle_s(emit.job.framework)
    assert seconds(emit, emit.hosted(Launches(30), Phase.FORWARD, work)) == pytest.approx(100 * one_s)
    assert seconds(emit, emit.hosted(host, Phase.FORWARD, work)) == pytest.approx(
        max(160 * one_s, 100 * one_s + 2 * idle_s)
    )
    assert emit.gap("none", 0.0, CostClass.FIXED) == []


def test_passes_in_turns_are_longer_for_a_stream_that_they_wait_for_and_leave_others_behind():
    emit = emitter()
    forward, backward = (emit.compute("work", Phase.FORWARD, computing(each)) for each in (2, 3))
    reduced = emit.exchange(TimedExchange(Group.DP, Operation.REDUCE_SCATTER, np.array([[4.0]])), blocking=False)
    for more in (0, 4):
        found = emit.cycle(forward, backward + reduced * (1 + more // 4))
        assert [np.asarray(each).item() for each in found.passes_s] == [2, 3]
        # What never ends is slowed down by all that is computed.
        slower = 5 * OVERLAP_SLOWDOWN["communication"] if more else 0
        assert found.left_s[Stream.DP].item() == pytest.approx(4 + more + slower)
    longer = emit.cycle(emit.wait(Stream.DP) + forward, backward + reduced + reduced)
    assert sum(np.asarray(each).item() for each in longer.passes_s) >= 8
    assert longer.left_s[Stream.DP] == 0


def test_a_pass_waits_for_what_the_one_before_left_running():
    emit = emitter()
    forward, backward = (emit.compute("work", Phase.FORWARD, computing(each)) for each in (2, 3))
    left = emit.copy("out", Phase.FORWARD, Stream.OFFLOAD_OUT, np.array([[14]]))
    found = emit.cycle(left + forward, emit.wait(Stream.OFFLOAD_OUT) + backward)
    assert [np.asarray(each).item() for each in found.passes_s] == [2, 5 + 3]
    assert not found.left_s


def test_what_is_written_again_is_remembered_as_a_whole_for_all_rows_and_by_phase():
    emit = emitter(3, {}, overlap_tp=True)
    written = []

    def write():
        written.append(True)
        work = on_rows.compute("work", Phase.FORWARD, computing(1, 2, 3))
        return work + on_rows.compute("weights", Phase.WEIGHT_GRADIENT, computing(10, 20, 30))

    for rows, phases, found in (
        ([2, 0, 2], Phase, [33, 11, 33]),
        ([1], Phase, [22]),
        ([1], [Phase.WEIGHT_GRADIENT], [20]),
    ):
        on_rows = emit.on(emit.job, np.array(rows), phases)
        assert on_rows.seconds(on_rows.again(("key",), write)).tolist() == [[each] for each in found]
    assert len(written) == 2


def test_recomputations_stand_side_by_side_each_with_its_share():
    emit = emitter(2)
    whole = [Busy(Stream.COMPUTE, np.array([[2.0], [4.0]]), True, 1.0, 0.5)]
    (busy,) = emit.side_by_side([(whole, 0.5), ([], 1.0), (whole, 1.0)])
    assert busy.time_s.tolist() == [[1, 0, 2], [2, 0, 4]]
    assert busy.slowdown.tolist() == [[0.5, 0, 0.5]] * 2


def test_two_passes_in_turns_hide_what_the_other_exchanges():
    emit = emitter()

    def one(*work):
        rows = []
        for each in work[:-1]:
            rows += emit.compute("work", Phase.FORWARD, computing(each))
            rows += emit.overlapped(emit.exchange(exchange(2, Group.EP), blocking=False), [])
        return rows + emit.compute("work", Phase.FORWARD, computing(work[-1]))

    forward, backward = one(3, 3), one(0.5, 5)
    alone_s = seconds(emit, forward) + seconds(emit, backward)
    # Both exchanges are hidden, and make the computation no longer, as nothing of it is bound by memory.
    assert seconds(emit, emit.by_turns(forward, backward)) == pytest.approx(alone_s - 2 * 2)
    assert Wait(Stream.EP) in emit.by_turns(forward, backward)


def test_exchanges_of_shares_whose_groups_sit_alike_are_timed_together():
    slow, fast, slow_too = Links(2.0), Links(1.0), Links(2.0)
    rates = ShareRates(None, (slow, fast, slow_too), np.array([0, 1, 2, 1, 0]), None, {})
    sizes = np.array([3, 5, 7, 0, 11])
    for _ in range(2):
        found = rates.transfer_s(Exchange(Group.TP, Operation.ALL_GATHER, sizes))
        assert found.tolist() == [6.0, 5.0, 14.0, 0.0, 22.0]
    assert (slow.asked, fast.asked, slow_too.asked) == ([(Group.TP, 3)], [(Group.TP, 1)], [])
    assert rates.transfer_s(Exchange(Group.CP, Operation.ALL_GATHER, sizes)).tolist() == [6.0, 10.0, 14.0, 0.0, 22.0]
    assert slow.asked[1:] == [(Group.CP, 4)]
