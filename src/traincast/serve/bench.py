"""What a call has to work with in a worker."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from traincast.progress import listening

if TYPE_CHECKING:
    from traincast.simulation.study import Study

_PAUSE_S = 0.05
"""Least time between two words on how far a call is."""


class Progress(Struct, frozen=True):
    """How far a task is."""

    share: float
    """Of the work that is behind, 0 to 1."""
    what: str
    """What is being done."""


class Bench:
    """What earlier calls prepared, the files of this one, and somebody who listens."""

    def __init__(self, tell: Callable[[str, object], None]) -> None:
        self.tell = tell
        """Tells who listens of an event by its name, with a record."""
        self.folder = Path()
        """Where the files of the call's task lie."""
        self.warm = False
        """Whether compiled code is loaded."""
        self._study: Study | None = None

    @property
    def study(self) -> "Study":
        """What was prepared for earlier forecasts."""
        if self._study is None:
            from traincast import Study

            self._study = Study()
        return self._study

    @property
    def engine(self) -> str:
        """The engine that answers first: compiled code, once it is loaded."""
        return "fast" if self.warm else "auto"

    def warm_up(self) -> None:
        """Load what forecasts need, and compile it where nobody has: a small one is made."""
        from traincast import api

        api.predict(model="llama3-8b", cluster="h100", gpus=16, tp=2, pp=2, global_batch=16, seq_length=4096)
        self.warm = True

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Tell how far the work in the body is."""
        last = 0.0

        def listener(doing: str, share: float) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _PAUSE_S:
                last = now
                self.tell("progress", Progress(share, doing or what))

        self.tell("progress", Progress(0.0, what))
        with listening(listener, every=True):
            yield
