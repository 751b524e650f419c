"""An operator as it is called: its family, its shape and how it runs, and nothing of what it costs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """One kernel (or a fused group of them) on one GPU."""

    family: str
    """Name of the operator model: gemm, grouped_gemm, attention, norm ... (`traincast.estimate.operators`)."""
    shape: tuple[int, ...]
    """Sizes, with the meaning that the family documents."""
    dtype: str
    """Type of the inputs: bf16, fp16, fp32, tf32, fp8, fp8_block, mxfp8, nvfp4."""
    direction: str = "forward"
    """``forward``; of a matrix product ``dgrad`` and ``wgrad``; of others ``backward``."""
    causal: bool = False
    window: int = 0
    """Tokens an attention query sees back; 0: all."""
    options: tuple[tuple[str, str], ...] = ()
    """Further properties, such as the generation of an attention kernel, ``(("kernel", "fa2"),)``."""
