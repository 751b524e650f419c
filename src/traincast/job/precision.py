"""The types that GEMMs and attention run in, and how values come to 8 bits or less."""

from msgspec import Struct

from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.dtypes import EIGHT_BIT, ELEMENT_TYPES, FOUR_BIT, PEAK_OF_DTYPE, PRECISIONS
from traincast.hardware.gpu import Gpu
from traincast.job.decisions import Decisions
from traincast.job.frameworks import Framework
from traincast.job.request import JobRequest
from traincast.model.recipes import RECIPES, recipes_of

FP8_RECIPES = ("none", *RECIPES)
"""How types of 8 and 4 bits are scaled (`traincast.model.recipes`)."""


class Precision(Struct, frozen=True, kw_only=True, rename={"dtype": "precision"}):
    """Types of the work."""

    dtype: str
    """Type of the GEMMs: one of `traincast.hardware.dtypes.PRECISIONS`."""
    fp8_recipe: str = "none"
    """How 8- and 4-bit types are scaled: one of `FP8_RECIPES`."""
    fp8_transposes: bool = False
    """Whether the matrix units of the GPU read 8 bits along the reduction alone (`Generation.fp8_transposes`)."""
    fp8_attention: bool = False
    """Whether the core of attention runs in 8 bits, too."""
    fp8_lm_head: bool = False
    """Whether the LM head runs as the layers do, in MXFP8.

    Its weight must be its own. Source: Megatron-LM, megatron/core/extensions/transformer_engine.py
    (TELMHeadColumnParallelLinear) and megatron/core/fp8_utils.py (is_mxfp8_output_proj_active), since May 2026.
    """
    bf16_first_last: bool = False
    """Whether the first and last layers stay in 16 bits."""
    last_wide_layers: int = 1
    """How many of the last ones do."""

    @property
    def in_eight_bits(self) -> bool:
        """Whether GEMMs read values of 8 bits or less."""
        return self.dtype in EIGHT_BIT

    def keeps_sixteen_bits(self, layer: int, layers: int) -> bool:
        """Return whether one of so many layers stays in 16 bits though others do not.

        Source: Megatron-LM, megatron/core/transformer/transformer_config.py (first_last_layers_bf16: by default one
        layer at the start and one at the end).
        """
        at_an_end = layer == 0 or layer >= layers - self.last_wide_layers
        return self.bf16_first_last and at_an_end and self.in_eight_bits


def decide_dtype(request: JobRequest, decided: Decisions) -> str:
    """Return the type of the GEMMs, bf16 or on GPUs before Ampere fp16 by default; refuse what the GPU lacks."""
    precision, gpu = request.precision, decided.gpu
    if precision is None:
        precision = "bf16" if gpu is None or gpu.generation.bf16 else "fp16"
        decided.note("assumed-precision", f"precision is not given: {precision}")
    found = precision_on(precision, gpu)
    if gpu is not None and found != precision:
        decided.note("precision-of-gpu", f"precision {precision}: {found}, the 4-bit type that {gpu.name} has")
    check_gpu(found, gpu)
    return found


def decide_precision(request: JobRequest, decided: Decisions, dtype: str) -> Precision:
    """Decide what goes with the type of the GEMMs: the recipe, and what stays in 16 bits; refuse recipes of others."""
    last = request.model.last_wide_layers if PEAK_OF_DTYPE[dtype] == FOUR_BIT else 0
    ends = bool(request.bf16_first_last)
    if last and request.bf16_first_last is None:
        ends = True
        decided.note(
            "assumed-wide-layers",
            f"bf16_first_last is not given: the first and the last {last} of {request.model.layers} layers stay in 16 "
            f"bits, as {request.model.name} is trained in 4",
        )
    return Precision(
        dtype=dtype,
        fp8_recipe=_recipe(request, decided.framework, dtype),
        fp8_transposes=decided.gpu is not None and decided.gpu.generation.fp8_transposes,
        fp8_attention=decided.framework.fp8_attention if request.fp8_attention is None else request.fp8_attention,
        fp8_lm_head=_head_in_eight_bits(request, decided, dtype),
        bf16_first_last=ends,
        last_wide_layers=max(1, last),
    )


def _head_in_eight_bits(request: JobRequest, decided: Decisions, dtype: str) -> bool:
    """Return whether the LM head runs in MXFP8; say why not where it was asked for."""
    if not request.fp8_lm_head:
        return False
    why = f"GEMMs run in {dtype}, not in mxfp8" if dtype != "mxfp8" else ""
    if request.model.tied_embeddings:
        why = f"the LM head of {request.model.name} is its embedding's table"
    if why:
        decided.note("fp8-lm-head-unused", f"fp8_lm_head has no effect: {why}")
    return not why


def _recipe(request: JobRequest, framework: Framework, precision: str) -> str:
    known = recipes_of(precision) or ("none",)
    said = request.fp8_recipe
    if said is not None and said not in known and precision in ELEMENT_TYPES:
        remedy = f"; precision {RECIPES[said].dtype} is scaled so" if said in RECIPES else ""
        raise ConfigError(f"is {said}, but GEMMs run in {precision} ({', '.join(known)}){remedy}", "fp8_recipe")
    return said or (framework.fp8_recipe if framework.fp8_recipe in known else known[0])


def precision_on(precision: str, gpu: Gpu | None) -> str:
    """Return the type that a precision stands for on a GPU: of ``fp4`` the one of 4 bits that its matrix units take.

    Raises
    ------
    ConfigError
        If it is ``fp4`` and no GPU is given.
    InfeasibleError
        If the GPU has no such type.
    """
    if precision != FOUR_BIT:
        return precision
    known = [each for each in PRECISIONS if PEAK_OF_DTYPE[each] == FOUR_BIT]
    if gpu is None:
        text = f"is {FOUR_BIT}, and no GPU says which 4-bit type that is; use {' or '.join(known)}"
        raise ConfigError(text, "precision")
    found = next((each for each in gpu.generation.scaled_blocks if each in known and gpu.has_peak(each)), None)
    if found is None:
        raise InfeasibleError(
            f"{gpu.name} ({gpu.architecture or 'unknown'}) has no matrix units for a 4-bit type "
            f"({' or '.join(known)}); use {'fp8' if gpu.has_peak('fp8') else 'bf16'}"
        )
    return found


def check_gpu(precision: str, gpu: Gpu | None) -> None:
    """Refuse types that the GPU's matrix units do not have."""
    if gpu is None:
        return
    missing = ""
    if precision == "bf16" and not gpu.generation.bf16:
        missing = "use fp16"
    elif precision in ("fp8", "fp8_block") and not gpu.has_peak("fp8"):
        missing = "use bf16"
    elif ELEMENT_TYPES[precision].small_blocks and precision not in gpu.generation.scaled_blocks:
        others = [each for each in gpu.generation.scaled_blocks if gpu.has_peak(each) and each[-1] == precision[-1]]
        missing = f"use {others[0] if others else 'fp8' if gpu.has_peak('fp8') else 'bf16'}"
    elif ELEMENT_TYPES[precision].small_blocks and not gpu.has_peak(precision):
        missing = "use mxfp8"
    if missing:
        raise InfeasibleError(
            f"{gpu.name} ({gpu.architecture or 'unknown'}) has no matrix units for {precision}; {missing}"
        )
