"""Networks that are products of dimensions, as ASTRA-sim's analytical backends describe them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

SHAPES = ("Ring", "FullyConnected", "Switch")


@dataclass(frozen=True, slots=True)
class Dimension:
    """GPUs that differ in one coordinate only, and how they are joined.

    Parameters
    ----------
    shape : str
        One of `SHAPES`; a ring goes both ways.
    size : int
        GPUs along it.
    link_bytes_per_s : float
        Rate of each link and direction.
    """

    shape: str
    size: int
    link_bytes_per_s: float

    @property
    def links(self) -> int:
        """Directed links among the GPUs of one line, or to and from their switch."""
        if self.size == 1:
            return 0
        return {"Ring": 2 * self.size, "FullyConnected": self.size * (self.size - 1), "Switch": 2 * self.size}[
            self.shape
        ]

    @property
    def bisection_bytes_per_s(self) -> float:
        """What one half of a line can send to the other."""
        half = self.size // 2
        cut = {"Ring": 2, "FullyConnected": half * (self.size - half), "Switch": half}[self.shape]
        return cut * self.link_bytes_per_s


def bisection_bytes_per_s(dimensions: Sequence[Dimension]) -> float:
    """Return what one half of the GPUs can send to the other, cut across the weakest dimension."""
    gpus = math.prod(each.size for each in dimensions)
    return min((gpus // each.size * each.bisection_bytes_per_s for each in dimensions if each.size > 1), default=0.0)
