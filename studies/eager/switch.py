"""The kernels of a Switch Transformer as Hugging Face's PyTorch code runs it eagerly in fp32.

An encoder and a decoder of T5 layers, every second one with experts (arXiv 2101.03961). Sizes and capacity are
those of NeuSight's `scripts/asplos/data/DLmodel_configs/switchxl4.json`; what runs is
`SwitchTransformersForConditionalGeneration` of transformers 4.35. NeuSight feeds it equal tokens
(`neusight/Tracing/trace.py`): without dropout all of them choose the same expert, which takes as many of
a sequence as its capacity; with dropout they spread over all experts. The tokens of an expert are found
by a boolean index, for which the host waits.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from eager.graphs import DTYPE, product, product_gradient
from traincast.estimate.operators import OperatorCall

_NORM_INPUTS = (1, 1, 1)
"""T5's norm in full width: square, scale by the root, multiply with the weight; besides a mean and two small ones."""
_ROUTER_KERNELS = 14
"""Small kernels of a router: softmax, argmax, one-hot, running count, comparison with the capacity, products."""
_INDEX_KERNELS = 6
"""Small kernels that find the tokens of an expert, and again those that put them back: cast, count, select, offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchModel:
    """A Switch Transformer.

    Parameters
    ----------
    hidden, ffn, heads, head_dim, vocabulary : int
        Sizes.
    layers : int
        Of the encoder, and as many of the decoder; every second one has experts.
    experts, capacity : int
        Experts of such a layer, and tokens of a sequence that each takes.
    """

    hidden: int
    ffn: int
    heads: int
    head_dim: int
    vocabulary: int
    layers: int
    experts: int
    capacity: int


SWITCH_MODELS = {
    "switchxl4": SwitchModel(
        hidden=1024, ffn=16384, heads=32, head_dim=128, vocabulary=32128, layers=24, experts=4, capacity=64
    )
}
"""Name in the labels to the model."""

Segments = list[list[OperatorCall]]
"""Kernels between which the host waits for the device."""


def switch_forward(model: SwitchModel, batch: int, seq: int, *, training: bool = False) -> Segments:
    """Return the kernels of a forward pass, split where the host waits for the device."""
    parts = _Switch(model, batch, seq, training=training)
    segments: Segments = [[]]
    for decoder in (False, True):
        segments[-1] += parts.ends(decoder=decoder)
        for layer in range(model.layers):
            segments[-1] += parts.attention() * (2 if decoder else 1)
            if layer % 2:
                first, *more = parts.sparse()
                segments[-1] += first
                segments += more
            else:
                segments[-1] += parts.dense()
    return segments


def switch_backward(model: SwitchModel, batch: int, seq: int) -> list[OperatorCall]:
    """Return the kernels of a backward pass with the addition to the gradients that are there."""
    parts = _Switch(model, batch, seq, training=True)
    pairs = model.layers // 2
    each = [*parts.attention_gradient() * 3, *parts.attention_gradient() * 3]
    each += [*parts.dense_gradient() * 2, *parts.sparse_gradient() * 2]
    return [*parts.head_gradient(), *each * pairs, *parts.accumulation()]


class _Switch:
    """The parts of a Switch Transformer over a batch of sequences."""

    def __init__(self, model: SwitchModel, batch: int, seq: int, *, training: bool) -> None:
        self.model, self.training, self.batch, self.seq = model, training, batch, seq
        self.tokens, self.inner = batch * seq, model.heads * model.head_dim
        self.each = batch * model.heads
        self.scores = (self.each * seq, seq)
        spread = model.experts if training else 1
        self.busy, self.taken = spread, batch * min(model.capacity, -(-seq // spread))

    def ends(self, *, decoder: bool) -> list[OperatorCall]:
        """Return look-up, position bias and last norm, and the head of the decoder."""
        model, tokens = self.model, self.tokens
        calls = [OperatorCall(family="embedding", shape=(tokens, model.hidden, model.vocabulary), dtype=DTYPE)]
        calls += [_plain(self.scores, 1), _plain(self.scores, 2), *self._norm()]
        if decoder:
            calls += [_plain((tokens, model.hidden), 1), *product(tokens, model.vocabulary, model.hidden)]
        return calls

    def attention(self) -> list[OperatorCall]:
        """Return the kernels of self- or cross-attention with its norm."""
        tokens, inner, hidden = self.tokens, self.inner, self.model.hidden
        calls = self._norm()
        for _ in range(3):
            calls += product(tokens, inner, hidden)
        calls += self._copies(3)
        calls += [_bmm(self.each, self.seq, self.seq, self.model.head_dim), _plain(self.scores, 2)]
        calls += [OperatorCall(family="softmax", shape=self.scores, dtype=DTYPE), *self._dropout(self.scores)]
        calls += [_bmm(self.each, self.seq, self.model.head_dim, self.seq), _plain((tokens, inner), 1)]
        return [*calls, *product(tokens, hidden, inner), *self._residual()]

    def dense(self) -> list[OperatorCall]:
        """Return the kernels of a feed-forward part without experts."""
        return [*self._norm(), *self._mlp(self.tokens), *self._residual()]

    def sparse(self) -> Segments:
        """Return the kernels of a feed-forward part with experts; the host waits between the segments."""
        hidden, tokens = self.model.hidden, self.tokens
        whole = (tokens, hidden)
        jitter = [_plain(whole, 0), _plain(whole, 2)] if self.training else []
        router = [*product(tokens, self.model.experts, hidden), *self._small(_ROUTER_KERNELS)]
        segments = [[*self._norm(), *jitter, *router, _plain(whole, 1), *self._small(_INDEX_KERNELS)]]
        for expert in range(self.model.experts):
            put_back = self._small(_INDEX_KERNELS)
            if expert < self.busy:
                moved = _plain((self.taken, hidden), 1)
                segments += [[moved, *self._mlp(self.taken), *put_back], [moved, *self._small(_INDEX_KERNELS)]]
            else:
                segments += [put_back, self._small(_INDEX_KERNELS)]
        segments[-1] += [_plain(whole, 2), *self._residual()]
        return segments

    def head_gradient(self) -> list[OperatorCall]:
        """Return the gradient of loss, head, last norms and look-ups."""
        model, tokens = self.model, self.tokens
        logits = (tokens, model.vocabulary)
        look_up = OperatorCall(
            family="embedding", shape=(tokens, model.hidden, model.vocabulary), dtype=DTYPE, direction="backward"
        )
        head = product_gradient(tokens, model.vocabulary, model.hidden, bias=False)
        return [_plain(logits, 0), _plain(logits, 2), *head, *self._norm_gradient() * 2, look_up, look_up]

    def attention_gradient(self) -> list[OperatorCall]:
        """Return the gradient of `attention`."""
        tokens, inner, hidden, head_dim = self.tokens, self.inner, self.model.hidden, self.model.head_dim
        calls = [*self._dropout((tokens, hidden)), *product_gradient(tokens, hidden, inner, bias=False)]
        calls += [_bmm(self.each, self.seq, self.seq, head_dim), _bmm(self.each, self.seq, head_dim, self.seq)]
        calls += self._dropout(self.scores)
        calls += [OperatorCall(family="softmax", shape=self.scores, dtype=DTYPE, direction="backward")]
        # The position bias is shared by all layers, so its gradient is summed over them.
        calls += [_plain(self.scores, 2)]
        calls += [_bmm(self.each, self.seq, head_dim, self.seq)] * 2
        calls += self._copies(4)
        for _ in range(3):
            calls += product_gradient(tokens, inner, hidden, bias=False)
        # Three uses of the input and the residual are summed.
        return [*calls, *[_plain((tokens, hidden), 2)] * 3, *self._norm_gradient()]

    def dense_gradient(self) -> list[OperatorCall]:
        """Return the gradient of `dense`."""
        return [*self._mlp_gradient(self.tokens), *self._end_gradient()]

    def sparse_gradient(self) -> list[OperatorCall]:
        """Return the gradient of `sparse`."""
        hidden, tokens = self.model.hidden, self.tokens
        calls = [_plain((tokens, hidden), 2), _plain((tokens, hidden), 2), *self._small(_ROUTER_KERNELS)]
        for _ in range(self.busy):
            calls += [_plain((self.taken, hidden), 1), *self._mlp_gradient(self.taken)]
            # Each use of the input gets a gradient of its size, filled with zeros, that is added to the others.
            calls += [*self._small(_INDEX_KERNELS), *[_plain((tokens, hidden), each) for each in (0, 1, 2)]]
        calls += product_gradient(tokens, self.model.experts, hidden, bias=False)
        return [*calls, *self._end_gradient()]

    def accumulation(self) -> list[OperatorCall]:
        """Return what adds new gradients to those that are there (`eager_graphs.accumulation_calls`)."""
        model, pairs = self.model, self.model.layers
        wide, projection = _plain((model.hidden, model.ffn), 2), _plain((model.hidden, self.inner), 2)
        each = [*[wide] * 2 * (1 + model.experts), *[projection] * 4 * 3]
        return [*each * pairs, _plain((model.vocabulary, model.hidden), 2)]

    def _mlp(self, tokens: int) -> list[OperatorCall]:
        hidden, ffn = self.model.hidden, self.model.ffn
        inside = [_plain((tokens, ffn), 1), *self._dropout((tokens, ffn))]
        return [*product(tokens, ffn, hidden), *inside, *product(tokens, hidden, ffn)]

    def _mlp_gradient(self, tokens: int) -> list[OperatorCall]:
        hidden, ffn = self.model.hidden, self.model.ffn
        inside = [*self._dropout((tokens, ffn)), _plain((tokens, ffn), 2)]
        out, into = (product_gradient(tokens, *shape, bias=False) for shape in ((hidden, ffn), (ffn, hidden)))
        return [*out, *inside, *into]

    def _end_gradient(self) -> list[OperatorCall]:
        whole = (self.tokens, self.model.hidden)
        return [*self._dropout(whole), *self._norm_gradient(), _plain(whole, 2)]

    def _norm(self) -> list[OperatorCall]:
        whole = (self.tokens, self.model.hidden)
        return [*(_plain(whole, each) for each in _NORM_INPUTS), _plain(whole, 1, 0), *self._small(2)]

    def _norm_gradient(self) -> list[OperatorCall]:
        whole = (self.tokens, self.model.hidden)
        # Of the weight, of both products' inputs, of the mean (spread out again), of the square; and their sum.
        return [*(_plain(whole, each) for each in (2, 1, 1, 2, 0, 2, 2)), *[_plain(whole, 2, 0)] * 2, *self._small(4)]

    def _residual(self) -> list[OperatorCall]:
        whole = (self.tokens, self.model.hidden)
        return [*self._dropout(whole), _plain(whole, 2)]

    def _copies(self, count: int) -> list[OperatorCall]:
        """Return copies of permuted heads; with one sequence a product reads them where they are."""
        return [_plain((self.tokens, self.inner), 1)] * (count if self.batch > 1 else 0)

    def _small(self, count: int) -> list[OperatorCall]:
        return [_plain((self.tokens, self.model.experts), 1)] * count

    def _dropout(self, shape: tuple[int, int]) -> Iterator[OperatorCall]:
        if self.training:
            yield _plain(shape, 1, 1.25)


def _plain(shape: tuple[int, int], inputs: int, outputs: float = 1) -> OperatorCall:
    options = (("inputs", str(inputs)), ("outputs", f"{outputs:g}"))
    return OperatorCall(family="elementwise", shape=shape, dtype=DTYPE, options=options)


def _bmm(batch: int, m: int, n: int, k: int) -> OperatorCall:
    return OperatorCall(family="gemm", shape=(batch, m, n, k), dtype=DTYPE)
