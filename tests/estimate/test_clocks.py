"""The clock that a power limit allows: bounds, monotonicity, and what it is for the chips that were measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from traincast.estimate.clocks import gemm_slowdown
from traincast.estimate.factors import FactorTable
from traincast.estimate.program import OperatorSeconds
from traincast.hardware.clusters import gpu_named
from traincast.hardware.gpu import generations, load_gpu
from traincast.workload.ops import OperatorCall

KNOWN = [name for name, each in generations().items() if each.gemm_pj_per_flop is not None]
POWER_W = st.floats(50, 5000)


def chip(architecture, tdp_w, peak=1e15):
    return replace(load_gpu("h100"), architecture=architecture, tdp_w=tdp_w, bf16_dense_flops_per_s=peak)


@given(st.sampled_from(KNOWN), POWER_W, POWER_W)
def test_more_power_is_never_slower(architecture, one_w, other_w):
    less, more = (gemm_slowdown(chip(architecture, each)) for each in sorted((one_w, other_w)))
    assert more <= less


@given(st.sampled_from(KNOWN), st.floats(1, 10), st.floats(1e13, 1e16))
def test_power_beyond_what_the_full_clock_takes_changes_nothing(architecture, times, peak):
    generation = generations()[architecture]
    full_w = generation.gemm_pj_per_flop * 1e-12 * peak
    assert gemm_slowdown(chip(architecture, full_w * times, peak)) == pytest.approx(generation.timed_clock)


@given(st.sampled_from(KNOWN), st.floats(0.05, 0.5), st.floats(1e13, 1e16))
def test_the_rate_of_a_limited_chip_is_its_power_over_the_energy_of_a_flop(architecture, share, peak):
    """Whatever its peak: a GEMM that would reach all of it takes the energy of its FLOP over the limit."""
    generation = generations()[architecture]
    limit_w = share * generation.gemm_pj_per_flop * 1e-12 * peak
    rate = peak * generation.timed_clock / gemm_slowdown(chip(architecture, limit_w, peak))
    assert rate == pytest.approx(limit_w / (generation.gemm_pj_per_flop * 1e-12))
    assert gemm_slowdown(chip(architecture, limit_w / 2, peak)) == pytest.approx(
        2 * gemm_slowdown(chip(architecture, limit_w, peak))
    )


@pytest.mark.parametrize("without", [{"tdp_w": None}, {"bf16_dense_flops_per_s": None}, {"architecture": "tpu"}])
def test_what_is_not_known_limits_nothing(without):
    assert gemm_slowdown(replace(load_gpu("b200"), **without)) == 1.0


def test_parts_of_one_generation_are_in_the_order_of_power_for_each_flop():
    order = ["gb300", "gb200", "b200"]
    slowdowns = [gemm_slowdown(load_gpu(name)) for name in order]
    assert slowdowns == sorted(slowdowns)
    assert len(set(slowdowns)) == len(order)
    # The A100's 400 W are enough; on PCIe 300 W reach 252.9 of its 271.2 TFLOP/s, which is where its energy is from.
    assert gemm_slowdown(load_gpu("a100")) == 1.0
    assert 1 / gemm_slowdown(load_gpu("A100-PCIe-80GB")) == pytest.approx(252.9 / 271.2, rel=0.005)
    assert gemm_slowdown(load_gpu("mi325x")) / gemm_slowdown(load_gpu("mi300x")) == pytest.approx(
        668.4 / 784.9, rel=0.01
    )


def test_the_part_of_500_watt_is_slower_than_the_one_of_700():
    slow, fast = (gemm_slowdown(load_gpu(name)) for name in ("H100-96GB-HBM2e-500W", "h100"))
    assert 1.05 < slow / fast < 1.2


CALLS = {
    "gemm": OperatorCall(family="gemm", shape=(4096, 4096, 4096), dtype="bf16"),
    "small gemm": OperatorCall(family="gemm", shape=(128, 256, 256), dtype="fp8", direction="wgrad"),
    "experts": OperatorCall(family="grouped_gemm", shape=(4096, 2048, 2048, 4), dtype="mxfp8", direction="dgrad"),
    "attention": OperatorCall(family="attention", shape=(1, 4096, 4096, 16, 16, 128, 128), dtype="bf16"),
    "norm": OperatorCall(family="norm", shape=(4096, 4096), dtype="bf16"),
}
GEMMS = {"gemm", "small gemm", "experts"}


@pytest.mark.parametrize("name", list(CALLS))
def test_gemms_are_throttled_once_and_nothing_else(name):
    gpu = replace(load_gpu("gb200"), tdp_w=500.0)
    seconds = OperatorSeconds(gpu, FactorTable().for_job(gpu, "nanotron-2024"))
    alone, _ = seconds.alone(CALLS[name])
    assert gemm_slowdown(gpu) > 2
    assert seconds.of(CALLS[name]) == pytest.approx(alone.time_s * (gemm_slowdown(gpu) if name in GEMMS else 1.0))


def test_every_energy_has_a_source():
    assert KNOWN
    for each in generations().values():
        assert ("energy of GEMMs" in each.source) == (each.gemm_pj_per_flop is not None)
        assert 0 < each.timed_clock <= 1


def test_a_limit_of_ones_own_counts(tmp_path):
    file = tmp_path / "capped.toml"
    file.write_text('base = "b200"\n[gpu]\ntdp_w = 700\n', encoding="utf-8")
    assert gemm_slowdown(gpu_named(str(file))) == pytest.approx(gemm_slowdown(load_gpu("b200")) * 1000 / 700)
