"""Which GPU runs which attention kernel, and which one a framework takes instead.

What each generation runs is a column of `data/gpus/generations.csv`. A vendor that is not NVIDIA has its own kernels
under their own names: ``ck`` are AMD's that Transformer Engine takes (ROCm/composable_kernel, and ROCm/aiter's, which
have gone before them since 2025), ``fa2`` on AMD the composable kernels of FlashAttention, splash attention is that of
TPU (jax, jax/experimental/pallas/ops/tpu/splash_attention; tokamax); for others stands the generation that their fused
kernel is like: NKI (Trainium), FusedSDPA (Gaudi) and CANN (Ascend).

Sources: README of Dao-AILab/flash-attention (1.x: Turing to Hopper; 2: Ampere to Hopper, later Blackwell, and CDNA 2 to
4 through ROCm; 3: Hopper, whose asynchronous matrix instructions it is written in); NVIDIA cuDNN, scaled dot product
attention (compute capability 8.0 and above); the Triton kernel of flash-attention and AOTriton (Ampere and above,
CDNA 2 to 4); Transformer Engine, attention backends (flash attention goes before cuDNN below Hopper).
"""

from traincast.errors import InfeasibleError
from traincast.hardware.gpu import Gpu, generations

ATTENTION_KERNELS = ("unfused", "fa1", "fa2", "fa3", "cudnn", "triton", "splash", "ck")
"""Generations of attention kernels; ``unfused`` writes the score matrix to memory."""

TITLES = {
    "fa1": "flash attention 1",
    "fa2": "flash attention 2",
    "fa3": "flash attention 3",
    "cudnn": "cuDNN's fused attention",
    "triton": "Triton's flash attention",
    "splash": "splash attention",
    "ck": "composable-kernel attention",
}
"""Fused kernels as messages name them."""

_NEXT_BEST = ("ck", "splash", "fa2", "fa1")
"""What frameworks fall back to where a kernel does not run, in this order; then none."""

_OF_MOST = ("fa1", "fa2", "triton")


def runs_kernel(kernel: str, gpu: Gpu) -> bool:
    """Say whether a GPU is known to run one of `ATTENTION_KERNELS`."""
    return kernel == "unfused" or kernel in gpu.generation.attention


def check_kernel(kernel: str, gpu: Gpu) -> None:
    """Refuse an attention kernel that a GPU of a known architecture does not run; the message names those it runs."""
    if not gpu.architecture or runs_kernel(kernel, gpu):
        return
    needed = [each.title for each in generations().values() if kernel in each.attention]
    runs = [each for each in ATTENTION_KERNELS if runs_kernel(each, gpu)]
    raise InfeasibleError(
        f"{TITLES[kernel]} needs {_either(needed)}; {gpu.name} is {gpu.architecture}: use {_either(runs)}"
    )


def kernel_instead(kernel: str, gpu: Gpu) -> tuple[str, str | None]:
    """Return the kernel that a framework runs on a GPU where it would take `kernel`; why, where it is another one."""
    found = next((each for each in _NEXT_BEST if runs_kernel(each, gpu)), "unfused")
    if kernel in gpu.generation.passed_over:
        return found, f"frameworks take it before {kernel} on {gpu.architecture}"
    if runs_kernel(kernel, gpu):
        return kernel, None
    if not gpu.architecture:
        # A chip that nobody knows is taken to run what most chips run, and not the kernels of a single vendor.
        return (kernel, None) if kernel in _OF_MOST else ("fa2", f"nothing says that {kernel} runs on {gpu.name}")
    return found, f"{kernel} does not run on {gpu.architecture}"


def _either(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
