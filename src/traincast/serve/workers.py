"""The worker processes: started once, each given one call at a time, killed where theirs is cancelled."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from traincast.serve.failures import Problem
from traincast.serve.memory import resident_bytes
from traincast.serve.wire import LENGTH_BYTES, Message, WorkerCall, framed, length_of

Listener = Callable[[Message], None]
"""Told of the events of a call."""

FEWEST, MOST = 2, 3
"""Workers: one more than a long call needs, and no more than leaves memory for others (250 MB each)."""
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_CALLS, _RESIDENT_BYTES = 5_000, 400 * 2**20
"""Calls after which a worker makes room for a fresh one, and memory above which it does."""


_LONGEST_S = 180.0
"""Time that a call may take, if it is not a task; then its worker ends."""


_ENDED = Problem.simple("internal", "the work ended before it was done (out of memory?); ask again, or for less")
_TOO_LONG = Problem.simple("refused", f"it takes more than {_LONGEST_S:.0f} s; ask for less at a time")
_STOPPED = Problem.simple("stopped", "the server was stopped; start it again with: traincast serve")


class Gone(Exception):  # noqa: N818
    """The call was taken back: cancelled, or overtaken by a newer one of its tab."""


class _Job(Struct, eq=False):
    """A call that waits or runs."""

    call: WorkerCall
    answer: "asyncio.Future[Message]"
    listener: Listener | None = None
    tab: str = ""
    """Page that asked; of one page's calls that wait, the newest is kept."""
    long: bool = False
    worker: "_Worker | None" = None


class _Worker(Struct, eq=False):
    """A process."""

    process: Process
    job: _Job | None = None
    calls: int = 0
    leaving: bool = False
    """Whether it makes room for a fresh one: it ends soon, and is given nothing more."""


class Workers:
    """A few worker processes, and the calls that wait for one.

    Long calls leave one worker to short ones, so that nothing that somebody waits for stands behind a plan.
    """

    def __init__(self, root: Path, count: int | None = None) -> None:
        """Take the folder that workers keep their files in, and how many there are."""
        self.root = root
        self._count = count or max(FEWEST, min(os.cpu_count() or FEWEST, MOST))
        self._workers: list[_Worker] = []
        self._waiting: deque[_Job] = deque()
        self._readers: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start the processes."""
        await asyncio.gather(*(self._add() for _ in range(self._count)))

    async def close(self) -> None:
        """End all processes; who still waits is told so."""
        self._closed = True
        while self._waiting:
            _refuse(self._waiting.popleft(), _STOPPED)
        for worker in self._workers:
            _kill(worker.process)
        await asyncio.gather(*self._readers, return_exceptions=True)

    @property
    def processes(self) -> list[int]:
        """Ids of the processes."""
        return [each.process.pid for each in self._workers]

    async def run(
        self, call: WorkerCall, *, tab: str = "", long: bool = False, listener: Listener | None = None
    ) -> Message:
        """Return what a worker answers.

        Where whoever waits is cancelled, the call ends: it leaves the queue, or its worker is killed.

        Raises
        ------
        Gone
            If a newer call of the tab came before this one began.
        """
        if self._closed:
            return _failed(_STOPPED)
        job = _Job(call, asyncio.get_running_loop().create_future(), listener, tab, long)
        if tab and listener is None:
            self._overtake(call.name, tab)
        self._waiting.append(job)
        self._hand_out()
        try:
            return await asyncio.wait_for(job.answer, None if listener is not None else _LONGEST_S)
        except TimeoutError:
            self._take_back(job)
            return _failed(_TOO_LONG)
        except asyncio.CancelledError:
            self._take_back(job)
            raise

    def _overtake(self, name: str, tab: str) -> None:
        """Take back what a tab asked before and nobody has begun."""
        old = [each for each in self._waiting if not each.listener and each.tab == tab and each.call.name == name]
        for job in old:
            self._waiting.remove(job)
            if not job.answer.done():
                job.answer.set_exception(Gone())

    def _take_back(self, job: _Job) -> None:
        if job in self._waiting:
            self._waiting.remove(job)
        elif job.worker is not None and job.worker.job is job:
            job.worker.leaving = True  # its answer may be on its way: nothing is given to it after that
            _kill(job.worker.process)

    def _hand_out(self) -> None:
        """Give waiting calls to idle workers."""
        for worker in [each for each in self._workers if each.job is None and not each.leaving]:
            job = self._next()
            if job is None:
                return
            worker.job, job.worker = job, worker
            worker.calls += 1
            if worker.process.stdin is not None:
                worker.process.stdin.write(framed(job.call))

    def _next(self) -> _Job | None:
        """Return the call that is next: short ones first, long ones as long as a worker is left."""
        busy = sum(each.job is not None and each.job.long for each in self._workers)
        short = next((each for each in self._waiting if not each.long), None)
        long = next((each for each in self._waiting if each.long), None) if busy < self._count - 1 else None
        job = short or long
        if job is not None:
            self._waiting.remove(job)
        return job

    async def _add(self) -> None:
        """Start a process and listen to it."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "traincast.serve.answers.worker"),
            stdin=PIPE,
            stdout=PIPE,
            env={**os.environ, **_ONE_THREAD, "TRAINCAST_SERVE_FOLDER": str(self.root)},
            limit=2**26,
        )
        worker = _Worker(process)
        self._workers.append(worker)
        reader = asyncio.create_task(self._listen(worker))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        self._hand_out()

    async def _listen(self, worker: _Worker) -> None:
        """Hand on what a process says until it ends; then start another one in its place."""
        try:
            while True:
                self._heard(worker, await _message(worker.process))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        self._workers.remove(worker)
        await worker.process.wait()
        self._lost(worker.job)
        if not self._closed:
            await self._add()

    def _heard(self, worker: _Worker, message: Message) -> None:
        job = worker.job
        if job is None or message.kind == "ready":
            return
        if message.kind not in ("done", "failed"):
            if job.listener is not None:
                job.listener(message)
            return
        worker.job = None
        if not job.answer.done():
            job.answer.set_result(message)
        if worker.calls >= _CALLS or resident_bytes(worker.process.pid) > _RESIDENT_BYTES:
            worker.leaving = True
            _kill(worker.process)
        else:
            self._hand_out()

    def _lost(self, job: _Job | None) -> None:
        """Answer for a process that ended in the middle of a call."""
        if job is not None:
            _refuse(job, _STOPPED if self._closed else _ENDED)


def _refuse(job: _Job, problem: Problem) -> None:
    if not job.answer.done():
        job.answer.set_result(_failed(problem))


def _failed(problem: Problem) -> Message:
    return Message("failed", msgspec.json.encode({"error": problem}), problem.status)


async def _message(process: Process) -> Message:
    stream = process.stdout
    if stream is None:
        raise ConnectionError("no output")
    length = length_of(await stream.readexactly(LENGTH_BYTES))
    return msgspec.msgpack.decode(await stream.readexactly(length), type=Message)


def _kill(process: Process) -> None:
    if process.returncode is None:
        process.kill()
