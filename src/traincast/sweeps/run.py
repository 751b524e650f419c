"""Hand the chunks of a sweep to an executor, journal what is done, try again what died, and name what keeps dying."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from traincast.sweeps.executors import Executor, WorkerLostError
from traincast.sweeps.journal import Journal
from traincast.sweeps.rows import Row, row_without
from traincast.sweeps.spec import Point, Spec

TRIES = 2
"""How often a point whose worker dies, or that raises what no job should, is run alone before its row says so."""
_AHEAD = 2
"""Chunks for each worker that are handed out: one to run, one to begin with at once."""


def run_sweep(
    spec: Spec, executor: Executor, journal: Journal, chunk: int, tell: Callable[[int, int], None] | None = None
) -> Iterator[tuple[Point, Row]]:
    """Run the chunks that a journal does not have, and then yield every point with its row, in order.

    Parameters
    ----------
    chunk : int
        Points of a chunk.
    tell : callable, optional
        Told how many points are done, and of how many: first those of the journal.
    """
    todo = ((at, points) for at, points in enumerate(_chunks(spec, chunk)) if at not in journal.rows_of)
    done = sum(map(len, journal.rows_of.values()))
    if tell is not None:
        tell(done, len(spec))
    for at, rows in _finished(todo, executor):
        journal.add(at, rows)
        done += len(rows)
        if tell is not None:
            tell(done, len(spec))
    for at, points in enumerate(_chunks(spec, chunk)):
        yield from zip(points, journal.rows_of[at], strict=True)


def _chunks(spec: Spec, size: int) -> Iterator[list[Point]]:
    points = spec.points()
    while chunk := list(islice(points, size)):
        yield chunk


def _finished(todo: Iterator[tuple[int, list[Point]]], executor: Executor) -> Iterator[tuple[int, list[Row]]]:
    """Yield every chunk with its rows, as they are done; those that went wrong are run point by point at the end."""
    running: dict[int, list[Point]] = {}
    suspects: list[tuple[int, list[Point]]] = []
    for at, points in todo:
        running[at] = points
        executor.start(at, points)
        while len(running) >= _AHEAD * executor.workers:
            yield from _next(running, executor, suspects)
    while running:
        yield from _next(running, executor, suspects)
    for at, points in suspects:
        yield at, [_alone(at, point, executor) for point in points]


def _next(
    running: dict[int, list[Point]], executor: Executor, suspects: list[tuple[int, list[Point]]]
) -> Iterator[tuple[int, list[Row]]]:
    key, rows = executor.done()
    points = running.pop(key)
    if isinstance(rows, Exception):
        suspects.append((key, points))
    else:
        yield key, rows


def _alone(key: int, point: Point, executor: Executor) -> Row:
    """Run one point with nothing else running, so that whatever goes wrong is caused by it."""
    error: Sequence[Row] | Exception = []
    for _ in range(TRIES):
        executor.start(key, [point])
        _, error = executor.done()
        if not isinstance(error, Exception):
            return error[0]
    if isinstance(error, WorkerLostError):
        return row_without("failed", f"run alone {TRIES} times, {error}")
    return row_without("failed", f"{type(error).__name__}: {error}; please report it")
