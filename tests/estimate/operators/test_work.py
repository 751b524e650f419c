"""What each operator does: FLOP and bytes by closed forms, symmetries, refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import ConfigError, UnknownNameError
from traincast.estimate.operators import OperatorCall, work_of
from traincast.estimate.operators.cost import estimate_operator
from traincast.estimate.operators.families import BOTH_WAYS, FAMILIES, operator_shape
from traincast.estimate.operators.families.attention import keys_per_query
from traincast.hardware.gpu import load_gpu

H100 = load_gpu("h100")
DIRECTIONS = {"gemm": "wgrad", "grouped_gemm": "wgrad"}
size = st.integers(1, 4096)


def call(family, *shape, dtype="bf16", **more):
    return OperatorCall(family=family, shape=shape, dtype=dtype, **more)


def test_an_unknown_family_lists_the_known():
    with pytest.raises(UnknownNameError, match="unknown operator family 'abacus'; known: accumulate, activation"):
        work_of(call("abacus", 1))


def test_shapes_by_name():
    assert operator_shape("gemm", {"m": 1, "n": 2, "k": 3}) == (1, 2, 3)
    assert operator_shape("gemm", {"m": 1, "n": 2, "k": 3, "batch": 4}) == (4, 1, 2, 3)
    full = {"queries": 8, "heads": 4, "qk_dim": 16}
    assert operator_shape("attention", full) == (1, 8, 8, 4, 4, 16, 16)
    assert operator_shape("grouped-gemm", {"rows": 1, "n": 2, "k": 3, "groups": 4}) == (1, 2, 3, 4)
    with pytest.raises(ConfigError, match="k: is missing; gemm needs batch, m, n, k"):
        operator_shape("gemm", {"m": 1, "n": 2})
    with pytest.raises(ConfigError, match="width: has no meaning for gemm"):
        operator_shape("gemm", {"width": 2})
    with pytest.raises(UnknownNameError, match=f"known: {', '.join(FAMILIES.names())}"):
        operator_shape("abacus", {})


# --- GEMMs


@given(size, size, size)
def test_the_three_products_of_a_layer_have_equal_flops(m, n, k):
    forward, dgrad, wgrad = (work_of(call("gemm", m, n, k, direction=each)) for each in ("forward", "dgrad", "wgrad"))
    assert forward.flops == dgrad.flops == wgrad.flops == 2 * m * n * k
    assert (forward.tiling.m, forward.tiling.n, forward.tiling.k) == (m, n, k)
    assert (dgrad.tiling.m, dgrad.tiling.n, dgrad.tiling.k) == (m, k, n)
    assert (wgrad.tiling.m, wgrad.tiling.n, wgrad.tiling.k) == (n, k, m)
    assert forward.bytes_moved == dgrad.bytes_moved == 2 * (m * k + k * n + m * n)
    # The weight gradient is read and written in fp32.
    assert wgrad.bytes_moved == 2 * (m * n + m * k) + 8 * n * k
    written = work_of(call("gemm", m, n, k, direction="wgrad", options=(("accumulate", "none"),)))
    assert written.bytes_moved == forward.bytes_moved


@given(size, size, size, st.integers(1, 64))
def test_a_batch_is_so_many_products(m, n, k, batch):
    one, many = work_of(call("gemm", m, n, k)), work_of(call("gemm", batch, m, n, k))
    assert many.flops == batch * one.flops
    assert many.bytes_moved == batch * one.bytes_moved


@given(st.integers(1, 64), st.integers(1, 4096), size, size)
def test_a_group_moves_every_weight_and_computes_every_row(groups, rows, n, k):
    grouped, plain = work_of(call("grouped_gemm", rows, n, k, groups)), work_of(call("gemm", rows, n, k))
    assert grouped.flops == pytest.approx(plain.flops)
    assert grouped.bytes_moved - plain.bytes_moved == pytest.approx(2 * n * k * (min(groups, rows) - 1))


@pytest.mark.parametrize("direction", ["forward", "dgrad", "wgrad"])
@given(st.integers(1, 64), st.integers(1, 4096), size, size)
def test_experts_one_after_the_other_are_so_many_plain_gemms(direction, groups, tokens, n, k):
    shape, options = (groups * tokens, n, k, groups), (("kernel", "each"),)
    each = estimate_operator(call("grouped_gemm", *shape, direction=direction, options=options), H100)
    plain = estimate_operator(call("gemm", tokens, n, k, direction=direction), H100)
    assert each.time_s == pytest.approx(groups * plain.time_s)
    assert (each.flops, each.bytes_moved) == pytest.approx((groups * plain.flops, groups * plain.bytes_moved))
    assert (each.bound, each.utilisation) == (plain.bound, pytest.approx(plain.utilisation))


@pytest.mark.parametrize(
    ("dtype", "bytes_each"), [("fp32", 4), ("bf16", 2), ("fp8", 1), ("mxfp8", 33 / 32), ("nvfp4", 9 / 16)]
)
def test_narrow_inputs_carry_their_scales_and_give_16_bits(dtype, bytes_each):
    work = work_of(call("gemm", 128, 256, 512, dtype=dtype))
    assert work.bytes_moved == bytes_each * (128 * 512 + 512 * 256) + max(2, bytes_each) * 128 * 256


def test_alignment_is_that_of_the_rows_in_memory():
    assert work_of(call("gemm", 7, 8, 16)).aligned
    assert not work_of(call("gemm", 8, 50257, 1280)).aligned
    assert work_of(call("gemm", 8, 4, 4, dtype="fp32")).aligned
    assert not work_of(call("gemm", 8, 8, 8, dtype="fp8")).aligned


# --- attention


@given(st.integers(1, 200), st.integers(0, 200), st.integers(0, 250))
def test_keys_per_query_is_the_mean_of_what_each_sees(queries, more, window):
    keys = queries + more
    seen = [min(more + query + 1, window or keys) for query in range(queries)]
    assert keys_per_query(queries, keys, True, window) == pytest.approx(sum(seen) / queries)
    assert keys_per_query(queries, keys, False, window) == (min(window, keys) if window else keys)


@given(st.integers(1, 8), st.integers(1, 2048), st.sampled_from([1, 2, 4]), st.integers(8, 256))
def test_causal_attention_is_half_of_full(batch, seq, kv_heads, dim):
    full = work_of(call("attention", batch, seq, seq, 4, kv_heads, dim, dim))
    causal = work_of(call("attention", batch, seq, seq, 4, kv_heads, dim, dim, causal=True))
    assert full.flops == 4 * batch * 4 * seq * seq * dim
    assert causal.flops == pytest.approx(full.flops * (seq + 1) / (2 * seq))
    assert causal.bytes_moved == full.bytes_moved
    backward = work_of(call("attention", batch, seq, seq, 4, kv_heads, dim, dim, causal=True, direction="backward"))
    assert backward.flops == pytest.approx(2.5 * causal.flops)


def test_shared_heads_move_less_and_compute_the_same():
    mha, gqa = (work_of(call("attention", 1, 512, 512, 16, heads, 64, 64)) for heads in (16, 2))
    assert mha.flops == gqa.flops
    assert mha.bytes_moved - gqa.bytes_moved == 2 * 14 * 512 * 128


def test_latent_heads_have_two_sizes():
    work = work_of(call("attention", 1, 512, 512, 16, 16, 192, 128))
    assert work.flops == 2 * 16 * 512 * 512 * (192 + 128)


@pytest.mark.parametrize(
    ("shape", "causal", "said"),
    [
        ((1, 8, 8, 6, 4, 8, 8), False, "6 heads cannot share 4"),
        ((1, 9, 8, 4, 4, 8, 8), True, "9 causal queries cannot be the last of 8 keys"),
    ],
)
def test_attention_that_cannot_be_is_refused(shape, causal, said):
    with pytest.raises(ConfigError, match=said):
        work_of(call("attention", *shape, causal=causal))


def test_a_head_size_that_cannot_be_loaded_whole_is_slow():
    good, bad = (work_of(call("attention", 1, 512, 512, 4, 4, dim, dim)) for dim in (80, 84))
    assert bad.efficiency < good.efficiency == 1


@pytest.mark.parametrize("kernel", ["cudnn", "fa1", "fa2", "triton"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_random_numbers_of_dropout_take_time(kernel, direction):
    """The products stay as they are: each score waits for its random number."""
    options = (("kernel", kernel),)
    shape = (1, 512, 512, 4, 4, 64, 64)
    without = work_of(call("attention", *shape, direction=direction, options=options))
    dropped = work_of(call("attention", *shape, direction=direction, options=(*options, ("dropout", "yes"))))
    assert dropped.flops == without.flops
    assert dropped.bytes_moved == without.bytes_moved
    assert 0.4 * without.efficiency < dropped.efficiency < 0.9 * without.efficiency


def test_unfused_attention_is_products_and_passes_over_scores():
    work = work_of(call("unfused_attention", 2, 64, 64, 4, 4, 32, 32))
    products = [part for part in work.parts if part.family == "gemm"]
    assert sum(work_of(part).flops for part in products) == work_of(call("attention", 2, 64, 64, 4, 4, 32, 32)).flops
    scores = work_of(work.parts[-1])
    assert scores.bytes_moved == 4 * 2 * (2 * 4 * 64 * 64)
    backward = work_of(call("unfused_attention", 2, 64, 64, 4, 4, 32, 32, direction="backward"))
    assert sum(work_of(part).flops for part in backward.parts[:-1]) == 2 * sum(work_of(p).flops for p in products)


# --- memory


@given(size, size)
def test_rows_move_what_they_read_and_write(rows, width):
    for family in ("norm", "softmax"):
        assert work_of(call(family, rows, width)).bytes_moved == 2 * 2 * rows * width
        assert work_of(call(family, rows, width, direction="backward")).bytes_moved == 3 * 2 * rows * width
    assert work_of(call("elementwise", rows, width)).bytes_moved == 6 * rows * width
    assert work_of(call("activation", rows, width)).bytes_moved == 4 * rows * width
    gated = (("kind", "swiglu"),)
    assert work_of(call("activation", rows, width, options=gated)).bytes_moved == 6 * rows * width
    assert (
        work_of(call("activation", rows, width, options=gated, direction="backward")).bytes_moved == 10 * rows * width
    )
    # The function and the product with the other half each read and write what they work on; so do their gradients.
    apart = (*gated, ("kernels", "2"))
    assert work_of(call("activation", rows, width, options=apart)).bytes_moved == (4 + 6) * rows * width
    backward = work_of(call("activation", rows, width, options=apart, direction="backward"))
    assert backward.bytes_moved == (6 + 2 * 6) * rows * width


@pytest.mark.parametrize(
    ("name", "dtype", "options", "bytes_each"),
    [
        ("optimizer", "bf16", (), 30),
        ("optimizer", "fp32", (), 28),
        ("optimizer", "bf16", (("kind", "sgd"),), 22),
        ("optimizer", "bf16", (("bytes_per_parameter", "27"),), 27),
        ("accumulate", "bf16", (), 10),
        ("cast", "fp8", (), 3),
        ("cast", "fp8", (("copies", "2"),), 4),
        ("copy", "bf16", (), 4),
    ],
)
def test_bytes_per_element(name, dtype, options, bytes_each):
    assert work_of(call(name, 1000, dtype=dtype, options=options)).bytes_moved == 1000 * bytes_each


def test_ends_of_the_model():
    assert work_of(call("embedding", 10, 64, 1000)).bytes_moved == 10 * 64 * 4 + 80
    assert work_of(call("embedding", 10, 64, 1000, direction="backward")).bytes_moved == 10 * 64 * 10 + 80
    assert work_of(call("permute", 10, 64, 2)).bytes_moved == 10 * 3 * 64 * 2 + 160
    assert work_of(call("route", 10, 64, 8, 2)).kernels > 1


@pytest.mark.parametrize(
    ("code", "kernel", "forward", "backward"),
    [
        # By hand from what each runs, with logits of 2 bytes: r and w of 2, R and W of 4.
        ("megatron", "eager", "rW R RW RW R RW", "RW Rw"),
        ("megatron", "compiled", "r r w", "r w"),  # as fused, not by its code: docs/published-runs.md
        ("megatron", "fused", "r r w", "r w"),
        ("torch", "eager", "rW RW", "W RRW Rw"),
        ("torch", "compiled", "r r", "r w"),
        ("torch", "fused", "r r w", "r w"),
        ("xla", "eager", "r", "r w"),
    ],
)
def test_losses_move_what_their_operations_read_and_write(code, kernel, forward, backward):
    bytes_of = {"r": 2, "w": 2, "R": 4, "W": 4, " ": 0}
    options = (("kernel", kernel), ("code", code))
    for direction, moved in (("forward", forward), ("backward", backward)):
        work = work_of(call("cross_entropy", 16, 1000, direction=direction, options=options))
        assert work.bytes_moved == 16 * 1000 * sum(map(bytes_of.get, moved))


def test_a_loss_of_fp32_logits_casts_nothing():
    eager = (("kernel", "eager"),)
    found = [work_of(call("cross_entropy", 16, 1000, dtype="fp32", direction=way, options=eager)) for way in BOTH_WAYS]
    assert [each.bytes_moved for each in found] == [16 * 1000 * 4 * passes for passes in (8, 2)]


def test_permutations_by_single_kernels_add_to_what_is_there():
    # Counted by hand from moe_utils.py: index_select 2 passes over copies, scatter_add_ and index_add_ 3 and zeros, the
    # weights 2, their gradients 6.
    tokens, topk, each = 10, 2, 64 * 2
    copies, indices = tokens * topk, 8 * tokens * topk
    passes = {"single": (2 + 3, 3 + 2), "weighted": (2 + 2 + 3, 3 + 6 + 2)}
    for kernel, ways in passes.items():
        for direction, there_and_back in zip(("forward", "backward"), ways, strict=True):
            one = work_of(call("permute", tokens, 64, topk, direction=direction, options=(("kernel", kernel),)))
            assert 2 * (one.bytes_moved - indices) == (there_and_back * copies + tokens) * each


@pytest.mark.parametrize("text", ["x", "-1", "inf", "nan"])
def test_an_option_that_is_no_number_is_refused(text):
    with pytest.raises(ConfigError, match="must be a number, not negative"):
        work_of(call("elementwise", 2, 2, options=(("inputs", text),)))


def test_attention_in_8_bits_gains_with_wide_heads_and_loses_with_windows():
    """In 16 bits time follows the width of heads and the keys that are seen; in 8 bits less so."""

    def seconds(dtype, dim, direction, window=0):
        options = (("kernel", "cudnn"),)
        shape = (2, 8192, 8192, 64, 8, dim, dim)
        call = OperatorCall(
            family="attention",
            shape=shape,
            dtype=dtype,
            direction=direction,
            causal=True,
            window=window,
            options=options,
        )
        return estimate_operator(call, load_gpu("gb200")).time_s

    for direction in ("forward", "backward"):
        gain = {dim: seconds("bf16", dim, direction) / seconds("mxfp8", dim, direction) for dim in (64, 128, 192)}
        assert gain[64] < gain[128] < gain[192]
    assert seconds("mxfp8", 64, "backward", 128) == pytest.approx(seconds("mxfp8", 64, "backward"), rel=0.05)
    assert seconds("bf16", 64, "backward", 128) < seconds("bf16", 64, "backward") / 4
    assert seconds("mxfp8", 64, "forward", 128) < seconds("mxfp8", 64, "forward") / 4
