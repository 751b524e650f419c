"""The rows of the tables: what one transformer layer runs, exchanges, keeps and holds on one rank.

The tables are written out by hand from papers and frameworks, as numbers and short arithmetic on the shapes that
the papers print; nothing here or in a table asks the product. What the product does is asked in `layer.product` alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Kernel(NamedTuple):
    """A kernel, and how often it runs for one microbatch: forward, for the input gradient, for the weight gradient."""

    what: str
    kind: str
    sizes: tuple[int, ...]
    forward: float = 1
    backward: float = 1
    weight: float = 0
    dtype: str = "bf16"


class Exchange(NamedTuple):
    """A communication of one rank: bytes as nccl-tests counts them, and how often in each pass of a microbatch."""

    what: str
    group: str
    operation: str
    size_bytes: int
    forward: float = 1
    backward: float = 1


class Tensor(NamedTuple):
    """A tensor that waits for the backward pass; several tensors may be kept under one part."""

    what: str
    part: str
    size_bytes: float


class Weight(NamedTuple):
    """A parameter: all its elements, and those that one rank holds."""

    what: str
    elements: int
    held: int
    expert: bool = False


class Case(NamedTuple):
    """One layer of a model under one layout.

    `fields` are those of a job request; `dense` asks for a dense layer of a model with experts.
    """

    name: str
    model: str
    fields: Mapping[str, object]
    kernels: tuple = ()
    exchanges: tuple = ()
    tensors: tuple = ()
    weights: tuple = ()
    dense: bool = False


def gemm(what, m, n, k, dtype="bf16"):
    """A product of m tokens with a weight of k inputs and n outputs, and the two of its backward pass."""
    return Kernel(what, "gemm", (m, n, k), 1, 1, 1, dtype)


def grouped(what, rows, n, k, experts, dtype="bf16"):
    """Products of several experts, with all their tokens together."""
    return Kernel(what, "grouped gemm", (rows, n, k, experts), 1, 1, 1, dtype)


def pointwise(what, kind, *sizes, count=1, dtype="bf16"):
    """A kernel that runs as often in the backward pass."""
    return Kernel(what, kind, sizes, count, count, 0, dtype)


def gradient_sum(what, elements):
    """What adds a weight's gradient to that of the step, in a framework whose GEMMs do not (Megatron-LM of 2021 and
    nanotron: a hook on every parameter)."""
    return Kernel(what, "accumulate", (elements,), 0, 0, 1)


def cast(what, elements, *, copies=2, tensors=1, dtype="fp8", backward=False):
    """A cast of some tensors, of so many elements together: what a GEMM reads, or the gradient of what it gave."""
    often = (0, 1) if backward else (1, 0)
    return Kernel(what, f"cast to {copies}", (tensors, elements), *often, 0, dtype)


def on_a_ring(case, cp, tokens, *, outputs, queries, keys_values):
    """A case whose cp ranks pass keys and values around: sums over the ranks, of a token's outputs in fp32, and of the
    gradients of its queries, and of its keys and values, in 16 bits (Transformer Engine, context_parallel.py). Of all
    tokens for its own keys; for those of others half the time of all, half the time of the second piece."""
    steps = 1 + (cp - 1) * 3 / 4
    sums = (
        Kernel("sums of outputs", "elementwise", (tokens, outputs), steps, 0, 0, "fp32"),
        Kernel("sums of the gradients of queries", "elementwise", (tokens, queries), 0, steps),
        Kernel("sums of the gradients of keys and values", "elementwise", (tokens, keys_values), 0, steps),
    )
    return case._replace(kernels=(*case.kernels, *sums))


def kernel_counts(rows: Iterable[Kernel]) -> dict[str, Counter]:
    """Return how often each kernel runs, by pass."""
    found = {"forward": Counter(), "input gradient": Counter(), "weight gradient": Counter()}
    for row in rows:
        for counts, often in zip(found.values(), (row.forward, row.backward, row.weight), strict=True):
            if often:
                counts[row.kind, row.sizes, row.dtype] += often
    return found


def exchange_counts(rows: Iterable[Exchange]) -> dict[str, Counter]:
    """Return how often each communication runs, by pass."""
    found = {"forward": Counter(), "backward": Counter()}
    for row in rows:
        for counts, often in zip(found.values(), (row.forward, row.backward), strict=True):
            if often:
                counts[row.group, row.operation, row.size_bytes] += often
    return found


def tensor_sums(rows: Iterable[Tensor]) -> Counter:
    """Return the bytes that are kept, by part."""
    found = Counter()
    for row in rows:
        found[row.part] += row.size_bytes
    return found
