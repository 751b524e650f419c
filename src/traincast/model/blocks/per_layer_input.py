"""An input of a layer's own for each token: a row of a table and a projection of the embedding, gated by the layer.

Source: Gemma 3n and Gemma 4, huggingface/transformers, src/transformers/models/gemma4/modular_gemma4.py
(``embed_tokens_per_layer``, ``per_layer_model_projection``, ``per_layer_input_gate``, ``per_layer_projection``). The
table and the projection of all layers together are the layers' own here, so that each stage holds those of its layers;
the one norm that all share is among a model's ``other_params``.
"""

from msgspec import Struct

from traincast.model.blocks.common import around, exchange, norm, norm_kernel, residual
from traincast.model.blocks.part import Gemm, Kernel, Part, block
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.numbers import ceil_div


class PerLayerInput(Struct, frozen=True):
    """The block after the MLP that adds a layer's input; channels are split over tp, as those of an MLP are."""

    width: int
    """Channels of the input."""

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the lookup, the projection of the embedding, gate, product, projection back, norm and residual sum."""
        model, execution, tokens = share.model, share.execution, share.tokens
        width, exchanged, dtype = ceil_div(self.width, share.tp), around(share), execution.core_dtype
        element = execution.element_bytes
        rows = Kernel(
            family="embedding",
            shape=(tokens, self.width, share.vocabulary),
            dtype=dtype,
            has_backward=share.trains_weights,
        )
        table = Part(
            name="per_layer_input.word_embeddings",
            counts_as="tables",
            vectors=share.table_rows * self.width,
            kernels=(rows,),
            forward=exchange(share, "all_reduce", share.tp > 1, width=self.width),
        )
        projected = Part(
            name="per_layer_input.model_projection",
            counts_as="per_layer_inputs",
            gemms=(Gemm(m=tokens, n=width, k=model.hidden, dtype=execution.precision),),
            kernels=(norm_kernel(share, tokens, width), _pointwise(share, width)),
            saved={"per-layer inputs": 2 * tokens * width * element},
        )
        gate = Part(
            name="per_layer_input.gate",
            counts_as="per_layer_inputs",
            gemms=(Gemm(m=tokens, n=width, k=model.hidden, dtype=execution.precision, split="outputs"),),
            kernels=(Kernel(family="activation", shape=(tokens, width), dtype=dtype, options=(("kind", "geglu"),)),),
            saved={
                "per-layer gate inputs": share.norm_tokens * model.hidden * share.input_bytes,
                "per-layer inputs": 2 * tokens * width * element,
            },
            forward=exchanged.enter_forward,
            backward=exchanged.enter_backward,
        )
        back = Part(
            name="per_layer_input.projection",
            counts_as="per_layer_inputs",
            gemms=(Gemm(m=tokens, n=model.hidden, k=width, dtype=execution.precision, split="inputs"),),
            forward=exchanged.leave_forward,
            backward=exchanged.leave_backward,
        )
        after = norm(share, "post_per_layer_input_norm")
        return table, projected, gate, back, after, residual(share, "per_layer_input_bda")


def _pointwise(share: Share, width: int) -> Kernel:
    """Return the sum of a token's row and its projected embedding."""
    dtype = share.execution.core_dtype
    return Kernel(family="elementwise", shape=(share.tokens, width), dtype=dtype, backward_alike=True)


@block("per_layer_input", settings=("per_layer_input_width",))
def _per_layer_input(model: Model, _layer: int) -> PerLayerInput:
    return PerLayerInput(**model.sizes("per_layer_input", ("width",)))
