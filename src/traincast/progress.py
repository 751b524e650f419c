"""Long work says how long it is before it begins, and now and then how far it is.

Who wants to know listens (`listening`); the rooms that work only tell (`announce`, `advanced`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

Listener = Callable[[str, float], None]
"""Told what is done, and the share of it that is behind, 0 to 1."""


@dataclass(slots=True)
class _Work:
    listener: Listener
    what: str | None = None
    """What was announced; None where the work is short."""


_WORK: ContextVar[_Work | None] = ContextVar("work", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell a listener of the long work in the body."""
    token = _WORK.set(_Work(listener))
    try:
        yield
    finally:
        _WORK.reset(token)


def announce(what: str) -> None:
    """Say that long work begins, with its size (``simulating 5,000,000 operations of 16 ranks``).

    Without it `advanced` tells nothing.
    """
    work = _WORK.get()
    if work is not None:
        work.what = what
        work.listener(what, 0.0)


def advanced(share: float) -> None:
    """Say which share of the announced work is behind, 0 to 1."""
    work = _WORK.get()
    if work is not None and work.what is not None:
        work.listener(work.what, share)
