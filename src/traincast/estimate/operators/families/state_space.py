"""Scans of layers that keep a state in place of all keys and values, most in chunks of tokens as GEMMs.

``state_space``: (tokens, heads, head_dim, state, groups), Mamba-2's. With H heads of P channels and states of width N,
G groups that share B and C, and chunks of L tokens, a token takes in FLOP: the scores of its chunk 2 L N G, these times
the inputs 2 L P H, what its chunk adds to the state 2 N P H, and what it reads of it 2 N P H (Dao and Gu 2024, arXiv
2405.21060, section 6.1, steps 1 to 4).

``delta_rule``: (tokens, heads, key_dim, value_dim), the gated delta rule. With keys of width N and values of width P a
head takes for a token: the products of its chunk's keys 2 L N, of their inverse with keys and values 2 L (N + P), the
scores and these times the values 2 L (N + P), and three products with the state, each 2 N P (Yang et al. 2024, arXiv
2412.06464, section 3.3).

``selective_scan``: (tokens, channels, state), Mamba-1's, whose channels decay each by itself, so that no GEMM
does it: one kernel of fp32 arithmetic scans pieces of the sequence, and keeps the states of their ends alone. An
element of the state takes an exponential and four multiply-adds, and a channel reads its input, step and gate and
writes its output; the backward pass does it again, with two gradients for each (Gu and Dao 2023, arXiv 2312.00752,
section 3.3.2; state-spaces/mamba, csrc/selective_scan/selective_scan_fwd_kernel.cuh and selective_scan_bwd_kernel.cuh).

In bytes a token of the first two moves its inputs and outputs once, the fp32 scores of its chunk twice (written, read),
and the fp32 states of its chunk four times: written by one kernel, read and written by the one that passes them on, and
read. The delta rule keeps the products of keys and values with the inverse, too. The backward pass has each product's
two gradients, and the forward products again, as its kernels keep none of them (state-spaces/mamba,
mamba_ssm/ops/triton/ssd_combined.py; fla-org/flash-linear-attention, fla/ops/gated_delta_rule/chunk.py).
"""

from traincast.estimate.operators.families import BOTH_WAYS, FP32_BYTES, Size, Work, family, result_bytes
from traincast.workload.ops import OperatorCall

CHUNK = {"state_space": 128, "delta_rule": 64}
"""Tokens of a chunk: Megatron-LM, megatron/core/ssm/mamba_mixer.py (chunk_size); flash-linear-attention."""
KERNELS = {"forward": 5, "backward": 11}
"""Kernels of a pass: cumulative decays, chunk states, passing them on, scores, scan; backward those again and the
gradients of each."""
SUSTAINED = 0.6
"""Rate of these kernels, written in Triton, over that of pointwise ones: with 1 the seven published runs of Nemotron-H
56B on H100 are forecast 8 to 13 % short, with 0.6 within 4 % (docs/published-runs.md)."""
BACKWARD = 3.0
"""Work of the backward pass over that of the forward pass: two gradients, and the forward products again."""
_PASSES_OF_STATES = 4
_CHANNEL_TENSORS = {"forward": 4, "backward": 7}
"""Tensors as wide as the channels that a pass of the selective scan reads or writes."""
_SELECTIVE_FLOPS, _EXPONENTIAL_FLOPS = 9.0, 16.0
"""FLOP of an element of the state, and what an exponential takes of the time of FLOP: multiprocessors of compute
capability 9.0 do 16 in a clock, and 128 multiply-adds (CUDA C++ Programming Guide, arithmetic instructions)."""


@family("state_space", "tokens", "heads", "head_dim", "state", Size("groups", 1), directions=BOTH_WAYS)
def state_space(call: OperatorCall) -> Work:
    """Return the work of Mamba-2's scan."""
    tokens, heads, head_dim, state, groups = call.shape
    inner, chunk = heads * head_dim, CHUNK["state_space"]
    return _scan(
        call,
        flops=tokens * 2.0 * (chunk * state * groups + chunk * inner + 2 * state * inner),
        elements=tokens * (2 * inner + 2 * groups * state + heads),
        scores=tokens * chunk * groups,
        states=tokens * inner * state / chunk,
    )


@family("delta_rule", "tokens", "heads", "key_dim", "value_dim", directions=BOTH_WAYS)
def delta_rule(call: OperatorCall) -> Work:
    """Return the work of a scan by the gated delta rule."""
    tokens, heads, key, value = call.shape
    chunk = CHUNK["delta_rule"]
    return _scan(
        call,
        flops=tokens * heads * 2.0 * (3 * chunk * key + 2 * chunk * value + 3 * key * value),
        # Queries, keys, values, outputs, and twice what the inverse makes of keys and values.
        elements=tokens * heads * (4 * key + 4 * value + 2),
        scores=tokens * chunk * heads,
        states=tokens * heads * key * value / chunk,
    )


@family("selective_scan", "tokens", "channels", "state", directions=BOTH_WAYS)
def selective_scan(call: OperatorCall) -> Work:
    """Return the work of Mamba-1's scan."""
    tokens, channels, state = call.shape
    passes = BACKWARD if call.direction == "backward" else 1.0
    narrow = {"forward": result_bytes(call.dtype), "backward": result_bytes(call.dtype) + FP32_BYTES}[call.direction]
    wide = _CHANNEL_TENSORS[call.direction] * channels * result_bytes(call.dtype)
    return Work(
        constants=(call.family, "elementwise"),
        flops=passes * _SELECTIVE_FLOPS * tokens * channels * state,
        bytes_moved=tokens * (wide + 2 * state * narrow),
        compute_dtype="fp32",
        efficiency=_SELECTIVE_FLOPS / (_SELECTIVE_FLOPS + _EXPONENTIAL_FLOPS),
    )


def _scan(call: OperatorCall, *, flops: float, elements: float, scores: float, states: float) -> Work:
    moved = result_bytes(call.dtype) * elements + FP32_BYTES * (2 * scores + _PASSES_OF_STATES * states)
    passes = BACKWARD if call.direction == "backward" else 1.0
    return Work(
        constants=(call.family, "elementwise"),
        flops=passes * flops,
        bytes_moved=passes * moved / SUSTAINED,
        kernels=KERNELS[call.direction],
    )
