"""Scores of an indexer, which chooses the keys that each query of sparse attention meets.

``index_scores``: (batch, queries, keys, heads, dim, topk). Each query of each head meets `keys` keys of one head; what
is above zero of the scores is summed over the heads with a weight for each, and `topk` keys are chosen
(DeepSeek-V3.2, arXiv 2512.02556, section 2.1, equation 1). The sum is made where the scores are, so that one fp32
score a pair is written, and read by the choice; keys and queries are read once. The backward pass has the gradients of
both, from the scores again (deepseek-ai/DeepGEMM, fp8_mqa_logits).
"""

from traincast.estimate.operators.families import (
    BOTH_WAYS,
    FP32_BYTES,
    Tiling,
    Work,
    element_bytes,
    family,
)
from traincast.workload.ops import OperatorCall

_INDEX_BYTES = 4.0
_PRODUCTS = {"forward": 1, "backward": 3}
"""GEMMs of a pass: the scores; backward those again, and the gradients of queries and keys."""


@family("index_scores", "batch", "queries", "keys", "heads", "dim", "topk", directions=BOTH_WAYS)
def index_scores(call: OperatorCall) -> Work:
    """Return the work of scoring and choosing keys."""
    batch, queries, keys, heads, dim, topk = call.shape
    products = _PRODUCTS[call.direction]
    read = element_bytes(call.dtype) * dim * (queries * heads + keys)
    scores = FP32_BYTES * queries * (2 * keys + heads) + _INDEX_BYTES * queries * topk
    return Work(
        constants=("index_scores", "attention"),
        flops=products * 2.0 * batch * queries * keys * heads * dim,
        bytes_moved=batch * (products * read + scores),
        tiling=Tiling(batch=batch, m=queries * heads, n=keys, k=dim),
        kernels=2,
    )
