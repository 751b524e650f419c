"""Forked workers: a case that takes too long, too much memory, or the process with it ends one worker, not the run."""

import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from fuzzing.case import Case
from fuzzing.judge import Verdict, judge

BATCH = 100
"""Cases of one worker, from its fork to its end: what one case leaves in memory does not reach far."""
_PATIENCE = 8
"""A case that neither ends nor runs out of its time of the processor within so many times that limit is stuck."""

Numbered = tuple[str, int]
"""Kind and number of a case."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one case may take.

    Parameters
    ----------
    time_s : float
        Seconds of the processor.
    memory_bytes : int
        Address space on top of what a worker has when it starts.
    """

    time_s: float
    memory_bytes: int


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    left: list[Numbered]
    since: float


def run_cases(
    numbers: Sequence[Numbered], make: Callable[[str, int], Case], limits: Limits, jobs: int, until: float
) -> Iterator[tuple[Numbered, Verdict]]:
    """Judge cases in forked workers.

    Parameters
    ----------
    numbers : sequence of (str, int)
        Kind and number of each.
    make : callable
        Makes a case from them, in the worker.
    limits : Limits
        Of each case.
    jobs : int
        Workers at a time.
    until : float
        Moment of `time.monotonic` after which no case is begun.

    Yields
    ------
    (str, int), Verdict
        Of each case, in the order in which they end.
    """
    batches = [list(numbers[at : at + BATCH]) for at in range(0, len(numbers), BATCH)][::-1]
    workers: list[_Worker] = []
    try:
        while batches or workers:
            while batches and len(workers) < jobs and time.monotonic() < until:
                workers.append(_fork(batches.pop(), make, limits, until))
            if not workers:
                return
            ready = wait([each.pipe for each in workers], timeout=1.0)
            for worker in workers:
                if worker.pipe in ready:
                    yield from _heard(worker, workers, batches)
                elif time.monotonic() - worker.since > _PATIENCE * limits.time_s:
                    # Stuck where no signal reaches: in compiled code, or in the kernel.
                    _end(worker, workers, batches)
                    yield worker.left[0], Verdict("timeout", "timeout: stuck", "killed", _PATIENCE * limits.time_s)
    finally:
        for worker in workers:
            worker.process.kill()


def _fork(batch: list[Numbered], make: Callable[[str, int], Case], limits: Limits, until: float) -> _Worker:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(batch, make, limits, until, theirs), daemon=False)
    process.start()
    theirs.close()
    return _Worker(process, ours, batch, time.monotonic())


def _heard(
    worker: _Worker, workers: list[_Worker], batches: list[list[Numbered]]
) -> Iterator[tuple[Numbered, Verdict]]:
    try:
        verdict = Verdict(**json.loads(worker.pipe.recv_bytes()))
    except EOFError:
        worker.process.join()
        code = worker.process.exitcode
        if code == 0:
            workers.remove(worker)
            worker.pipe.close()
            return
        _end(worker, workers, batches)
        yield worker.left[0], Verdict("killed", f"killed: exit code {code}", "the process ended", 0.0)
        return
    number = worker.left.pop(0)
    worker.since = time.monotonic()
    yield number, verdict


def _end(worker: _Worker, workers: list[_Worker], batches: list[list[Numbered]]) -> None:
    """End a worker, and give what follows the case that it was at to another."""
    worker.process.kill()
    worker.process.join()
    worker.pipe.close()
    workers.remove(worker)
    if worker.left[1:]:
        batches.append(worker.left[1:])


def _work(
    batch: list[Numbered], make: Callable[[str, int], Case], limits: Limits, until: float, pipe: Connection
) -> None:
    """Judge the cases of a batch, one after the other, in a folder that is emptied in between."""
    sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
    _limit_memory(limits.memory_bytes)
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        for kind, number in batch:
            if time.monotonic() > until:
                break
            place = folder / "case"
            place.mkdir()
            verdict = judge(make(kind, number), place, limits.time_s)
            pipe.send_bytes(json.dumps(asdict(verdict)).encode())
            os.chdir(folder)
            shutil.rmtree(place, ignore_errors=True)
    finally:
        with contextlib.suppress(OSError):
            os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
        pipe.close()
    os._exit(0)


def _limit_memory(more_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
