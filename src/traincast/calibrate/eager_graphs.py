"""The kernels of a few transformers as PyTorch runs them eagerly in fp32: each operator one kernel.

Shapes and sequences are those of Hugging Face's GPT-2, OPT and BERT, which the measured runs of
NeuSight (arXiv 2407.13853) use; hidden sizes and layers are in data/README.md, gpt3_xl's 24
heads of 128 from its measured times. A backward pass runs, for each forward kernel, what PyTorch's
autograd does: two products per product, a softmax gradient, one or more element-wise kernels
per element-wise kernel, a reduction per bias, a sum where a tensor was used twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from traincast.estimate.operators import OperatorCall

DTYPE = "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerModel:
    """A transformer of one of three kinds.

    Parameters
    ----------
    kind : str
        ``gpt2``, ``opt`` or ``bert``: whose code it runs.
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
        As torch.compile fuses: element-wise chains in one kernel, also with a softmax or norm beside them.
    training : bool
        With dropout, and with BERT's head.
    """
    layer = list(_Layer(model, batch, seq, fused=fused, training=training).forward())
    return [*_ends(model, batch * seq, backward=False, training=training), *(layer * model.layers)]


def backward_calls(model: EagerModel, batch: int, seq: int) -> list[OperatorCall]:
    """Return the kernels of a backward pass, without an optimizer."""
    layer = list(_Layer(model, batch, seq, fused=False, training=True).backward())
    return [*_ends(model, batch * seq, backward=True, training=True), *(layer * model.layers)]


def _ends(model: EagerModel, tokens: int, *, backward: bool, training: bool) -> Iterator[OperatorCall]:
    """Yield embedding, last norm and head; BERT's inference runs have no head."""
    hidden = model.hidden
    direction = "backward" if backward else "forward"
    for vocabulary in (model.vocabulary, 1024):
        yield OperatorCall(family="embedding", shape=(tokens, hidden, vocabulary), dtype=DTYPE, direction=direction)
    if not backward:
        yield _pointwise(tokens, hidden, 2)
    yield OperatorCall(family="norm", shape=(tokens, hidden), dtype=DTYPE, direction=direction)
    if training or model.kind != "bert":
        yield from _product(tokens, model.vocabulary, hidden, backward=backward)


class _Layer:
    """One layer of a model over a batch of sequences."""

    def __init__(self, model: EagerModel, batch: int, seq: int, *, fused: bool, training: bool) -> None:
        self.model, self.fused, self.tokens, self.seq, self.training = model, fused, batch * seq, seq, training
        self.each, self.head_dim = batch * model.heads, model.hidden // model.heads
        self.scores = (self.each * seq, seq)

    def forward(self) -> Iterator[OperatorCall]:
        """Yield the kernels of the forward pass."""
        hidden, tokens = self.model.hidden, self.tokens
        for width in self._projections():
            yield from _product(tokens, width, hidden, backward=False)
        # Heads are permuted views, which a batched product copies into one piece: queries, keys, values.
        yield from (_pointwise(tokens, hidden, 1) for _ in range(3))
        yield _batched(self.each, self.seq, self.seq, self.head_dim)
        for inputs in () if self.fused else self._masking():
            yield _pointwise(*self.scores, inputs)
        yield OperatorCall(family="softmax", shape=self.scores, dtype=DTYPE)
        yield from self._dropout()
        yield _batched(self.each, self.seq, self.head_dim, self.seq)
        yield _pointwise(tokens, hidden, 1)
        yield from _product(tokens, hidden, hidden, backward=False)
        yield from _product(tokens, 4 * hidden, hidden, backward=False)
        for inputs in (1,) if self.fused else self._activation():
            yield _pointwise(tokens, 4 * hidden, inputs)
        yield from _product(tokens, hidden, 4 * hidden, backward=False)
        for _ in range(2):
            if not self.fused:
                yield _pointwise(tokens, hidden, 2)
            yield OperatorCall(family="norm", shape=(tokens, hidden), dtype=DTYPE)

    def backward(self) -> Iterator[OperatorCall]:
        """Yield the kernels of the backward pass."""
        hidden, tokens = self.model.hidden, self.tokens
        for n, k in (*((width, hidden) for width in self._projections()), (hidden, hidden), (4 * hidden, hidden),
                     (hidden, 4 * hidden)):  # fmt: skip
            yield from _product(tokens, n, k, backward=True)
        for shape in self._score_products():
            yield _batched(*shape)
        yield OperatorCall(family="softmax", shape=self.scores, dtype=DTYPE, direction="backward")
        for _ in self._masking():
            yield _pointwise(*self.scores, 1)
        yield from self._dropout()
        yield from (_pointwise(tokens, hidden, 1) for _ in range(4))
        for inputs in self._activation_gradient():
            yield _pointwise(tokens, 4 * hidden, inputs)
        for _ in range(2):
            yield OperatorCall(family="norm", shape=(tokens, hidden), dtype=DTYPE, direction="backward")
            yield _pointwise(tokens, hidden, 2)

    def _dropout(self) -> Iterator[OperatorCall]:
        """Yield dropout on scores and on both results, either way: a tensor in, one out, and a mask of a byte each."""
        if self.training:
            results = [(self.tokens, self.model.hidden)] * 2
            # OPT has none on its scores.
            for shape in results if self.model.kind == "opt" else (self.scores, *results):
                options = (("inputs", "1"), ("outputs", "1.25"))
                yield OperatorCall(family="elementwise", shape=shape, dtype=DTYPE, options=options)

    def _projections(self) -> tuple[int, ...]:
        hidden = self.model.hidden
        return (3 * hidden,) if self.model.kind == "gpt2" else (hidden, hidden, hidden)

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


def _pointwise(rows: int, width: int, inputs: int) -> OperatorCall:
    return OperatorCall(family="elementwise", shape=(rows, width), dtype=DTYPE, options=(("inputs", str(inputs)),))


def _batched(batch: int, m: int, n: int, k: int) -> OperatorCall:
    return OperatorCall(family="gemm", shape=(batch, m, n, k), dtype=DTYPE)


def _product(m: int, n: int, k: int, *, backward: bool) -> Iterator[OperatorCall]:
    """Yield a product, or the two of its gradient and the sum over rows that a bias needs."""
    if not backward:
        yield OperatorCall(family="gemm", shape=(m, n, k), dtype=DTYPE)
        return
    yield OperatorCall(family="gemm", shape=(m, n, k), dtype=DTYPE, direction="dgrad")
    yield OperatorCall(
        family="gemm", shape=(m, n, k), dtype=DTYPE, direction="wgrad", options=(("accumulate", "none"),)
    )
    yield OperatorCall(family="elementwise", shape=(m, n), dtype=DTYPE, options=(("inputs", "1"), ("outputs", "0")))
