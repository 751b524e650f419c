"""Where chunks run: one file a kind, behind one contract.

An executor is handed chunks and says which is done; it neither orders nor repeats anything (`traincast.sweeps.run`).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from traincast.errors import TraincastError
from traincast.registry import Registry
from traincast.sweeps.rows import Row
from traincast.sweeps.spec import Point

Work = Callable[[Sequence[Point]], list[Row]]
"""What is done with the points of a chunk; pickled, so a function of a module or an object of a class of one."""


class WorkerLostError(TraincastError):
    """The process that ran a chunk is gone; the text says how it went."""


class Executor(Protocol):
    """Runs chunks at the same time, as many as it has workers."""

    workers: int

    def start(self, key: int, points: Sequence[Point]) -> None:
        """Begin a chunk, under a key of the caller's."""

    def done(self) -> tuple[int, list[Row] | Exception]:
        """Wait for a chunk that is running; return its key and its rows, or what went wrong.

        A `WorkerLostError` says that its process is gone, perhaps because of another chunk.
        """

    def close(self) -> None:
        """Stop everything that runs; nothing of it is waited for."""


MakeExecutor = Callable[[Work, int | None, str], Executor]
"""From the work, the number of workers (None: as many as there are cores) and what follows the name, such as an
address (``ray://host:10001``), to an executor."""

EXECUTORS: Registry[MakeExecutor] = Registry(
    "executor", "traincast.sweeps.executors", group="traincast.sweep.executors"
)
