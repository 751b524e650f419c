"""Element types: their bytes, the peak that limits GEMMs of them, and which of them a job can compute in.

A row of `data/dtypes.csv` is all that a further one needs. Scales take one fp32 per 128 x 128 block (fp8_block, as in
DeepSeek-V3, arXiv 2412.19437), one byte per 32 values (mx formats, OCP Microscaling specification 1.0) or per 16
(nvfp4).
"""

from collections.abc import Mapping

from msgspec import Struct

from traincast.registry import known_name
from traincast.shipped import shipped_rows
from traincast.tables import from_row


class ElementType(Struct, frozen=True, kw_only=True):
    """One type of elements."""

    name: str
    bytes: float
    """Bytes of an element with its share of the scales."""
    kept_bytes: int = 0
    """Those without scales, as files count them; 0: none counts in it. tf32 is a way to compute and is kept as fp32."""
    peak: str = ""
    """The peak of a datasheet that limits GEMMs of it; empty: none."""
    precision: bool = False
    """Whether it can be the type of the inputs of a job's GEMMs: fp8 is scaled per tensor, the others as said above;
    attention and the LM head stay in 16 bits below that."""
    small_blocks: bool = False
    """Whether it has a scale for each small block, which matrix units have or have not."""
    copies_bytes: float = 0.0
    """Per matrix element, of the copies for the two GEMMs that use it, scales included (Transformer Engine)."""
    stand_ins: tuple[str, ...] = ()
    """Types whose sustained shares of their peaks come nearest, nearest first."""


ELEMENT_TYPES: Mapping[str, ElementType] = {
    each.name: each for each in (from_row(row, ElementType) for row in shipped_rows("dtypes.csv"))
}

_BY_WIDTH = sorted(ELEMENT_TYPES.values(), key=lambda each: -each.kept_bytes)
DTYPE_BYTES = {each.name: each.kept_bytes for each in _BY_WIDTH if each.kept_bytes}
"""Types that files count their elements in, and their bytes."""

PEAK_OF_DTYPE = {each.name: each.peak for each in ELEMENT_TYPES.values() if each.peak}
"""Element type of a GEMM to the peak that limits it."""

PRECISIONS = tuple(each.name for each in ELEMENT_TYPES.values() if each.precision)

FOUR_BIT = "fp4"
"""Precision that stands for the 4-bit type of a chip, one with scales for small blocks."""

EIGHT_BIT = tuple(name for name in PRECISIONS if ELEMENT_TYPES[name].copies_bytes)
"""Precisions of 8 bits or less, whose weights can be kept and gathered in 8."""


def bytes_per_element(dtype: str) -> int:
    """Return the bytes of one element.

    Raises
    ------
    UnknownNameError
        If there is no such type; the message lists the known ones.
    """
    return DTYPE_BYTES[known_name("dtype", dtype, DTYPE_BYTES)]
