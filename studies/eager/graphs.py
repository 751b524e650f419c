"""The kernels of a few transformers as PyTorch runs them eagerly in fp32: each operator one kernel.

Shapes and sequences are those of Hugging Face's GPT-2, OPT and BERT, which the measured runs of
NeuSight (arXiv 2407.13853) use; the sizes are in its `scripts/asplos/data/DLmodel_configs`. A backward
pass runs, for each forward kernel, what PyTorch's autograd does: two products per product, a
softmax gradient, one or more element-wise kernels per element-wise kernel, a reduction per bias, a
sum where a tensor was used twice. Its runs on several GPUs are Megatron-LM's
(`collect_label_distributed.py`): the same products, with the bias and GELU in one kernel.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from traincast.estimate.operators import OperatorCall

DTYPE = "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerModel:
    """A transformer of one of four kinds.

    Parameters
    ----------
    kind : str
        ``gpt2``, ``opt``, ``bert`` or ``megatron`` (GPT-2 by Megatron-LM): whose code it runs.
    hidden, layers, heads, vocabulary : int
        Sizes; the feed-forward part is four times as wide as the hidden size.
    """

    kind: str
    hidden: int
    layers: int
    heads: int
    vocabulary: int


MODELS = {
    "gpt2_large": EagerModel(kind="gpt2", hidden=1280, layers=36, heads=20, vocabulary=50257),
    "gpt3_xl": EagerModel(kind="gpt2", hidden=3072, layers=24, heads=24, vocabulary=50257),
    "gpt3_27": EagerModel(kind="gpt2", hidden=2560, layers=32, heads=32, vocabulary=50257),
    "opt_13": EagerModel(kind="opt", hidden=2048, layers=24, heads=32, vocabulary=50272),
    "bert_large": EagerModel(kind="bert", hidden=1024, layers=24, heads=16, vocabulary=30522),
}
"""Name in the labels to the model."""


def forward_calls(
    model: EagerModel, batch: int, seq: int, *, fused: bool = False, training: bool = False
) -> list[OperatorCall]:
    """Return the kernels of a forward pass.

    Parameters
    ----------
    model : EagerModel
        The model.
    batch, seq : int
        Sequences, and tokens in each.
    fused : bool
        As torch.compile fuses: element-wise chains in one kernel, also with an adjacent softmax or norm.
    training : bool
        With dropout, and with BERT's head.
    """
    layer = EagerLayer(model, batch, seq, fused=fused, training=training)
    each = [*layer.attention(), *layer.mlp()]
    tokens = batch * seq
    return [*embedding(model, tokens), *head(model, tokens, training=training), *(each * model.layers)]


def backward_calls(model: EagerModel, batch: int, seq: int) -> list[OperatorCall]:
    """Return the kernels of a backward pass, without an optimizer."""
    layer = EagerLayer(model, batch, seq)
    each = [*layer.attention_gradient(), *layer.mlp_gradient()]
    tokens = batch * seq
    return [*head_gradient(model, tokens), *embedding_gradient(model, tokens), *(each * model.layers)]


def accumulation_calls(model: EagerModel) -> list[OperatorCall]:
    """Return what adds new gradients to those that are there, a kernel per large parameter.

    NeuSight's loop never clears gradients between its 25 repetitions (`neusight/Tracing/trace.py`, measure_e2e),
    so all backward passes but the first add.
    """
    hidden = model.hidden
    widths = (3 * hidden, hidden, 4 * hidden, 4 * hidden)
    layer = [_pointwise(hidden, width, 2) for width in widths]
    return [*layer * model.layers, _pointwise(model.vocabulary, hidden, 2)]


def embedding(model: EagerModel, tokens: int) -> Iterator[OperatorCall]:
    """Yield what makes vectors of tokens: two look-ups and their sum."""
    yield from _lookups(model, tokens, "forward")
    yield _pointwise(tokens, model.hidden, 2)


def embedding_gradient(model: EagerModel, tokens: int) -> Iterator[OperatorCall]:
    """Yield the gradient of `embedding`."""
    yield from _lookups(model, tokens, "backward")


def head(model: EagerModel, tokens: int, *, training: bool = True, tp: int = 1) -> Iterator[OperatorCall]:
    """Yield last norm and head; BERT's inference runs have no head."""
    yield OperatorCall(family="norm", shape=(tokens, model.hidden), dtype=DTYPE)
    if training or model.kind != "bert":
        yield from product(tokens, model.vocabulary // tp, model.hidden)


def head_gradient(model: EagerModel, tokens: int, *, tp: int = 1) -> Iterator[OperatorCall]:
    """Yield the gradient of the loss, of the head and of the last norm.

    The loss itself is computed between the two timings of NeuSight's loop.
    """
    width = model.vocabulary // tp
    # The log-softmax reads its result and the gradient, which the loss has written, and writes its own.
    yield _pointwise(tokens, width, 0)
    yield _pointwise(tokens, width, 2)
    yield from product_gradient(tokens, width, model.hidden)
    yield OperatorCall(family="norm", shape=(tokens, model.hidden), dtype=DTYPE, direction="backward")


def _lookups(model: EagerModel, tokens: int, direction: str) -> Iterator[OperatorCall]:
    for rows in (model.vocabulary, 1024):
        yield OperatorCall(family="embedding", shape=(tokens, model.hidden, rows), dtype=DTYPE, direction=direction)


class EagerLayer:
    """One layer of a model over a batch of sequences, or what one rank of a tensor-parallel group has of it."""

    def __init__(
        self, model: EagerModel, batch: int, seq: int, *, fused: bool = False, training: bool = True, tp: int = 1
    ) -> None:
        self.model, self.fused, self.tokens, self.seq, self.training = model, fused, batch * seq, seq, training
        self.each, self.head_dim = batch * model.heads // tp, model.hidden // model.heads
        self.scores, self.width, self.tp = (self.each * seq, seq), model.hidden // tp, tp

    def attention(self) -> Iterator[OperatorCall]:
        """Yield the kernels of attention forward, up to the norm that follows."""
        hidden, tokens = self.model.hidden, self.tokens
        for width in self._projections():
            yield from product(tokens, width, hidden)
        # Heads are permuted views, which a batched product copies into one piece: queries, keys, values.
        yield from (_pointwise(tokens, self.width, 1) for _ in range(3))
        yield _batched(self.each, self.seq, self.seq, self.head_dim)
        for inputs in () if self.fused else self._masking():
            yield _pointwise(*self.scores, inputs)
        yield OperatorCall(family="softmax", shape=self.scores, dtype=DTYPE)
        yield from self._dropout_of_scores()
        yield _batched(self.each, self.seq, self.head_dim, self.seq)
        yield _pointwise(tokens, self.width, 1)
        yield from product(tokens, hidden, self.width)
        yield from self._residual()

    def mlp(self) -> Iterator[OperatorCall]:
        """Yield the kernels of the feed-forward part forward, up to the norm that follows."""
        hidden, tokens = self.model.hidden, self.tokens
        yield from product(tokens, 4 * self.width, hidden)
        for inputs in (1,) if self.fused else self._activation():
            yield _pointwise(tokens, 4 * self.width, inputs)
        yield from product(tokens, hidden, 4 * self.width)
        yield from self._residual()

    def attention_gradient(self) -> Iterator[OperatorCall]:
        """Yield the kernels of attention backward."""
        hidden, tokens = self.model.hidden, self.tokens
        for width in self._projections():
            yield from product_gradient(tokens, width, hidden)
        yield from product_gradient(tokens, hidden, self.width)
        for shape in self._score_products():
            yield _batched(*shape)
        yield OperatorCall(family="softmax", shape=self.scores, dtype=DTYPE, direction="backward")
        for _ in self._masking():
            yield _pointwise(*self.scores, 1)
        yield from self._dropout_of_scores()
        yield from (_pointwise(tokens, self.width, 1) for _ in range(4))
        yield from self._residual_gradient()

    def mlp_gradient(self) -> Iterator[OperatorCall]:
        """Yield the kernels of the feed-forward part backward."""
        hidden, tokens = self.model.hidden, self.tokens
        yield from product_gradient(tokens, 4 * self.width, hidden)
        yield from product_gradient(tokens, hidden, 4 * self.width)
        for inputs in self._activation_gradient():
            yield _pointwise(tokens, 4 * self.width, inputs)
        yield from self._residual_gradient()

    @property
    def parameters(self) -> int:
        """Weights, biases and norms of the layer on one rank."""
        hidden = self.model.hidden
        return (12 * hidden + 7) * self.width + 6 * hidden

    def _residual(self) -> Iterator[OperatorCall]:
        yield from self._dropout((self.tokens, self.model.hidden))
        if not self.fused:
            yield _pointwise(self.tokens, self.model.hidden, 2)
        yield OperatorCall(family="norm", shape=(self.tokens, self.model.hidden), dtype=DTYPE)

    def _residual_gradient(self) -> Iterator[OperatorCall]:
        shape = (self.tokens, self.model.hidden)
        yield from self._dropout(shape)
        yield OperatorCall(family="norm", shape=shape, dtype=DTYPE, direction="backward")
        yield _pointwise(*shape, 2)

    def _dropout_of_scores(self) -> Iterator[OperatorCall]:
        # OPT has none on its scores.
        if self.model.kind != "opt":
            yield from self._dropout(self.scores)

    def _dropout(self, shape: tuple[int, int]) -> Iterator[OperatorCall]:
        """Yield dropout either way: a tensor in, one out, and a mask of a byte each."""
        if self.training:
            options = (("inputs", "1"), ("outputs", "1.25"))
            yield OperatorCall(family="elementwise", shape=shape, dtype=DTYPE, options=options)

    def _projections(self) -> tuple[int, ...]:
        if self.model.kind in ("gpt2", "megatron"):
            return (3 * self.width,)
        return (self.width, self.width, self.width)

    def _score_products(self) -> Iterator[tuple[int, int, int, int]]:
        each, seq, head_dim = self.each, self.seq, self.head_dim
        yield from ((each, seq, head_dim, seq), (each, seq, head_dim, seq))
        yield from ((each, seq, seq, head_dim), (each, seq, head_dim, seq))

    def _masking(self) -> tuple[int, ...]:
        """Return the inputs of the kernels between scores and softmax: scale and mask (OPT: mask and clip)."""
        return (1, 1)

    def _activation(self) -> tuple[int, ...]:
        """Return the inputs of the activation's kernels; GPT-2 writes GELU out as eight of them."""
        return (1, 1, 1, 2, 1, 1, 1, 2) if self.model.kind == "gpt2" else (1,)

    def _activation_gradient(self) -> tuple[int, ...]:
        # Two products, tanh, two scalings, the power's three, half's one, and two sums of the three uses of the input.
        return (2, 2, 2, 1, 1, 1, 1, 2, 1, 2, 2) if self.model.kind == "gpt2" else (2,)


def by_megatron(model: EagerModel, tp: int) -> EagerModel:
    """Return a GPT as Megatron-LM runs it: its vocabulary is filled up to a multiple of 128 rows per rank."""
    share = 128 * tp
    return replace(model, kind="megatron", vocabulary=-(-model.vocabulary // share) * share)


def product(m: int, n: int, k: int) -> Iterator[OperatorCall]:
    """Yield a product of `m` tokens."""
    yield OperatorCall(family="gemm", shape=(m, n, k), dtype=DTYPE)


def product_gradient(m: int, n: int, k: int, *, bias: bool = True) -> Iterator[OperatorCall]:
    """Yield the two products of a product's gradient, and the sum over rows that a bias needs."""
    yield OperatorCall(family="gemm", shape=(m, n, k), dtype=DTYPE, direction="dgrad")
    yield OperatorCall(
        family="gemm", shape=(m, n, k), dtype=DTYPE, direction="wgrad", options=(("accumulate", "none"),)
    )
    if bias:
        yield OperatorCall(family="elementwise", shape=(m, n), dtype=DTYPE, options=(("inputs", "1"), ("outputs", "0")))


def _pointwise(rows: int, width: int, inputs: int) -> OperatorCall:
    return OperatorCall(family="elementwise", shape=(rows, width), dtype=DTYPE, options=(("inputs", str(inputs)),))


def _batched(batch: int, m: int, n: int, k: int) -> OperatorCall:
    return OperatorCall(family="gemm", shape=(batch, m, n, k), dtype=DTYPE)
