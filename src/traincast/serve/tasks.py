"""Long work: it has an id, tells how far it is, keeps its files and its answer, and ends when its page goes."""

import asyncio
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct, field

from traincast.serve.failures import Problem
from traincast.serve.wire import Message, WorkerCall
from traincast.serve.workers import Workers

_BEAT_S = 10.0
"""Time between two signs of life where there is nothing to tell, by which a page that went is noticed."""
_UNHEARD_S, _KEPT_S = 60.0, 3600.0
"""Time after which a task that nobody listens to ends, and one that is done is forgotten."""
_MOST, _MOST_OF_TAB = 64, 8
"""LongTasks that are kept, and those of one page; the oldest go first."""
OPENED = "opened"
"""Tab of what the server was started with: it is kept as long as the server runs."""
_MOST_BYTES = 4 * 2**30
"""Of the files of all tasks; the oldest go first."""
_LAST = ("done", "failed")


class Started(Struct, frozen=True):
    """A task that began."""

    task: str
    """Its id: ``/api/tasks/{id}/events`` tells how far it is, and DELETE on ``/api/tasks/{id}`` ends it."""


class LongTask(Struct, eq=False):
    """Long work."""

    id: str
    tab: str
    folder: Path
    """Its files."""
    events: list[Message] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, when there is a new event."""
    work: "asyncio.Task[None] | None" = None
    listeners: int = 0
    touched: float = field(default_factory=time.monotonic)

    @property
    def ended(self) -> bool:
        """Whether its last event is there."""
        return bool(self.events) and self.events[-1].kind in _LAST

    def add(self, message: Message) -> None:
        """Add an event; once the answer is there, what led to it is let go."""
        self.events = [message] if message.kind in _LAST else [*self.events, message]
        self.touched = time.monotonic()
        heard, self.heard = self.heard, asyncio.Event()
        heard.set()


class LongTasks:
    """The tasks of all pages."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._tasks: dict[str, LongTask] = {}
        self.root = workers.root
        """Folder of their files."""
        self._sweeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def find(self, name: str) -> LongTask | None:
        """Return a task by its id."""
        task = self._tasks.get(name)
        if task is not None:
            task.touched = time.monotonic()
        return task

    def new(self, tab: str) -> LongTask:
        """Return a task with a folder, which does nothing yet."""
        name = secrets.token_urlsafe(16)
        folder = self.root / name
        folder.mkdir(mode=0o700)
        task = self._tasks[name] = LongTask(name, tab, folder)
        for old in self._too_many(tab):
            self.drop(old)
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        return task

    def start(self, task: LongTask, name: str, body: bytes) -> None:
        """Let a task do what an endpoint does."""
        task.work = asyncio.create_task(self._run(task, WorkerCall(name, body, str(task.folder))))

    async def _run(self, task: LongTask, call: WorkerCall) -> None:
        task.add(await self._workers.run(call, tab=task.tab, long=True, listener=task.add))

    def cancel(self, task: LongTask) -> None:
        """End a task; its worker is killed, if it has one."""
        if task.work is not None and not task.work.done():
            task.work.cancel()
            problem = Problem.simple("cancelled", "the task was cancelled; start it again for an answer")
            task.add(Message("failed", msgspec.json.encode({"error": problem}), problem.status))

    def drop(self, task: LongTask) -> None:
        """Forget a task, with its files."""
        self.cancel(task)
        self._tasks.pop(task.id, None)
        shutil.rmtree(task.folder, ignore_errors=True)

    async def events(self, task: LongTask) -> AsyncIterator[bytes]:
        """Yield what a task says, from its beginning to its end, as server-sent events."""
        task.listeners += 1
        told = 0
        try:
            while True:
                heard, events = task.heard, task.events
                # What led to an answer is gone once it is there.
                for message in events if task.ended else events[told:]:
                    yield b"event: " + message.kind.encode() + b"\ndata: " + message.body + b"\n\n"
                told = len(events)
                if task.ended:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(heard.wait(), _BEAT_S)
                    continue
                yield b": still here\n\n"
        finally:
            task.listeners -= 1
            task.touched = time.monotonic()

    async def close(self) -> None:
        """End all tasks, and remove their files."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in list(self._tasks.values()):
            self.drop(task)

    def _too_many(self, tab: str) -> list[LongTask]:
        """Return the oldest tasks beyond those that are kept."""
        mine = [each for each in self._tasks.values() if each.tab == tab]
        every = sorted(self._tasks.values(), key=lambda each: each.touched)
        return [*mine[:-_MOST_OF_TAB], *every[:-_MOST], *self._too_large(every[:-1])]

    def _too_large(self, oldest_first: list[LongTask]) -> list[LongTask]:
        """Return the oldest tasks beyond the bytes that are kept."""
        sizes = [sum(each.stat().st_size for each in task.folder.rglob("*")) for task in oldest_first]
        found = []
        for task, size in zip(oldest_first, list(sizes), strict=True):
            if sum(sizes) <= _MOST_BYTES:
                break
            sizes.remove(size)
            found.append(task)
        return [each for each in found if each.tab != OPENED]

    async def _sweep(self) -> None:
        """Let go of what nobody waits for, now and then."""
        while True:
            await asyncio.sleep(_BEAT_S)
            now = time.monotonic()
            for task in list(self._tasks.values()):
                limit = _KEPT_S if task.ended else _UNHEARD_S
                if task.tab != OPENED and task.listeners == 0 and now - task.touched > limit:
                    self.drop(task)
