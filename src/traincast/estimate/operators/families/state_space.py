"""The scan of a state-space model in chunks (Mamba-2's SSD).

``state_space``: (tokens, heads, head_dim, state, groups). With H heads of P channels whose state has width N, G
groups that share B and C, and chunks of L tokens, a token takes in FLOP: the scores of its chunk 2 L N G, these times
the inputs 2 L P H, what its chunk adds to the state 2 N P H, and what it reads of it 2 N P H (Dao and Gu 2024, arXiv
2405.21060, section 6.1, steps 1 to 4). The backward pass has each product's two gradients, and the forward products
again, as its kernels keep none of them (state-spaces/mamba, mamba_ssm/ops/triton/ssd_combined.py).

In bytes a token moves its inputs and outputs once, the fp32 scores of its chunk twice (written, read), and the fp32
states of its chunk four times: written by one kernel, read and written by the one that passes them on, and read.
"""

from traincast.estimate.operators.families import BOTH_WAYS, FP32_BYTES, Size, Work, family, result_bytes
from traincast.workload.ops import OperatorCall

CHUNK = 128
"""Tokens of a chunk: Megatron-LM, megatron/core/ssm/mamba_mixer.py (chunk_size)."""
KERNELS = {"forward": 5, "backward": 11}
"""Kernels of a pass: cumulative decays, chunk states, passing them on, scores, scan; backward those again and the
gradients of each (mamba_ssm/ops/triton/ssd_combined.py)."""
SUSTAINED = 0.6
"""Rate of these kernels, written in Triton, over that of pointwise ones: with 1 the seven published runs of Nemotron-H
56B on H100 are forecast 8 to 13 % short, with 0.6 within 4 % (docs/measured.md)."""
BACKWARD = 3.0
"""Work of the backward pass over that of the forward pass: two gradients, and the forward products again."""


@family(
    "state_space",
    *("tokens", "heads", "head_dim", "state"),
    Size("groups", 1),
    directions=BOTH_WAYS,
)
def state_space(call: OperatorCall) -> Work:
    """Return the work of a chunked scan."""
    tokens, heads, head_dim, state, groups = call.shape
    inner, element = heads * head_dim, result_bytes(call.dtype)
    flops = 2.0 * (CHUNK * state * groups + CHUNK * inner + 2 * state * inner)
    tensors = element * (2 * inner + 2 * groups * state + heads)
    scores, states = 2 * FP32_BYTES * CHUNK * groups, 4 * FP32_BYTES * inner * state / CHUNK
    passes = BACKWARD if call.direction == "backward" else 1.0
    return Work(
        constants=("state_space", "elementwise"),
        flops=passes * flops * tokens,
        bytes_moved=passes * (tensors + scores + states) * tokens / SUSTAINED,
        kernels=KERNELS[call.direction],
    )
