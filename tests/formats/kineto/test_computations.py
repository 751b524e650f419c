"""Which operators the kernels of a profiled step are, and what a job's forecast learns of them."""

import json

import pytest

from kineto_traces import AUTOGRAD, MAIN, Writer
from traincast import api
from traincast.calibration.measured_passes import Estimates
from traincast.calibration.trace_calibration import calibrate_trace
from traincast.errors import FormatError
from traincast.estimate.measured import measured_class
from traincast.estimate.operators import work_of
from traincast.formats.kineto.computations import call_of, computations
from traincast.formats.kineto.grammar import Shapes
from traincast.hardware.clusters import load_cluster
from traincast.job.draft import Draft
from traincast.simulation.reproducible import decide
from traincast.simulation.step import Setting
from traincast.workload.words import Phase

BF16, FP32, FP8, LONG = "c10::BFloat16", "float", "c10::Float8_e4m3fn", "long int"
QUERY, KEY = [2, 32, 4096, 128], [2, 8, 4096, 128]


def said(name, dims, types=BF16, phase=Phase.FORWARD, **more):
    types = [types] * len(dims) if isinstance(types, str) else types
    call = call_of(name, Shapes(json.dumps(dims).encode(), json.dumps(types).encode()), phase, **more)
    return None if call is None else (call.family, call.shape, call.dtype, call.direction, dict(call.options))


@pytest.mark.parametrize(
    ("name", "dims", "types", "expected"),
    [
        ("aten::mm", [[64, 32], [32, 48]], BF16, ("gemm", (64, 48, 32), "bf16", "forward", {})),
        ("aten::addmm", [[48], [64, 32], [32, 48], []], BF16, ("gemm", (64, 48, 32), "bf16", "forward", {})),
        ("aten::bmm", [[8, 64, 32], [8, 32, 48]], FP32, ("gemm", (8, 64, 48, 32), "fp32", "forward", {})),
        ("aten::_scaled_mm", [[64, 32], [32, 48], [], []], FP8, ("gemm", (64, 48, 32), "fp8", "forward", {})),
        (
            "aten::_grouped_mm",
            [[64, 32], [4, 32, 48], [4]],
            BF16,
            ("grouped_gemm", (64, 48, 32, 4), "bf16", "forward", {}),
        ),
        (
            "aten::_scaled_dot_product_flash_attention",
            [QUERY, KEY, KEY],
            BF16,
            ("attention", (2, 4096, 4096, 32, 8, 128, 128), "bf16", "forward", {"kernel": "fa2"}),
        ),
        (
            "aten::_scaled_dot_product_cudnn_attention_backward",
            [QUERY, QUERY, KEY, KEY, QUERY],
            BF16,
            ("attention", (2, 4096, 4096, 32, 8, 128, 128), "bf16", "backward", {"kernel": "cudnn"}),
        ),
        (
            "flash_attn::_flash_attn_forward",
            [[2, 4096, 32, 128], [2, 4096, 8, 128], [2, 4096, 8, 128]],
            BF16,
            ("attention", (2, 4096, 4096, 32, 8, 128, 128), "bf16", "forward", {"kernel": "fa2"}),
        ),
        ("aten::native_layer_norm", [[2, 64, 32], [32], [32]], BF16, ("norm", (128, 32), "bf16", "forward", {})),
        ("aten::_softmax_backward_data", [[64, 32], [64, 32]], FP32, ("softmax", (64, 32), "fp32", "backward", {})),
        ("aten::gelu", [[2, 64, 32]], BF16, ("activation", (128, 32), "bf16", "forward", {"kind": "gelu"})),
        (
            "aten::add",
            [[2, 64, 32], [2, 64, 32], []],
            BF16,
            ("elementwise", (128, 32), "bf16", "forward", {"inputs": "2"}),
        ),
        ("aten::mul", [[2, 64, 32], []], BF16, ("elementwise", (128, 32), "bf16", "forward", {"inputs": "1"})),
        ("aten::embedding", [[100, 32], [2, 64]], [BF16, LONG], ("embedding", (128, 32, 100), "bf16", "forward", {})),
        ("aten::_fused_adamw_", [[[64, 32], [32]]], FP32, ("optimizer", (2080,), "fp32", "forward", {})),
    ],
)
def test_an_operator_is_known_by_its_name_and_inputs(name, dims, types, expected):
    types = [types] if name.endswith("adamw_") else types
    found = said(name, dims, types)
    assert found == expected


def test_a_gemm_of_the_backward_pass_is_a_gradient_of_the_same_work():
    dims = [[64, 32], [32, 48]]
    forward, backward = (call_of("aten::mm", shapes_of(dims), phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
    assert (backward.direction, backward.shape) == ("dgrad", (64, 32, 48))
    assert work_of(backward).flops == work_of(forward).flops
    assert work_of(backward).bytes_moved == work_of(forward).bytes_moved
    assert measured_class(backward) == "gemm bf16 backward"


def shapes_of(dims, types=BF16):
    return Shapes(json.dumps(dims).encode(), json.dumps([types] * len(dims)).encode())


@pytest.mark.parametrize(
    ("name", "dims", "types"),
    [
        ("aten::conv2d", [[1, 2], [2, 3]], BF16),
        ("aten::mm", [[64, 32], [31, 48]], BF16),
        ("aten::mm", [[64, 32]], BF16),
        ("aten::mm", [[64, "x"], ["x", 48]], BF16),
        ("aten::mm", [[0, 32], [32, 48]], BF16),
        ("aten::mm", [[64, 32], [32, 48]], "c10::complex<float>"),
        ("aten::add", [[], []], FP32),
    ],
)
def test_what_is_not_understood_is_no_operator(name, dims, types):
    assert said(name, dims, types) is None
    assert call_of(name, Shapes(b"", b""), Phase.FORWARD) is None
    assert call_of("aten::mm", Shapes(b"{", b"["), Phase.FORWARD) is None


def test_products_in_tf32_are_known_by_their_kernels():
    assert said("aten::mm", [[64, 32], [32, 48]], FP32, tf32=True)[2] == "tf32"
    assert said("aten::mm", [[64, 32], [32, 48]], BF16, tf32=True)[2] == "bf16"


def profile(path, calls, *, numbered=True):
    """Write a step whose operators run kernels of some times, in us; half of an operator's are in a second kernel."""
    rank, now = Writer(), 100.0
    for number, (name, dims, types, us, tid) in enumerate(calls, 500):
        around = "autograd::engine::evaluate_function: AddmmBackward0" if tid == AUTOGRAD else "aten::linear"
        rank.op(around, now, now + 40, tid)
        rank.op(name, now + 1, now + 30, tid, **{"External id": number, "Input Dims": dims, "Input type": types})
        external = {"external": number if numbered else 0}
        for part in (0, 1):
            begin = now + 50 + part * us / 2
            rank.work(f"kernel_{part}", now + 5 + 5 * part, begin, begin + us / 2, tid=tid, **external)
        now += 100 + us
    rank.op("aten::conv2d", now, now + 20, MAIN, **{"Input Dims": [[1]], "Input type": [BF16]})
    rank.work("unknown", now + 5, now + 50, now + 150)
    rank.step(3, 50, now + 200)
    return rank.write(path)


@pytest.mark.parametrize("numbered", [True, False])
def test_all_kernels_of_an_operator_are_its_time(tmp_path, numbered):
    mm = ("aten::mm", [[64, 32], [32, 48]], [BF16, BF16])
    calls = [(*mm, 300.0, MAIN), ("aten::gelu", [[64, 48]], [BF16], 20.0, MAIN), (*mm, 500.0, AUTOGRAD)]
    found = computations([profile(tmp_path / "rank0.json", calls, numbered=numbered)])
    assert [(row.call.family, row.call.direction, row.phase) for row in found.rows] == [
        ("gemm", "forward", Phase.FORWARD),
        ("activation", "forward", Phase.FORWARD),
        ("gemm", "dgrad", Phase.BACKWARD),
    ]
    assert [row.time_s for row in found.rows] == pytest.approx([300e-6, 20e-6, 500e-6])
    (note,) = found.notes
    assert "89.1 %" in note.text, "820 of 920 us"


def test_a_profile_of_one_gpu_teaches_a_forecast_of_many(tmp_path):
    """Kernels that take 1.4 times the estimate forward and 1.2 times backward."""
    cluster, job = (
        load_cluster("h100"),
        Draft(
            model="llama3-8b",
            cluster="h100",
            fields={"gpus": 64, "tp": 2, "pp": 2, "global_batch": 64, "seq_length": 4096, "attention_kernel": "cudnn"},
        ),
    )
    _, _, decided, _ = decide(job, cluster)
    seconds = Estimates(decided, Setting(cluster=cluster)).cost.call_s
    layers = []
    for k, n in ((4096, 3072), (2048, 4096), (4096, 14336), (7168, 4096)):
        for tid, factor, phase in ((MAIN, 1.4, Phase.FORWARD), (AUTOGRAD, 1.2, Phase.BACKWARD)):
            dims = [[4096, k], [k, n]]
            us = 1e6 * factor * seconds(call_of("aten::mm", shapes_of(dims), phase))
            layers.append(("aten::mm", dims, [BF16, BF16], us, tid))
    found = calibrate_trace([profile(tmp_path / "rank0.json", layers * 4)], job)
    factors = {each.cost_class: each.factor for each in found.cluster.run_factors}
    assert factors == {
        "gemm bf16 forward": pytest.approx(1.4, rel=0.03),
        "gemm bf16 backward": pytest.approx(1.2, rel=0.03),
    }
    before, after = api.predict(job, cluster), api.predict(job, found.cluster)
    assert 1.08 < after.iteration_time_s / before.iteration_time_s < 1.3
    (doubt,) = [note for note in after.warnings if note.code == "class-unmeasured"]
    assert "attention cudnn backward" in doubt.text


def test_a_profile_without_shapes_says_what_to_do(tmp_path):
    rank = Writer()
    rank.work("gemm", 10, 50, 150)
    with pytest.raises(FormatError, match="record_shapes"):
        calibrate_trace(
            [rank.write(tmp_path / "rank0.json")],
            Draft(model="llama3-8b", cluster="h100", fields={"gpus": 8, "global_batch": 8, "seq_length": 4096}),
        )
