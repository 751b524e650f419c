"""Results are those on record: a job of each schedule and mechanism, plans, replays; and a change would be noticed.

A change that is meant is written down with ``python tools/same_results.py golden --write`` and read in the diff.
"""

import json
import sys
from pathlib import Path

import pytest

import same_results
from sameness.cases import PLANS
from sameness.differences import ADDED, CHANGED, VANISHED, Allowed, compare, differences
from sameness.golden import cases, kept, sampled
from sameness.jobs import draw
from sameness.running import workshop
from sameness.shapes import CLUSTERS, FRAMEWORKS, SCHEDULES, SHAPES
from traincast import JobRequest, clusters
from traincast.schedules.schedule import SCHEDULES as REGISTERED

KEPT = {record["case"]: record for record in kept()}
CASES = {case.name: case for case in cases()}
DRAWN = [draw(1, number) for number in range(500)]
BETWEEN_ISLANDS = ("local_steps", "outer_bits", "outer_fragments", "overlap_outer", "offload_outer")
"""What takes a cluster with islands, which no preset has (tests/mechanisms/test_local_steps.py)."""


@pytest.fixture(scope="module", autouse=True)
def _inputs():
    with workshop():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_result_is_the_one_on_record(name):
    now = json.loads(json.dumps(sampled(CASES[name])))
    # Another processor's libm may differ in the last bits; differences of times have no more digits than these.
    assert list(map(str, differences(KEPT[name], now, relative=1e-9, absolute=1e-12))) == []


def test_the_record_has_just_these_cases():
    assert list(KEPT) == list(CASES)
    assert {f"schedule {name}" for name in REGISTERED.names()} <= set(KEPT)


def test_jobs_repeat_and_differ_by_number_and_seed():
    assert draw(1, 7) == draw(1, 7)
    assert draw(1, 7) != draw(1, 8)
    assert draw(1, 7) != draw(2, 7)


def test_jobs_say_all_that_a_job_may_say():
    said = {field for job in DRAWN for field in job.fields}
    options = {word for job in DRAWN for word in job.options}
    # A level of effort says others of these.
    left = {"model", "gpus_used_per_node", "tuned", "loss_tiles", "one_hot_embedding", *BETWEEN_ISLANDS}
    assert set(JobRequest.__struct_fields__) - said == left
    assert "--gpus-used-per-node" in options
    assert {job.shape.name for job in DRAWN} == {shape.name for shape in SHAPES}
    assert {job.cluster for job in DRAWN} == set(CLUSTERS) <= {cluster.name for cluster in clusters()}
    assert {job.fields.get("framework") for job in DRAWN} >= set(FRAMEWORKS)
    assert {job.fields.get("schedule") for job in DRAWN} >= set(SCHEDULES) == set(REGISTERED.names())


@pytest.mark.parametrize(
    ("a", "b", "what", "path"),
    [
        ({"step_s": 1.0}, {"step_s": 1.0 + 4e-12}, CHANGED, "step_s"),
        ({"count": 1}, {"count": 2}, CHANGED, "count"),
        ({"count": 1}, {"count": 1.0}, CHANGED, "count"),
        ({"on": 1}, {"on": True}, CHANGED, "on"),
        ({"best": ["tp2", "tp4"]}, {"best": ["tp4", "tp2"]}, CHANGED, "best[0]"),
        ({"ranks": [1]}, {"ranks": [1, 2]}, CHANGED, "ranks.length"),
        ({"ranks": [{"end_s": 1.0}]}, {"ranks": [{}]}, VANISHED, "ranks[0].end_s"),
        ({"ranks": [{}]}, {"ranks": [{"end_s": 1.0}]}, ADDED, "ranks[].end_s"),
        ({"peak": None}, {"peak": 1.0}, CHANGED, "peak"),
    ],
)
def test_a_difference_has_its_kind_and_path(a, b, what, path):
    found = next(differences(a, b, relative=1e-12))
    assert (found.what, found.path) == (what, path)


def test_the_last_bits_of_a_float_are_no_difference():
    assert list(differences({"step_s": 1.0}, {"step_s": 1.0 + 4e-13}, relative=1e-12)) == []


def _recording(path, **steps):
    lines = [json.dumps({"case": name, "kind": "job", "code": 0, "out": out}) for name, out in steps.items()]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_recordings_are_compared_case_by_case(tmp_path):
    a = _recording(tmp_path / "a", one={"s": 1.0}, two={"s": 1.0}, three={"s": 1.0})
    b = _recording(tmp_path / "b", one={"s": 1.0, "more": 1}, two={"s": 1.1}, four={})
    found = compare(a, b, 1e-12)
    assert (list(found.different), found.missing, found.further) == (["two"], ["three"], ["four"])
    assert found.added == {"out.more": 1}
    assert found.failed
    grown = compare(a, _recording(tmp_path / "c", one={"s": 1.0, "x": 1}, two={"s": 1.0}, three={"s": 1.0}), 1e-12)
    assert not grown.failed


def test_differences_that_are_meant_are_counted_apart(tmp_path):
    a = _recording(tmp_path / "a", one={"s": [1.0, 2.0]}, two={"s": [1.0]})
    b = _recording(tmp_path / "b", one={"s": [1.1, 2.0]}, two={"s": [1.0]})
    lines = tmp_path / "meant"
    lines.write_text("# faster\none\tout.s[*]\n")
    found = compare(a, b, 1e-12, allowed=Allowed.read(lines))
    assert not found.failed
    assert found.allowed == 1


def test_the_command_records_and_compares(tmp_path, monkeypatch, capsys):
    files = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    for file in files:
        monkeypatch.setattr(sys, "argv", ["same_results", "record", file, "--only", "job", "--jobs", "4"])
        assert same_results.main() == 0
    monkeypatch.setattr(sys, "argv", ["same_results", "compare", *files])
    assert same_results.main() == 0
    assert "4 cases: 0 differ" in capsys.readouterr().out
    # As bytes, not as numbers: nothing of a recording hangs on the time of day.
    assert len({Path(file).read_text() for file in files}) == 1


def test_there_are_plans_of_every_kind():
    words = " ".join(PLANS.values())
    assert len(PLANS) >= 12
    assert all(word in words for word in ("--space full", "--allow-offload", "--cluster b200", "--from", "--explain"))
