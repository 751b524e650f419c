"""The board of plans against tuned recipes: what a plan is told, how runs are grouped, how differences are told."""

import math
from types import SimpleNamespace

import pytest

import experts as script
from judges import experts
from measured_tables import run_row as row
from traincast.calibration.runs import run_of


def run(**cells):
    measured = {"measured_metric": "iter_time_s", "measured_value": cells.pop("step_s", "4.0"), "basis": "exact"}
    return run_of(row(**{"framework": "Megatron-Bridge 26.06", **measured, **cells}))


def test_runs_of_one_question_are_a_group_whatever_their_layout_and_release():
    runs = [
        run(id="a", tp="2", step_s="4.0"),
        run(id="b", tp="4", step_s="3.5", framework="Megatron-Bridge 26.02"),
        run(id="c", tp="2", framework="Megatron-Bridge 25.11"),
        run(id="d", tp="2", num_gpus="128"),
    ]
    found = {tuple(each.id for each in group.runs) for group in experts.groups_of(runs)}
    assert found == {("b", "a"), ("c",), ("d",)}
    (group,) = (each for each in experts.groups_of(runs) if len(each.runs) == 2)
    assert (group.year, group.measured_s, group.best.id) == ("2026", 3.5, "b")
    assert experts.groups_of(runs, ("another source",)) == []


def test_a_plan_is_told_what_is_trained_and_nothing_of_how():
    told = run(tp="4", pp="2", micro_batch="2", recompute="full", cuda_graph_impl="local")
    asked = experts.asked(told)
    assert (asked.model, asked.gpus, asked.precision) == (told.request.model, told.request.gpus, told.request.precision)
    for name in ("tp", "pp", "micro_batch", "recompute", "cuda_graph_impl"):
        assert getattr(asked, name) is None, name


def test_the_board_counts_plans_that_are_hardly_slower():
    recipes = [SimpleNamespace(step_s=1.0)] * 4
    board = experts.against_recipes("best", [1.0, 1.019, 1.04, 0.8], recipes)
    assert board.figures == {"within": 75.0, "worst": 4.0, "bias": 0.95}
    assert board.asked == {"within": 90.0, "worst": 5.0}
    # A plan that finds nothing is no plan within the bound.
    assert experts.against_recipes("best", [math.inf, 1.0], recipes[:2]).figures["within"] == 50.0
    assert list(experts.claims([1.0, 0.96, 0.94], recipes[:3])) == [2]


def test_promised_steps_are_held_against_the_fastest_run():
    group = SimpleNamespace(measured_s=2.0)
    board = experts.against_runs("best", [2.2, math.inf], [group, group])
    assert (board.rows, board.figures["median"]) == (1, pytest.approx(10.0))


def test_parts_are_disjoint_and_leave_out_what_a_plan_is_told():
    parts = script.parts()
    names = [name for each in parts.values() for name in each]
    assert len(names) == len(set(names))
    assert set(names) & set(experts.SAID) == {"framework"}
    assert {"pp", "vpp", "pipeline_layout"} <= set(parts["pipeline"])


def test_a_plan_uses_the_software_of_the_release():
    assert experts.of_release("megatron-core-2024", "2025") == "megatron-core-2025"
    assert experts.of_release("megatron-core-2025", "") == "megatron-core-2025"
    assert experts.of_release("megatron-core-2025", "2024") == "megatron-core-2025"
    assert experts.of_release("eager", "2026") == "eager"
