"""Processes that work a list of pieces off together, each of which then knows what all of them found.

The others are copies of the first (a fork): what it has in memory they have, and nothing needs to be handed to them.
All of them run the same program, which asks for the same pieces in the same order; who works out which piece is
decided as they go, and makes no difference to what is found.
"""

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from mmap import mmap
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Lock
from threading import Thread
from typing import TypeVar, cast

T = TypeVar("T")


class _Todo:
    """The pieces of a list that nobody has taken, in memory that copies of a process share and that has no file."""

    def __init__(self, lock: Lock) -> None:
        self._lock, self._of = lock, memoryview(mmap(-1, 24)).cast("q")

    def take(self, which: int, count: int, *, first: bool) -> int | None:
        """Take the first or the last piece of a list of so many; None where none is left.

        Lists are numbered from 1 on, and nobody begins one before all have ended the one before.
        """
        with self._lock:
            if self._of[0] != which:
                self._of[0], self._of[1], self._of[2] = which, 0, count
            begin, end = self._of[1], self._of[2]
            if begin == end:
                return None
            self._of[1], self._of[2] = (begin + 1, end) if first else (begin, end - 1)
        return begin if first else end - 1


class LostError(Exception):
    """One of the processes ended in the middle of its work: the first one has to do it alone."""


class Crew:
    """A process among those that share work; one that is alone does all of it."""

    def __init__(
        self, place: int = 0, count: int = 1, links: Sequence[Connection] = (), todo: _Todo | None = None
    ) -> None:
        """Take the place among so many, the links to the others (of the first) or to the first, and what is to do."""
        self.place, self.count = place, count
        self._links = links
        self._todo = todo
        self._lists = 0
        """That were begun."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that the others were copied from."""
        return self.place == 0

    def each(
        self,
        pieces: Sequence[Callable[[], T]],
        told: Callable[[T], None] | None = None,
        meanwhile: Iterable[object] = (),
        sent: Callable[[dict[int, T]], dict[int, T]] | None = None,
    ) -> list[T]:
        """Return what all pieces found, in their order; tell the first process of each as soon as it is known there.

        What a piece finds must go through a pipe (`pickle`); `sent` returns what of it others need. While it waits for
        others the first process goes through `meanwhile`, as far as it gets.

        Raises
        ------
        LostError
            If another process ended.
        """
        found = dict[int, T]()
        for number in self._taken(len(pieces)):
            found[number] = pieces[number]()
            if told is not None and self.is_first:
                told(found[number])
        for _ in meanwhile if self._waits else ():
            if not self._waits:
                break
        others = self._exchanged(found if sent is None or self.count == 1 else sent(found))
        if told is not None and self.is_first:
            for number in sorted(others):
                told(others[number])
        found |= others
        return [found[number] for number in range(len(pieces))]

    @property
    def _waits(self) -> bool:
        """Whether this is the first process and another one has not told yet what it found."""
        return self.is_first and not all(link.poll() for link in self._links)

    def of_first(self, value: T | None = None) -> T:
        """Return a value that the first process has and hands to the others, which give none.

        Raises
        ------
        LostError
            If another process ended.
        """
        try:
            if not self.is_first:
                received: T = self._links[0].recv()
                return received
            for link in self._links:
                link.send(value)
        except (EOFError, OSError) as error:
            raise LostError from error
        return cast("T", value)

    def _taken(self, count: int) -> Iterator[int]:
        """Yield the numbers of the pieces that this process is to do, each one when it is free for it.

        The first process begins with the first, the others with the last: neighbours have work in common.
        """
        if self._todo is None:
            yield from range(count)
            return
        self._lists += 1
        while (number := self._todo.take(self._lists, count, first=self.is_first)) is not None:
            yield number

    def _exchanged(self, mine: dict[int, T]) -> dict[int, T]:
        """Return what the others found."""
        try:
            if not self.is_first:
                self._links[0].send(mine)
                return dict(self._links[0].recv())
            found = [dict(link.recv()) for link in self._links]
            for place, link in enumerate(self._links):
                rest = (each for other, each in enumerate(found) if other != place)
                link.send({**mine, **{number: of for each in rest for number, of in each.items()}})
        except (EOFError, OSError) as error:
            raise LostError from error
        return {number: of for each in found for number, of in each.items()}


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def crew(count: int, others: Callable[[Crew], None]) -> Iterator[Crew]:
    """Let copies of this process, `count` with itself, run `others` while it runs the body, and share pieces.

    Yields the place of this process. Where a process cannot be copied it is alone.
    """
    if count < 2 or not hasattr(os, "fork"):
        yield Crew()
        return
    fork = multiprocessing.get_context("fork")
    todo, pipes = _Todo(fork.Lock()), [fork.Pipe() for _ in range(count - 1)]
    ends = [end for pipe in pipes for end in pipe]
    copies = [
        fork.Process(target=_run, args=(Crew(place, count, (far,), todo), ends, others), daemon=True)
        for place, (_, far) in enumerate(pipes, 1)
    ]
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, which may hold a lock in the copy: a copy uses none of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            for each in copies:
                each.start()
        for _, far in pipes:
            far.close()
        near = [each for each, _ in pipes]
        yield Crew(0, count, near, todo)
    finally:
        for each in copies:
            if each.pid is not None:
                each.kill()
                each.join()


def _run(own: Crew, ends: Sequence[Connection], others: Callable[[Crew], None]) -> None:
    """Do a copy's work; that it ended before that is told by the end of the link."""
    leave_with_parent()
    for each in ends:
        if each is not own._links[0]:
            each.close()
    try:
        Context().run(others, own)
    except BaseException:
        os._exit(1)  # the first process does it alone, and meets what is wrong itself


def leave_with_parent() -> None:
    """End this process when the one that began it is gone, however it went; Ctrl-C is for that one alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=watch, daemon=True).start()
