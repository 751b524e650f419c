"""Recipes of GEMMs in 8 and 4 bits: how tensors come to the type of a GEMM's inputs, and what that takes.

A GEMM in 8 bits and the two of its backward pass read each tensor twice: its input and its weight along rows in one
pass and along columns in another, the gradient of its output both ways in the backward pass. Matrix units of some
GPUs read 8 bits along the reduction alone, and scales of blocks belong to one direction: then there are two copies.
Source: Transformer Engine, docs/features/low_precision_training/performance_considerations (table 2, figures 2 and 3).

`data/recipes.csv` has a row for each, with its source.
"""

from collections.abc import Mapping

from msgspec import Struct

from traincast.hardware.dtypes import ELEMENT_TYPES
from traincast.shipped import shipped_rows
from traincast.tables import from_row


class Recipe(Struct, frozen=True, kw_only=True):
    """How tensors are scaled and cast."""

    name: str
    dtype: str
    """Type of the inputs of GEMMs."""
    reads: float
    """Passes over a tensor in 16 bits, of which the last one casts."""
    column_reads: float = 0.0
    """Further passes for the copy along columns, where the same kernel does not write it."""
    copies: str = "both"
    """Which there are: ``both``; ``transposed``, the second one where matrix units read along rows alone; ``again``,
    the second in its own kernels; ``weights``, of weights alone."""
    gathered: bool = True
    """Whether tensor parallel ranks cast what they have before they gather it."""
    weight_gradients: str = ""
    """Type of the GEMMs of weight gradients, where it is another one."""
    kernels: int = 1
    """Launches for a tensor."""
    grouped: bool = False
    """Whether they cast the tensors of all local experts together."""
    fused: bool = False
    """Whether the kernel that computes a tensor can write it cast, as norms and activation functions do: its scales are
    known before, or those of blocks. Source: Transformer Engine,
    transformer_engine/pytorch/csrc/extensions/activation.cpp (FULLY_FUSED)."""
    source: str = ""

    @property
    def element_bytes(self) -> float:
        """Bytes of an element of one copy, with its share of the scales."""
        return ELEMENT_TYPES[self.dtype].bytes


RECIPES: Mapping[str, Recipe] = {
    each.name: each for each in (from_row(row, Recipe) for row in shipped_rows("recipes.csv"))
}


def recipes_of(dtype: str) -> tuple[str, ...]:
    """Return the names of the recipes of a type, the usual one first; none for types of 16 bits and more."""
    return tuple(name for name, each in RECIPES.items() if each.dtype == dtype)
