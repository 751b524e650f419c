"""What recipes of 8 and 4 bits cast, by hand: bytes of casts, launches, types of GEMMs, bytes that are gathered."""

from collections import Counter

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, calls_of, exchanged, job_of, product_flops
from traincast.estimate.operators.families import work_of
from traincast.hardware.dtypes import ELEMENT_TYPES
from traincast.model.recipes import RECIPES, recipes_of
from traincast.workload.words import Group, Operation

INPUTS = 512 + 512 + 512 + 1536
"""Elements of a token that the GEMMs of a layer of `TINY` read: projections of attention, both of the MLP."""
OUTPUTS = 1024 + 512 + 2 * 1536 + 512
WEIGHTS = 512 * (1024 + 512 + 2 * 1536) + 1536 * 512
PASSES = 8 * 8
"""Layers times microbatches."""
TOKENS = 1024
MXFP8, NVFP4, BLOCK = (ELEMENT_TYPES[name].bytes for name in ("mxfp8", "nvfp4", "fp8_block"))


def moved(job, which, families=("cast", "copy")):
    """Return the bytes that casts and transposes move."""
    calls = calls_of(job, which)
    return sum(work_of(call).bytes_moved * count for call, count in calls.items() if call.family in families)


def flops(job, which, directions=("forward", "dgrad", "wgrad")):
    """Return the FLOPs of GEMMs by their type."""
    found = Counter()
    for call, count in calls_of(job, which).items():
        if call.family in ("gemm", "grouped_gemm") and call.direction in directions:
            found[call.dtype] += count * product_flops(call)
    return found


@pytest.mark.parametrize(
    ("precision", "recipe", "cluster", "input_bytes", "gradient_bytes"),
    [
        # One pass; Hopper reads 8 bits along the reduction alone, so that there is a transposed copy.
        ("fp8", "delayed", "h100", 2 + 2, 2 + 2),
        ("fp8", "delayed", "b200", 2 + 1, 2 + 1),
        # The largest value of the tensor first.
        ("fp8", "current", "h100", 2 * 2 + 2, 2 * 2 + 2),
        ("fp8", "current", "b200", 2 * 2 + 1, 2 * 2 + 1),
        # Each row, then each column, whose largest values are found first.
        ("fp8", "rowwise", "h100", 2 + 1 + 2 * 2 + 1, 2 + 1 + 2 * 2 + 1),
        # Gradients of weights read 16 bits, so that inputs and gradients are cast along one direction.
        ("fp8", "rowwise_with_gw_hp", "h100", 2 + 1, 2 + 1),
        ("fp8_block", "blockwise", "h100", 2 + 2 * BLOCK, 2 + 2 * BLOCK),
        ("mxfp8", "mxfp8", "b200", 2 + 2 * MXFP8, 2 + 2 * MXFP8),
        ("nvfp4", "nvfp4", "b200", 2 * 2 + 2 * NVFP4, 2 * 2 + 2 * NVFP4),
    ],
)
def test_casts_move_what_their_recipe_reads_and_writes(precision, recipe, cluster, input_bytes, gradient_bytes):
    job = job_of(precision=precision, fp8_recipe=recipe, cluster=cluster, recompute="none")
    assert moved(job, "forward") == pytest.approx(PASSES * TOKENS * INPUTS * input_bytes)
    assert moved(job, "backward") == pytest.approx(PASSES * TOKENS * OUTPUTS * gradient_bytes)


def test_nothing_is_cast_in_16_bits():
    job = job_of(precision="bf16")
    assert not any(moved(job, which, ("cast",)) for which in ("forward", "backward", "end"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_layers_run_in_the_type_of_their_recipe_and_the_head_in_16_bits(recipe):
    dtype = RECIPES[recipe].dtype
    cluster = "mi355x" if dtype == "mxfp4" else "b200"
    job = job_of(precision=dtype, fp8_recipe=recipe, cluster=cluster, recompute="none")
    layers, head = PASSES * 2.0 * TOKENS * WEIGHTS, 8 * 2.0 * TOKENS * TINY.hidden * job.kernels.padded_vocab
    assert flops(job, "forward") == {dtype: pytest.approx(layers), "bf16": pytest.approx(head)}
    weights = flops(job, "backward", ("wgrad",))
    if RECIPES[recipe].weight_gradients:
        assert weights == {"bf16": pytest.approx(layers + head)}
    else:
        assert weights == {dtype: pytest.approx(layers), "bf16": pytest.approx(head)}


def test_first_and_last_layers_stay_in_16_bits_where_asked_to():
    job = job_of(precision="fp8", recompute="none", gpus=2, pp=2)
    kept = job.with_values(bf16_first_last=True)
    for which in ("forward", "backward"):
        all_8, some = flops(job, which), flops(kept, which)
        assert some["fp8"] == pytest.approx(all_8["fp8"] * 6 / 8)
        assert sum(some.values()) == pytest.approx(sum(all_8.values()))
        assert moved(kept, which, ("cast",)) == pytest.approx(moved(job, which, ("cast",)) * 6 / 8)
    assert flops(job_of(precision="bf16").with_values(bf16_first_last=True), "forward").keys() == {"bf16"}


def test_weights_are_cast_once_a_step_where_ranks_have_them_whole():
    job = job_of(precision="fp8", fp8_recipe="current", recompute="none")
    cast = [call for call in calls_of(job, "end") if call.family == "cast"]
    (weights,) = (call.shape[-1] for call in cast)
    # Those of the LM head among them: it is read in 16 bits, and an upper bound.
    assert 8 * WEIGHTS <= weights <= 8 * WEIGHTS + 2 * 512 * job.kernels.padded_vocab
    assert work_of(cast[0]).bytes_moved == pytest.approx(weights * (2 * 2 + 2))


def test_sharded_weights_are_cast_in_every_pass_unless_they_come_in_8_bits():
    plain = {"precision": "fp8", "fp8_recipe": "current", "recompute": "none", "gpus": 8, "zero": 3}
    whole = job_of(**{**plain, "zero": 1})
    gathered = job_of(**plain)
    passes = PASSES / 8
    for which in ("forward", "backward"):
        more = moved(gathered, which) - moved(whole, which)
        assert more == pytest.approx(passes * WEIGHTS * (2 * 2 + 1))
    in_8 = job_of(**plain, param_gather_bytes=1)
    assert moved(in_8, "forward") == moved(whole, "forward")
    # What is left is the transpose that Hopper needs: one byte read, one written.
    assert moved(in_8, "backward") - moved(whole, "backward") == pytest.approx(passes * WEIGHTS * 2)
    assert not moved(gathered, "end")


@pytest.mark.parametrize(
    ("recipe", "precision", "forward", "backward"),
    [
        ("delayed", "fp8", 1, 1),
        ("rowwise", "fp8", 2, 2),
        ("mxfp8", "mxfp8", MXFP8, (MXFP8 + 2 * MXFP8) / 2),
        ("nvfp4", "nvfp4", NVFP4, (NVFP4 + 2 * NVFP4) / 2),
    ],
)
def test_tensor_parallel_ranks_gather_what_is_cast(recipe, precision, forward, backward):
    """Inputs come once in each pass; gradients come along both directions where these are two copies."""
    layout = {"gpus": 2, "tp": 2, "sequence_parallel": True, "recompute": "none", "cluster": "b200"}
    plain = job_of(precision="bf16", **layout)
    job = job_of(precision=precision, fp8_recipe=recipe, **layout)
    key = Group.TP, Operation.ALL_GATHER
    for which, share, ends in (("forward", forward, 1), ("backward", backward, 2)):
        # The LM head reads 16 bits, again for the gradient of its weight, and so does the gradient of the embedding.
        others = ends * 8 * TOKENS * 512 * 2
        known = exchanged(plain, which)[key] - others
        assert exchanged(job, which)[key] - others == pytest.approx(known * share / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("recipe", "precision", "launches"), [("delayed", "fp8", 1), ("current", "fp8", 3 * 8), ("mxfp8", "mxfp8", 8)]
)
def test_experts_are_cast_one_by_one_unless_one_kernel_takes_all(recipe, precision, launches):
    job = job_of(TINY_EXPERTS, precision=precision, fp8_recipe=recipe, cluster="b200", recompute="none")
    kernels = {work_of(call).kernels for call in calls_of(job, "forward") if call.family == "cast"}
    assert kernels == {launches, RECIPES[recipe].kernels}


def test_attention_runs_in_8_bits_where_asked_to():
    for precision, asked, dtype in (
        ("fp8", False, "bf16"),
        ("fp8", True, "fp8"),
        ("nvfp4", True, "fp8"),
        ("mxfp8", True, "mxfp8"),
        ("bf16", True, "bf16"),
    ):
        job = job_of(precision=precision, cluster="b200", fp8_attention=asked, recompute="none")
        core = {
            call.dtype
            for which in ("forward", "backward")
            for call in calls_of(job, which)
            if "attention" in call.family
        }
        assert core == {dtype}
    bare, whole = (job_of(precision="fp8", fp8_attention=asked, recompute="none") for asked in (False, True))
    assert moved(whole, "forward") - moved(bare, "forward") == pytest.approx(PASSES * TOKENS * 1024 * (2 + 1))


def test_every_type_has_a_recipe_and_each_recipe_one_type():
    for name, recipe in RECIPES.items():
        assert name in recipes_of(recipe.dtype)
        assert recipe.source
        assert recipe.copies in ("both", "transposed", "again", "weights")


def test_fused_experts_compute_their_activation_and_cast_what_they_write():
    """In MXFP8, gated or not: half of the experts' casts are left, those of what others wrote."""
    routed = replace(TINY_EXPERTS, experts=replace(TINY_EXPERTS.experts, shared_ffn_hidden=0))
    plain_ones = replace(routed, gated=False)

    def ran(model, precision, *, fused):
        job = job_of(model, "gb200", precision=precision, te_op_fuser=fused)
        found = Counter()
        for which in ("forward", "backward"):
            for call, often in calls_of(job, which).items():
                found[call.family] += often * (call.shape[-1] if call.family == "cast" else 1)
        return found

    plain, fused = (ran(routed, "mxfp8", fused=each) for each in (False, True))
    assert plain["activation"] > fused["activation"] == 0
    assert plain["grouped_gemm"] == fused["grouped_gemm"]
    assert plain["permute"] == fused["permute"]
    job = job_of(routed, "gb200", precision="mxfp8")
    experts, rows = job.model.experts, job.batch.micro_batch * job.batch.seq_length * job.model.experts.topk
    # Inputs of FC2, as wide as an expert, and gradients of FC1's outputs, of both halves.
    spared = 3 * rows * experts.ffn_hidden * job.model.layers * job.parallel.microbatches
    assert plain["cast"] - fused["cast"] == spared
    assert ran(plain_ones, "mxfp8", fused=False)["activation"] > ran(plain_ones, "mxfp8", fused=True)["activation"] == 0
    assert ran(replace(routed, linear_bias=True), "mxfp8", fused=True)["activation"] == 0
    for precision in ("fp8_block", "bf16"):
        assert ran(routed, precision, fused=True)["activation"] == ran(routed, precision, fused=False)["activation"] > 0


@pytest.mark.parametrize(
    ("precision", "recipe", "cluster", "written", "transposed"),
    [
        ("fp8", "delayed", "b200", 1, False),
        ("fp8", "delayed", "h100", 1, True),
        ("mxfp8", "mxfp8", "b200", 2 * MXFP8, False),
    ],
)
def test_fused_mlps_write_what_their_gemms_read(precision, recipe, cluster, written, transposed):
    """Casts of the MLP's inputs and of the gradient of its first GEMM go; a mere transpose stays, and so do others."""
    plain, fused = (
        job_of(cluster=cluster, precision=precision, fp8_recipe=recipe, te_op_fuser=each, recompute="none")
        for each in (False, True)
    )

    def spared(which, family):
        return (moved(plain, which, (family,)) - moved(fused, which, (family,))) / (PASSES * TOKENS)

    ways = 2 if transposed else 1
    assert spared("forward", "cast") == pytest.approx((512 + 1536) * (2 + ways * written))
    assert spared("backward", "cast") == pytest.approx(2 * 1536 * (2 + ways * written))
    assert spared("forward", "activation") == pytest.approx(1536 * (2 - written))
    assert spared("backward", "activation") == pytest.approx(2 * 1536 * (2 - written))
    read = 2 if transposed else 0
    assert -spared("forward", "copy") == pytest.approx((512 + 1536) * read)
    assert -spared("backward", "copy") == pytest.approx(2 * 1536 * read)


@pytest.mark.parametrize(("precision", "recipe"), [("fp8", "current"), ("nvfp4", None), ("bf16", None)])
def test_what_is_scaled_by_its_own_largest_value_is_not_written_cast(precision, recipe):
    plain, fused = (
        job_of(cluster="b200", precision=precision, fp8_recipe=recipe, te_op_fuser=each) for each in (False, True)
    )
    for which in ("forward", "backward"):
        assert calls_of(plain, which) == calls_of(fused, which)


def test_gemms_add_what_adapters_would():
    """The operation fuser leaves of a sum's three passes over its tensor the one that reads what is added to."""
    few = {"cluster": "b200", "task": "lora", "lora_rank": 16, "lora_targets": ("linear_qkv", "linear_proj")}
    plain, fused = (job_of(te_op_fuser=each, recompute="none", **few) for each in (False, True))
    for which, width in (("forward", 1024 + 512), ("backward", 512 + 512)):
        spared = moved(plain, which, ("elementwise",)) - moved(fused, which, ("elementwise",))
        assert spared == pytest.approx(PASSES * TOKENS * width * 2 * 2)


@pytest.mark.parametrize(
    ("model", "precision", "takes"), [(None, "mxfp8", True), (None, "fp8", False), ("tied", "mxfp8", False)]
)
def test_the_lm_head_runs_in_mxfp8_where_it_can(model, precision, takes):
    """Its GEMMs take the type of the layers', with casts of their own; a head that is the embedding's table cannot."""
    given = replace(TINY_EXPERTS, tied_embeddings=model is not None)
    plain, wide = (job_of(given, "gb200", precision=precision, fp8_lm_head=asked) for asked in (False, True))
    heads = [
        {
            call.dtype
            for call in calls_of(job, "forward")
            if call.family == "gemm" and call.shape[1] == job.kernels.padded_vocab
        }
        for job in (plain, wide)
    ]
    assert heads == [{"bf16"}, {"mxfp8" if takes else "bf16"}]
    assert wide.precision.fp8_lm_head is takes
    assert any(note.code == "fp8-lm-head-unused" for note in wide.assumptions) is not takes
