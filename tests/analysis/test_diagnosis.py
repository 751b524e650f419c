"""Causes of what measured runs of other formats lose."""

from pathlib import Path

import pytest

import traincast

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT.parent / "shared" / "samples"


def test_a_measured_run_with_a_slow_rank_names_it():
    result = traincast.simulate(ROOT / "examples" / "megatron_pp4_tp2")
    assert [cause.name for cause in result.causes] == ["slow worker"]
    assert result.causes[0].ranks == (7,)
    # What mending it saves is what the what-if says.
    tried = traincast.simulate(ROOT / "examples" / "megatron_pp4_tp2", what_if=("rank7.compute=peers",))
    assert result.causes[0].saving_s == pytest.approx(tried.what_if[0].saving_s, rel=0.05)


def test_a_forecast_has_no_causes():
    result = traincast.simulate(ROOT / "examples" / "aicb_gpt_405b_1024gpu.txt", cluster="ideal", pp=4, microbatches=2)
    assert result.slowdown is None and result.causes == ()


@pytest.mark.parametrize("name", ["moe_pp2_ep4", "moe_pp4_ep2"])
def test_runs_with_experts_name_their_imbalance(name):
    if not (SAMPLES / name).is_dir():
        pytest.skip("the measured runs with experts are not here")
    result = traincast.simulate(SAMPLES / name)
    assert result.causes[0].name == "imbalance of experts"
    assert "x the mean number of tokens" in result.causes[0].evidence
