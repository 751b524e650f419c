"""Arithmetic that takes numbers and arrays alike: with numbers it stays in Python's own, with arrays it broadcasts."""

import sys
from collections.abc import Iterable
from typing import Any, Self, TypeAlias

from msgspec import Struct

Number: TypeAlias = Any
"""A number, or an array of numbers that broadcasts with the others."""


class Summed(Struct, frozen=True):
    """A record of numbers that adds up field by field."""

    def __add__(self, other: Self) -> Self:
        """Return both together."""
        return type(self)(**{each: getattr(self, each) + getattr(other, each) for each in self.__struct_fields__})

    def __mul__(self, count: Number) -> Self:
        """Return so many times as much."""
        return type(self)(**{each: getattr(self, each) * count for each in self.__struct_fields__})


def added(values: Iterable[Number]) -> Number:
    """Return the sum of numbers or arrays."""
    return sum(values)


def ceil_div(value: Number, parts: Number) -> Number:
    """Return whole numbers divided, rounded up."""
    return -(-value // parts)


def larger(one: Number, other: Number) -> Number:
    """Return the larger of two, element by element."""
    if isinstance(one, _PLAIN) and isinstance(other, _PLAIN):
        return max(one, other)
    if _arrays(one, other):
        import numpy as np

        return np.maximum(one, other)
    return max(one, other)


def smaller(one: Number, other: Number) -> Number:
    """Return the smaller of two, element by element."""
    if isinstance(one, _PLAIN) and isinstance(other, _PLAIN):
        return min(one, other)
    if _arrays(one, other):
        import numpy as np

        return np.minimum(one, other)
    return min(one, other)


def anywhere(value: Number) -> bool:
    """Return whether a number, or any element of an array, is larger than 0."""
    if isinstance(value, _PLAIN):
        return bool(value > 0)
    return bool((value > 0).any()) if _arrays(value) else bool(value > 0)


def choose(condition: Number, one: Number, other: Number) -> Number:
    """Return `one` where the condition holds, else `other`."""
    if _arrays(condition):
        import numpy as np

        return np.where(condition, one, other)
    return one if condition else other


def rounded(value: Number) -> Number:
    """Return the nearest whole numbers, halves to the even one."""
    if _arrays(value):
        import numpy as np

        return np.rint(value).astype(np.int64)
    return round(value)


def _arrays(*values: Number) -> bool:
    # Without numpy there are no arrays, and shells complete a job's options without it.
    numpy = sys.modules.get("numpy")
    for value in values:
        if not isinstance(value, _PLAIN) and numpy is not None and isinstance(value, numpy.ndarray):
            return True
    return False


_PLAIN = (int, float)
"""Most numbers are of these types, which are told first."""
