"""Where a GPU's time went, as HTA and TraceLens define it: worked out by hand, of measured and of simulated steps."""

import pytest

from kineto_traces import Writer
from support import ALONE, HandMade, compute
from traincast import api
from traincast.analysis.gpu_intervals import gpu_times, recorded_gpu_time
from traincast.job.parallel import Parallel

US = 1e-6


@pytest.fixture
def trace(tmp_path):
    """Write one rank: two streams of kernels and copies, with every kind of overlap and pause.

    ::

        stream 7    A 10-60 | B 62-112 |        C 200-240 |      D 400-410
        stream 20       all-reduce 40-160
        stream 9                              copy 230-260 | set 300-310
    """
    writer = Writer()
    writer.work("A", 0, 10, 60)
    writer.work("B", 5, 62, 112)
    writer.collective(8, 40, 160)
    writer.work("C", 150, 200, 240)
    writer.work("Memcpy DtoD (Device -> Device)", 160, 230, 260, stream=9, cat="gpu_memcpy")
    writer.work("Memset (Device)", 170, 300, 310, stream=9, cat="gpu_memset")
    writer.work("D", 180, 400, 410)
    return writer.write(tmp_path / "trace.json")


def test_a_breakdown_by_hand(trace):
    (found,) = recorded_gpu_time(api.read(trace))
    # 10 to 410; A, B, C, D compute; the all-reduce is alone from 60 to 62 and 112 to 160; the copy from 240 to 260.
    assert found.total_s == pytest.approx(400 * US)
    assert found.compute_s == pytest.approx((50 + 50 + 40 + 10) * US)
    assert found.exposed_comm_s == pytest.approx((2 + 48) * US)
    assert found.exposed_copy_s == pytest.approx((20 + 10) * US)
    assert found.idle_s == pytest.approx((40 + 40 + 90) * US)
    assert found.comm_s == pytest.approx(120 * US)
    assert found.copy_s == pytest.approx(40 * US)
    # HTA: overlapped with A from 40 to 60 and with B from 62 to 112.
    assert found.overlap == pytest.approx(70 / 120)


def test_pauses_of_streams_by_hand(trace):
    (found,) = recorded_gpu_time(api.read(trace))
    of_stream = {round(1e6 * sum((each.host_wait_s, each.kernel_wait_s, each.other_s))): each for each in found.streams}
    computing, copying, communicating = of_stream[250], of_stream[40], of_stream[0]
    # Before B a kernel wait of 2 us; C was launched at 150, after the end of B; D at 180, before the end of C.
    assert computing.kernel_wait_s == pytest.approx(2 * US)
    assert computing.host_wait_s == pytest.approx(88 * US)
    assert computing.other_s == pytest.approx(160 * US)
    assert copying.other_s == pytest.approx(40 * US)
    assert communicating.host_wait_s == communicating.kernel_wait_s == communicating.other_s == 0


def test_the_parts_sum_to_the_total_and_communication_waits_as_its_kernel_does():
    result = api.simulate("examples/aicb_gpt_405b_1024gpu.txt", cluster="h100", engine="reference")
    for found, rank in zip(gpu_times(result.program, result.timeline), result.ranks, strict=True):
        parts_s = found.compute_s + found.exposed_comm_s + found.exposed_copy_s + found.idle_s
        assert parts_s == pytest.approx(found.total_s)
        assert found.compute_s == pytest.approx(rank.compute_s)
        assert found.exposed_comm_s <= found.comm_s <= found.total_s
        # What a breakdown calls a transfer, a wait or a bubble is all communication to a profiler.
        exposed_s = sum(time_s for name, time_s in rank.breakdown_s.items() if name not in ("compute", "other"))
        assert found.exposed_comm_s >= exposed_s - 1e-9


def test_a_replay_spends_its_time_as_the_measured_step(trace):
    result = api.simulate(trace, cluster="h100", **ALONE)
    (measured,) = recorded_gpu_time(api.read(trace))
    (replayed,) = result.gpu_time
    for name in ("total_s", "compute_s", "exposed_comm_s", "exposed_copy_s", "idle_s"):
        assert getattr(replayed, name) == pytest.approx(getattr(measured, name), abs=1e-9)
    assert result.iteration_time_s == pytest.approx(410 * US)


def test_what_was_not_recorded_has_no_times():
    made = HandMade(Parallel()).template(forward=[compute(1)]).workload()
    assert recorded_gpu_time(None) == recorded_gpu_time(made) == ()
