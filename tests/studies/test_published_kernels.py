"""Public tables of kernels in the common schema: what NeuSight's operators and SimuMax's efficiencies become."""

import pytest

from published.reading import read_published
from traincast.calibration.operators import operators_of
from traincast.estimate.operators import work_of


def brought(tmp_path, text):
    path = tmp_path / "in.csv"
    path.write_text(text)
    return operators_of(read_published(path))


@pytest.fixture
def one(tmp_path):
    def read(header, row):
        measured = brought(tmp_path, f"{header}\n{row}\n")
        assert len(measured) == 1
        return measured

    return read


NAMED = "gpu,op,shape,dtype,ms"


@pytest.mark.parametrize(
    ("op", "shape", "family", "flops"),
    [
        ("linear", "1x64x128x256", "gemm", 2 * 64 * 128 * 256),
        ("bmm", "8x64x128x256", "gemm", 2 * 8 * 64 * 128 * 256),
        ("add", "64x32", "elementwise", 64 * 32),
        ("softmax", "64x32", "softmax", 5 * 64 * 32),
        ("ln", "64x32", "norm", 6 * 64 * 32),
        ("gelu", "64x32", "activation", 8 * 64 * 32),
    ],
)
def test_neusights_operators_are_understood(one, op, shape, family, flops):
    measured = one(NAMED, f"Tesla_T4,{op},{shape},fp32,0.5")
    (call,) = measured.calls[0]
    assert (call.family, measured.gpu[0].name, measured.time_s[0]) == (family, "T4", 0.5e-3)
    assert work_of(call).flops == flops


def test_the_reduction_stands_third_in_neusights_shapes(one):
    (call,) = one(NAMED, "T4,linear,1x16384x1280x3840,fp32,1").calls[0]
    assert call.shape == (16384, 3840, 1280)
    one_input, two = (one(NAMED, f"T4,{op},64x32,fp32,1").calls[0][0] for op in ("addu", "add"))
    assert work_of(two).bytes_moved == 1.5 * work_of(one_input).bytes_moved


TRAINING = "gpu,kernel,peak_tflops,description,efficiency"


@pytest.mark.parametrize(
    ("kernel", "description", "direction", "flops"),
    [
        ("matmul", "b=1, m=8, k=16, n=32, layout=TN, accumulate=False, out_dtype=bf16", "forward", 2 * 8 * 16 * 32),
        ("matmul", "b=1, m=8, k=16, n=32, layout=NN, accumulate=False, out_dtype=bf16", "dgrad", 2 * 8 * 16 * 32),
        ("matmul", "b=1, m=8, k=16, n=32, layout=NT, accumulate=True, out_dtype=fp32", "wgrad", 2 * 8 * 16 * 32),
        ("group_matmul", "ng=4, M=8, N=16, K=32, dtype=bf16, stage=bwd_grad_w", "wgrad", 2 * 4 * 8 * 16 * 32),
    ],
)
def test_simumax_kernels_have_their_own_product(one, kernel, description, direction, flops):
    measured = one(TRAINING, f'B200,{kernel},2250,"{description}",0.5')
    (call,) = measured.calls[0]
    assert (call.direction, work_of(call).flops) == (direction, flops)
    assert measured.time_s[0] == pytest.approx(flops / (0.5 * 2250e12))
    assert ("kernel", "each") in call.options or kernel == "matmul"
    if kernel == "matmul":
        tiling = work_of(call).tiling
        assert (tiling.m, tiling.n, tiling.k) == (8, 32, 16)


def test_simumax_attention_counts_masked_scores_too(one):
    said = "batch=1, seq_len=4096, head_num=32, kv_head_num=8, qk_head_dim=128, v_head_dim=128, qkv_contiguous=True"
    for kernel, products in (("sdp_fwd", 2), ("sdp_bwd", 5)):
        measured = one(TRAINING, f'A100-PCIe,{kernel},312,"{said}",1.0')
        (call,) = measured.calls[0]
        full = 2 * products * 32 * 4096 * 4096 * 128
        assert measured.time_s[0] == pytest.approx(full / 312e12)
        assert work_of(call).flops == pytest.approx(full * 4097 / 8192)


def test_timings_by_events_are_told_and_rows_that_are_not_understood_skipped(tmp_path):
    measured = brought(tmp_path, f"{NAMED}\nT4,sort,8x8,fp32,1\nT4,add,8x8,fp32,1\n")
    assert measured.events
    assert measured.op == ("add",)
    assert [row.reason for row in measured.skipped] == ["no operator is called 'sort'"]
    linear = brought(tmp_path, f"{NAMED}\nT4,linear,8x8,fp32,1\nT4,add,8x8,fp32,1\n")
    assert [row.reason for row in linear.skipped] == ["the shape of linear is '8x8'; it must be batch x m x k x n"]
    known = 'B200,matmul,2250,"b=1, m=8, k=16, n=32, layout=TN",0.5'
    text = f'{TRAINING}\nB200,conv,2250,"m=1",0.5\nB200,matmul,2250,"m=1",0.5\n{known}\n'
    kernels = brought(tmp_path, text)
    assert not kernels.events
    assert kernels.op == ("matmul forward",)
    assert [row.reason for row in kernels.skipped] == [
        "no kernel is called 'conv'; known: matmul, group_matmul, sdp_fwd, sdp_bwd",
        "the description of matmul lacks 'n'",
    ]
