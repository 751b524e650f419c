"""Pairs of runs that differ in one thing, and widths of their differences fitted to errors that are known."""

import numpy as np
import pytest

import differences
import fit_differences
from fit_differences import Told
from judges.differences import boards_of
from published.pairs import STRONG, WEAK, changed_pairs, told_changes
from published.reading import common_row
from traincast.calibration.runs import run_of
from traincast.calibration.tables import Row
from traincast.simulation.differences import MULTIPLE, difference_widths

CELLS = {
    **{"source": "here", "model": "llama3-8b", "gpu": "H100-SXM-80GB", "num_gpus": "16", "framework": "NeMo 25.02"},
    **{"seq_len": "4096", "global_batch": "64", "micro_batch": "1", "tp": "2", "pp": "1", "precision": "bf16"},
    **{"measured_metric": "iter_time_s", "measured_value": "2.0"},
}


def run(name, **other):
    return run_of(common_row(Row("runs.csv", 0, {"id": name, **CELLS, **other})))


def kinds(*runs):
    return [(pair.kind, pair.before.run.id, pair.after.run.id) for pair in changed_pairs(runs)]


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        ({"tp": "4"}, "tp"),
        ({"precision": "fp8"}, "precision"),
        ({"num_gpus": "32"}, STRONG),
        ({"num_gpus": "32", "global_batch": "128"}, WEAK),
        ({"seq_len": "8192", "global_batch": "32"}, "sequence"),
        ({"micro_batch": "2"}, "micro batch"),
        ({"recompute": "full"}, "recompute"),
        ({"gpu": "H200-SXM-141GB"}, "chip"),
        ({"framework": "NeMo 25.04"}, "framework or release"),
    ],
)
def test_one_change_is_found_whatever_follows_from_it(other, kind):
    assert [found[0] for found in kinds(run("a"), run("b", **other))] == [kind]


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"tp": "4", "precision": "fp8"},
        {"num_gpus": "32", "global_batch": "96"},
        {"source": "there", "tp": "4"},
        {"model": "llama3-70b"},
        {"num_gpus": "32", "global_batch": "128", "tp": "4"},
    ],
)
def test_none_or_several_changes_are_no_pair(other):
    assert kinds(run("a"), run("b", **other)) == []


def test_fewer_and_wider_come_first_and_the_change_is_of_a_gpus_time_for_a_token():
    assert kinds(run("a", tp="4"), run("b")) == [("tp", "b", "a")]
    assert kinds(run("a", precision="fp8"), run("b")) == [("precision", "b", "a")]
    (weak,) = changed_pairs([run("a"), run("b", num_gpus="32", global_batch="128", measured_value="2.2")])
    assert weak.ratio == pytest.approx(1.1)
    (strong,) = changed_pairs([run("a"), run("b", num_gpus="32", measured_value="1.1")])
    assert strong.ratio == pytest.approx(1.1)
    assert strong.text == "16 -> 32"


def test_repeats_of_a_job_are_one_side_by_the_middle_of_their_steps():
    repeats = [run(f"a{step}", measured_value=step) for step in ("2.0", "2.1", "9.0")]
    (pair,) = changed_pairs([*repeats, run("b", tp="4", measured_value="4.2")])
    assert len(pair.before.runs) == 3
    assert pair.ratio == pytest.approx(2.0)


def test_pairs_of_pages_have_a_kind_and_ids_of_their_own():
    found = list(told_changes())
    assert len(found) >= 30
    assert all(pair.before.run.id != pair.after.run.id for pair in found)
    of = {pair.before.run.id.partition(" ")[0]: pair for pair in found}
    assert of["abl-003"].kind == "expert overlap" and of["abl-028"].kind == "tp"
    assert of["abl-028"].ratio == pytest.approx(704 / 508.7, rel=1e-5)


def told(count=400, degrees=0.05, share=0.1, seed=1):
    """Return pairs whose errors have these widths: half differ by a doubling of a degree, half in efficiency."""
    draws, found = np.random.default_rng(seed), []
    for place in range(count):
        degree, change = place % 2, 0.3 * (place % 2 == 0)
        error = draws.standard_t(6) * np.hypot(degrees * degree, share * change)
        runs = run(f"a{place}", source=f"source {place % 20}"), run(f"b{place}", source=f"source {place % 20}", tp="4")
        (pair,) = changed_pairs(runs)
        squares = {"degrees": float(degree), "efficiency": change**2}
        found.append(Told(pair, pair.ratio * float(np.exp(error)), squares))
    return found


@pytest.fixture(scope="module")
def pairs():
    return told()


def test_widths_that_errors_were_drawn_with_are_found_again(pairs):
    found = fit_differences.fit_widths(pairs)
    assert found["degrees"] == pytest.approx(0.05, rel=0.3)
    assert found["efficiency"] == pytest.approx(0.1, rel=0.3)
    # Nothing speaks for the others.
    shipped = difference_widths()
    assert found["precision"] == shipped["precision"]
    inside = [abs(each.error) for each in pairs] <= fit_differences.spreads_of(pairs, found)
    assert np.mean(inside) == pytest.approx(0.9, abs=0.02)
    assert found[MULTIPLE] > 1


def test_the_board_counts_signs_errors_and_intervals(pairs):
    same = pairs[0]._replace(squares={})
    whole, tp, others, alike = boards_of([*pairs, same])
    assert (whole.name, tp.name, alike.name) == ("all", "tp", "releases that we take for one")
    assert (whole.rows, tp.rows, others.rows, alike.rows) == (400, 400, 0, 1)
    assert 85 < whole.figures["inside"] < 95
    errors = [100 * abs(each.ratio - each.pair.ratio) for each in pairs]
    assert whole.figures["median"] == pytest.approx(np.median(errors), abs=0.01)
    shown = list(differences.lines([*pairs, same], 2))
    assert shown[0].startswith("401 pairs")
    assert sum(line.startswith("  said ") for line in shown) == 2
