"""Casts of what GEMMs in 8 bits or less read, as the recipe of a job scales and casts it (`traincast.model.recipes`).

The input of a GEMM is cast in the forward pass and the gradient of its output in the backward pass, each along the
reductions of both GEMMs that read it. Weights are cast once a step (`weight_casts`), or in every pass where they are
gathered for it. Source: Transformer Engine, transformer_engine/pytorch/module/linear.py and layernorm_linear.py.
"""

from msgspec import Struct

from traincast.model.blocks import eager
from traincast.model.blocks.part import Gemm, Kernel
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number, added, ceil_div, choose, larger
from traincast.model.recipes import RECIPES, Recipe, recipes_of

Kernels = tuple[Kernel, ...]


class Casts(Struct, frozen=True):
    """What a GEMM needs in addition to itself in each pass; a kernel of 0 elements does not run."""

    forward: Kernels = ()
    backward: Kernels = ()
    weight_gradients: str = ""
    """Type of the GEMM of the weight's gradient, where it is another one."""


def casts_of(gemm: Gemm, share: Share, *, trained: bool) -> Casts:
    """Return the casts of a GEMM's input and of its output's gradient; where it reads 16 bits those of its weight."""
    recipe = share.execution.scaling
    if recipe is not None and gemm.dtype != recipe.dtype:
        # One that reads another type than most has the usual recipe of that.
        recipe = next((RECIPES[name] for name in recipes_of(gemm.dtype)), None)
    if recipe is None:
        of_weight = eager.weight_casts(share, gemm) if trained else ()
        return Casts(of_weight[:1], of_weight[1:])
    tensors = 1 if recipe.grouped or share.execution.fused_expert_casts else gemm.groups
    both = trained and recipe.copies != "weights"
    weights = _weights_in_pass(recipe, share, gemm, tensors)

    def cast(what: str, elements: Number, split: str) -> Kernels:
        gathered = gemm.split == split
        if what in gemm.fused_casts:
            return _left(recipe, share, elements, gathered=gathered, both=both)
        return _cast(recipe, share, elements, tensors, gathered=gathered, both=both)

    inputs, gradients = cast("inputs", gemm.m * gemm.k, "outputs"), cast("gradients", gemm.m * gemm.n, "inputs")
    transposed = _transposes_of_gathered(recipe, share, gemm) if both else ()
    backward = gradients + transposed + weights.backward
    return Casts(inputs + weights.forward, backward, recipe.weight_gradients if trained else "")


def launches_of(kernels: Kernels, tensors: Number = 1) -> Number:
    """Return how many calls some of them are for the host: one for each tensor, whatever kernels it launches at once.

    `tensors` is what the host makes at least, though one kernel may write them all: an object of Python for each
    expert's part, of as many tensors as it has copies, scales and largest values. Source: Transformer Engine,
    transformer_engine/pytorch/csrc/quantizer.cpp (quantize_impl launches the largest value, the scale and the cast) and
    csrc/extensions/cast.cpp (split_quantize: one kernel casts the parts of all experts to NVFP4,
    bulk_allocate_nvfp4_tensors makes NVFP4TensorStorage of each).
    """
    casts = (larger(each.shape[0], tensors) if each.family == "cast" else 1 for each in kernels)
    return added((each.shape[-1] > 0) * count for each, count in zip(kernels, casts, strict=True))


def weight_casts(share: Share, elements: int, *, gathered_cast: bool) -> Kernels:
    """Return what brings the weights of a rank to their type once a step, for both GEMMs that read them.

    `gathered_cast` says that they come in 8 bits with a scale for each tensor: then at most a transpose is left.
    """
    recipe = share.execution.scaling
    if recipe is None:
        return ()
    if gathered_cast:
        return _transpose(recipe, elements) if _transposes(recipe, share) else ()
    return _cast(recipe, share, elements, 1, gathered=False, both=True)


def _weights_in_pass(recipe: Recipe, share: Share, gemm: Gemm, tensors: Number) -> Casts:
    """Return the casts of a weight that sharded ranks gather for every pass, along rows and then along columns."""
    gathered_bytes = share.execution.gathered_weight_bytes
    if not gathered_bytes:
        return Casts()
    if gathered_bytes == 1:
        return Casts(backward=_transpose(recipe, gemm.elements) if _transposes(recipe, share) else ())
    cast = (_kernel(recipe, gemm.elements, tensors, recipe.reads, 1),)
    return Casts(forward=cast, backward=cast)


def _cast(recipe: Recipe, share: Share, elements: Number, tensors: Number, *, gathered: bool, both: bool) -> Kernels:
    """Return the casts of some tensors, along one or both directions.

    What tensor parallel ranks gather is cast before, each one's part; a copy that is a mere transpose is made after
    (`_transposes_of_gathered`).
    """
    parts = _gathers(recipe, share) if gathered else False
    own = choose(parts, ceil_div(elements, share.tp), elements)
    if both and recipe.copies == "both":
        return (_kernel(recipe, own, tensors, recipe.reads, 2),)
    if both and recipe.copies == "again":
        along_columns = _kernel(recipe, own, tensors, recipe.column_reads, 1)
        return (_kernel(recipe, own, tensors, recipe.reads, 1), along_columns)
    if not (both and _transposes(recipe, share)):
        return (_kernel(recipe, own, tensors, recipe.reads, 1),)
    return (
        _kernel(recipe, choose(parts, 0 * elements, elements), tensors, recipe.reads, 2),
        _kernel(recipe, choose(parts, own, 0 * elements), tensors, recipe.reads, 1),
    )


def _left(recipe: Recipe, share: Share, elements: Number, *, gathered: bool, both: bool) -> Kernels:
    """Return what is left to do for a tensor that was written cast: a copy that is a mere transpose, if any."""
    if not (both and _transposes(recipe, share)):
        return ()
    parts = _gathers(recipe, share) if gathered else False
    return _transpose(recipe, choose(parts, 0 * elements, elements))


def _transposes_of_gathered(recipe: Recipe, share: Share, gemm: Gemm) -> Kernels:
    """Return the transposed copy of what the backward pass gathers of a GEMM: its input again, or its gradient.

    Ranks gather what they have along rows alone. What the forward pass gathers is read along rows and not kept, so
    that the gradient of the weight needs the input gathered and transposed. Source: Transformer Engine,
    transformer_engine/pytorch/module/layernorm_linear.py (backward).
    """
    if not gemm.split or not _transposes(recipe, share):
        return ()
    elements = gemm.m * (gemm.k if gemm.split == "outputs" else gemm.n)
    return _transpose(recipe, choose(_gathers(recipe, share), elements, 0 * elements))


def _gathers(recipe: Recipe, share: Share) -> Number:
    """Return whether tensor parallel ranks gather what they have cast."""
    return share.splits_sequence if recipe.gathered else False


def _transposes(recipe: Recipe, share: Share) -> bool:
    return recipe.copies == "transposed" and share.execution.transposes


def _kernel(recipe: Recipe, elements: Number, tensors: Number, reads: float, copies: int) -> Kernel:
    options = (("copies", str(copies)), ("kernels", str(recipe.kernels)), ("reads", str(reads)))
    return Kernel(family="cast", shape=(tensors, elements), dtype=recipe.dtype, options=options)


def _transpose(recipe: Recipe, elements: Number) -> Kernels:
    """Return the copy of a tensor in its type that has its columns as rows."""
    return (Kernel(family="copy", shape=(elements,), dtype=recipe.dtype),)
