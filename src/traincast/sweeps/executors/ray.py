"""A Ray cluster: one task a chunk. Needs the extra ``ray``.

Source: docs of Ray 2, "Tasks" and "Fault tolerance": a task whose worker dies raises WorkerCrashedError (or
OutOfMemoryError, NodeDiedError); ``max_retries=0`` leaves trying again to the caller.
"""

from collections.abc import Sequence
from typing import Any

from traincast.errors import ConfigError
from traincast.sweeps.executors import EXECUTORS, Work, WorkerLostError
from traincast.sweeps.rows import Row
from traincast.sweeps.spec import Point


class RayTasks:
    """Tasks on a Ray cluster: one that is named by its address, else the one of the environment, else one here."""

    def __init__(self, ray: Any, work: Work, workers: int | None, address: str) -> None:  # noqa: ANN401 no types
        self._ray = ray
        self._began = not ray.is_initialized()
        if self._began:
            ray.init(address=address or None, num_cpus=None if address else workers, log_to_driver=False)
        self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._task = ray.remote(max_retries=0, num_cpus=1)(_run)
        self._work = ray.put(work)
        self._running: dict[Any, int] = {}

    def start(self, key: int, points: Sequence[Point]) -> None:
        """Begin a chunk."""
        self._running[self._task.remote(self._work, list(points))] = key

    def done(self) -> tuple[int, list[Row] | Exception]:
        """Wait for a chunk."""
        (first, *_), _ = self._ray.wait(list(self._running), num_returns=1)
        key = self._running.pop(first)
        errors = self._ray.exceptions
        try:
            rows: list[Row] = self._ray.get(first)
        except errors.RayTaskError as error:
            return key, error.cause if isinstance(error.cause, Exception) else RuntimeError(str(error))
        except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError) as error:
            return key, WorkerLostError(f"its worker died ({type(error).__name__})")
        return key, rows

    def close(self) -> None:
        """Stop the tasks, and the cluster where it was begun here."""
        for task in self._running:
            self._ray.cancel(task, force=True)
        if self._began:
            self._ray.shutdown()


def _run(work: Work, points: Sequence[Point]) -> list[Row]:
    return work(points)


@EXECUTORS.register("ray")
def ray_tasks(work: Work, workers: int | None, address: str) -> RayTasks:
    """Return tasks on a Ray cluster.

    Raises
    ------
    ConfigError
        If Ray is not installed, or no cluster answers at the address.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError("needs Ray: pip install 'traincast[ray]'", "on") from None
    try:
        return RayTasks(ray, work, workers, f"ray://{address}" if address else "")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"no Ray cluster answers: {error}", "on") from None
