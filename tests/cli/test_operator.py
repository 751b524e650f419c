"""``traincast operator`` and ``traincast calibrate --gpu``."""

import json

import pytest
from jsonschema import Draft202012Validator

from traincast import api
from traincast.estimate.operators.families import FAMILIES
from traincast.report.documents import schema

GEMM = ("operator", "gemm", "--m", 8192, "--n", 8192, "--k", 8192)
ATTENTION = ("operator", "attention", "--batch", 1, "--seq", 4096, "--keys", 4096, "--heads", 8, "--kv-heads", 8,
             "--head-dim", 128, "--v-dim", 128)  # fmt: skip


def test_json_is_the_price_of_the_api(call):
    code, out, err = call(*GEMM, "--gpu", "h100", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    price = api.operator("gemm", "h100", m=8192, n=8192, k=8192).cost
    assert list(document) == [
        *("schema", "family", "shape", "dtype", "direction", "causal", "window", "options", "gpu", "time_s", "flops"),
        *("bytes", "bound", "utilisation", "source", "confidence", "terms", "assumptions"),
    ]
    assert document["schema"] == "traincast.operator/1"
    assert document["time_s"] == price.time_s
    assert document["flops"] == 2 * 8192**3
    assert {"waves", "wave efficiency", "tile rows", "compute s", "memory s"} <= set(document["terms"])
    assert document["assumptions"] == []


def test_people_see_time_bound_and_why(call):
    code, out, err = call(*GEMM)
    assert (code, err) == (0, "")
    assert out.startswith("gemm 8192 x 8192 x 8192, bf16, on H100-SXM-80GB\n")
    for said in ("bound by compute", "wave efficiency", "Source: ", "confidence: high", "no GPU was given"):
        assert said in out
    assert "no GPU was given" not in call(*GEMM, "--gpu", "h100")[1]


SIZES = {"heads": 8, "kv_heads": 4, "qk_dim": 64, "v_dim": 64, "head_dim": 64, "groups": 4, "topk": 2, "experts": 8}


@pytest.mark.parametrize("family", FAMILIES.names())
def test_every_family_can_be_asked_for(call, family):
    words = ["operator", family.replace("_", "-"), "--json", "--gpu", "b200"]
    for size in FAMILIES.get(family).sizes:
        words += [f"--{size.name.replace('_', '-')}", SIZES.get(size.name, 512)]
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    assert json.loads(out)["time_s"] > 0


def test_directions_and_options_matter(call):
    def time_s(*words):
        return json.loads(call("operator", "attention", "--seq", 4096, "--heads", 32, "--head-dim", 128,
                               "--gpu", "h100", "--json", *words)[1])["time_s"]  # fmt: skip

    assert time_s("--causal") < time_s() < time_s("--direction", "backward")
    assert time_s("--option", "kernel=fa2") > time_s()
    assert time_s("--causal", "--window", 512) < time_s("--causal")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["operator", "abacus"], "unknown operator family 'abacus'; known: accumulate"),
        (["operator", "gemm", "--m", "8"], "n: is missing"),
        ([*GEMM, "--gpu", "abacus"], "unknown GPU 'abacus'"),
        ([*GEMM, "--gpu", "a100", "--dtype", "fp8"], "has no known peak for fp8"),
        ([*GEMM, "--gpu", "h100", "--dtype", "mxfp8"], "H100-SXM-80GB (hopper) has no matrix units for mxfp8; use fp8"),
        ([*ATTENTION, "--gpu", "a100", "--option", "kernel=fa3"], "flash attention 3 needs Hopper; A100-SXM-80GB is"),
        ([*GEMM, "--dtype", "int3"], "unknown dtype 'int3'"),
        ([*GEMM, "--causal"], "causal: has no meaning for gemm"),
        ([*GEMM, "--width", "8"], "width: has no meaning for gemm"),
        ([*GEMM, "--option", "copies=2"], "unknown option of gemm 'copies'"),
        ([*GEMM, "--option", "kernel=fa2"], "unknown kernel of gemm 'fa2'; known: auto, scaled"),
        ([*GEMM, "--direction", "up"], "unknown direction of gemm 'up'; known: forward, dgrad, wgrad"),
        ([*GEMM, "--constants", "nowhere.csv"], "nowhere.csv: cannot be read"),
    ],
)
def test_wrong_input_is_one_message(call, words, said):
    code, out, err = call(*words)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [[*GEMM, "--option", "kernel"], [*GEMM, "--m", "0"], ["operator"]])
def test_wrong_usage_ends_with_two(call, words):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: traincast operator")


@pytest.fixture
def timings(tmp_path):
    lines = ["family,shape,dtype,us"]
    for m in (512, 1024, 2048, 4096, 8192):
        for n in (1024, 4096, 8192, 16384):
            time_s = api.operator("gemm", "mi300x", m=m, n=n, k=4096).cost.time_s
            lines.append(f"gemm,{m}x{n}x4096,bf16,{1.5e6 * time_s}")
    path = tmp_path / "timings.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.slow
def test_calibrate_writes_a_profile_that_operator_takes(call, timings, tmp_path, made_once):
    made_once("calibrate_operators")
    profile = tmp_path / "mine.csv"
    code, out, err = call("calibrate", timings, "--gpu", "mi300x", "--out", profile)
    assert (code, err) == (0, "fitting 1 family of operators: up to 15 s each\n")
    assert "1 family fitted to" in out
    assert f"wrote {profile}" in out
    base = json.loads(call(*GEMM, "--gpu", "mi300x", "--json")[1])
    mine = json.loads(call(*GEMM, "--gpu", "mi300x", "--constants", profile, "--json")[1])
    assert mine["time_s"] / base["time_s"] == pytest.approx(1.5, rel=0.1)
    assert (base["confidence"], mine["confidence"]) == ("high", "medium")
    document = json.loads(call("calibrate", timings, "--gpu", "mi300x", "--json")[1])
    assert document["schema"] == "traincast.operator_calibration/1"
    Draft202012Validator(schema("operator_calibration")).validate(document)
    assert document["residuals"][0]["after"]["median_abs_error"] < 0.05
    assert document["residuals"][0]["held_out"]["evaluated"] == 20
    assert document["constants"][0]["confidence"] == "medium"
    assert "held-out p90" in out


@pytest.mark.parametrize("words", [[], ["--gpu", "h100", "--cluster", "h100"], ["--gpu", "h100", "--table"]])
def test_calibrate_needs_to_know_what_of(call, timings, words):
    code, out, err = call("calibrate", timings, *words)
    assert (code, out) == (2, "")
    assert "--gpu" in err


def test_a_refused_type_is_not_listed_as_one_with_a_peak(call):
    listed = call(*GEMM, "--gpu", "h100", "--dtype", "nvfp4")[2].split("it has one for ")[1]
    assert "fp8" in listed
    assert "mxfp8" not in listed
    assert call(*GEMM, "--gpu", "b200", "--dtype", "mxfp8")[0] == 0
    assert call(*ATTENTION, "--gpu", "h100", "--option", "kernel=fa3")[0] == 0
