"""Every registered schedule keeps these promises; a new one is tested by registering."""

import pytest

from support import in_flight
from traincast.errors import InfeasibleError
from traincast.schedules.check import check_plan
from traincast.schedules.plan import SchedulePlan
from traincast.schedules.schedule import SCHEDULES
from traincast.schedules.slots import SlotKind

NAMES = SCHEDULES.names()
STAGES = range(1, 9)
VIRTUAL = range(1, 5)
MICROBATCHES = range(1, 21)


def _limit(plan: SchedulePlan, stage: int, virtual: int, microbatches: int) -> int:
    """Return how much a stage may hold; a schedule that is not listed may hold everything."""
    stages, everything = len(plan.slots), microbatches * virtual
    if plan.name == "1f1b" or (plan.name == "interleaved" and virtual == 1):
        return min(stages - stage, microbatches)
    if plan.name == "interleaved":
        return min(2 * (stages - stage - 1) + (virtual - 1) * stages + 1, everything)
    return everything


def _forward_first(plan: SchedulePlan) -> bool:
    for order in plan.slots:
        forwarded = set()
        for slot in order:
            if slot.kind == SlotKind.F:
                forwarded.add(slot[1:4])
            elif slot[1:4] not in forwarded:
                return False
    return True


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("name", NAMES)
def test_plans_are_complete_executable_and_bounded(name: str, stages: int) -> None:
    schedule = SCHEDULES.get(name).plan
    for virtual in VIRTUAL:
        for microbatches in MICROBATCHES:
            try:
                plan = schedule(stages, virtual, microbatches)
            except InfeasibleError:
                continue
            case = (name, stages, virtual, microbatches)
            check_plan(plan, stages, virtual, microbatches)
            assert _forward_first(plan), case
            for stage, held in enumerate(in_flight(plan)):
                assert held <= _limit(plan, stage, virtual, microbatches), (case, stage, held)


@pytest.mark.parametrize("name", NAMES)
def test_plans_are_the_same_each_time(name: str) -> None:
    schedule = SCHEDULES.get(name).plan
    virtual = next(virtual for virtual in VIRTUAL if _accepts(name, virtual))  # Every schedule has one on 4 stages.
    assert schedule(4, virtual, 8) == schedule(4, virtual, 8)


@pytest.mark.parametrize("counts", [(0, 1, 4), (4, 0, 4), (4, 1, 0)])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_schedule_is_refused(name: str, counts: tuple[int, int, int]) -> None:
    with pytest.raises(InfeasibleError):
        SCHEDULES.get(name).plan(*counts)


def _accepts(name: str, virtual: int) -> bool:
    try:
        SCHEDULES.get(name).plan(4, virtual, 8)
    except InfeasibleError:
        return False
    return True
