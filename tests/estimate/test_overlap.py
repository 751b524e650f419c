"""Slowdowns by what an operation is bound by."""

import numpy as np
import pytest
from msgspec.structs import replace

from support import HandMade, collective, compute, expanded, wait
from traincast.estimate.contention import OVERLAP_SLOWDOWN, classes_present, slowdowns
from traincast.job.options import OVERLAP_CLASSES
from traincast.job.parallel import Parallel
from traincast.workload.words import Kind, OverlapClass


@pytest.fixture
def program():
    hand = HandMade(Parallel(tp=2))
    work = [compute(1.0, overlap_class=each) for each in OverlapClass]
    hand.template([*work, collective(None, size_bytes=1 << 20), collective(0.5), wait()])
    return expanded(hand.workload(forward_only=True))


def test_every_class_has_its_own_and_waiting_none(program):
    assert set(OVERLAP_SLOWDOWN) == set(OVERLAP_CLASSES)
    found = slowdowns(program, in_situ=False).tolist()
    order = ("unknown", "compute", "memory", "small", "communication", "communication")
    assert found == [*(OVERLAP_SLOWDOWN[name] for name in order), 0.0]


def test_kernels_that_follow_each_other_are_slowed_down_each_by_its_own_class():
    """A second of which kernels take a quarter in each class is a mixture, not its largest part."""
    hand = HandMade(Parallel())
    hand.template([compute(1.0, overlap_shares=(0.0, 0.5, 0.25, 0.25))])
    mixed = expanded(hand.workload(forward_only=True))
    of_class = OVERLAP_SLOWDOWN
    expected = 0.5 * of_class["compute"] + 0.25 * of_class["memory"] + 0.25 * of_class["small"]
    assert slowdowns(mixed, in_situ=False).tolist() == pytest.approx([expected])
    assert classes_present(mixed, in_situ=False) == ("compute", "memory", "small")


def test_the_defaults_lie_in_the_measured_ranges():
    for name, low, high in (("compute", 0, 0.02), ("memory", 0.1, 0.15), ("small", 0.3, 0.4), ("unknown", 0.1, 0.1)):
        assert low <= OVERLAP_SLOWDOWN[name] <= high


def test_a_class_can_be_set_or_turned_off(program):
    found = slowdowns(program, in_situ=False, overrides={"unknown": 0.0, "communication": 0.5})
    assert found[0] == 0.0
    assert found[program.ops.kind_T == Kind.COLLECTIVE].tolist() == [0.5, 0.5]
    assert found[1] == OVERLAP_SLOWDOWN["compute"]


def test_times_measured_in_a_run_already_hold_their_overlap(program):
    found = slowdowns(program, in_situ=True)
    assert np.flatnonzero(found).tolist() == [4], "only the collective that is priced"
    everything = replace(program.ops, duration_s_T=np.full(len(program.ops), np.nan))
    assert slowdowns(replace(program, ops=everything), in_situ=True).astype(bool).sum() == 6
