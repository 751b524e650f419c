"""Bounds of prices with the shipped corrections on them, over all GPUs and element types."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast import api
from traincast.errors import InfeasibleError, UnknownNameError
from traincast.estimate.operators import OperatorCall, estimate_calls, estimate_operator, shipped_constants, work_of
from traincast.hardware.dtypes import ELEMENT_TYPES
from traincast.hardware.gpu import gpu_names, load_gpu
from traincast.job.precision import check_gpu

GPUS = [load_gpu(name) for name in gpu_names()]


def runs(gpu, dtype):
    """Whether a GPU has the peak, and jobs of the type are not refused."""
    try:
        check_gpu(dtype, gpu)
    except InfeasibleError:
        return False
    return gpu.has_peak(dtype)


TYPED = [(gpu, dtype) for gpu in GPUS for dtype in ELEMENT_TYPES if runs(gpu, dtype)]
typed = st.sampled_from(TYPED)
size = st.one_of(st.integers(1, 64), st.integers(1, 2**17), st.sampled_from([1, 2**20, 50257]))
way = st.sampled_from(["forward", "dgrad", "wgrad"])


def check(call, gpu, dtype):
    """A price is a positive number, no less than the work at the peaks, and the same in columns."""
    price = estimate_operator(call, gpu)
    assert math.isfinite(price.time_s)
    assert price.time_s * (1 + 1e-9) >= price.flops / gpu.peak_flops_per_s(dtype)
    assert price.time_s * (1 + 1e-9) >= price.bytes_moved / gpu.hbm_bytes_per_s
    assert 0 < price.utilisation <= 1 + 1e-9
    assert estimate_calls([call], gpu)[0] == pytest.approx(price.time_s)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(typed, size, size, size, way)
def test_no_corrected_product_beats_the_peaks(which, m, n, k, direction):
    gpu, dtype = which
    check(OperatorCall(family="gemm", shape=(m, n, k), dtype=dtype, direction=direction), gpu, dtype)


@settings(max_examples=200, deadline=None)
@given(typed, st.integers(1, 2048), st.integers(1, 8192), st.integers(1, 8192), st.integers(1, 4096), way)
def test_no_corrected_batch_of_products_beats_the_peaks(which, batch, m, n, k, direction):
    gpu, dtype = which
    check(OperatorCall(family="gemm", shape=(batch, m, n, k), dtype=dtype, direction=direction), gpu, dtype)
    check(OperatorCall(family="grouped_gemm", shape=(m, n, k, batch), dtype=dtype, direction=direction), gpu, dtype)


@settings(max_examples=200, deadline=None)
@given(
    typed,
    st.integers(1, 64),
    st.integers(1, 2**17),
    st.integers(1, 128),
    st.sampled_from([16, 64, 80, 128, 192, 256]),
    st.booleans(),
    st.sampled_from(["forward", "backward"]),
)
def test_no_corrected_attention_beats_the_peaks(which, batch, seq, heads, head_dim, causal, direction):
    gpu, dtype = which
    shape = (batch, seq, seq, heads, 1, head_dim, head_dim)
    call = OperatorCall(family="attention", shape=shape, dtype=dtype, causal=causal, direction=direction)
    check(call, gpu, dtype)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(GPUS),
    st.sampled_from(["elementwise", "norm", "softmax", "activation"]),
    st.integers(1, 2**20),
    st.integers(1, 2**17),
    st.sampled_from(["bf16", "fp32"]),
)
def test_what_memory_binds_is_never_faster_than_memory(gpu, family, rows, width, dtype):
    price = estimate_operator(OperatorCall(family=family, shape=(rows, width), dtype=dtype), gpu)
    assert math.isfinite(price.time_s)
    assert price.time_s * (1 + 1e-9) >= price.bytes_moved / gpu.hbm_bytes_per_s


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "dtype"), TYPED, ids=lambda value: getattr(value, "name", value))
def test_sixteen_times_the_work_takes_longer_whatever_was_measured(gpu, dtype):
    """A correction is at most a factor of 2 either way, so 16 times the FLOP must show where launches do not bind."""
    shapes = [(m, n, k) for m in (1024, 4000) for n in (2048, 6144) for k in (1024, 8192)]
    small = [OperatorCall(family="gemm", shape=shape, dtype=dtype) for shape in shapes]
    large = [OperatorCall(family="gemm", shape=(16 * m, n, k), dtype=dtype) for m, n, k in shapes]
    assert (estimate_calls(large, gpu) > estimate_calls(small, gpu)).all()


def test_corrections_are_finite_and_within_their_limit():
    points = np.array([[1.0] * 5, [1e-3] * 5, [2.0**40] * 5, [4096.0] * 5])
    for grid in shipped_constants().corrections:
        factors = grid.factors(points[:, : len(grid.axes)])
        assert np.isfinite(factors).all()
        assert ((factors >= 0.5 - 1e-9) & (factors <= 2.0 + 1e-9)).all()
        assert factors[2] == 1.0


def test_an_unknown_gpu_is_named_with_what_is_near():
    with pytest.raises(UnknownNameError, match=r"H10O.*H100") as raised:
        api.operator("gemm", "H10O", m=1, n=1, k=1)
    assert "\n" not in str(raised.value)


def test_one_row_of_one_column_has_a_cost():
    for gpu, dtype in TYPED:
        price = estimate_operator(OperatorCall(family="gemm", shape=(1, 1, 1), dtype=dtype), gpu)
        assert 1e-6 < price.time_s < 1e-4
        assert work_of(OperatorCall(family="gemm", shape=(1, 1, 1, 1), dtype=dtype)).flops == 2
