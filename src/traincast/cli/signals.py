"""A command that is told to stop puts away what it was writing first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STOPS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What a scheduler, or a terminal that goes away, sends; SIGINT is Python's own KeyboardInterrupt."""


class StoppedError(BaseException):
    """The process was told to stop; no handler of errors is to catch it, but every ``finally`` runs."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}")


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `StoppedError` in the body when a signal says to stop, so that temporary files are taken away.

    A signal that the process was started to ignore (``nohup``) stays ignored. Outside the main thread nothing is
    changed: Python has no handlers there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in _STOPS}
    for number, handler in kept.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in kept.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, handler)


def _stop(number: int, _: FrameType | None) -> None:
    # A second signal must not break off the tidying that the first one began.
    for each in _STOPS:
        signal.signal(each, signal.SIG_IGN)
    raise StoppedError(number)
