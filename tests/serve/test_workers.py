"""The worker processes by themselves."""

import asyncio

from traincast.serve import workers as module
from traincast.serve.wire import Message, WorkerCall
from traincast.serve.workers import Workers


def test_a_worker_that_makes_room_is_given_nothing_more(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "resident_bytes", lambda _: 2**50)

    async def asked_at_once():
        workers = Workers(tmp_path, 1)
        await workers.start()
        try:
            return [(await workers.run(WorkerCall("about", b"{}"))).kind for _ in range(3)]
        finally:
            await workers.close()

    assert asyncio.run(asked_at_once()) == ["done", "done", "done"]


def test_a_worker_whose_call_is_taken_back_is_given_nothing_though_its_answer_comes(tmp_path):
    async def asked():
        workers = Workers(tmp_path, 1)
        await workers.start()
        try:
            await workers.run(WorkerCall("about", b"{}"))
            call = asyncio.create_task(workers.run(WorkerCall("about", b"{}")))
            await asyncio.sleep(0)
            worker = workers._workers[0]
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            # As if it had answered right before it was ended.
            workers._heard(worker, Message("done"))
            return (await workers.run(WorkerCall("about", b"{}"))).kind
        finally:
            await workers.close()

    assert asyncio.run(asked()) == "done"
