"""Runs on TPU and AMD chips: what their recipes add, and which are in a fit."""

from judges.chips import TABLES, _judged_alone, maker_of, runs_of
from traincast.calibration.runs import is_fitted


def test_every_maker_has_runs_and_no_other():
    makers = {name: {maker_of(run) for run in runs_of(name)} for name in TABLES}
    assert makers == {"tpu_runs.csv": {"TPU"}, "amd_other.csv": {"AMD"}}


def test_runs_that_are_judged_alone_are_in_no_fit():
    runs = list(_judged_alone())
    assert any(run.full_layout for run in runs)
    assert not any(map(is_fitted, runs))


def test_recipes_say_what_is_kept_and_what_the_host_keeps():
    runs = {run.id: run.request for run in runs_of("tpu_runs.csv")}
    assert set(runs["tpu-recipes-new-006"].recompute_keeps) == {"linear_qkv", "linear_proj"}
    assert runs["tpu-recipes-new-006"].offload_activations == 32
    assert runs["tpu-recipes-new-001"].recompute_keeps is None
    assert runs["tpu-recipes-new-002"].fp8_recipe == "aqt_int8"
