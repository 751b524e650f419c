"""Every registered schedule keeps these promises; a new one is tested by registering."""

from collections.abc import Iterator

import numpy as np
import pytest

from support import HandMade, compute, expanded, in_flight, timed
from traincast.errors import InfeasibleError
from traincast.job.parallel import Parallel
from traincast.schedules.check import check_plan, checked_plan
from traincast.schedules.length import Pipeline
from traincast.schedules.plan import SchedulePlan
from traincast.schedules.run import length_of, run_plan
from traincast.schedules.schedule import SCHEDULES, Pairing, usual_schedule
from traincast.schedules.slots import SlotKind
from traincast.workload.words import Phase

NAMES = SCHEDULES.names()
STAGES = range(1, 9)
VIRTUAL = range(1, 5)
MICROBATCHES = range(1, 21)
PASSES_S = (1.0, 1.25, 0.5)
"""Forward, input gradient and weight gradient of a virtual stage."""
PAPERS_S = {"zb_v": (1.0, 1.0, 0.5)}
"""Those for which the paper of a schedule has its bubble, where its closed form is as good as that."""
EXACT = {
    **dict.fromkeys(("1f1b", "gpipe", "looped_bfs"), lambda _stages, _microbatches: True),
    "interleaved": lambda stages, microbatches: microbatches % stages == 0,
    "zb_h1": lambda stages, microbatches: microbatches >= stages,
    "interleaved_zb": lambda stages, microbatches: microbatches % stages == 0,
    **dict.fromkeys(("zb_v", "dualpipe_v"), lambda stages, microbatches: microbatches >= 2 * stages),
    "dualpipe": lambda stages, microbatches: microbatches >= 2 * stages and microbatches % 2 == 0,
}
"""Where the closed form of a length is exact for equal virtual stages; of a schedule that is not listed, everywhere."""


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


@pytest.mark.slow
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


def _plans(name: str, stages: range = range(1, 9), microbatches: range = MICROBATCHES) -> Iterator[SchedulePlan]:
    """Yield the plans that a schedule makes, with V and M."""
    for counts in ((p, v, m) for p in stages for v in VIRTUAL for m in microbatches):
        try:
            yield *counts, checked_plan(name, *counts)
        except InfeasibleError:
            continue


def _line(name: str, plan: SchedulePlan, microbatches: int) -> Pipeline:
    """Return a pipeline of equal virtual stages whose messages are free."""
    stages, chunks = len(plan.slots), len(plan.placement[0])
    splits = checked_plan(name, stages, chunks // stages, 2 * stages).splits_backward
    forward_s, input_s, weight_s = (np.full((1, 1, 1), each) for each in PAPERS_S.get(name, PASSES_S))
    return Pipeline(
        stages=stages,
        kind_Q=(0,) * chunks,
        placement_Q=plan.placement[0],
        microbatches=np.full((1, 1, 1), microbatches),
        forward_s_C=[forward_s],
        backward_s_C=(input_s if splits else input_s + weight_s)[None],
        weight_s_C=[weight_s],
        message_s=0.0,
        handover_s=0.0,
        splits_backward=splits,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_closed_form_is_as_long_as_the_order_that_is_run(name: str) -> None:
    schedule = SCHEDULES.get(name)
    for stages, virtual, microbatches, plan in _plans(name, range(1, 6), range(1, 13)):
        if name in EXACT and not EXACT[name](stages, microbatches):
            continue
        line = _line(name, plan, microbatches)
        found_s, ran_s = float(length_of(schedule, line).squeeze()), float(np.squeeze(run_plan(plan, line)))
        assert found_s == pytest.approx(ran_s, rel=1e-12), (stages, virtual, microbatches)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_order_that_is_run_is_as_long_as_its_simulation(name: str) -> None:
    forward_s, input_s, weight_s = PAPERS_S.get(name, PASSES_S)
    backward = compute(input_s, phase=Phase.BACKWARD), compute(weight_s, phase=Phase.WEIGHT_GRADIENT)
    for stages, virtual, microbatches, plan in _plans(name, range(2, 5), range(1, 8, 3)):
        made = HandMade(Parallel(pp=stages, vpp=virtual, microbatches=microbatches))
        workload = made.template(forward=[compute(forward_s)], backward=backward).workload(schedule=name)
        ran_s = float(np.squeeze(run_plan(plan, _line(name, plan, microbatches))))
        assert ran_s == pytest.approx(timed(expanded(workload)).step_s, rel=1e-12), (stages, virtual, microbatches)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_as_few_microbatches_hold_as_many_in_flight(name: str) -> None:
    schedule = SCHEDULES.get(name)
    for stages, virtual, microbatches, plan in _plans(name, range(1, 6), range(1, 17)):
        peaks = in_flight(plan)
        few = schedule.fewer(stages, microbatches, False)
        assert few <= microbatches
        if schedule.holds_all:
            assert max(peaks) == virtual * microbatches
        else:
            assert in_flight(checked_plan(name, stages, virtual, few)) == peaks, (stages, virtual, microbatches)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_facts_agree_with_the_plans(name: str) -> None:
    schedule = SCHEDULES.get(name)
    assert schedule.name == name
    plans = list(_plans(name, range(2, 5)))
    assert {plan.name for *_, plan in plans} == {name}
    assert {virtual for _, virtual, *_ in plans} == (
        {schedule.virtual_stages} if schedule.virtual_stages else {*VIRTUAL}
    )
    made_for_pairs = any(slot.paired for *_, plan in plans for order in plan.slots for slot in order)
    assert made_for_pairs == (schedule.pairing is Pairing.ALWAYS)
    refused = {(p, v, m) for p, v, m, plan in plans if any("would-refuse" in note.code for note in plan.warnings)}
    in_groups = {(p, v, m) for p, v, m, _ in plans if schedule.groups_of_stages and v > 1 and m % p}
    assert refused == in_groups
    for stages, _, _, plan in plans:
        last = [max(at for at, slot in enumerate(order) if slot.kind != SlotKind.W) for order in plan.slots]
        assert not schedule.ends_on_first_stage or plan.slots[0][last[0]].virtual_stage == 0
        assert len(plan.slots) == stages


@pytest.mark.parametrize("name", NAMES)
def test_one_stage_is_ordered_by_those_that_say_so(name: str) -> None:
    """What means nothing without a pipeline is run as the usual schedule there, which does."""
    schedule = SCHEDULES.get(name)
    assert SCHEDULES.get(usual_schedule()).orders_one_stage
    if schedule.orders_one_stage:
        assert [slot.kind for slot in schedule.plan(1, 1, 2).slots[0]].count(SlotKind.BW) == 2
