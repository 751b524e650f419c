"""What stands before the first layer and after the last one: embedding, LM head, MTP projections."""

from msgspec import Struct
from msgspec.structs import replace

from traincast.model.blocks import eager
from traincast.model.blocks.common import (
    around,
    entered,
    exchange,
    gradient_sums,
    hyper_connection,
    norm,
    norm_elements,
    norm_kernel,
)
from traincast.model.blocks.part import Exchange, Gemm, Kernel, Part
from traincast.model.blocks.share import Share
from traincast.model.numbers import ceil_div


class Embedding(Struct, frozen=True):
    """The lookup of the tokens' vectors, a table whose rows are split over tp; learned positions.

    Source: Megatron-LM, megatron/core/tensor_parallel/layers.py (VocabParallelEmbedding).
    """

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return both tables, and the norm of what is looked up."""
        model = share.model
        tables: tuple[Part, ...] = (replace(_lookup(share), vectors=share.table_rows * model.hidden),)
        positions = model.learned_positions * model.hidden
        if positions:
            tables += (Part(name="embedding.position_embeddings", counts_as="positions", vectors=positions),)
        if model.embedding_norm:
            tables += (norm(share, "embedding.layernorm", counts_as="embedding"),)
        return tables


class EmbeddingCopy(Struct, frozen=True):
    """The table of the embedding again, where MTP layers are on another rank than it.

    Source: Megatron-LM, megatron/core/models/gpt/gpt_model.py (``mtp_process``).
    """

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the table; it is read in the projections of these layers."""
        elements = share.table_rows * share.model.hidden
        return (Part(name="embedding.word_embeddings", counts_as="embedding", vectors=elements),)


def _lookup(share: Share) -> Part:
    """Return the lookup of the tokens' vectors, with what ranks exchange that have some rows of the table each."""
    split, whole = share.splits_sequence, share.copies_sequence
    kernels = _one_hot(share) if share.execution.one_hot_embedding else _gathered(share)
    sums = gradient_sums(share, share.table_rows * share.model.hidden) if share.trains_weights else ()
    return Part(
        name="embedding.word_embeddings",
        counts_as="embedding",
        kernels=(
            *kernels,
            *(replace(each, has_forward=False, backward_alike=True) for each in sums),
        ),
        forward=(*exchange(share, "reduce_scatter", split), *exchange(share, "all_reduce", whole)),
        backward=exchange(share, "all_gather", split) if share.trains_weights else (),
    )


def _gathered(share: Share) -> tuple[Kernel, ...]:
    """Return the gather of rows of the table, and the scatter of their gradients."""
    shape = (share.tokens, share.model.hidden, share.vocabulary)
    dtype = share.execution.core_dtype
    return (Kernel(family="embedding", shape=shape, dtype=dtype, has_backward=share.trains_weights),)


def _one_hot(share: Share) -> tuple[Kernel, ...]:
    """Return the GEMM of one-hot rows with a rank's part of the table, and that of its gradient.

    Source: AI-Hypercomputer/maxtext, layers/embeddings.py (use_iota_embed: one_hot @ embedding).
    """
    tokens, hidden, rows, dtype = share.tokens, share.model.hidden, share.table_rows, share.execution.core_dtype
    forward = Kernel(family="gemm", shape=(tokens, hidden, rows), dtype=dtype, has_backward=False)
    backward = Kernel(family="gemm", shape=(rows, hidden, tokens), dtype=dtype, has_forward=False, backward_alike=True)
    return (forward, backward) if share.trains_weights else (forward,)


class LmHead(Struct, frozen=True):
    """The final norm, the LM head, whose outputs are split over tp, and the loss over the split vocabulary.

    Source: Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py (largest logit, its sum and the target's are
    reduced: three numbers for each token).
    """

    shared_table: bool = False
    """Whether its matrix is held by another block of the same rank."""

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the norm, the GEMM and the loss."""
        model, dtype = share.model, share.execution.core_dtype
        split, whole = share.splits_sequence, share.copies_sequence
        gathered = exchange(share, "all_gather", split)
        reduced = (*exchange(share, "reduce_scatter", split), *exchange(share, "all_reduce", whole))
        in_eight_bits = share.execution.eight_bit_head
        gemm = Gemm(
            m=share.tokens,
            n=share.table_rows,
            k=model.hidden,
            dtype=share.execution.precision if in_eight_bits else dtype,
            split="outputs" if in_eight_bits else "",
            elements_of_another=self.shared_table,
        )
        loss = Exchange(group="tp", operation="all_reduce", size_bytes=share.tokens * 4 * (share.tp > 1), count=3)
        logits = share.tokens * share.table_rows
        streams = model.residual_streams
        summed = (hyper_connection(share, "hyper_head", streams, counts_as="final_norm"),) if streams > 1 else ()
        return (
            *summed,
            norm(share, "final_layernorm", counts_as="final_norm", saved="LM head inputs"),
            Part(
                name="output_layer",
                counts_as="head",
                gemms=(gemm,),
                vectors=share.table_rows if model.head_bias and not self.shared_table else 0,
                saved={"LM head inputs": share.norm_bytes, "logits": share.execution.saved_logit_bytes * logits},
                forward=gathered,
                backward=entered(share, gathered, reduced),
            ),
            Part(
                name="loss",
                counts_as="head",
                kernels=_loss(share),
                forward=(loss,),
            ),
        )


def _loss(share: Share) -> tuple[Kernel, ...]:
    """Return what computes the loss from the logits."""
    execution = share.execution
    if execution.eager_layers and execution.loss_kernel == "eager":
        return eager.loss(share)
    options = (("kernel", execution.loss_kernel), ("code", execution.loss_code))
    shape = (share.tokens, share.table_rows)
    return (Kernel(family="cross_entropy", shape=shape, dtype=execution.core_dtype, options=options),)


class OtherParameters(Struct, frozen=True):
    """Parameters that are in no block, such as BERT's pooler."""

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return them, without any work."""
        return (Part(name="other", counts_as="other", vectors=share.model.other_params),)


class MtpProjection(Struct, frozen=True):
    """What joins an MTP layer to the model.

    A matrix from the hidden state and the next token's embedding together, each with a norm of its own, to the hidden
    state. Sources: DeepSeek-V3, arXiv 2412.19437, section 2.2; Megatron-LM, megatron/core/transformer/
    multi_token_prediction.py (the outputs of the matrix are split over tp and gathered again).
    """

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the lookup of the next token, the norms and the projection."""
        hidden, execution, read = share.model.hidden, share.execution, around(share, 2 * share.model.hidden)
        gemm = Gemm(
            m=share.tokens, n=ceil_div(hidden, share.tp), k=2 * hidden, dtype=execution.precision, split="outputs"
        )
        norms = (norm_kernel(share, share.norm_tokens, hidden),)
        return (
            _lookup(share),
            *(
                Part(
                    name=name,
                    counts_as="mtp_projections",
                    vectors=norm_elements(share.model),
                    kernels=norms,
                    saved={"MTP inputs": share.norm_bytes},
                )
                for name in ("enorm", "hnorm")
            ),
            Part(
                name="eh_proj",
                counts_as="mtp_projections",
                gemms=(gemm,),
                saved={"MTP inputs": share.norm_tokens * 2 * hidden * share.input_bytes},
                forward=(*read.enter_forward, *exchange(share, "all_gather", share.tp > 1)),
                backward=(*exchange(share, "all_gather", share.splits_sequence), *read.enter_backward),
            ),
        )
