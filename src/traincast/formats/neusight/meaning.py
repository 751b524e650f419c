"""What the names of NeuSight's operators mean: how their computation slows down beside communication.

A name is that of a node of a traced model: a function with a running number (``addmm_12``, ``softmax``) or
the path of a module (``transformer_h_0_ln_1``, ``lm_head``).

Source: sitar-lab/NeuSight, the operator names of its traced graphs, which are those of ``torch.fx``.
"""

from traincast.workload.words import OverlapClass

_PRODUCTS = frozenset({"addmm", "baddbmm", "bmm", "dense", "einsum", "head", "linear", "matmul", "mm", "proj"})
_STREAMS = frozenset(
    {
        *("softmax", "norm", "layernorm", "ln", "dropout", "gelu", "relu", "silu", "tanh", "sigmoid", "erf", "rsqrt"),
        *("add", "sub", "rsub", "mul", "div", "truediv", "pow", "neg", "exp", "mean", "sum", "where", "cat", "to"),
        *("contiguous", "clone", "type", "float", "embedding", "embeddings", "wte", "wpe", "act"),
    }
)
_ENDINGS = frozenset({"grad", "f"})
"""Last words that say nothing of the work: a gradient's row, and GPT-2's final norm ``ln_f``."""


def overlap_class_of(name: str) -> OverlapClass:
    """Return the class of an operator by the last telling word of its name; unknown where none is known."""
    words = [word for word in name.lower().split("_") if word and not word.isdigit() and word not in _ENDINGS]
    last = words[-1] if words else ""
    if last in _PRODUCTS:
        return OverlapClass.COMPUTE_BOUND
    return OverlapClass.MEMORY_BOUND if last in _STREAMS else OverlapClass.UNKNOWN
