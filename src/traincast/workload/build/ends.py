"""What stands before the first layer and after the last one: embedding, output head, loss."""

from traincast.workload.build.emit import Emitter
from traincast.workload.build.kernels import Counted, Kernels
from traincast.workload.build.layer import Exchange, trains_weights
from traincast.workload.build.slice import Slice
from traincast.workload.words import Group, Operation, Phase


def head_rows(emit: Emitter, part: Slice, *, backward: bool) -> list[int]:
    """Return the final norm, output product and loss, with what tensor parallel ranks exchange for them."""
    job = part.job
    kernels = _head(part)
    extra = 1 + job.model.mtp_layers
    calls = times([*kernels.backward, *kernels.weight] if backward else kernels.forward, extra)
    if job.model.mtp_layers:
        further = _mtp_projection(part)
        calls += times([*further.backward, *further.weight] if backward else further.forward, job.model.mtp_layers)
    phase = Phase.BACKWARD if backward else Phase.FORWARD
    name = f"head {'backward' if backward else 'forward'}"
    rows = emit.compute(name, phase, calls)
    if job.parallel.tp > 1:
        operation = Operation.ALL_GATHER if part.splits_sequence else Operation.ALL_REDUCE
        if backward and part.splits_sequence:
            operation = Operation.REDUCE_SCATTER
        if part.splits_sequence or backward:
            rows += emit.exchange(Exchange(Group.TP, operation, part.activation_bytes, extra), phase)
        if part.splits_sequence and backward and trains_weights(part):
            # Its input is kept split and gathered again for the gradient of its weight.
            again = Exchange(Group.TP, Operation.ALL_GATHER, part.activation_bytes, extra)
            rows += emit.exchange(again, phase)
        if not backward:
            # Largest logit, its sum and the target's: three numbers for each token.
            rows += emit.exchange(Exchange(Group.TP, Operation.ALL_REDUCE, part.tokens * 4, 3 * extra), phase)
    return rows


def _head(part: Slice) -> Kernels:
    model = part.job.model
    vocab = -(-part.job.padded_vocab // part.job.parallel.tp)
    kernels = Kernels()
    kernels.simple("norm", (part.norm_tokens, model.hidden), part.core_dtype)
    kernels.linear(part.tokens, vocab, model.hidden, part.core_dtype, trained=trains_weights(part))
    kernels.simple("cross_entropy", (part.tokens, vocab), part.core_dtype)
    return kernels


def _mtp_projection(part: Slice) -> Kernels:
    """Return what joins a layer that predicts a further token to the model.

    Source: DeepSeek-V3, arXiv 2412.19437, section 2.2: a matrix from the hidden state and the next token's
    embedding together to the hidden state; its outputs are split as Megatron-LM does it
    (megatron/core/transformer/multi_token_prediction.py).
    """
    hidden = part.job.model.hidden
    kernels = Kernels()
    outputs = -(-hidden // part.job.parallel.tp)
    kernels.linear(part.tokens, outputs, 2 * hidden, part.linear_dtype, trained=trains_weights(part))
    return kernels


def embedding(part: Slice) -> Kernels:
    """Return the look-up of the tokens' vectors."""
    kernels = Kernels()
    kernels.simple("embedding", (part.tokens, part.job.model.hidden, part.job.padded_vocab), part.core_dtype)
    return kernels


def embedding_exchange(emit: Emitter, part: Slice, *, backward: bool) -> list[int]:
    """Return what tensor parallel ranks, each with a part of the vocabulary, exchange for the embedding.

    Source: Megatron-LM, megatron/core/tensor_parallel/layers.py (VocabParallelEmbedding).
    """
    if part.job.parallel.tp == 1 or (backward and not part.splits_sequence):
        return []
    operation = Operation.REDUCE_SCATTER if part.splits_sequence else Operation.ALL_REDUCE
    phase = Phase.WEIGHT_GRADIENT if backward else Phase.FORWARD
    return emit.exchange(
        Exchange(Group.TP, Operation.ALL_GATHER if backward else operation, part.activation_bytes), phase
    )


def times(calls: list[Counted], count: float) -> list[Counted]:
    """Return calls that run so many times as often."""
    return [(call, often * count) for call, often in calls]
