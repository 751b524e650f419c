"""The MLP of a dense layer, and the shared experts of others, which are split as it is."""

from msgspec import Struct
from msgspec.structs import replace

from traincast.model.blocks import eager
from traincast.model.blocks.common import MLP_AND_ATTENTION, adapters, around, norm, residual
from traincast.model.blocks.part import Gemm, Kernel, Part, block
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.numbers import Number, ceil_div


class Mlp(Struct, frozen=True):
    """The MLP block of a layer: two or, with a gate, three matrices with an activation function between them.

    The first is split over tp by its outputs, the last by its inputs. Source: Shoeybi et al. 2019, arXiv 1909.08053,
    section 3.
    """

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the norm, both GEMMs, the activation function and the residual sum."""
        model = share.model
        width, exchanged = ceil_div(model.ffn_hidden, share.tp), around(share)
        inner = activations(share, share.tokens * width)
        fc1, fc2 = gemms(share, width)
        if fuses_casts(share):
            fc1, fc2 = replace(fc1, fused_casts=("inputs", "gradients")), replace(fc2, fused_casts=("inputs",))
        enter = Part(
            name="mlp.linear_fc1",
            counts_as="mlp",
            gemms=(fc1,),
            vectors=up_matrices(share) * width if model.linear_bias else 0,
            saved={"MLP inputs": share.norm_tokens * model.hidden * share.input_bytes},
            drops={"MLP inputs": ("mlp",)},
            forward=exchanged.enter_forward,
            backward=exchanged.enter_backward,
            modules=("mlp", "linear_fc1"),
        )
        leave = Part(
            name="mlp.linear_fc2",
            counts_as="mlp",
            gemms=(fc2,),
            vectors=model.hidden if model.linear_bias else 0,
            forward=exchanged.leave_forward,
            backward=exchanged.leave_backward,
            modules=("mlp", "linear_fc2"),
        )
        return (
            *mlp_norms(share, "mlp"),
            enter,
            Part(
                name="mlp.activation_func",
                counts_as="mlp",
                kernels=eager.activation(share, share.tokens, width)
                if share.execution.eager_layers
                else (_cast_as_written(share, activation(share, share.tokens, width)),),
                saved={"MLP activations": inner.before + inner.after},
                drops={"MLP activations": ("mlp",)},
                passing_backward=inner.passing,
                modules=("mlp",),
            ),
            leave,
            residual(share, "mlp_bda", adds_bias=True),
            *adapters(share, (enter, leave), "MLP activations"),
        )


@block("mlp")
def _mlp(_model: Model, _layer: int) -> Mlp:
    return Mlp()


class Activations(Struct, frozen=True):
    """Bytes around an activation function."""

    before: Number
    """Its inputs, kept."""
    after: Number
    """Its outputs, kept."""
    passing: Number
    """Gradients of both, while they pass."""


def mlp_norms(share: Share, module: str) -> tuple[Part, ...]:
    """Return the norms of the MLP's input and, where there are more than two in a layer, its output."""
    count = share.model.norms_per_layer
    before = (norm(share, "pre_mlp_layernorm", modules=(module,)),) if count >= MLP_AND_ATTENTION else ()
    return (*before, *((norm(share, "post_mlp_layernorm"),) if count > MLP_AND_ATTENTION + 1 else ()))


def gemms(share: Share, width: Number) -> tuple[Gemm, Gemm]:
    """Return the two GEMMs of an MLP with that inner width on a rank."""
    hidden, dtype = share.model.hidden, share.execution.precision
    return (
        Gemm(m=share.tokens, n=up_matrices(share) * width, k=hidden, dtype=dtype, split="outputs"),
        Gemm(m=share.tokens, n=hidden, k=width, dtype=dtype, split="inputs"),
    )


def up_matrices(share: Share) -> int:
    """Return how many matrices lead to the inner width: the gate is one."""
    return 2 if share.model.gated else 1


def activation(share: Share, tokens: Number, width: Number) -> Kernel:
    """Return the activation function, which is multiplied with its gate by a kernel of its own if nothing is fused."""
    options: tuple[tuple[str, str], ...] = (("kind", "swiglu" if share.model.gated else "gelu"),)
    if share.model.gated and not share.execution.fused_elementwise:
        options += (("kernels", "2"),)
    return Kernel(family="activation", shape=(tokens, width), dtype=share.execution.core_dtype, options=options)


def fuses_casts(share: Share) -> bool:
    """Return whether norm and activation function of a dense MLP write what its GEMMs read, and gradients likewise.

    Source: Megatron-LM, megatron/core/extensions/transformer_engine.py (TEFusedMLP); Transformer Engine,
    transformer_engine/pytorch/ops/basic/activation.py, rmsnorm.py (next_op_input_quantizer,
    prev_op_grad_output_quantizer).
    """
    recipe = share.execution.scaling
    return share.execution.fused_operations and recipe is not None and recipe.fused


def _cast_as_written(share: Share, kernel: Kernel) -> Kernel:
    """Return an activation function that writes its outputs, and gradients of its inputs, as GEMMs read them."""
    recipe = share.execution.scaling
    if recipe is None or not fuses_casts(share):
        return kernel
    copies = 2 if recipe.copies == "both" and share.trains_weights else 1
    return replace(kernel, options=(*kernel.options, ("writes", str(copies * recipe.element_bytes))))


def activations(share: Share, elements: Number) -> Activations:
    """Return the bytes around an activation function with so many outputs."""
    up, execution = up_matrices(share), share.execution
    width, copy = execution.element_bytes, int(share.model.gated and execution.activation_copy)
    return Activations(
        before=width * up * elements,
        after=0 if execution.fuses_pointwise else (width * copy + share.input_bytes) * elements,
        passing=width * (1 if execution.fuses_pointwise else up + 1) * elements,
    )
