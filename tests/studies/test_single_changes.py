"""Pairs of runs that differ in one setting, as jobs: what a page's words fill, and which pairs are kept."""

import pytest

from published import single_changes
from published.single_changes import pairs


@pytest.fixture(scope="module")
def found():
    return {pair.id: pair for pair in pairs()}


def test_words_of_pages_are_columns():
    assert single_changes._cells("cuda_graph", "te:moe_router+moe_preprocess") == {
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": "moe_router+moe_preprocess",
    }
    assert single_changes._cells("tp", "4 (dp 2)") == {"tp": "4"}
    assert single_changes._cells("optimizer_cpu_offload fraction", "25%") == {"offload_optimizer": "0.25"}
    assert single_changes._cells("allocator", "default") == {}


def test_a_pair_differs_in_its_change_alone(found):
    pair = found["abl-028"]
    assert (pair.before.request.tp, pair.after.request.tp) == (4, 8)
    assert pair.ratio == pytest.approx(704 / 508.7)
    assert (pair.slower, pair.faster) == (pair.after, pair.before)
    overlap = found["abl-003"]
    assert (overlap.slower.request.moe_a2a_overlap, overlap.faster.request.moe_a2a_overlap) == (False, True)
    assert overlap.slower.request.moe_dispatcher == "hybridep"


def test_a_pair_that_names_rows_is_these_rows(found):
    pair = found["abl-059"]
    assert (pair.before.id, pair.after.id) == ("torchtitan-benchmarks-001", "torchtitan-benchmarks-002")
    assert pair.ratio == pytest.approx(pair.after.measured_s / pair.before.measured_s, rel=1e-3)


def test_what_is_no_setting_of_a_job_is_no_pair_and_each_pair_is_there_once(found):
    assert not {"abl-029", "abl-075", "abl-087", "abl-005", "abl-012"} & set(found)
    assert len(found) >= 30
