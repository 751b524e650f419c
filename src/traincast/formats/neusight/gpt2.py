"""The operators of GPT-2 as Hugging Face's model runs them without fused kernels, under the names that torch.fx gives.

A function's nodes are numbered over the whole graph, and a layer has so many of each: 12 ``getitem`` (sizes and views),
12 ``add`` (8 of sizes, 2 residual sums, 2 in the activation function), 4 ``addmm`` and so on. Nodes that handle sizes
alone are in the file where NeuSight charges them with the two numbers that they move, and take no time here.
Sources: huggingface/transformers, models/gpt2/modeling_gpt2.py (v4.28: ``Conv1D``, ``GPT2Attention``,
``NewGELUActivation``); sitar-lab/NeuSight, its traced graph of gpt2_large.
"""

from collections.abc import Iterator, Mapping

from traincast.formats.neusight.graph import Calls, Node
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.workload.ops import OperatorCall

_PER_LAYER: Mapping[str, int] = {"getitem": 12, "add": 12, "mul": 4, "addmm": 4, "pow": 2, "matmul": 2}
"""Nodes of a function in a layer; 1 of the others."""
_BEFORE = {"getitem": 4, "add": 4, "pow": 1}
"""Number of the first such node of layer 0; 0 of the others."""
_FIRST_IN_LAYER = {"getitem": 4, "add": 4, "pow": 1}


def is_gpt2(model: Model) -> bool:
    """Say whether a model is of GPT-2's kind: learned positions, layer norms, biases, and a plain MLP with GELU."""
    attention = model.attention
    return (
        not model.gated
        and model.norm == "layer"
        and model.linear_bias
        and model.learned_positions > 0
        and model.experts is None
        and attention.latent is None
        and attention.kv_heads == attention.heads
        and all(model.names_of(layer) == ("attention", "mlp") for layer in range(model.layers))
    )


def gpt2_nodes(share: Share, layers: int) -> Iterator[Node]:
    """Yield the nodes of embedding, some layers and LM head, on one rank of tp 1."""
    model, tokens, hidden = share.model, int(share.tokens), share.model.hidden
    kernels = _Kernels(share)
    yield from (Node(name=_numbered("getitem", number)) for number in range(3))
    # The table of the tokens is the LM head's, whose row has its gradient; here is that of the positions.
    lookup = kernels.call("embedding", tokens, hidden, int(share.vocabulary))
    yield Node(
        name="transformer_wte",
        forward={lookup: 1.0},
        backward={kernels.call("embedding", tokens, hidden, int(share.vocabulary), direction="backward"): 1.0},
        gradients=model.learned_positions * hidden,
    )
    yield Node(name="add_1", forward=kernels.on_each(tokens, hidden, 2))
    yield Node(name="getitem_3")
    for layer in range(layers):
        yield from _layer(kernels, model, tokens, layer)
    yield kernels.norm("transformer_ln_f", tokens, hidden)
    # NeuSight counts a bias for every linear module, which the LM head does not have.
    yield kernels.linear("lm_head", tokens, int(share.vocabulary), hidden)


def _layer(kernels: "_Kernels", model: Model, tokens: int, layer: int) -> Iterator[Node]:
    hidden, inner, heads = model.hidden, model.ffn_hidden, kernels.heads
    queries, rows, dim = kernels.sequence, kernels.heads * kernels.sequence, model.attention.head_dim
    pairs = (rows, queries)

    def name(function: str, number: int = 0) -> str:
        before = _FIRST_IN_LAYER.get(function, 0)
        return _numbered(function, layer * _PER_LAYER.get(function, 1) + (number or before))

    def views(*numbers: int) -> Iterator[Node]:
        return (Node(name=name("getitem", number)) for number in numbers)

    each, scaled = kernels.on_each, kernels.on_each(*pairs, 1)
    yield kernels.norm(f"transformer_h_{layer}_ln_1", tokens, hidden)
    yield from views(4)
    yield kernels.linear(name("addmm"), tokens, 3 * hidden, hidden)
    # Queries, keys and values are views of one tensor; their gradients are put together into one again.
    yield Node(name=name("getitem", 5), backward={kernels.call("copy", tokens * 3 * hidden): 1.0})
    yield from views(6, 7, 8, 9, 10)
    yield kernels.batched_gemm(name("matmul"), heads, queries, queries, dim)
    yield Node(name=name("truediv"), forward=scaled, backward=scaled)
    yield from views(11)
    yield Node(name=name("where"), forward=scaled, backward=scaled)
    backward = kernels.call("softmax", *pairs, direction="backward")
    yield Node(name=name("softmax"), forward={kernels.call("softmax", *pairs): 1.0}, backward={backward: 1.0})
    yield kernels.batched_gemm(name("matmul", 1), heads, queries, dim, queries)
    copied = {kernels.call("copy", tokens * hidden): 1.0}
    yield Node(name=name("contiguous"), forward=copied, backward=copied)
    yield from views(12, 13)
    yield kernels.linear(name("addmm", 1), tokens, hidden, hidden)
    yield Node(name=name("add", 10), forward=each(tokens, hidden, 2))
    yield kernels.norm(f"transformer_h_{layer}_ln_2", tokens, hidden)
    yield from views(14)
    yield kernels.linear(name("addmm", 2), tokens, inner, hidden)
    one, two = each(tokens, inner, 1), each(tokens, inner, 2)
    # 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))); a product of two tensors has the gradients of both.
    yield Node(name=name("mul"), forward=one, backward=one)
    yield Node(name=name("pow", 2), forward=one, backward=two)
    yield Node(name=name("mul", 1), forward=one, backward=one)
    yield Node(name=name("add", 12), forward=two)
    yield Node(name=name("mul", 2), forward=one, backward=one)
    yield Node(name=name("tanh"), forward=one, backward=two)
    yield Node(name=name("add", 13), forward=one)
    yield Node(name=name("mul", 3), forward=two, backward=dict.fromkeys(two, 2.0))
    yield from views(15)
    yield kernels.linear(name("addmm", 3), tokens, hidden, inner)
    yield Node(name=name("add", 15), forward=each(tokens, hidden, 2))


def _numbered(function: str, number: int) -> str:
    """Return the name of a node; ``pow`` is a name of Python's own, so that its first node is ``pow_1``."""
    return f"{function}_{number}" if number else function


class _Kernels:
    """Makes the operator calls of a rank's microbatch, each a kernel of its own."""

    def __init__(self, share: Share) -> None:
        self.dtype = share.execution.core_dtype
        self.sequence = int(share.sequence)
        self.heads = int(share.sequences.count) * share.model.attention.heads

    def call(self, family: str, *shape: int, direction: str = "forward", **options: str) -> OperatorCall:
        return OperatorCall(
            family=family, shape=shape, dtype=self.dtype, direction=direction, options=tuple(options.items())
        )

    def on_each(self, rows: int, width: int, inputs: int) -> Calls:
        return {self.call("elementwise", rows, width, inputs=str(inputs)): 1.0}

    def norm(self, name: str, tokens: int, hidden: int) -> Node:
        calls = [self.call("norm", tokens, hidden, direction=way, kind="layer") for way in ("forward", "backward")]
        return Node(name=name, forward={calls[0]: 1.0}, backward={calls[1]: 1.0}, gradients=2 * hidden)

    def linear(self, name: str, tokens: int, outputs: int, inputs: int) -> Node:
        """Return a GEMM with a weight, and its bias."""
        calls = [self.call("gemm", tokens, outputs, inputs, direction=way) for way in ("forward", "dgrad", "wgrad")]
        gradients = outputs * inputs + outputs
        return Node(name=name, forward={calls[0]: 1.0}, backward=dict.fromkeys(calls[1:], 1.0), gradients=gradients)

    def batched_gemm(self, name: str, batch: int, m: int, n: int, k: int) -> Node:
        """Return a batched GEMM of two activations, whose gradients are two such GEMMs."""
        shapes = ((m, n, k), (m, k, n), (k, n, m))
        forward, *backward = (self.call("gemm", batch, *shape) for shape in shapes)
        return Node(name=name, forward={forward: 1.0}, backward=dict.fromkeys(backward, 1.0))
