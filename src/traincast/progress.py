"""How far long work is.

It says how long it is before it begins, and now and then how far it is. Who wants to know listens (`listening`); the
rooms that work only tell (`announce`, `advanced`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

Listener = Callable[[str, float], None]
"""Told what is done, and the share of it that is behind, 0 to 1."""


@dataclass
class _Work:
    listener: Listener
    every: bool
    what: str | None = None
    """What was announced; None where the work is short."""
    begin: float = 0.0
    share: float = 1.0
    """Where the part that is being done begins in the whole, and how much of the whole it is."""

    def tell(self, share: float) -> None:
        """Tell which share of the part is behind."""
        if self.what is not None or self.every:
            self.listener(self.what or "", self.begin + self.share * share)


_WORK: ContextVar[_Work | None] = ContextVar("work", default=None)


@contextmanager
def listening(listener: Listener, *, every: bool = False) -> Iterator[None]:
    """Tell a listener of the long work in the body; with `every` also of work that nobody announced, as ``""``."""
    token = _WORK.set(_Work(listener, every))
    try:
        yield
    finally:
        _WORK.reset(token)


def announce(what: str) -> None:
    """Say that long work begins, with its size (``simulating 5,000,000 operations of 16 ranks``).

    Without it `advanced` tells nothing to who listens to long work alone. Work that is a part of other work begins
    where that one is.
    """
    work = _WORK.get()
    if work is not None:
        if work.what is None or work.share == 1:
            work.what = what
        work.tell(0.0)


def advanced(share: float) -> None:
    """Say which share of the work, or of its part that is being done, is behind, 0 to 1."""
    work = _WORK.get()
    if work is not None:
        work.tell(share)


@contextmanager
def part(begin: float, end: float) -> Iterator[None]:
    """Let what the body tells count from one share of the work to another."""
    work = _WORK.get()
    if work is None:
        yield
        return
    before = work.begin, work.share
    work.begin, work.share = work.begin + work.share * begin, work.share * (end - begin)
    try:
        work.tell(0.0)
        yield
        work.tell(1.0)
    finally:
        work.begin, work.share = before


def parts(each: Sequence[T], begin: float = 0.0, end: float = 1.0) -> Iterator[T]:
    """Yield the pieces of work from one share of it to another; each takes as much of it."""
    step = (end - begin) / max(1, len(each))
    for number, element in enumerate(each):
        with part(begin + number * step, begin + (number + 1) * step):
            yield element


def told(what: str, each: Sequence[T], least: int) -> Iterator[T]:
    """Yield the elements of long work, saying how far it is, where there are so many or more of them."""
    work = _WORK.get() if len(each) >= least else None
    if work is None:
        yield from each
        return
    before, work.what = work.what, what
    try:
        yield from parts(each)
    finally:
        work.what = before
