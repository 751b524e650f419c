"""What a call has to work with in a worker."""

import ctypes
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from traincast.progress import listening
from traincast.serve.answers.seal import Seal, scratch, shared
from traincast.serve.memory import resident_bytes
from traincast.serve.wire import FILES
from traincast.simulation.study import Study

_KEPT = 64
"""Things that workers keep for each other."""
_LARGE_BYTES = 240 * 2**20
"""Memory above which a worker forgets; half of it is code."""
_LOOK_THROUGH = 20
"""Calls after which all that was made since the start is looked through, and not what the last one made alone."""
_PAUSE_S = 0.05
"""Least time between two words on how far a call is."""


class Progress(Struct, frozen=True):
    """How far a task is."""

    share: float
    """Of the work that is behind, 0 to 1."""
    what: str
    """What is being done."""


class Workbench:
    """What earlier calls prepared, the files of this one, and somebody who listens."""

    def __init__(self, tell: Callable[[str, object], None]) -> None:
        self.tell = tell
        """Tells who listens of an event by its name, with a record."""
        self.folder = Path()
        """Where the files of the call's task lie."""
        self.scratch = scratch()
        """Where what is described by a text is read from."""
        self._shared = shared(self.scratch)
        self.warm = False
        """Whether compiled code is loaded."""
        self.study = Study()
        """What was prepared for earlier forecasts."""
        self._seal = Seal()
        self._calls = 0

    @property
    def engine(self) -> str:
        """The engine that answers first: compiled code, once it is loaded."""
        return "fast" if self.warm else "auto"

    def settle(self) -> None:
        """Keep what is loaded from now on for good, so that it is not looked through for what nothing needs."""
        self.study = Study()
        gc.collect()
        gc.freeze()

    def let_go(self) -> None:
        """Let go of what a call left, and where that is too much of what was prepared: it is prepared anew."""
        self._calls += 1
        # Programs hang in cycles: without this a few forecasts take as much memory as all the code.
        gc.collect(0 if self._calls % _LOOK_THROUGH else 2)
        if resident_bytes(os.getpid()) > _LARGE_BYTES:
            self.study = Study()
            self.give_back()

    def give_back(self) -> None:
        """Give back memory that nothing needs."""
        gc.collect()
        with suppress(OSError, AttributeError):
            # What C's allocator keeps, which after large programs is a lot (glibc alone has this).
            ctypes.CDLL(None).malloc_trim(0)

    def keep(self, key: bytes, content: bytes) -> None:
        """Keep what was made for all workers, by what was asked; of many things the last ones."""
        self._shared.mkdir(mode=0o700, exist_ok=True)
        path = self._path(key)
        # Another worker reads all of it or nothing.
        own = self.scratch / path.name
        own.write_bytes(content)
        own.replace(path)
        with suppress(FileNotFoundError):
            # Another worker may let go of the same.
            for old in sorted(self._shared.iterdir(), key=lambda each: each.stat().st_mtime)[:-_KEPT]:
                old.unlink()

    def kept(self, key: bytes) -> bytes | None:
        """Return what a worker kept; None where there is nothing."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def _path(self, key: bytes) -> Path:
        return self._shared / sha256(key).hexdigest()

    def close(self) -> None:
        """Open no file from now on but of the code and of tasks."""
        tempfile.tempdir = str(self.scratch)
        os.chdir(self.scratch)
        self._seal.close(self.scratch.parent)

    @contextmanager
    def among_files(self) -> Iterator[None]:
        """Work in the folder of the files of the call, so that they go under the names that the page gave them."""
        os.chdir(self.folder / FILES)
        try:
            yield
        finally:
            os.chdir(self.scratch)

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Tell how far the work in the body is."""
        last, furthest = 0.0, [0.0]

        def listener(doing: str, share: float) -> None:
            nonlocal last
            now, furthest[0] = time.monotonic(), max(furthest[0], share)
            if now - last >= _PAUSE_S:
                last = now
                self.tell("progress", Progress(furthest[0], doing or what))

        self.tell("progress", Progress(0.0, what))
        with listening(listener, every=True):
            yield
