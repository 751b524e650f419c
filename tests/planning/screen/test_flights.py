"""Microbatches in flight: fewer microbatches stand for more where the order of a schedule has settled."""

import numpy as np
import pytest

from traincast.estimate.memory.activations import ChunkBytes, peak_in_flight
from traincast.planning.screen.flights import Flights, enough, plan_for_memory

CASES = [
    ("1f1b", 5, 1),
    ("1f1b with pairs", 4, 1),
    ("interleaved with pairs", 4, 2),
    ("gpipe", 3, 1),
    ("interleaved", 4, 3),
    ("looped_bfs", 3, 2),
    ("interleaved_zb", 5, 2),
    ("interleaved_zb", 8, 3),
    ("zb_h1", 6, 1),
    ("zb_v", 5, 2),
    ("dualpipe", 6, 1),
    ("dualpipe_v", 4, 2),
]


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "stages", "virtual"), CASES)
def test_the_peak_is_that_of_the_whole_order(schedule, stages, virtual):
    """Of virtual stages of three kinds, whose bytes are drawn, no moment that is left out needs more."""
    schedule, _, pairs = schedule.partition(" with ")
    draw = np.random.default_rng(7)
    for microbatches in range(1, 7 * stages + 1):
        if schedule == "interleaved" and microbatches % stages:
            continue
        plan = plan_for_memory(schedule, stages, virtual, microbatches, pairs=bool(pairs))
        last = len(plan.placement[0]) - 1
        kind_Q = tuple((each > 0) + (each == last) for each in range(last + 1))
        moments_P = Flights().moments(
            schedule, stages, virtual, microbatches, kind_Q, tuple(range(stages)), bool(pairs)
        )
        for saved, forward, backward in draw.uniform(0.1, 1, (3, 3, 3)):
            chunk_of = {
                each: ChunkBytes(
                    saved=saved[kind], for_weights=saved[kind] / 2, forward=forward[kind], backward=backward[kind]
                )
                for each, kind in enumerate(kind_Q)
            }
            for stage in range(stages):
                peak, moments = peak_in_flight(plan, stage, chunk_of, together=bool(pairs)), moments_P[stage]
                passing = np.stack([np.zeros(3), backward, forward])[moments.forward_E + 1, moments.kind_E]
                most = (moments.count_EA @ saved + passing).max()
                assert most == pytest.approx(peak.saved_bytes + peak.passing_bytes), microbatches


def test_few_microbatches_stand_for_many():
    assert enough("1f1b", 8, 1000) == 8
    assert enough("interleaved", 8, 1024) == 16
    assert enough("dualpipe", 8, 1001) == 17
    assert enough("looped_bfs", 8, 1000) == 1000


@pytest.mark.parametrize(("schedule", "virtual"), [("1f1b", 1), ("interleaved", 3), ("dualpipe_v", 2)])
def test_pairs_are_counted_as_the_whole_order_has_them(schedule, virtual):
    for microbatches in (4, 8, 12, 40):
        plan = plan_for_memory(schedule, 4, virtual, microbatches, pairs=True)
        wanted = tuple(sum(slot.paired for slot in order) for order in plan.slots)
        assert Flights().pairs(schedule, 4, virtual, microbatches) == wanted
