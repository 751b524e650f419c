"""The worker processes by themselves."""

import asyncio

from traincast.serve import workers as module
from traincast.serve.wire import WorkerCall
from traincast.serve.workers import Workers


def test_a_worker_that_makes_room_is_given_nothing_more(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_resident_bytes", lambda _: 2**50)

    async def asked_at_once():
        workers = Workers(tmp_path, 1)
        await workers.start()
        try:
            return [(await workers.run(WorkerCall("about", b"{}"))).kind for _ in range(3)]
        finally:
            await workers.close()

    assert asyncio.run(asked_at_once()) == ["done", "done", "done"]
