"""What surrounds the first and the last passes of virtual stages, as the order of a schedule has it."""

import pytest

from traincast.planning.screen.shape import Shape
from traincast.schedules.length import BACKWARD, FORWARD, WEIGHT
from traincast.schedules.schedule import SCHEDULES


def shape(schedule, stages, virtual, microbatches):
    plan = SCHEDULES.get(schedule).plan(stages, virtual, microbatches)
    return Shape(None, plan, (), tuple(range(stages * virtual)), (), ())


def test_one_virtual_stage_has_one_last_pass_that_nothing_precedes():
    for stage in (0, 1):
        (turn,) = shape("1f1b", 2, 1, 4).last_gradients(stage)
        assert turn == (stage, True, ())


def test_between_last_passes_of_interleaved_virtual_stages_others_of_a_group_come_back():
    found = shape("interleaved", 4, 2, 8)
    last, first = found.last_gradients(0)
    assert (last.kind, first.kind) == (4, 0)
    assert dict(first.before) == {(BACKWARD, 0): 3, (WEIGHT, 0): 3}
    begin, following = found.first_forwards(0)
    assert (begin, following.kind, dict(following.before)) == ((0, True, ()), 4, {(FORWARD, 0): 3})


@pytest.mark.parametrize("schedule", ["zb_h1", "interleaved_zb"])
def test_zero_bubble_schedules_end_with_gradients_of_weights(schedule):
    virtual = 2 if schedule == "interleaved_zb" else 1
    turns = shape(schedule, 2, virtual, 4).last_gradients(0)
    assert [turn.kind for turn in turns] == [2, 0][2 - virtual :]
    assert not turns[-1].whole
