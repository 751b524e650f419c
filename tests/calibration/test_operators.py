"""Measured operators: what rows become, validation against prices, fits that find what made the data."""

import gzip

import numpy as np
import pytest
from msgspec.structs import replace

import traincast
from fit_operators import held_out
from measured_tables import SHAPES, in_a_loop, write_gemms
from traincast import api
from traincast.calibration.operator_calibration import calibrate_operators
from traincast.calibration.operator_fit import fit_constants, free_constants, predict, samples_of
from traincast.calibration.operator_recipe import defaults, fit_correction, held_out_rows
from traincast.calibration.operators import estimate_measurements, operators_of
from traincast.calibration.tables import read_table
from traincast.errors import CalibrationError, FormatError
from traincast.estimate.operators import (
    FamilyConstants,
    OperatorCall,
    OperatorConstants,
    estimate_calls,
    estimate_operator,
    shipped_constants,
)
from traincast.estimate.operators.constants import load_constants
from traincast.hardware.gpu import load_gpu

H100 = load_gpu("h100")


def table(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_text(text)
    return read_table(path)


def one(tmp_path, header, row):
    measured = operators_of(table(tmp_path, f"{header}\n{row}\n"))
    assert len(measured) == 1
    return measured


def test_products_attention_and_experts_are_understood(tmp_path):
    (call,) = one(tmp_path, "gpu,dtype,m,n,k,ms", "h100_sxm,bfloat16,3,4,5,1").calls[0]
    assert (call.shape, call.dtype) == ((3, 4, 5), "bf16")
    header = "gpu,dtype,batch,seq,heads,kv_heads,head_dim,window,ms"
    (call,) = one(tmp_path, header, "h100_sxm,fp8,2,512,8,4,128,0,1").calls[0]
    assert (call.shape, call.causal, call.options) == ((2, 512, 512, 8, 4, 128, 128), True, ())
    (call,) = one(tmp_path, header, "b200_sxm,bfloat16,2,512,8,4,192,128,1").calls[0]
    assert (call.window, call.options) == (128, (("kernel", "fallback"),))
    header = "gpu,dtype,tokens,hidden,moe_ffn,topk,experts,tp,ep,distribution,us"
    measured = one(tmp_path, header, "b200_sxm,fp8_block,4096,1024,512,8,64,2,4,balanced,7")
    grouped = [each for each in measured.calls[0] if each.family == "grouped_gemm"]
    # 4096 x 8 / 4 rows on a rank, 16 of 64 experts, half of the width for each of gate and up.
    assert [each.shape for each in grouped] == [(8192, 512, 1024, 16), (8192, 1024, 256, 16)]
    assert measured.time_s[0] == pytest.approx(7e-6)
    uneven = operators_of(table(tmp_path, f"{header}\nb200,bf16,4096,1024,512,8,64,2,4,power_law_1.01,7\n"))
    assert (len(uneven), len(uneven.skipped)) == (0, 1)


NAMED = "gpu,family,shape,dtype,options,ms"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("abacus,elementwise,8x8,fp32,,1", "nothing is known of the GPU 'abacus'"),
        ("T4,,8x8,fp32,,1", "the row has no family"),
        (",elementwise,8x8,fp32,,1", "the GPU is not specified"),
        ("T4,elementwise,,fp32,,1", "the row has no shape"),
        ("T4,elementwise,8by8,fp32,,1", "column shape is '8by8'; write it like 8192x1024"),
        (f"T4,elementwise,{'9' * 5000},fp32,,1", "column shape is"),
        ("T4,elementwise,8x8,fp32,,-1", "column ms is '-1'; it must be a positive number"),
        ("T4,elementwise,8x8,fp32,,nan", "column ms is 'nan'; it must be a positive number"),
        ("T4,elementwise,8x8,fp32,two,1", "column options is 'two'; write them like kind=gelu inputs=1"),
        ("T4,elementwise,8x8", "the row has 3 cells, the header 6"),
        ("T4,elementwise,8x8,fp32,,", "the row has no time"),
    ],
)
def test_a_row_that_cannot_be_used_says_why(tmp_path, row, reason):
    measured = operators_of(table(tmp_path, f"{NAMED}\n{row}\nT4,elementwise,8x8,fp32,inputs=2,1\n"))
    assert len(measured) == 1
    assert measured.calls[0][0].options == (("inputs", "2"),)
    assert measured.skipped[0].reason.startswith(reason)


def test_backward_of_a_gemm_is_both_gradients(tmp_path):
    rows = ("gemm,8x16x32,backward", "grouped_gemm,64x16x32x4,backward", "gemm,8x16x32,wgrad", "norm,64x64,backward")
    lines = "".join(f"H100-SXM-80GB,{row},bf16,1\n" for row in rows)
    measured = operators_of(table(tmp_path, f"gpu,family,shape,direction,dtype,ms\n{lines}"))
    assert [[call.direction for call in calls] for calls in measured.calls] == [
        ["dgrad", "wgrad"],
        ["dgrad", "wgrad"],
        ["wgrad"],
        ["backward"],
    ]


# --- validate


def test_our_own_prices_have_no_error(tmp_path):
    found = traincast.validate(write_gemms(tmp_path, H100, SHAPES))
    assert found.kind == "operators"
    assert found.total.mean_abs_error == pytest.approx(0, abs=1e-12)
    assert found.total.spearman == pytest.approx(1)
    assert {group.by for group in found.groups} == {"gpu", "op", "duration", "length+family"}
    assert {group.name for group in found.groups if group.by == "length+family"} <= {
        "up to 0.1 ms, gemm bf16",
        "over 0.1 ms, gemm bf16",
    }
    slow = traincast.validate(write_gemms(tmp_path, H100, SHAPES, factor=2.0))
    assert slow.total.bias == pytest.approx(-0.5)


def test_a_packed_table_is_read_too(tmp_path):
    path = write_gemms(tmp_path, H100, SHAPES)
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert traincast.validate(packed).total == traincast.validate(path).total
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(FormatError, match="is not a complete gzip file"):
        traincast.validate(packed)


def test_a_type_that_the_gpu_lacks_is_skipped(tmp_path):
    measured = operators_of(table(tmp_path, "gpu,dtype,m,n,k,ms\na100,fp8,8,8,8,1\na100,bf16,8,8,8,1\n"))
    predicted, reasons = estimate_measurements(measured)
    assert np.isnan(predicted).tolist() == [True, False]
    assert reasons == {0: "A100-SXM-80GB has no known peak for fp8"}


# --- fit


TRUE = FamilyConstants(
    gpu=H100.name, family="gemm", dtype="bf16", compute=0.62, memory=0.5, k_fill=150.0, wave=0.6, edge=8.0, unhidden=0.1
)


def made_of(constants, shapes):
    calls = [OperatorCall(family="gemm", shape=shape, dtype="bf16") for shape in shapes]
    return calls, in_a_loop(H100, estimate_calls(calls, H100, OperatorConstants((constants,))))


def measured_of(calls, times):
    lines = ["gpu,family,shape,dtype,time_s"]
    lines += [
        f"h100,gemm,{'x'.join(map(str, call.shape))},bf16,{time!r}"
        for call, time in zip(calls, times.tolist(), strict=True)
    ]
    return "\n".join(lines) + "\n"


def test_a_fit_finds_what_made_the_data(tmp_path):
    text = measured_of(*made_of(TRUE, SHAPES))
    ((key, sample),) = samples_of(operators_of(table(tmp_path, text)), shipped_constants()).items()
    assert key == (H100.name, "gemm", "bf16")
    base = replace(TRUE, compute=0.8, memory=0.8, k_fill=77.0, wave=0.3, edge=5.0)
    fitted = fit_constants(sample, base, free_constants(sample))
    errors = np.abs(predict(sample, fitted) / sample.time_s_N - 1)
    assert errors.mean() < 0.02
    assert fitted.compute == pytest.approx(TRUE.compute, rel=0.05)
    assert (fitted.rows, fitted.median_error) == (len(SHAPES), pytest.approx(np.median(errors)))


def test_a_correction_learns_what_the_roofline_cannot_say(tmp_path):
    calls, times = made_of(
        TRUE, [(m, n, k) for m in range(512, 4097, 512) for n in (1024, 2048, 4096) for k in (512, 4096)]
    )
    factor = np.array([1.3 if call.shape[0] > 2048 else 1.0 for call in calls])
    ((_, sample),) = samples_of(
        operators_of(table(tmp_path, measured_of(calls, times * factor))), shipped_constants()
    ).items()
    grid = fit_correction(sample, TRUE, (6, 2, 2, 1), smooth=0.01, ridge=0.001)
    corrected = predict(sample, TRUE) * grid.factors(sample.columns.coordinates_ND)
    before, after = (np.abs(each / sample.time_s_N - 1).mean() for each in (predict(sample, TRUE), corrected))
    assert after < 0.3 * before


@pytest.mark.slow
def test_calibrate_halves_a_wrong_rate(tmp_path):
    path = write_gemms(tmp_path, load_gpu("mi300x"), SHAPES[:20], factor=2.0)
    found = api.calibrate_operators([path], "mi300x")
    (residual,) = found.residuals
    assert residual.before.median_abs_error == pytest.approx(0.5, abs=0.01)
    assert residual.after.median_abs_error < 0.05
    call = OperatorCall(family="gemm", shape=SHAPES[-1], dtype="bf16")
    times = [
        estimate_operator(call, load_gpu("mi300x"), known).time_s for known in (None, found.over(shipped_constants()))
    ]
    assert times[1] / times[0] == pytest.approx(2, rel=0.15)
    profile = tmp_path / "mine.csv"
    profile.write_text(found.profile())
    named = api.operator("gemm", "mi300x", str(profile), m=SHAPES[-1][0], n=SHAPES[-1][1], k=SHAPES[-1][2])
    assert named.cost.time_s == pytest.approx(times[1], rel=1e-3)
    assert named.cost.source.startswith("fitted by traincast calibrate")


def test_calibrate_refuses_too_little_and_names_what_it_leaves_out(tmp_path):
    with pytest.raises(CalibrationError, match="needed"):
        calibrate_operators([write_gemms(tmp_path, H100, SHAPES[:3])], H100)
    path = write_gemms(tmp_path, H100, SHAPES)
    with pytest.raises(CalibrationError, match="ran on H100-SXM-80GB"):
        calibrate_operators([path], load_gpu("l4"))


def test_defaults_are_the_medians():
    rows = [
        FamilyConstants(gpu=f"g{i}", family="gemm", dtype="bf16", compute=share)
        for i, share in enumerate((0.2, 0.9, 0.6))
    ]
    found = list(defaults(rows))
    assert [(each.dtype, each.compute) for each in found] == [("bf16", 0.6), ("*", 0.6)]


# --- a few timings, and held-out shapes


@pytest.mark.slow
def test_a_few_timings_of_a_slower_twin_take_its_constants_over(tmp_path):
    """A GPU that is a measured one at 0.7 of the speed is known after ten timings, correction and all."""
    donor = load_gpu("h200")
    twin = replace(donor, name="twin", kin=())
    calls = [OperatorCall(family="gemm", shape=shape, dtype="bf16") for shape in SHAPES]
    times = estimate_calls(calls, donor) / 0.7
    lines = ["family,shape,dtype,time_s"]
    lines += [
        f"gemm,{'x'.join(map(str, call.shape))},bf16,{t!r}" for call, t in zip(calls, times.tolist(), strict=True)
    ]
    few = tmp_path / "few.csv"
    few.write_text("\n".join([lines[0], *lines[1::3]]) + "\n")
    found = calibrate_operators([few], twin)
    (constants,) = found.constants
    assert constants.grid_of == "H200-SXM-141GB"
    assert "with the corrections of H200-SXM-141GB" in constants.source
    known = found.over(shipped_constants())
    errors = np.abs(estimate_calls(calls, twin, known) / times - 1)
    assert errors.mean() < 0.03
    profile = tmp_path / "twin.csv"
    profile.write_text(found.profile())
    (row,) = load_constants(str(profile))
    assert row.grid_of == "H200-SXM-141GB"


@pytest.mark.slow
def test_a_gpu_calibrated_anew_keeps_its_own_correction(tmp_path):
    path = write_gemms(tmp_path, H100, SHAPES[::2], factor=1.2)
    found = calibrate_operators([path], H100)
    assert found.constants[0].grid_of == H100.name
    known = found.over(shipped_constants())
    assert known.correction(found.constants[0]) is shipped_constants().correction(
        shipped_constants().find(H100, ("gemm",), "bf16")
    )


def test_both_ways_to_hold_out_choose_the_same_rows(tmp_path):
    path = write_gemms(tmp_path, H100, SHAPES)
    measured = operators_of(read_table(path))
    ((_, sample),) = samples_of(measured, shipped_constants()).items()
    np.testing.assert_array_equal(held_out(sample), held_out_rows(measured))
