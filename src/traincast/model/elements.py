"""How many parameters one rank holds of some parts."""

from collections.abc import Iterable
from dataclasses import dataclass

from traincast.model.blocks.part import Part
from traincast.model.numbers import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Elements that one rank holds."""

    dense: Number = 0
    """Replicated over dp x cp: all but routed experts."""
    experts: Number = 0
    """Replicated over edp."""
    trained_dense: Number = 0
    trained_experts: Number = 0
    matrices: Number = 0
    """Of the dense ones, those that the layers' GEMMs read: without embedding, LM head and norms."""

    @property
    def total(self) -> Number:
        """All of them."""
        return self.dense + self.experts

    def __add__(self, other: "Elements") -> "Elements":
        """Return both together."""
        return Elements(
            dense=self.dense + other.dense,
            experts=self.experts + other.experts,
            trained_dense=self.trained_dense + other.trained_dense,
            trained_experts=self.trained_experts + other.trained_experts,
            matrices=self.matrices + other.matrices,
        )

    def __mul__(self, count: Number) -> "Elements":
        """Return so many times as many."""
        return Elements(
            dense=self.dense * count,
            experts=self.experts * count,
            trained_dense=self.trained_dense * count,
            trained_experts=self.trained_experts * count,
            matrices=self.matrices * count,
        )


def elements_of(parts: Iterable[Part], *, trains_weights: bool = True) -> Elements:
    """Return the elements of some parts.

    Parameters
    ----------
    parts : iterable of Part
        The parts.
    trains_weights : bool
        Whether all of them are trained, not adapters alone.
    """
    dense: Number = 0
    experts: Number = 0
    adapters: Number = 0
    matrices: Number = 0
    for part in parts:
        if part.expert:
            experts = experts + part.elements
            continue
        dense = dense + part.elements
        adapters = adapters + (part.elements if part.adapter else 0)
        matrices = matrices + (0 if part.counts_as == "head" else sum(gemm.elements for gemm in part.gemms))
    return Elements(
        dense=dense,
        experts=experts,
        trained_dense=dense if trains_weights else adapters,
        trained_experts=experts if trains_weights else 0,
        matrices=matrices,
    )
