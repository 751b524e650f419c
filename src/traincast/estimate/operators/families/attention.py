"""Attention: one fused kernel, or the GEMMs and the softmax each on its own.

Shape of both: (batch, queries, keys, heads, kv_heads, qk_dim, v_dim): sequence lengths of queries
and keys, heads of queries and of keys/values (fewer: GQA), and the sizes of a query/key head and of a
value head (different in MLA). `causal`: the queries are the last of the keys' sequence and see
no later key. `window`: keys seen at most.

``attention`` takes the option ``kernel``: ``fa1 fa2 fa3 cudnn triton splash ck fallback``, the generation of the
kernel (default: the best measured on the GPU). Forward makes 2 GEMMs per score (Q K', P V),
backward 5 (Q K' again, dO V', P' dO, dS K, dS' Q), as in FlashAttention-2 (arXiv 2307.08691,
section 2); scores that a mask hides are neither counted nor, but for the diagonal's blocks, computed.
With the option ``dropout=yes`` a random number is drawn for each score, forward and again backward.

``unfused_attention`` writes the scores to memory and computes masked ones too. Option
``passes``: how often the scores cross memory in its softmax part (default 4: softmax reads and
writes, dropout reads and writes).
"""

from traincast.errors import ConfigError, InfeasibleError
from traincast.estimate.operators.families import BOTH_WAYS, Size, Tiling, Work, element_bytes, family
from traincast.hardware import attention_kernels
from traincast.hardware.attention_kernels import ATTENTION_KERNELS
from traincast.hardware.dtypes import EIGHT_BIT
from traincast.hardware.gpu import Gpu
from traincast.workload.ops import OperatorCall

KERNELS = ("auto", "fa1", "fa2", "fa3", "cudnn", "triton", "splash", "ck", "fallback")
"""Generations of fused attention kernels; ``fallback``: what runs where none of them takes the head size."""
DIAGONAL = 64
"""Half a block of keys: what a causal mask cuts from the diagonal's blocks is computed and thrown away."""
_DIAGONAL_OF = {"splash": 512}
"""The same of kernels with larger blocks: splash attention computes blocks of 512 to 2,048 queries and keys, recipes
set 1,024 and more (AI-Hypercomputer/maxtext, configs/base.yml: sa_block_q, sa_block_kv)."""
ALIGNED = 8
"""Heads of another size cannot be loaded 16 bytes at a time."""
MISALIGNED_SHARE = 1 / 3.4
"""Rate of a misaligned head size: order of magnitude, from 6 training runs (docs/published-runs.md)."""


_SOFTMAX_WIDTH = {"forward": 412.0, "backward": 1800.0}
"""What the softmax of a score takes in 8 bits, in widths of the GEMMs that a score takes part in: heads of 64, of 128,
and of 192 with values of 128 take .40 ms + .97 us a unit of width forward and 1.8 ms + 1 us backward, for 256 heads of
4,096 tokens (cudnn-frontend, benchmark/sdpa_benchmark_training/results: MXFP8 on a GB200)."""
_WIDTH_OF_128 = {"forward": 256.0, "backward": 640.0}
"""That of heads of 128, for which the constants of kernels hold."""

_BACKWARD_WIDTH = 380.0
"""Likewise of cuDNN's backward pass in 16 bits: heads of 64 take 1.4 times what those of 128 do for as much work
(a profiled step of Llama 3.2 1B on H100, PyTorch 2.11: studies/data, own_machine_transformers-llama3.2-1b-4096x2)."""

_DROPOUT_SHARE = {
    ("cudnn", "forward"): 0.44,
    ("cudnn", "backward"): 0.81,
    ("fa2", "forward"): 0.81,
    ("fa2", "backward"): 0.86,
}
"""Rate with dropout of .1 over that without, by kernel and direction: medians of heads of 64 and 128 and sequences of
2,048 and 4,096 tokens on an H100 (PyTorch 2.11: studies/data, attention_kernels_h100.csv.gz). Other kernels have those
of FlashAttention 2, whose random numbers (Philox) they draw."""

_SIZES = (
    Size("batch", 1),
    Size("queries"),
    Size("keys", "queries"),
    Size("heads"),
    Size("kv_heads", "heads"),
    Size("qk_dim"),
    Size("v_dim", "qk_dim"),
)


def _check_kernel(call: OperatorCall, gpu: Gpu) -> None:
    """Refuse an attention kernel that a GPU cannot run, by the rule that jobs are refused by."""
    kernel = dict(call.options).get("kernel")
    if kernel in ATTENTION_KERNELS:
        try:
            attention_kernels.check_kernel(kernel, gpu)
        except InfeasibleError as error:
            raise ConfigError(str(error), "kernel") from None


def keys_per_query(queries: float, keys: float, causal: bool, window: int) -> float:
    """Return how many keys a query sees on average.

    The queries are the last of the sequence: query i of them sees ``keys - queries + i + 1`` keys.
    """
    seen = min(window, keys) if window else keys
    if not causal:
        return float(seen)
    first = max(keys - queries + 1, 1)
    # Queries before this one see fewer than the window.
    rising = min(max(seen - first, 0), queries)
    return float((rising * (2 * first + rising - 1) / 2 + (queries - rising) * seen) / queries)


def _in_eight_bits(width: float, direction: str) -> float:
    """Return the rate of attention in 8 bits over that of heads of 128: the softmax is no faster than in 16 bits."""
    return _of_128(width, _SOFTMAX_WIDTH[direction], _WIDTH_OF_128[direction])


def _of_128(width: float, fixed: float, of_128: float) -> float:
    """Return the rate over that of heads of 128 where each score takes as long as so many widths more."""
    return (width / (width + fixed)) / (of_128 / (of_128 + fixed))


def _diagonal(kernel: str, keys: float, computed: float) -> float:
    """Return the keys that a query meets beyond those it sees, in the blocks that a mask cuts."""
    block = _DIAGONAL_OF.get(kernel)
    return DIAGONAL if block is None else min(block, keys - computed)


@family(
    "attention",
    *_SIZES,
    directions=BOTH_WAYS,
    options={"kernel": KERNELS, "dropout": ("no", "yes")},
    masked=True,
    cost_class=lambda call: f"attention {dict(call.options).get('kernel', 'fa2')}",
    check=_check_kernel,
)
def attention(call: OperatorCall, *, kernel: str, dropout: str) -> Work:
    """Return the work of a fused attention kernel."""
    batch, queries, keys, heads, kv_heads, qk_dim, v_dim = _checked(call)
    backward = call.direction == "backward"
    seen = keys_per_query(queries, keys, call.causal, call.window)
    masked = call.causal or 0 < call.window < keys
    width = 3 * qk_dim + 2 * v_dim if backward else qk_dim + v_dim
    efficiency, computed = MISALIGNED_SHARE if qk_dim % ALIGNED or v_dim % ALIGNED else 1.0, seen
    if kernel == "cudnn" and call.dtype in EIGHT_BIT:
        # Its backward pass computes scores beyond a window, too: with one of 128 it takes 2.1 and 7.4 ms for 4,096 and
        # 8,192 tokens, in bf16 .5 and .9 (cudnn-frontend, as above, gpt_oss).
        computed = keys_per_query(queries, keys, call.causal, 0) if backward else seen
        efficiency *= _in_eight_bits(width, call.direction)
    elif kernel == "cudnn" and backward:
        efficiency *= min(1.0, _of_128(width, _BACKWARD_WIDTH, _WIDTH_OF_128["backward"]))
    if dropout == "yes":
        efficiency *= _DROPOUT_SHARE.get((kernel, call.direction)) or _DROPOUT_SHARE["fa2", call.direction]
    base = "attention_backward" if backward else "attention"
    q_o, k_v = heads * queries * (qk_dim + v_dim), kv_heads * keys * (qk_dim + v_dim)
    elements = 2 * (q_o + k_v) + heads * queries * v_dim if backward else q_o + k_v
    return Work(
        constants=(base,) if kernel == "auto" else (f"{base}_{kernel}", base),
        flops=2.0 * batch * heads * queries * width * seen,
        bytes_moved=batch * elements * max(element_bytes(call.dtype), 1.0),
        tiling=Tiling(
            batch=batch * heads,
            m=queries,
            n=width,
            k=computed + _diagonal(kernel, keys, computed) * masked,
            whole_n=True,
            depths=((qk_dim, 3 if backward else 1), (v_dim, 2 if backward else 1)),
        ),
        efficiency=efficiency,
        coordinates=(queries, batch * heads, qk_dim),
        terms=(("keys per query", seen),),
    )


@family(
    "unfused_attention",
    *_SIZES,
    directions=BOTH_WAYS,
    options={"passes": 4.0},
    masked=True,
    cost_class=lambda _: "attention unfused",
)
def unfused_attention(call: OperatorCall, *, passes: float) -> Work:
    """Return the work of attention whose scores go through memory: batched GEMMs and a softmax."""
    batch, queries, keys, heads, _, qk_dim, v_dim = _checked(call)
    backward = call.direction == "backward"
    each = batch * heads
    shapes = [(each, queries, keys, qk_dim), (each, queries, v_dim, keys)]
    if backward:
        shapes = [
            (each, queries, keys, v_dim),
            (each, keys, v_dim, queries),
            (each, queries, qk_dim, keys),
            (each, keys, qk_dim, queries),
        ]
    # The gradient of the softmax reads one more matrix than it writes.
    traffic = passes * (1.5 if backward else 1.0)
    softmax = OperatorCall(
        family="elementwise",
        shape=(each * queries, keys),
        dtype=call.dtype,
        options=(("inputs", f"{traffic / 2:g}"), ("outputs", f"{traffic / 2:g}"), ("kind", "softmax")),
    )
    parts = [OperatorCall(family="gemm", shape=shape, dtype=call.dtype) for shape in shapes]
    return Work(constants=(), flops=0.0, bytes_moved=0.0, parts=(*parts, softmax))


def _checked(call: OperatorCall) -> tuple[int, ...]:
    _, queries, keys, heads, kv_heads, *_ = call.shape
    if heads % kv_heads:
        raise ConfigError(f"{heads} heads cannot share {kv_heads} heads of keys and values evenly", "shape")
    if call.causal and queries > keys:
        raise ConfigError(f"{queries} causal queries cannot be the last of {keys} keys", "shape")
    if call.window < 0:
        raise ConfigError(f"is {call.window}; it must be 0 (all keys) or a number of keys", "window")
    return call.shape
