"""Lines on stderr about long work: its size, how far it is, the time left."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from traincast.cli.terminal import complain
from traincast.progress import listening

_EVERY_S = 2.0
"""Least time between two lines."""
_TOLD_FROM = 0.1
"""Share behind from which the time left can be told from the time that it took."""


@contextmanager
def announced(*, quiet: bool) -> Iterator[None]:
    """Print lines about the long work in the body; short work has none.

    Parameters
    ----------
    quiet : bool
        Print none at all.
    """
    if quiet:
        yield
        return
    start_s = last_s = monotonic()

    def tell(what: str, share: float) -> None:
        nonlocal last_s
        now_s = monotonic()
        if share == 0:
            complain(what)
        elif now_s - last_s >= _EVERY_S and _TOLD_FROM <= share < 1:
            left_s = (now_s - start_s) * (1 - share) / share
            complain(f"{share:.0%} done, about {left_s:.0f} s left")
            last_s = now_s

    with listening(tell):
        yield
