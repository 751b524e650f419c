"""Prices: never faster than the peaks, monotone, explained; which constants stand in for which."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from traincast.errors import ConfigError, FormatError, UnknownNameError
from traincast.estimate.operators import (
    FamilyConstants,
    OperatorCall,
    OperatorConstants,
    estimate_calls,
    estimate_operator,
    estimate_operators,
    shipped_constants,
    work_of,
)
from traincast.estimate.operators.constants import (
    ANY,
    Correction,
    load_constants,
    read_constants,
    read_corrections,
    write_constants,
)
from traincast.estimate.operators.families import FAMILIES
from traincast.hardware.gpu import gpu_names, load_gpu
from traincast.shipped import shipped_packed_text
from written import write_corrections

H100 = load_gpu("h100")
PLAIN = OperatorConstants(shipped_constants().rows)
"""Without corrections: the roofline alone."""
some_gpu = st.sampled_from([load_gpu(name) for name in gpu_names() if load_gpu(name).has_peak("bf16")])
size = st.integers(1, 20000)


def gemm(*shape, dtype="bf16", **more):
    return OperatorCall(family="gemm", shape=shape, dtype=dtype, **more)


def sample_call(family, dtype="bf16"):
    """Return a call of ordinary size of any family."""
    sizes = {"batch": 2, "heads": 16, "kv_heads": 4, "qk_dim": 128, "v_dim": 128, "groups": 8, "topk": 2, "experts": 8}
    shape = [sizes.get(each.name, 1024) for each in FAMILIES.get(family).sizes]
    return OperatorCall(family=family, shape=tuple(shape), dtype=dtype)


@settings(max_examples=200, deadline=None)
@given(size, size, size, some_gpu, st.sampled_from(["forward", "dgrad", "wgrad"]))
def test_no_product_beats_the_peaks(m, n, k, gpu, direction):
    call = gemm(m, n, k, direction=direction)
    price = estimate_operator(call, gpu)
    assert price.time_s >= price.flops / gpu.peak_flops_per_s("bf16")
    assert price.time_s >= price.bytes_moved / gpu.hbm_bytes_per_s
    assert price.flops == 2 * m * n * k


@settings(max_examples=200, deadline=None)
@given(st.tuples(size, size, size), st.integers(0, 2), st.integers(0, 5000), some_gpu)
def test_the_roofline_rises_with_every_size(shape, axis, more, gpu):
    larger = tuple(each + more * (place == axis) for place, each in enumerate(shape))
    # Where a row begins decides over the alignment, which is not a size.
    small, large = (work_of(gemm(*each)) for each in (shape, larger))
    if small.aligned >= large.aligned:
        a, b = (estimate_operator(gemm(*each), gpu, PLAIN).time_s for each in (shape, larger))
        assert b >= a * (1 - 1e-12)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 64), st.integers(16, 8192), st.integers(0, 4096), st.sampled_from(["forward", "backward"]))
def test_attention_rises_with_batch_and_length(batch, seq, more, direction):
    def time(batch, seq):
        shape = (batch, seq, seq, 16, 4, 128, 128)
        call = OperatorCall(family="attention", shape=shape, dtype="bf16", causal=True, direction=direction)
        return estimate_operator(call, H100, PLAIN).time_s

    assert time(batch, seq + more) >= time(batch, seq) * (1 - 1e-12)
    assert time(batch + 1, seq) >= time(batch, seq) * (1 - 1e-12)


def test_large_work_scales():
    def time(*shape):
        return estimate_operator(gemm(*shape), H100, PLAIN).time_s

    assert time(32768, 16384, 8192) == pytest.approx(2 * time(16384, 16384, 8192), rel=0.02)
    copies = [
        estimate_operator(OperatorCall(family="copy", shape=(n,), dtype="bf16"), H100, PLAIN) for n in (2**28, 2**30)
    ]
    assert copies[1].time_s == pytest.approx(4 * copies[0].time_s, rel=0.02)
    assert copies[1].bound == "memory"


def test_rows_and_columns_of_a_product_are_alike_where_tiles_are():
    # The list of tiles holds each shape with its mirror image.
    a, b = (estimate_operator(gemm(*shape), H100, PLAIN).time_s for shape in ((4096, 1024, 2048), (1024, 4096, 2048)))
    assert a == pytest.approx(b)


def test_a_last_wave_is_paid_by_its_share():
    def jump(wave):
        constants = row("H100-SXM-80GB", "attention", "bf16", 0.5)
        known = OperatorConstants((replace(constants, wave=wave),))

        def time(blocks):
            # Two blocks of 64 queries each, and attention does not split its reduction: 5 waves after 4.
            call = OperatorCall(family="attention", shape=(1, 128, 65536, blocks, 1, 128, 128), dtype="bf16")
            return estimate_operator(call, H100, known).time_s

        return time(2 * H100.sms + 1) / time(2 * H100.sms)

    assert jump(1.0) == pytest.approx(5 / 4, rel=0.01)
    assert jump(0.0) < 1.01
    assert jump(0.0) < jump(0.5) < jump(1.0)


def test_what_is_tiny_is_bound_by_latency():
    assert estimate_operator(gemm(16, 16, 16), H100).bound == "latency"
    assert estimate_operator(gemm(8192, 8192, 8192), H100).bound == "compute"
    assert estimate_operator(gemm(16, 16384, 16384), H100).bound == "memory"


def test_many_prices_are_those_of_one_by_one():
    calls = [sample_call(family) for family in FAMILIES.names()]
    calls += [gemm(m, 512, 4096, direction=way) for m in (8, 1000, 4096) for way in ("forward", "wgrad")]
    calls += calls[:5]
    np.testing.assert_allclose(estimate_calls(calls, H100), [estimate_operator(call, H100).time_s for call in calls])
    known = shipped_constants()
    assert estimate_operators(calls, H100, known) == [estimate_operator(call, H100, known) for call in calls]
    assert estimate_calls([], H100).shape == (0,)


def test_unaligned_rows_are_slower():
    def time(n):
        return estimate_operator(gemm(8192, n, 4096), H100, PLAIN).time_s

    assert time(50257) > 1.2 * time(50304)


def test_narrower_types_are_faster_and_older_kernels_slower():
    times = [
        estimate_operator(gemm(8192, 8192, 8192, dtype=dtype), load_gpu("b200")).time_s
        for dtype in ("bf16", "fp8", "nvfp4")
    ]
    assert times == sorted(times, reverse=True)
    shape = (1, 8192, 8192, 32, 32, 128, 128)
    kernels = [
        estimate_operator(
            OperatorCall(family="attention", shape=shape, dtype="bf16", causal=True, options=(("kernel", kernel),)),
            H100,
        ).time_s
        for kernel in ("fa3", "fa2", "fa1")
    ]
    assert kernels == sorted(kernels)
    assert kernels[0] < kernels[1]


@pytest.mark.parametrize("gpu", ["MI300X", "MI325X", "MI355X"])
def test_attention_on_amd_is_as_its_kernels_were_timed(gpu):
    """HazyResearch/HipKittens, analysis/attn: backward 1,034 (AITER), 475 (FlashAttention), 224 TFLOP/s (AOTriton)."""

    def times(direction):
        call = OperatorCall(family="attention", shape=(16, 8192, 8192, 16, 16, 128, 128), dtype="bf16", causal=True)
        return {
            kernel: estimate_operator(
                replace(call, options=(("kernel", kernel),), direction=direction), load_gpu(gpu)
            ).time_s
            for kernel in ("ck", "fa2", "triton")
        }

    forward, backward = times("forward"), times("backward")
    assert 1.2 < forward["fa2"] / forward["ck"] < 2.0
    assert 1.6 < backward["fa2"] / backward["ck"] < 3.2
    assert 3.0 < backward["triton"] / backward["ck"] < 6.5


@pytest.mark.parametrize("gpu", ["h100", "b200", "gb300", "l40s"])
@pytest.mark.parametrize("family", ["gemm", "grouped_gemm"])
@pytest.mark.parametrize("direction", ["forward", "dgrad", "wgrad"])
def test_gemms_of_cast_inputs_take_no_longer_than_in_16_bits(gpu, family, direction):
    """Whatever the direction: casts are operators of their own."""
    accelerator = load_gpu(gpu)
    for rows, n, k in ((1024, 4096, 4096), (8192, 1536, 2048), (65536, 3072, 4096)):
        shape = (rows, n, k) if family == "gemm" else (8 * rows, n, k, 8)
        times = {
            dtype: estimate_operator(
                OperatorCall(family=family, shape=shape, dtype=dtype, direction=direction), accelerator
            ).time_s
            for dtype in ("bf16", "fp8", "mxfp8")
            if dtype != "mxfp8" or accelerator.has_peak("nvfp4")
        }
        assert max(times, key=times.__getitem__) == "bf16"


def test_kernels_of_inference_that_cast_as_they_go_are_others():
    plain = gemm(1024, 4096, 4096, dtype="fp8")
    scaled = replace(plain, options=(("kernel", "scaled"),))
    assert work_of(scaled).constants[0] == "gemm_scaled"
    assert estimate_operator(scaled, H100).time_s > estimate_operator(plain, H100).time_s


# --- which constants


def test_the_same_chip_lends_its_constants():
    call = gemm(8192, 8192, 8192)
    assert estimate_operator(call, load_gpu("h800")).time_s == estimate_operator(call, H100).time_s
    assert estimate_operator(call, load_gpu("h800")).confidence == "medium"
    assert estimate_operator(call, H100).confidence == "high"
    assert estimate_operator(call, load_gpu("mi350x")).confidence == "medium"
    assert "of MI355X" in estimate_operator(call, load_gpu("mi350x")).source
    assert estimate_operator(call, load_gpu("mi250x")).confidence == "low"
    assert "all GPUs" in estimate_operator(call, load_gpu("mi250x")).source


def row(gpu, family, dtype, compute):
    return FamilyConstants(gpu=gpu, family=family, dtype=dtype, compute=compute, confidence="high", source="test")


def test_constants_are_found_from_the_nearest_to_the_farthest():
    rows = [row(ANY, "gemm", ANY, 0.1), row("H100-SXM-80GB", "gemm", "bf16", 0.2)]
    known = OperatorConstants(tuple(rows))
    assert known.find(H100, ("gemm",), "bf16").compute == 0.2
    assert known.find(H100, ("gemm_wgrad", "gemm"), "bf16").compute == 0.2
    assert known.find(H100, ("gemm",), "fp8").compute == 0.2
    assert known.find(H100, ("gemm",), "fp8").confidence == "medium"
    assert known.find(load_gpu("l4"), ("gemm",), "bf16").confidence == "low"
    more = known.with_rows((row("H100-SXM-80GB", "gemm", "fp8", 0.3),))
    assert more.find(H100, ("gemm",), "fp8").compute == 0.3
    with pytest.raises(UnknownNameError, match="'norm'; known: gemm"):
        known.find(H100, ("norm",), "bf16")


def test_constants_and_corrections_round_trip(tmp_path):
    rows = list(shipped_constants().rows)
    path = tmp_path / "constants.csv"
    path.write_text(write_constants(rows))
    assert write_constants(load_constants(str(path))) == write_constants(rows)
    assert read_constants(write_constants(rows[:1]))[0].family == rows[0].family
    grids = list(shipped_constants().corrections)
    assert write_corrections(read_corrections(write_corrections(grids))) == write_corrections(grids)


def test_shipped_corrections_are_whole_percent_that_a_person_can_read():
    text = shipped_packed_text("operators/corrections.csv.gz")
    assert text.isascii()
    grids = read_corrections(text)
    assert write_corrections(grids) == text
    for grid in grids:
        assert len(grid.log_factor_V) == np.prod([count for *_, count in grid.axes])
        percent_V = np.rint(grid.log_factor_V * 100)
        np.testing.assert_array_equal(percent_V * 0.01, grid.log_factor_V)
    values = re.sub(r"(?m)^[A-Za-z].*$", "", text)
    assert set(values) <= set('0123456789- \n"')
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "is not a file of operator constants"),
        ("gpu,family,dtype,compute\nx,gemm,bf16,fast\n", "cannot be read"),
        ("gpu,family,dtype,compute\nx,gemm,bf16,1.5\n", "compute of x gemm must be from 1e-06 to 1"),
        ("gpu,family,dtype,wave\nx,gemm,bf16,2\n", "wave of x gemm must be from 0 to 1"),
        ("gpu,family,dtype,floor_s\nx,gemm,bf16,-1\n", "floor_s of x gemm must be from 0 to 1e\\+09"),
        ("gpu,family,dtype,memory\nx,gemm,bf16,nan\n", "memory of x gemm"),
    ],
)
def test_a_wrong_file_of_constants_is_one_message(tmp_path, text, said):
    path = tmp_path / "constants.csv"
    path.write_text(text)
    with pytest.raises(FormatError, match=said):
        load_constants(str(path))


def test_a_missing_file_of_constants_is_one_message(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        load_constants(str(tmp_path / "none.csv"))


@pytest.mark.parametrize(
    "found", shipped_constants().rows, ids=lambda found: f"{found.gpu} {found.family} {found.dtype}"
)
def test_shipped_constants_are_physical_and_have_a_source(found):
    assert 0 < found.compute <= 1
    assert 0 < found.memory <= 1
    assert 0 < found.unaligned <= 1
    assert 0 <= found.wave <= 1
    assert 0 <= found.unhidden <= 1
    assert 1e-6 <= found.floor_s <= 1e-5
    assert found.source
    assert found.gpu == ANY or load_gpu(found.gpu).name == found.gpu


# --- corrections


def test_a_correction_bends_the_price_inside_and_fades_outside():
    values = np.full(8, np.log(1.5))
    axes = ((10.0, 12.0, 2), (10.0, 12.0, 2), (10.0, 12.0, 2), (1.0, 1.0, 1))
    grid = Correction(gpu="H100-SXM-80GB", family="gemm", dtype="bf16", axes=axes, log_factor_V=values)
    bare = OperatorConstants((row("H100-SXM-80GB", "gemm", "bf16", 0.5),))
    bent = replace(bare, corrections=(grid,))

    def ratio(*shape):
        call = gemm(*shape)
        return estimate_operator(call, H100, bent).time_s / estimate_operator(call, H100, bare).time_s

    assert ratio(2048, 2048, 2048) == pytest.approx(1.5)
    assert ratio(1024, 4096, 1504) == pytest.approx(1.5)
    assert 1 < ratio(6000, 2048, 2048) < 1.5
    assert ratio(8192, 2048, 2048) == pytest.approx(1)
    assert ratio(2048, 2048, 65536) == pytest.approx(1)
    terms = dict(estimate_operator(gemm(2048, 2048, 2048), H100, bent).terms)
    assert terms["measured correction"] == pytest.approx(1.5)
    # New constants make an old correction meaningless.
    assert bent.with_rows((row("H100-SXM-80GB", "gemm", "bf16", 0.5),)).corrections == ()


def test_a_correction_is_linear_between_its_nodes_and_limited():
    grid = Correction(gpu="x", family="f", dtype="d", axes=((0.0, 2.0, 3),), log_factor_V=np.array([0.0, 0.4, 2.0]))
    found = np.log(grid.factors(np.array([[1.0], [2**0.5], [2.0], [4.0]])))
    np.testing.assert_allclose(found, [0.0, 0.2, 0.4, np.log(2)])


# --- the rest


def test_a_gpu_without_the_type_is_refused():
    with pytest.raises(ConfigError, match="has no known peak for fp8"):
        estimate_operator(gemm(8, 8, 8, dtype="fp8"), load_gpu("a100"))
    # What only moves bytes needs no peak.
    assert estimate_operator(OperatorCall(family="cast", shape=(2**20,), dtype="fp8"), load_gpu("a100")).time_s > 0
