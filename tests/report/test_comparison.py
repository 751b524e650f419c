"""Comparisons on the terminal and as JSON, and the measured run beside a simulated one."""

import json
import re

import pytest
from msgspec.structs import replace

from traincast.analysis.comparison import Difference, Side, compare
from traincast.analysis.summary import Ratio
from traincast.report.json import comparison_to_dict, encode
from traincast.report.terminal.comparison import print_comparison
from traincast.report.terminal.step import print_result
from traincast.simulation.result_records import PartResult


def side(what, factor=1.0, **more):
    values = {
        "name": f"{what}.json",
        "what": what,
        "step_s": 3.0 * factor,
        "end_s": {0: 3.0 * factor, 1: 2.5},
        "part_s": {0: {"forward_step": 1.0 * factor}, 1: {"forward_step": 1.5, "host_gap": 0.0}},
        "breakdown_s": {"compute": 2.0, "exposed_tp": 0.0, "bubble": 3.0 * factor - 2.0},
    }
    return Side(**(values | more))


def narrow(output):
    assert max(len(line) for line in output.splitlines()) <= 80
    return output


def test_both_sides_with_their_difference(shown):
    output = narrow(shown(print_comparison, compare(side("measured"), side("simulated", 1.1))))
    lines = [line.rstrip() for line in output.splitlines()]
    assert lines[0] == "Step A 3 s, B 3.3 s: B is 300 ms longer (+10.00 %)"
    assert lines[1:3] == ["A: measured.json (measured)", "B: simulated.json (simulated)"]
    assert re.search(r"^  bubble +1,000\.000 +1,300\.000 +\+300\.000 +\+30\.00 %$", "\n".join(lines), re.MULTILINE)
    assert "none: exposed tp" in output
    assert "Parts, waiting included, ms (sums over 2 ranks)" in output
    assert re.search(r"^  forward_step +2,500\.000 +2,600\.000 +\+100\.000 +\+4\.00 %$", "\n".join(lines), re.MULTILINE)
    assert re.search(r"^  host_gap +0\.000 +0\.000 +0\.000 +-$", "\n".join(lines), re.MULTILINE)
    assert re.search(r"^     1 +2,500\.000 +2,500\.000 +0\.000 +0\.00 %$", "\n".join(lines), re.MULTILINE)
    assert "Parts of each rank" not in output and "Only in" not in output


def test_a_share_of_next_to_nothing_is_not_shown(shown):
    a = {"breakdown_s": {"compute": 2.99, "exposed_tp": 0.0025, "exposed_dp": 0.004, "bubble": 0.0035}}
    b = {"breakdown_s": {"compute": 2.99, "exposed_tp": 0.0005, "exposed_dp": 0.008, "bubble": 0.0350}}
    comparison = compare(side("a", **a), side("b", **b))
    output = shown(print_comparison, comparison)
    # Less than a thousandth of the 3 s, and ten times as long: only the seconds.
    assert re.search(r"^  exposed tp +2\.500 +0\.500 +-2\.000 +-$", output, re.MULTILINE)
    assert re.search(r"^  bubble +3\.500 +35\.000 +\+31\.500 +-$", output, re.MULTILINE)
    assert re.search(r"^  exposed dp +4\.000 +8\.000 +\+4\.000 +\+100\.00 %$", output, re.MULTILINE)
    assert comparison_to_dict(comparison)["breakdown_s"]["exposed_tp"]["relative"] == pytest.approx(-0.8)
    # A sum over 2 ranks is held against both their steps.
    parts = [{rank: {"get_batch": each} for rank in (0, 1)} for each in (0.0029, 0.0001)]
    sums = compare(side("a", part_s=parts[0]), side("b", part_s=parts[1]))
    assert re.search(r"^  get_batch +5\.800 +0\.200 +-5\.600 +-$", shown(print_comparison, sums), re.MULTILINE)


def test_a_step_many_times_as_long_has_no_percentage(shown):
    output = shown(print_comparison, compare(side("a"), side("b", 20.0)))
    assert output.splitlines()[0].rstrip() == "Step A 3 s, B 60 s: B is 57 s longer"


def test_ranks_shows_the_parts_of_each(shown):
    comparison = compare(side("a"), side("b", 0.5))
    output = narrow(shown(lambda console, subject: print_comparison(console, subject, ranks=True), comparison))
    assert "B is 1.5 s shorter (-50.00 %)" in output
    assert re.search(r"^ +0  forward_step +1,000\.000 +500\.000 +-500\.000 +-50\.00 %", output, re.MULTILINE)


def test_waiting_is_shown_apart_from_what_a_part_took_itself(shown):
    waits = {0: {"forward_step": 0.25}, 1: {"forward_step": 0.5, "host_gap": 0.0}}
    a = side("a", wait_s=waits)
    b = side(
        "b", part_s={0: {"forward_step": 1.75}, 1: {"forward_step": 1.5}}, wait_s={0: {"forward_step": 1.0}, 1: {}}
    )
    comparison = compare(a, b)
    assert comparison.parts["forward_step"] == Difference(2.5, 3.25)
    assert comparison.waits == {"forward_step": Difference(0.75, 1.0)}
    output = narrow(shown(print_comparison, comparison))
    own, waiting = output.split("Parts without waiting, ms")[1].split("Waiting for other ranks, ms")
    assert re.search(r"^  forward_step +1,750\.000 +2,250\.000 +\+500\.000 +\+28\.57 %", own, re.MULTILINE)
    assert re.search(r"^  forward_step +750\.000 +1,000\.000 +\+250\.000 +\+33\.33 %", waiting, re.MULTILINE)
    assert comparison_to_dict(comparison)["waits_s"]["forward_step"]["difference"] == 0.25


def test_what_only_one_side_has_is_shown(shown):
    end_s = dict.fromkeys((0, 1, 2, 3, 7), 1.0)
    parts = {0: {"forward_step": 1.0, "send_forward": 0.001}, 1: {"send_forward": 0.001}}
    output = shown(print_comparison, compare(side("a"), side("b", end_s=end_s, part_s=parts, breakdown_s=None)))
    only_a, only_b = output.split("Only in A")[1].split("Only in B")
    assert "forward_step on rank 1, 1.5 s" in only_a and "host_gap on rank 1, 0 s" in only_a
    assert "ranks 2-3, 7" in only_b and "send_forward on ranks 0-1, 2 ms" in only_b
    assert "Where the time goes" not in output


def test_identical_sides_are_the_same(shown):
    output = shown(print_comparison, compare(side("a"), side("a")))
    assert output.splitlines()[0].rstrip() == "Step A 3 s, B 3 s: the same"
    assert "+" not in output and "-0" not in output


def test_many_like_ranks_are_elided(shown):
    many = side("a", end_s=dict.fromkeys(range(64), 3.0), part_s={})
    section = narrow(shown(print_comparison, compare(many, many))).split("Finish times")[1]
    assert re.findall(r"^ +(\d+|\.\.\.)(?: |$)", section, re.MULTILINE) == ["0", "1", "...", "62", "63", "..."]
    assert "... ranks 2 to 61 are like rank 0, within 1 % of the step" in section
    every = shown(lambda console, subject: print_comparison(console, subject, ranks=True), compare(many, many))
    assert "..." not in every


def test_many_runs_of_like_ranks_have_one_legend(shown):
    many = side("a", end_s={rank: 1.0 + rank // 20 for rank in range(100)}, part_s={})
    output = shown(print_comparison, compare(many, many))
    assert len(re.findall(r"^ +\.\.\. *$", output, re.MULTILINE)) == 5
    assert output.count("within 1 % of the step") == 1
    assert "ranks like the two above and below them" in output


def test_a_rank_that_differs_is_never_elided(shown):
    a = side("a", end_s=dict.fromkeys(range(64), 3.0), part_s={})
    b = side("b", end_s={rank: 3.0 + (rank == 40) for rank in range(64)}, part_s={})
    assert re.search(r"^ +40 .*\+33\.33 %", shown(print_comparison, compare(a, b)), re.MULTILINE)


def test_no_breakdown_and_no_ranks(shown):
    bare = side("a", end_s={}, part_s={}, breakdown_s=None)
    output = shown(print_comparison, compare(bare, bare))
    assert len(output.splitlines()) == 3


def test_the_document():
    document = comparison_to_dict(compare(side("a"), side("b", 2.0, end_s={0: 6.0, 4: 1.0}, part_s={0: {"x": 1.0}})))
    again = json.loads(encode(document))
    assert again == document
    keys = ["schema", "a", "b", "step_s", "ratio", "breakdown_s", "parts_s", "waits_s", "ranks", "only_a", "only_b"]
    assert list(document) == keys
    assert document["schema"] == "traincast.comparison/1"
    nothing = dict.fromkeys(
        ("mfu", "mfu_peak", "mfu_16_bit", "interval", "tokens_per_s_per_gpu", "gpus", "training_run")
    )
    assert document["a"] == {"name": "a.json", "what": "a", "how": "", **nothing, "notes": [], "warnings": []}
    assert document["ratio"] is None
    assert document["step_s"] == {"a": 3.0, "b": 6.0, "difference": 3.0, "relative": 1.0}
    assert document["breakdown_s"]["exposed_tp"] == {"a": 0.0, "b": 0.0, "difference": 0.0, "relative": None}
    assert document["ranks"] == [{"rank": 0, "end_s": document["step_s"], "parts_s": {}}]
    assert document["only_a"] == {"ranks": [1], "parts": [{"rank": 0, "part": "forward_step", "time_s": 1.0}]}
    assert document["only_b"] == {"ranks": [4], "parts": [{"rank": 0, "part": "x", "time_s": 1.0}]}


@pytest.mark.parametrize(
    ("low", "told"), [(0.98, "-2.0 % to +15.0 %: too close to tell which is shorter"), (1.04, "+4.0 % to +15.0 %")]
)
def test_two_forecasts_say_how_sure_their_difference_is(shown, low, told):
    ratio = Ratio(level=0.9, ratio=1.1, low=low, high=1.15, chance_shorter=0.1)
    comparison = replace(compare(side("simulated"), side("simulated", 1.1)), ratio=ratio)
    output = " ".join(narrow(shown(print_comparison, comparison)).split())
    assert f"90 % interval of the difference {told} Where the time goes" in output
    assert comparison_to_dict(comparison)["ratio"]["low"] == low


def test_a_result_shows_what_was_measured_beside_it(result, shown):
    output = narrow(shown(print_result, result))
    section = output.split("Measured and simulated: finish times")[1].split("Communication")[0]
    assert re.search(r"^ +0 +0 +14\.300 +14\.300 +0\.000 +0\.00 %", section, re.MULTILINE)
    assert re.search(r"^ +2 +1 +19\.800 +18\.700 +-1\.100 +-5\.56 %", section, re.MULTILINE)
    assert "parts, waiting included, us (sums over 2 ranks)" in section
    assert re.search(r"^  forward_step +14\.300 +15\.400 +\+1\.100 +\+7\.69 %", section, re.MULTILINE)
    assert output.index("Stages") < output.index("Measured and simulated") < output.index("Communication")


def test_parts_that_were_not_measured_or_not_simulated_are_named(result, shown):
    dropped = PartResult(rank=0, part="get_batch", time_s=0.0, measured_s=1e-6)
    section = shown(print_result, replace(result, parts=(*result.parts, dropped))).split("Measured and simulated")[2]
    assert "only simulated: host_gap" in section
    assert re.search(r"^  get_batch +1\.000 +0\.000 +-1\.000 +-100\.00 %", section, re.MULTILINE)


def test_a_result_without_measured_ranks_shows_no_table(result, shown):
    assert "Measured and simulated" not in shown(print_result, replace(result, measured_s=None))
    ranks = tuple(replace(rank, measured_end_s=None) for rank in result.ranks)
    parts = tuple(replace(part, measured_s=None) for part in result.parts)
    output = shown(print_result, replace(result, ranks=ranks, parts=parts))
    assert "Measured and simulated" not in output
    assert "measured  19.8 us" in output
