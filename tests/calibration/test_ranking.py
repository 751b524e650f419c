"""Choosing a layout by its forecast: groups, regret, order, noise of repeats, what crashed."""

import csv

import numpy as np
import pytest

from measured_tables import ROWS
from traincast.calibration.ranking import MANY, rank_layouts
from traincast.errors import CalibrationError, FormatError

LLAMA = next(row for row in ROWS if row["id"] == "megatron-1") | {
    "precision": "bf16", "cp": 1, "num_gpus": 16, "measured_metric": "iter_time_s", "global_batch": 64,
}  # fmt: skip


@pytest.fixture
def table(tmp_path):
    """Write rows; without a step a row crashed."""

    def write(*rows):
        path = tmp_path / "runs.csv"
        columns = list(dict.fromkeys(name for row in rows for name in row))
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, columns)
            writer.writeheader()
            writer.writerows(rows)
        return path

    return write


def layouts(*steps, **more):
    """Rows of layouts with tensor parallelism 2, 4, 8, 16 and their steps."""
    return [
        {**LLAMA, "id": f"run-{at}", "tp": 2 ** (at + 1), "measured_value": step, **more}
        for at, step in enumerate(steps)
    ]


def forecasts(path):
    """Forecast by id of every row of a ranking's groups."""
    return {
        name: each.predicted_s for group in rank_layouts(path).groups for each in group.layouts for name in each.ids
    }


def test_regret_is_how_much_longer_the_choice_took_than_the_best(table):
    found = forecasts(table(*layouts(1, 1, 1, 1)))
    order = sorted(found, key=found.get)
    steps = [4.0, 4.0, 4.0, 4.0]
    steps[int(order[0][-1])], steps[int(order[2][-1])] = 3.0, 2.0
    ranking = rank_layouts(table(*layouts(*steps)))
    (group,) = ranking.groups
    assert (group.chosen.ids, group.best.ids) == ((order[0],), (order[2],))
    assert group.regret == pytest.approx(0.5)
    assert group.chosen.name == f"tp {2 ** (int(order[0][-1]) + 1)}"
    assert (ranking.total.groups, ranking.total.mean_regret, ranking.total.worst_regret) == (1, 0.5, 0.5)
    assert ranking.total.spearman is None


def test_a_forecast_that_orders_as_measured_has_no_regret(table):
    found = forecasts(table(*layouts(1, 1, 1, 1)))
    (group,) = rank_layouts(table(*layouts(*(3 * found[f"run-{at}"] for at in range(4))))).groups
    assert group.regret == 0.0
    assert group.chosen is group.best


def test_repeats_are_one_layout_with_their_mean(table):
    rows = [*layouts(4.0, 5.0), {**layouts(6.0)[0], "id": "again"}]
    (group,) = rank_layouts(table(*rows)).groups
    assert {each.ids: each.measured_s for each in group.layouts} == {("run-0", "again"): 5.0, ("run-1",): 5.0}


def in_sessions(paces, *steps):
    """Rows of layouts that ran in some sessions each: a step and the sessions' names for each layout."""
    return [
        {**row, "id": f"{row['id']}-{name}", "session": name, "measured_value": step * paces[name]}
        for row, (step, names) in zip(layouts(*(step for step, _ in steps)), steps, strict=True)
        for name in names
    ]


def test_what_sets_sessions_apart_is_taken_out_of_means(table):
    """Layouts that ran on the slow day alone are as good as they would have been on both."""
    paces = {"monday": 1.2, "tuesday": 1 / 1.2}
    rows = in_sessions(paces, (5.0, ["monday", "tuesday"]), (4.9, ["monday"]), (5.1, ["tuesday"]))
    ranking = rank_layouts(table(*rows))
    (group,) = ranking.groups
    measured = {each.ids[0].rpartition("-")[0]: each.measured_s for each in group.layouts}
    assert measured == pytest.approx({"run-0": 5.0, "run-1": 4.9, "run-2": 5.1})
    assert ranking.sessions == 2


def test_a_session_that_shares_no_layout_keeps_its_steps(table):
    rows = in_sessions({"monday": 1.2, "tuesday": 0.5}, (5.0, ["monday"]), (4.0, ["tuesday"]))
    ranking = rank_layouts(table(*rows))
    (group,) = ranking.groups
    assert sorted(each.measured_s for each in group.layouts) == pytest.approx([2.0, 6.0])
    assert ranking.sessions == 0


@pytest.mark.parametrize(
    "other",
    [
        {"num_gpus": 32},
        {"global_batch": 128},
        {"seq_len": 4096},
        {"precision": "fp8"},
        {"layers": 16, "model": "llama3-8b-cut"},
        {"source": "elsewhere"},
        {"gpu": "H200-SXM-141GB"},
    ],
)
def test_only_rows_that_share_all_but_the_layout_are_alternatives(table, other):
    rows = layouts(4.0, 5.0) + [{**row, **other, "id": f"{row['id']}b"} for row in layouts(4.0, 5.0)]
    assert len(rank_layouts(table(*rows)).groups) == 2
    with pytest.raises(CalibrationError, match="nothing can be ranked"):
        rank_layouts(table(layouts(4.0)[0], {**layouts(4.0, 5.0)[1], **other}))


def test_a_choice_that_crashed_is_counted_and_the_next_one_taken(table):
    found = forecasts(table(*layouts(1, 1, 1, 1)))
    order = sorted(found, key=found.get)
    rows = layouts(2.0, 2.0, 2.0, 2.0)
    rows[int(order[0][-1])] |= {"outcome": "crashed", "measured_value": ""}
    ranking = rank_layouts(table(*rows))
    (group,) = ranking.groups
    assert (group.chosen.ids, group.crashed_first, ranking.total.crashed_choices) == ((order[1],), 1, 1)


def test_what_does_not_fit_is_not_chosen(table):
    rows = [
        {**row, "model": "llama3-40b", "layers": 44, "hidden": 8192, "ffn_hidden": 28672, "heads": 64}
        for row in layouts(9.0, 9.0, 9.0, 9.0)
    ]
    (group,) = rank_layouts(table(*rows)).groups
    assert {each.name for each in group.layouts if each.refused} >= {"tp 2"}
    assert not group.chosen.refused


def test_tensor_parallelism_over_nodes_is_no_choice_while_there_are_others(table):
    (group,) = rank_layouts(table(*layouts(9.0, 9.0, 9.0, 1.0))).groups
    assert {each.name: each.planned for each in group.layouts} == {
        "tp 2": True,
        "tp 4": True,
        "tp 8": True,
        "tp 16": False,
    }
    # Of two that cross nodes one must be chosen.
    wide = [{**row, "tp": 16, "pp": 1, "micro_batch": 2**at} for at, row in enumerate(layouts(9.0, 9.0))]
    (group,) = rank_layouts(table(*wide)).groups
    assert group.chosen is group.layouts[0]


@pytest.mark.slow
def test_order_is_judged_from_ten_layouts_on_beside_what_repeats_allow(table):
    rows = [
        {**LLAMA, "tp": tp, "pp": pp, "micro_batch": micro_batch, "id": f"{tp}-{pp}-{micro_batch}", "measured_value": 1}
        for tp in (1, 2, 4)
        for pp in (1, 2)
        for micro_batch in (1, 2)
    ]
    found = forecasts(table(*rows))
    assert len(found) >= MANY
    exact = [{**row, "measured_value": found[row["id"]]} for row in rows]
    (group,) = rank_layouts(table(*exact)).groups
    assert (group.spearman, group.ceiling) == (1.0, None)
    # Each layout twice, 1 % above and below: the noise of a mean is half that of a run.
    noisy = [
        {**row, "id": f"{row['id']}{sign}", "measured_value": row["measured_value"] * np.exp(sign * 0.01)}
        for row in exact
        for sign in (-1, 1)
    ]
    (group,) = rank_layouts(table(*noisy)).groups
    variance = np.var(np.log([each.measured_s for each in group.layouts]), ddof=1)
    # Two runs of deviation s differ by 0.954 s in the median, and these by 0.02; a mean of two has half the variance.
    assert group.ceiling == pytest.approx(np.sqrt(1 - (0.02 / 0.9539) ** 2 / 2 / variance), rel=1e-4)
    assert group.spearman == 1.0
    # A run that took a hundred times as long says nothing about what the others repeat to.
    lone = [{**LLAMA, "tp": 8, "pp": 2, "id": f"slow-{factor}", "measured_value": factor} for factor in (1, 100)]
    groups = rank_layouts(table(*noisy, *lone)).groups
    again = next(each for each in groups if any("slow-1" in layout.ids for layout in each.layouts))
    others = [each.measured_s for each in again.layouts]
    assert again.ceiling == pytest.approx(
        np.sqrt(1 - (0.02 / 0.9539) ** 2 / 2 / np.var(np.log(others), ddof=1)), rel=1e-4
    )


def test_regrets_stand_beside_those_of_a_choice_at_random(table):
    """Of the layouts that a plan would run; one with tensor parallelism over two nodes it would not."""
    found = forecasts(table(*layouts(1, 1, 1, 1)))
    order = sorted((name for name in found if name != "run-3"), key=found.get)
    steps = {order[0]: 2.0, order[1]: 3.0, order[2]: 4.0, "run-3": 70.0}
    ranking = rank_layouts(table(*layouts(*(steps[f"run-{at}"] for at in range(4)))))
    assert (ranking.total.mean_regret, ranking.total.random_regret) == (0.0, 0.5)


def test_rows_that_say_nothing_are_left_out_by_name(table, tmp_path):
    listed = tmp_path / "spoilt.txt"
    listed.write_text("# fixed once\nrun-1\n\n")
    ranking = rank_layouts(table(*layouts(4.0, 1.0, 5.0)), leave_out=listed)
    assert ranking.left_out == 1
    assert {name for each in ranking.groups[0].layouts for name in each.ids} == {"run-0", "run-2"}
    listed.write_text("run-1\nrun-9\n")
    with pytest.raises(FormatError, match=r"spoilt.txt:2: leaves out run-9"):
        rank_layouts(table(*layouts(4.0, 1.0, 5.0)), leave_out=listed)
