"""Matrix units that hold whole blocks: sides of matrices are filled up to theirs."""

import pytest

from traincast.estimate.operators.cost import estimate_operator
from traincast.hardware.gpu import generations, load_gpu
from traincast.workload.ops import OperatorCall

V5P, V6E = load_gpu("TPU-v5p"), load_gpu("TPU-v6e")


def attention_s(gpu, dim, direction="forward"):
    shape = (1, 8192, 8192, 32, 8, dim, dim)
    options = (("kernel", "splash"),)
    return estimate_operator(
        OperatorCall(family="attention", shape=shape, dtype="bf16", causal=True, direction=direction, options=options),
        gpu,
    ).time_s


def gemm_s(gpu, m, n, k):
    return estimate_operator(OperatorCall(family="gemm", shape=(m, n, k), dtype="bf16"), gpu).time_s


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_narrow_heads_take_the_time_of_those_that_fill_the_unit(direction):
    assert attention_s(V5P, 64, direction) == pytest.approx(attention_s(V5P, 128, direction), rel=0.02)
    assert attention_s(V6E, 64, direction) == pytest.approx(attention_s(V6E, 256, direction), rel=0.02)
    assert attention_s(V5P, 256, direction) > 1.9 * attention_s(V5P, 128, direction)


def test_widths_are_filled_up():
    assert gemm_s(V6E, 65536, 2880, 4096) == pytest.approx(gemm_s(V6E, 65536, 3072, 4096), rel=0.02)
    assert gemm_s(V5P, 65536, 2944, 4096) < gemm_s(V5P, 65536, 3072, 4096)


def experts_s(gpu, rows, groups, direction="forward", sizes="routed"):
    shape, options = (rows, 4096, 4096, groups), (("sizes", sizes),)
    call = OperatorCall(family="grouped_gemm", shape=shape, dtype="bf16", direction=direction, options=options)
    return estimate_operator(call, gpu).time_s


@pytest.mark.parametrize("direction", ["forward", "dgrad", "wgrad"])
def test_tiles_of_two_experts_are_computed_for_both(direction):
    # Tiles of 512 rows: M / 512 + G - 1 of them for G experts with M rows that follow each other without gaps.
    rows, groups = 65536, 64
    tiles = rows / 512
    expected = (tiles + groups - 1) / tiles
    without = experts_s(V5P, rows, groups, direction, "equal")
    assert experts_s(V5P, rows, groups, direction) == pytest.approx(without * expected, rel=0.03)


def test_an_estimate_says_how_many_rows_are_computed_twice():
    def terms(gpu, **options):
        call = OperatorCall(
            family="grouped_gemm", shape=(65536, 4096, 4096, 64), dtype="bf16", options=tuple(options.items())
        )
        return dict(estimate_operator(call, gpu).terms)

    assert terms(V5P)["rows computed twice"] == 512 * 63
    assert "rows computed twice" not in terms(V5P, sizes="equal")
    assert "rows computed twice" not in terms(load_gpu("H100-SXM-80GB"))


def test_tiles_of_two_experts_are_few_where_experts_have_many_rows():
    many = experts_s(V5P, 1 << 20, 8) / experts_s(V5P, 1 << 20, 8, sizes="equal")
    few = experts_s(V5P, 1 << 14, 8) / experts_s(V5P, 1 << 14, 8, sizes="equal")
    assert 1.0 < many < 1.01
    assert few > 1.2


@pytest.mark.parametrize("direction", ["forward", "dgrad", "wgrad"])
def test_gpus_begin_each_expert_with_a_tile(direction):
    h100 = load_gpu("H100-SXM-80GB")
    assert experts_s(h100, 65536, 64, direction) == experts_s(h100, 65536, 64, direction, "equal")


def test_generations_say_the_width():
    assert {name: each.matrix_width for name, each in generations().items() if each.matrix_width} == {
        "tpu": 128,
        "tpu6": 256,
        "tpu7": 256,
    }
