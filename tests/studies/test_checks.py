"""The judge of checks: what its map of known slow cases says exists, and pairs are of one case and GPU."""

import csv
import gzip

import pytest

from datafiles import table_path
from judges import checks
from traincast.checking.causes import PAUSE, known_causes
from traincast.checking.verdict import Word


@pytest.fixture(scope="module")
def mapped():
    return list(csv.DictReader(checks.KINDS.read_text(encoding="utf-8").splitlines()))


def test_the_map_has_every_case_that_says_model_gpu_count_and_both_values(mapped):
    with gzip.open(table_path("known_slow.csv"), "rt", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    said = ("model", "gpu", "num_gpus", "measured", "expected_or_after_fix")
    assert {each["case"] for each in mapped} == {row["case"] for row in rows if all(row[name] for name in said)}


def test_kinds_of_cases_with_a_job_are_kinds_of_causes(mapped):
    kinds = {each.kind for each in known_causes()} | {PAUSE}
    for each in mapped:
        assert each["job"] or each["why"], "a case without a job says why"
        if each["job"]:
            assert set(filter(None, each["kinds"].split("|"))) <= kinds


def test_a_run_is_not_slower_than_itself_and_slower_when_it_is_much_longer():
    quiet = [run for run, each in checks.series().items() if each.spread < checks.QUIET and each.points > 20]
    for run in quiet[::40]:
        assert checks._verdict(run, run).word is Word.AS_EXPECTED
        assert checks._verdict(run, run, 1.2).word is Word.SLOWER


def test_rates_are_the_other_way_round():
    slow = {"measured": "100", "expected_or_after_fix": "150", "metric": "tokens_per_s_per_gpu"}
    assert checks._ratio(slow) == pytest.approx(1.5)
    assert checks._ratio({**slow, "metric": "step_s"}) == pytest.approx(2 / 3)
