"""A pool of processes on this machine."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import ModuleType

from traincast.crew import cores, leave_with_parent
from traincast.errors import ConfigError
from traincast.sweeps.executors import EXECUTORS, Work, WorkerLostError
from traincast.sweeps.rows import Row
from traincast.sweeps.spec import Point

_METHOD = "spawn"
"""A fork of a process that has threads, as those of numpy, may never run."""


class LocalPool:
    """Processes that take chunks; if one dies the pool is made anew, and every chunk in it is lost."""

    def __init__(self, work: Work, workers: int | None) -> None:
        self.workers = workers or cores()
        self._work = work
        self._running: dict[Future[list[Row]], int] = {}
        self._pool = self._made()

    def start(self, key: int, points: Sequence[Point]) -> None:
        """Begin a chunk."""
        try:
            self._running[self._submitted(points)] = key
        except BrokenProcessPool:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = self._made()
            self._running[self._submitted(points)] = key

    def done(self) -> tuple[int, list[Row] | Exception]:
        """Wait for a chunk."""
        finished, _ = wait(self._running, return_when=FIRST_COMPLETED)
        first = min(finished, key=lambda future: self._running[future])
        key = self._running.pop(first)
        error = first.exception()
        if isinstance(error, BrokenProcessPool):
            return key, WorkerLostError("its process died")
        if error is not None:
            return key, error if isinstance(error, Exception) else WorkerLostError(repr(error))
        return key, first.result()

    def close(self) -> None:
        """Stop the processes."""
        for process in list((self._pool._processes or {}).values()):
            process.kill()
        # Waited for: a thread of the pool that is left at the end of this process meets what is closed already.
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _submitted(self, points: Sequence[Point]) -> Future[list[Row]]:
        """Hand a chunk to the pool, which starts its processes here, as they are needed."""
        with _NoMain(), _no_interrupts():
            return self._pool.submit(self._work, points)

    def _made(self) -> ProcessPoolExecutor:
        _start_tracker()
        context = multiprocessing.get_context(_METHOD)
        return ProcessPoolExecutor(self.workers, mp_context=context, initializer=leave_with_parent)


def _start_tracker() -> None:
    """Start what cleans up after this process, should it be killed, so that it does it without a word."""
    if os.name != "posix":
        return
    sys.warnoptions.append(_QUIET_TRACKER)
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(_QUIET_TRACKER)


_QUIET_TRACKER = "ignore:resource_tracker:UserWarning"


class _NoMain:
    """While this is entered no script is being run, so that new processes do not run the user's script once more.

    They need nothing of it, and a script that sweeps at its top level, or comes from a pipe, could not be run there.
    """

    def __enter__(self) -> None:
        self._main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")

    def __exit__(self, *_: object) -> None:
        sys.modules["__main__"] = self._main


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back until the body is done; processes that begin in it never get one, not even while they start."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@EXECUTORS.register("local")
def local(work: Work, workers: int | None, address: str) -> LocalPool:
    """Return a pool on this machine.

    Raises
    ------
    ConfigError
        If an address is given: there is none.
    """
    if address:
        raise ConfigError("is this machine and has no address; name another executor", "on")
    return LocalPool(work, workers)
