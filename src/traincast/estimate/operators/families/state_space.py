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

In bytes the kernels of Mamba-2 move what Triton's do (state-spaces/mamba e9594ce, mamba_ssm/ops/triton:
ssd_chunk_state.py, ssd_state_passing.py, ssd_bmm.py, ssd_chunk_scan.py). Forward: the kernel of the chunks' states and
the scan read the inputs, and the scan writes the outputs; states are written and read in fp32, passed on, and written
and read in 16 bits; scores are written and read in fp32. Backward these states are made again, then their gradients
likewise, and six kernels read inputs or gradients of outputs. The delta rule moves its inputs and outputs once, scores
twice and states four times, thrice that in the backward pass, and keeps the products of keys and values with the
inverse, too (fla-org/flash-linear-attention, fla/ops/gated_delta_rule/chunk.py).

Their GEMMs are small tiles between exponentials and reductions: matrix units wait for what the multiprocessors do
besides, so that their rate is taken as a multiple of that of general fp32 arithmetic (`TILE_RATE`), and what memory
moves comes on top, as kernels are bound by one or the other. What they cannot beat is the peak of the matrix units.
"""

from traincast.estimate.operators.families import BOTH_WAYS, FP32_BYTES, Size, Work, family, result_bytes
from traincast.workload.ops import OperatorCall

CHUNK = {"state_space": 128, "delta_rule": 64}
"""Tokens of a chunk: Megatron-LM, megatron/core/ssm/mamba_mixer.py (chunk_size); flash-linear-attention."""
KERNELS = {"forward": 5, "backward": 11}
"""Kernels of a pass: cumulative decays, chunk states, passing them on, scores, scan; backward those again and the
gradients of each."""
TILE_RATE = {"forward": 3.5, "backward": 2.3}
"""FLOP of these GEMMs in the time of one of fp32 arithmetic, at 85 % of the memory's rate: passes of four shapes on an
H100 SXM are met within 10 %, where the matrix units do 15 in that time (studies/data/state_space_kernels_h100.csv.gz;
docs/published-runs.md)."""
BACKWARD = 3.0
"""Work of a backward pass over that of the forward pass: two gradients, and the forward products again."""
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
    inner, narrow, chunk = heads * head_dim, groups * state, CHUNK["state_space"]
    wide, fp32, element = inner * state / chunk, FP32_BYTES, result_bytes(call.dtype)
    if call.direction == "forward":
        products = chunk * narrow + chunk * inner + 2 * state * inner
        moved = (
            element * (3 * inner + 4 * narrow) + 2 * (fp32 + element) * wide + fp32 * (2 * chunk * groups + 4 * heads)
        )
    else:
        products = 3 * chunk * narrow + 3 * chunk * inner + 5 * state * inner
        moved = element * (11 * inner + 10 * narrow) + (6 * fp32 + 5 * element) * wide
        moved += fp32 * (6 * chunk * groups + 12 * heads)
    return _scan(call, flops=tokens * 2.0 * products, moved=tokens * moved)


@family("delta_rule", "tokens", "heads", "key_dim", "value_dim", directions=BOTH_WAYS)
def delta_rule(call: OperatorCall) -> Work:
    """Return the work of a scan by the gated delta rule."""
    tokens, heads, key, value = call.shape
    chunk, passes = CHUNK["delta_rule"], BACKWARD if call.direction == "backward" else 1.0
    # Queries, keys, values, outputs, and twice what the inverse makes of keys and values.
    moved = result_bytes(call.dtype) * (4 * key + 4 * value + 2)
    moved += FP32_BYTES * (2 * chunk + _PASSES_OF_STATES * key * value / chunk)
    products = 3 * chunk * key + 2 * chunk * value + 3 * key * value
    return _scan(call, flops=passes * tokens * heads * 2.0 * products, moved=passes * tokens * heads * moved)


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


def _scan(call: OperatorCall, *, flops: float, moved: float) -> Work:
    return Work(
        constants=(call.family, "state_space"),
        flops=flops,
        bytes_moved=moved,
        compute_dtype="fp32",
        # Triton multiplies tiles of fp32 as tf32 where it is not told otherwise.
        bound_dtype="tf32" if call.dtype == "fp32" else call.dtype,
        efficiency=TILE_RATE[call.direction],
        kernels=KERNELS[call.direction],
    )
