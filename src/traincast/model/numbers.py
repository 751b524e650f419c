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
    return np.maximum(one, other) if (np := _numpy(one, other)) else max(one, other)


def smaller(one: Number, other: Number) -> Number:
    """Return the smaller of two, element by element."""
    if isinstance(one, _PLAIN) and isinstance(other, _PLAIN):
        return min(one, other)
    return np.minimum(one, other) if (np := _numpy(one, other)) else min(one, other)


def anywhere(value: Number) -> bool:
    """Return whether a number, or any element of an array, is larger than 0."""
    if isinstance(value, _PLAIN):
        return bool(value > 0)
    # Twice as fast as asking whether any is.
    return np.count_nonzero(value > 0) > 0 if (np := _numpy(value)) else bool(value > 0)


def choose(condition: Number, one: Number, other: Number) -> Number:
    """Return `one` where the condition holds, else `other`."""
    if condition is True or condition is False:
        return one if condition else other
    return np.where(condition, one, other) if (np := _numpy(condition)) else one if condition else other


def rounded(value: Number) -> Number:
    """Return the nearest whole numbers, halves to the even one."""
    return np.rint(value).astype(np.int64) if (np := _numpy(value)) else round(value)


def _numpy(*values: Number) -> Any:  # noqa: ANN401
    """Return numpy where any of some values is an array, else nothing."""
    # Without it there are no arrays, and shells complete a job's options without it.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        array = numpy.ndarray
        for value in values:
            if isinstance(value, array):
                return numpy
    return None


_PLAIN = (int, float)
"""Most numbers are of these types, which are told first."""
