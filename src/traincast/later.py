"""Values of a record that are worked out when somebody first looks at them.

Much of what a result says is asked for by few: a sweep reads a row of it, a plan its step. A field may therefore hold
how its value is worked out (`later`); whoever reads the field finds the value (`readable`), the same as if it had been
worked out at once. It is kept, and what it was worked out from is let go. Threads that look at the same time may both
work it out, and find the same. What is pickled or copied in depth is the value.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from msgspec import Struct

T = TypeVar("T")


class _Later(Generic[T]):
    """A value, or until somebody looks how it is worked out."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make

    def value(self) -> T:
        """Return the value."""
        make = self._make
        if make is not None:
            # In this order: a thread that finds nothing left to do must find the value.
            self._made = make()
            self._make = None
        return self._made

    def __reduce__(self) -> tuple[Callable[[T], T], tuple[T]]:
        """Stand for the value wherever it is sent."""
        return _same, (self.value(),)


def _same(value: T) -> T:
    return value


def later(make: Callable[[], T]) -> T:
    """Return what stands for a value in a field that is `readable`, until somebody reads it."""
    return cast(T, _Later(make))


class _Readable:
    """A field that is read as the value that it holds or that is worked out now."""

    def __init__(self, slot: Any) -> None:  # noqa: ANN401 msgspec's own
        self._slot = slot

    def __get__(self, record: object, kind: type | None = None) -> object:
        if record is None:
            return self
        held = self._slot.__get__(record, kind)
        return held.value() if type(held) is _Later else held

    def __set__(self, record: object, value: object) -> None:
        self._slot.__set__(record, value)


def readable(kind: type[Struct], *names: str) -> None:
    """Let fields of a kind of record hold values for `later`."""
    for name in names:
        setattr(kind, name, _Readable(vars(kind)[name]))
