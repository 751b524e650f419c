"""The kernels that cast what a GEMM reads: which there are, over how many elements, and in how many launches."""

import pytest
from msgspec.structs import replace

from job_parts import TINY
from traincast.lowering.casts import casts_of, launches_of, weight_casts
from traincast.model.blocks.part import Gemm
from traincast.model.blocks.share import Execution, Sequences, Share
from traincast.model.recipes import RECIPES

M, N, K = 64, 48, 33
INPUTS, GRADIENTS, WEIGHTS = M * K, M * N, N * K
# What two ranks have of them each.
HALF_INPUTS, HALF_GRADIENTS = INPUTS // 2, GRADIENTS // 2


def share(recipe="current", *, tp=1, split=False, **execution):
    """A rank's share under a recipe, whose matrix units need transposed copies unless told otherwise."""
    dtype = RECIPES[recipe].dtype
    given = {"precision": dtype, "recipe": recipe, "transposes": True} | execution
    return Share(
        model=TINY,
        sequences=Sequences(length=1024),
        tp=tp,
        sequence_parallel=split,
        execution=Execution(**given),
    )


def gemm(recipe="current", **fields):
    return Gemm(m=M, n=N, k=K, dtype=RECIPES[recipe].dtype, **fields)


def told(kernels):
    """Return each kernel with something to do: what it is, its tensors, elements, copies and passes over them."""
    found = []
    for each in kernels:
        if each.shape[-1]:
            options = dict(each.options)
            found.append((each.family, *each.shape, *(float(options[key]) for key in ("copies", "reads") if options)))
    return found


@pytest.mark.parametrize(
    ("recipe", "transposes", "passes"),
    [
        # One kernel writes both copies where units read rows alone, else one copy is enough.
        ("delayed", True, [(2, 1)]),
        ("delayed", False, [(1, 1)]),
        ("current", True, [(2, 2)]),
        ("current", False, [(1, 2)]),
        # Once along rows, and again along columns, whose largest values are found first.
        ("rowwise", True, [(1, 1), (1, 2)]),
        # The copies of weights alone: what tokens have is read along rows.
        ("rowwise_with_gw_hp", True, [(1, 1)]),
        ("blockwise", False, [(2, 1)]),
        ("mxfp8", False, [(2, 1)]),
        ("nvfp4", False, [(2, 2)]),
    ],
)
def test_each_recipe_casts_inputs_and_gradients_alike(recipe, transposes, passes):
    found = casts_of(gemm(recipe), share(recipe, transposes=transposes), trained=True)
    assert told(found.forward) == [("cast", 1, INPUTS, *each) for each in passes]
    assert told(found.backward) == [("cast", 1, GRADIENTS, *each) for each in passes]
    assert found.weight_gradients == ("bf16" if recipe == "rowwise_with_gw_hp" else "")
    options = dict(found.forward[0].options)
    assert int(options["kernels"]) == RECIPES[recipe].kernels
    assert found.forward[0].dtype == RECIPES[recipe].dtype


@pytest.mark.parametrize("recipe", ["delayed", "rowwise", "mxfp8", "rowwise_with_gw_hp"])
def test_frozen_weights_need_one_copy_as_nothing_reads_the_other(recipe):
    found = casts_of(gemm(recipe), share(recipe), trained=False)
    assert told(found.forward) == [("cast", 1, INPUTS, 1, RECIPES[recipe].reads)]
    assert told(found.backward) == [("cast", 1, GRADIENTS, 1, RECIPES[recipe].reads)]
    assert found.weight_gradients == ""


def test_gemms_that_read_16_bits_are_not_cast_and_those_of_another_type_as_is_usual_for_it():
    for each, found in ((replace(gemm(), dtype="bf16"), share()), (gemm(), share(precision="bf16"))):
        casts = casts_of(each, found, trained=True)
        assert (casts.forward, casts.backward, casts.weight_gradients) == ((), (), "")
    other = casts_of(gemm("mxfp8"), share(), trained=True)
    assert (told(other.forward), told(other.backward)) == ([("cast", 1, INPUTS, 2, 1)], [("cast", 1, GRADIENTS, 2, 1)])


@pytest.mark.parametrize(
    ("recipe", "fused", "tensors"), [("current", False, 4), ("current", True, 1), ("delayed", False, 1)]
)
def test_experts_are_a_tensor_each_unless_one_kernel_takes_all(recipe, fused, tensors):
    found = casts_of(gemm(recipe, groups=4), share(recipe, fused_expert_casts=fused), trained=True)
    assert [each[1:3] for each in told(found.forward)] == [(tensors, INPUTS)]
    assert [each[1:3] for each in told(found.backward)] == [(tensors, GRADIENTS)]


def test_ranks_cast_their_part_of_what_they_gather_and_transpose_all_of_it():
    """Outputs split: inputs are gathered, again in the backward pass; inputs split: gradients of outputs are."""
    whole_inputs, whole_gradients = ("cast", 1, INPUTS, 2, 2), ("cast", 1, GRADIENTS, 2, 2)
    split = share(tp=2, split=True)
    outputs = casts_of(gemm(split="outputs"), split, trained=True)
    assert told(outputs.forward) == [("cast", 1, HALF_INPUTS, 1, 2)]
    assert told(outputs.backward) == [whole_gradients, ("copy", INPUTS)]
    inputs = casts_of(gemm(split="inputs"), split, trained=True)
    assert told(inputs.forward) == [whole_inputs]
    assert told(inputs.backward) == [("cast", 1, HALF_GRADIENTS, 1, 2), ("copy", GRADIENTS)]
    # Nothing is gathered of GEMMs that nobody splits, without sequence parallelism or on one rank.
    for each, found in (
        (gemm(), split),
        (gemm(split="outputs"), share(tp=2)),
        (gemm(split="inputs"), share(tp=1, split=True)),
    ):
        casts = casts_of(each, found, trained=True)
        assert (told(casts.forward), told(casts.backward)) == ([whole_inputs], [whole_gradients])
    # Frozen weights have no gradient that would read the transposed copy.
    frozen = casts_of(gemm(split="outputs"), split, trained=False)
    assert told(frozen.forward) == [("cast", 1, HALF_INPUTS, 1, 2)]
    assert told(frozen.backward) == [("cast", 1, GRADIENTS, 1, 2)]


@pytest.mark.parametrize(
    ("recipe", "copies", "elements"),
    [("mxfp8", 2, HALF_INPUTS), ("rowwise_with_gw_hp", 1, INPUTS), ("nvfp4", 2, HALF_INPUTS)],
)
def test_recipes_say_whether_parts_are_cast_before_they_are_gathered(recipe, copies, elements):
    found = casts_of(gemm(recipe, split="outputs"), share(recipe, tp=2, split=True), trained=True)
    assert told(found.forward) == [("cast", 1, elements, copies, RECIPES[recipe].reads)]
    assert told(found.backward) == [("cast", 1, GRADIENTS, copies, RECIPES[recipe].reads)]
    odd = casts_of(replace(gemm(recipe, split="outputs"), m=1), share(recipe, tp=2, split=True), trained=True)
    assert told(odd.forward)[0][2] == (17 if RECIPES[recipe].gathered else 33)


def test_units_that_read_both_ways_need_no_transposed_copy_of_what_is_gathered():
    found = casts_of(gemm(split="outputs"), share(tp=2, split=True, transposes=False), trained=True)
    assert told(found.forward) == [("cast", 1, HALF_INPUTS, 1, 2)]
    assert told(found.backward) == [("cast", 1, GRADIENTS, 1, 2)]
    assert found.backward == casts_of(gemm(), share(transposes=False), trained=True).backward


def test_what_was_written_cast_is_at_most_transposed():
    fused = gemm("delayed", fused_casts=("inputs",))
    found = casts_of(fused, share("delayed"), trained=True)
    assert told(found.forward) == [("copy", INPUTS)]
    assert told(found.backward) == [("cast", 1, GRADIENTS, 2, 1)]
    found = casts_of(replace(fused, fused_casts=("gradients",)), share("delayed"), trained=True)
    assert told(found.forward) == [("cast", 1, INPUTS, 2, 1)]
    assert told(found.backward) == [("copy", GRADIENTS)]
    assert casts_of(fused, share("delayed", transposes=False), trained=True).forward == ()
    assert casts_of(fused, share("delayed"), trained=False).forward == ()
    assert casts_of(replace(fused, dtype="mxfp8"), share("mxfp8"), trained=True).forward == ()
    # What is gathered is transposed after that, in the backward pass.
    split = casts_of(replace(fused, split="outputs"), share("delayed", tp=2, split=True), trained=True)
    assert told(split.forward) == []
    assert told(split.backward) == [("cast", 1, GRADIENTS, 2, 1), ("copy", INPUTS)]


@pytest.mark.parametrize(("recipe", "reads"), [("current", 2), ("mxfp8", 1)])
def test_weights_that_are_gathered_for_a_pass_are_cast_in_it(recipe, reads):
    found = casts_of(gemm(recipe, groups=3), share(recipe, gathered_weight_bytes=2), trained=True)
    assert told(found.forward)[1:] == told(found.backward)[1:] == [("cast", 3, 3 * WEIGHTS, 1, reads)]


def test_weights_that_come_in_8_bits_are_at_most_transposed():
    found = casts_of(gemm(), share(gathered_weight_bytes=1), trained=True)
    assert told(found.forward) == [("cast", 1, INPUTS, 2, 2)]
    assert told(found.backward) == [("cast", 1, GRADIENTS, 2, 2), ("copy", WEIGHTS)]
    found = casts_of(gemm(), share(gathered_weight_bytes=1, transposes=False), trained=True)
    assert told(found.backward) == [("cast", 1, GRADIENTS, 1, 2)]


@pytest.mark.parametrize(
    ("recipe", "transposes", "gathered", "wanted"),
    [
        ("current", True, False, [("cast", 1, 1000, 2, 2)]),
        ("current", False, False, [("cast", 1, 1000, 1, 2)]),
        ("current", True, True, [("copy", 1000)]),
        ("current", False, True, []),
        ("mxfp8", True, False, [("cast", 1, 1000, 2, 1)]),
        ("mxfp8", True, True, []),
        ("rowwise", True, False, [("cast", 1, 1000, 1, 1), ("cast", 1, 1000, 1, 2)]),
    ],
)
def test_weights_are_cast_for_both_gemms_that_read_them(recipe, transposes, gathered, wanted):
    assert told(weight_casts(share(recipe, transposes=transposes), 1000, gathered_cast=gathered)) == wanted


def test_weights_in_16_bits_are_not_cast():
    assert weight_casts(share(precision="bf16"), 1000, gathered_cast=False) == ()


def test_a_cast_is_a_launch_for_each_tensor_a_transpose_one_and_nothing_none():
    split = share(tp=2, split=True)
    assert launches_of(casts_of(gemm(groups=4), share(), trained=True).forward) == 4
    assert launches_of(casts_of(gemm(split="outputs"), split, trained=True).forward) == 1
    assert launches_of(casts_of(gemm(split="outputs"), split, trained=True).backward) == 2
    assert launches_of(weight_casts(share(), 1000, gathered_cast=True)) == 1
    assert launches_of(weight_casts(share(), 1, gathered_cast=True)) == 1
    assert launches_of(weight_casts(share(), 0, gathered_cast=True)) == 0
    assert launches_of(()) == 0
