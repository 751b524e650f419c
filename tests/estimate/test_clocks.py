"""The clock that a power limit allows: bounds, monotonicity, and what it is for the chips that were measured."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from traincast.estimate.clocks import (
    at_full_clock,
    gemm_slowdown,
    held_back,
    loop_slowdown,
    power_limited,
    power_notes,
    slowest_of,
)
from traincast.estimate.factors import FactorTable
from traincast.estimate.program import OperatorSeconds
from traincast.hardware.clusters import gpu_named
from traincast.hardware.dtypes import ELEMENT_TYPES, PRECISIONS
from traincast.hardware.gpu import generations, gpu_names, load_gpu, said_of
from traincast.workload.ops import OperatorCall

KNOWN = [name for name, each in generations().items() if each.gemm_pj_per_flop is not None]
THROTTLED = [each for each in gpu_names() if load_gpu(each).architecture in KNOWN and load_gpu(each).tdp_w]
POWER_W = st.floats(50, 5000)


def chip(architecture, tdp_w, peak=1e15):
    return replace(load_gpu("h100"), architecture=architecture, tdp_w=tdp_w, bf16_dense_flops_per_s=peak)


@given(st.sampled_from(KNOWN), POWER_W, POWER_W)
def test_more_power_is_never_slower(architecture, one_w, other_w):
    less, more = (gemm_slowdown(chip(architecture, each)) for each in sorted((one_w, other_w)))
    assert more <= less


@given(st.sampled_from(THROTTLED), st.floats(1, 10))
def test_power_beyond_what_the_full_clock_takes_soon_changes_nothing(name, times):
    gpu = load_gpu(name)
    full_w = gpu.generation.gemm_pj_per_flop * 1e-12 * gpu.bf16_dense_flops_per_s
    found = gemm_slowdown(replace(gpu, tdp_w=full_w * times)) / gpu.generation.timed_clock
    assert 1 <= found < 1.1
    assert found == pytest.approx(1, abs=0.13 * times**-8 + 1e-9)


@given(st.sampled_from(THROTTLED), st.floats(0.05, 0.5), st.floats(1, 10))
def test_the_rate_of_a_limited_chip_is_its_power_over_the_energy_of_a_flop(name, share, more):
    """A GEMM that would reach all of the peak takes the energy of its FLOP over the limit, whatever a peak says."""
    sheet = load_gpu(name)
    pj, peak = sheet.generation.gemm_pj_per_flop, sheet.bf16_dense_flops_per_s
    limit_w = share * pj * 1e-12 * peak
    for gpu in (replace(sheet, tdp_w=limit_w), replace(sheet, tdp_w=limit_w, bf16_dense_flops_per_s=peak * more)):
        reached = power_limited(gpu).bf16_dense_flops_per_s * sheet.generation.timed_clock / gemm_slowdown(gpu)
        assert reached == pytest.approx(limit_w / (pj * 1e-12), rel=1e-3)
        assert gemm_slowdown(replace(gpu, tdp_w=limit_w / 2)) == pytest.approx(2 * gemm_slowdown(gpu), rel=1e-3)


@pytest.mark.parametrize("name", gpu_names())
def test_a_gpu_as_its_datasheet_says_has_all_of_its_peaks(name):
    gpu = load_gpu(name)
    assert power_limited(gpu) is gpu
    assert not list(power_notes(gpu))


RISING = (0.3, 0.7, 0.9, 0.99, 1.0, 1.01, 1.1, 1.3, 2.0, 10.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*gpu_names(), "its own"])
def test_no_higher_rate_of_a_gpu_is_slower(name):
    """Each rate alone and all peaks together, for GEMMs of all sizes and all types, and what is not throttled."""
    gpu = load_gpu(name) if name in gpu_names() else replace(load_gpu("gb300"), name="Abacus")
    peaks = [each for each in said_of(gpu) if each.endswith("_dense_flops_per_s")]
    dtypes = [each for each in PRECISIONS if gpu.has_peak(each) and _takes(each, gpu)]
    calls = [
        OperatorCall(family="gemm", shape=(size, size, 1024), dtype=dtype)
        for dtype in dtypes
        for size in (16, 512, 8192)
    ]
    calls += [OperatorCall(family="norm", shape=(4096, 4096), dtype="bf16")]
    alone = [[each] for each in (*peaks, "hbm_bytes_per_s", "tdp_w") if getattr(gpu, each)]
    for changed in (*alone, peaks):
        _never_slower(gpu, changed, calls)


def _takes(dtype, gpu):
    return not ELEMENT_TYPES[dtype].small_blocks or dtype in gpu.generation.scaled_blocks


def _never_slower(gpu, changed, calls):
    before = [math.inf] * len(calls)
    for factor in RISING:
        faster = replace(gpu, **{each: getattr(gpu, each) * factor for each in changed})
        seconds = OperatorSeconds(faster, FactorTable().for_job(faster, "nanotron-2024"))
        now = [seconds.call_s(each) for each in calls]
        assert all(one <= two * (1 + 1e-12) for one, two in zip(now, before, strict=True)), (changed, factor)
        before = now


def _limited_tflops(gpu):
    energy_pj = gpu.generation.gemm_pj_per_flop * gpu.bf16_dense_flops_per_s / gpu.fp8_dense_flops_per_s
    return gpu.tdp_w / energy_pj


def test_a_peak_that_the_power_limit_eats_says_so_in_numbers():
    gpu = load_gpu("gb300")
    more = replace(gpu, fp8_dense_flops_per_s=2 * gpu.fp8_dense_flops_per_s)
    (note,) = power_notes(more)
    stated, limited = 2 * gpu.fp8_dense_flops_per_s / 1e12, _limited_tflops(gpu)
    assert f"of {gpu.tdp_w:g} W holds fp8 GEMMs of a step to {limited:.4g} of the {stated:.4g} TFLOP/s" in note
    assert not list(power_notes(replace(more, tdp_w=10 * gpu.tdp_w)))


@pytest.mark.parametrize("without", [{"tdp_w": None}, {"bf16_dense_flops_per_s": None}, {"architecture": "tpu"}])
def test_what_is_not_known_limits_nothing(without):
    assert gemm_slowdown(replace(load_gpu("b200"), **without)) == 1.0


def test_parts_of_one_generation_are_in_the_order_of_power_for_each_flop():
    order = ["gb300", "gb200", "b200"]
    slowdowns = [gemm_slowdown(load_gpu(name)) for name in order]
    assert slowdowns == sorted(slowdowns)
    assert len(set(slowdowns)) == len(order)
    # The A100's 400 W are nearly enough; 300 W reach 252.9 of its 271.2 TFLOP/s, which is where its energy is from.
    assert 1 < gemm_slowdown(load_gpu("a100")) < 1.02
    pair = gemm_slowdown(load_gpu("a100")) / gemm_slowdown(load_gpu("A100-PCIe-80GB"))
    assert pair == pytest.approx(252.9 / 271.2, rel=0.005)
    assert gemm_slowdown(load_gpu("mi325x")) / gemm_slowdown(load_gpu("mi300x")) == pytest.approx(
        668.4 / 784.9, rel=0.01
    )


def test_the_part_of_500_watt_is_slower_than_the_one_of_700_but_by_no_more_than_its_limit():
    slow, fast = (gemm_slowdown(load_gpu(name)) for name in ("H100-96GB-HBM2e-500W", "h100"))
    assert 1.05 < slow / fast < 700 / 500


CALLS = {
    "gemm": OperatorCall(family="gemm", shape=(4096, 4096, 4096), dtype="bf16"),
    "small gemm": OperatorCall(family="gemm", shape=(128, 256, 256), dtype="fp8", direction="wgrad"),
    "experts": OperatorCall(family="grouped_gemm", shape=(4096, 2048, 2048, 4), dtype="mxfp8", direction="dgrad"),
    "attention": OperatorCall(family="attention", shape=(1, 4096, 4096, 16, 16, 128, 128), dtype="bf16"),
    "norm": OperatorCall(family="norm", shape=(4096, 4096), dtype="bf16"),
}
THROTTLED = {"gemm", "small gemm", "experts", "attention"}


@pytest.mark.parametrize("name", list(CALLS))
def test_what_computes_is_throttled_once_and_nothing_else(name):
    gpu = replace(load_gpu("gb200"), tdp_w=500.0)
    seconds = OperatorSeconds(gpu, FactorTable().for_job(gpu, "nanotron-2024"))
    alone = seconds.alone(CALLS[name]).time
    assert gemm_slowdown(gpu) > 2
    factor = gemm_slowdown(gpu) if name in THROTTLED else 1.0
    assert seconds.call_s(CALLS[name]) == pytest.approx(alone.time_s * factor)


def test_every_energy_has_a_source():
    assert KNOWN
    for each in generations().values():
        assert ("energy of GEMMs" in each.source) == (each.gemm_pj_per_flop is not None)
        assert 0 < each.timed_clock <= 1


def test_a_limit_of_ones_own_counts(tmp_path):
    file = tmp_path / "capped.toml"
    file.write_text('base = "b200"\n[gpu]\ntdp_w = 700\n', encoding="utf-8")
    assert gemm_slowdown(gpu_named(str(file))) == pytest.approx(gemm_slowdown(load_gpu("b200")) * 1000 / 700, rel=0.03)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_more_chips_have_a_slower_one(one, other):
    few, many = sorted((one, other))
    assert (
        1 == slowest_of(load_gpu("h100"), 1) <= slowest_of(load_gpu("h100"), few) <= slowest_of(load_gpu("h100"), many)
    )


def test_the_slowest_chip_is_the_largest_of_normal_ones():
    """Expected maxima of normal values: 1.4236 of 8 and 2.5076 of 100 (tables of order statistics)."""
    deviation = load_gpu("h100").generation.chip_deviation
    for count, largest in ((8, 1.4236), (100, 2.5076)):
        assert (slowest_of(load_gpu("h100"), count) - 1) / deviation == pytest.approx(largest, rel=0.01)


def test_chips_at_a_clock_of_their_own_alone_differ():
    """TPUs have no limit that their voltages meet: a step scales with them without loss."""
    assert slowest_of(load_gpu("tpu-v5p"), 4096) == 1


@pytest.mark.parametrize(("name", "most"), [("h100", 1.13), ("b200", 1.16), ("a100", 1), ("h20", 1), ("tpu-v5p", 1)])
def test_a_loop_of_a_long_gemm_is_held_back_where_the_limit_is_near(name, most):
    """A loop of a short one is over before the limiter lowers the clock."""
    gpu, times_s = load_gpu(name), np.array([1e-5, 7e-4, 1.2e-3, 2e-3, 1.0])
    found = loop_slowdown(gpu, times_s)
    assert found[0] == found[1] == 1
    assert found[3] == found[4] == pytest.approx(most)
    assert (np.diff(times_s * found) > 0).all()
    assert at_full_clock(gpu, times_s * found) == pytest.approx(times_s, rel=1e-6)
    assert held_back(gpu, 1e-3) == (most > 1)
    assert not held_back(gpu, 5e-4)


def test_boards_that_let_a_gpu_draw_more_slow_its_gemms_less():
    """The same chip at 1,000 W in a DGX, at 1,100 W on an HGX board."""
    assert 1.0 < gemm_slowdown(load_gpu("HGX-B300")) < gemm_slowdown(load_gpu("B300"))
