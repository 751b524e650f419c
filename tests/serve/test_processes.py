"""Work that is cancelled stops, what others ask goes on meanwhile, and nothing is left behind."""

import os
import time
from pathlib import Path

import pytest

BIG = {"model": "deepseek-v3", "cluster": "h100", "gpus": "2048", "global_batch": "15360"}
PAGE = 4096


def cpu_s(pid):
    """Return the CPU time of a process."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def resident(server):
    """Return the memory of a server with its workers, in bytes."""
    pids = [server.process.pid, *server.workers]
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * PAGE


def until(said, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if said():
            return True
        time.sleep(0.05)
    return False


def folders(server):
    """Return the folders of tasks of a server."""
    environment = Path(f"/proc/{min(server.workers)}/environ").read_bytes().split(b"\0")
    root = next(each for each in environment if each.startswith(b"TRAINCAST_SERVE_FOLDER=")).partition(b"=")[2]
    return Path(root.decode())


@pytest.fixture(scope="module")
def own():
    from tests.serve.conftest import Server

    started = Server()
    yield started
    started.stop()


def test_a_task_that_is_cancelled_ends_its_worker(own, job):
    own.answer("forecast", job=job)
    before = own.workers
    task = own.answer("plan", job=BIG)["task"]
    events = own.events(task)
    assert next(events)[0] == "progress"
    busy = _busiest(before)
    assert own.ask("DELETE", f"/api/tasks/{task}").status == 204
    assert [kind for kind, _ in events][-1] == "failed"
    assert until(lambda: busy not in own.workers), "the worker goes on"
    assert until(lambda: len(own.workers) == len(before)), "no worker in its place"
    assert own.answer("forecast", job=job)["shown"]


def _busiest(pids):
    """Return the process that computes most for a while."""
    begin = {pid: cpu_s(pid) for pid in pids}
    assert until(lambda: max(cpu_s(pid) - begin[pid] for pid in pids) > 1, 60)
    return max(pids, key=lambda pid: cpu_s(pid) - begin[pid])


def test_a_forecast_does_not_wait_for_a_plan(own, job):
    task = own.answer("plan", job=BIG)["task"]
    events = own.events(task)
    next(events)
    own.answer("forecast", job=job)
    # The plan goes on: it ends as what it is told to end as.
    assert own.ask("DELETE", f"/api/tasks/{task}").status == 204
    *_, (kind, told) = events
    assert (kind, told["error"]["kind"]) == ("failed", "cancelled")


def test_the_newest_of_a_page_wins(own, job):
    """Of forecasts of one page that wait, the last alone is made; others are told that they were overtaken."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(12) as pool:
        waiting = []
        for number in range(12):
            waiting.append(pool.submit(own.post, "forecast", job={**job, "global_batch": str(64 + 16 * number)}))
            time.sleep(0.01)
        found = [each.result() for each in waiting]
    assert found[-1].status == 200
    assert {each.status for each in found} <= {200, 409}
    late = [each.json()["error"]["kind"] for each in found if each.status == 409]
    assert set(late) <= {"superseded"}


def test_a_worker_that_dies_is_replaced_and_its_call_is_answered(own, job):
    before = own.workers
    for pid in before:
        os.kill(pid, 9)
    assert until(lambda: own.workers and not own.workers & before)
    assert own.answer("forecast", job=job)["shown"]


def test_many_requests_leave_nothing_behind(own, job):
    def some():
        for number in range(20):
            own.post("forecast", job={**job, "global_batch": str(64 + 16 * (number % 5)), "tp": str(2 ** (number % 4))})
        for _ in range(2):
            own.done("explain", example="megatron_pp4_tp2")
            own.post("read", text="--num-layers 4 --hidden-size 64 --foo 1")

    some()
    some()
    time.sleep(1)
    first = resident(own)
    for _ in range(3):
        some()
    time.sleep(1)
    assert resident(own) < 1.25 * first + 40 * 2**20
    root = folders(own)
    kept = [each for each in root.iterdir() if not each.name.startswith("worker-")]
    assert len(kept) <= 8, "tasks of a page are let go"
    assert resident(own) < 1e9


def test_a_server_that_ends_takes_workers_and_files_along(start):
    server = start()
    server.done("explain", example="aicb_scaled_512gpu.txt")
    workers, root = server.workers, folders(server)
    assert root.stat().st_mode & 0o077 == 0, "others on this machine read nothing"
    server.stop()
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert not root.exists()


def test_workers_of_a_server_that_is_killed_end(start):
    server = start()
    server.get("/api/about")
    workers = server.workers
    server.process.kill()
    assert until(
        lambda: (
            not any(
                Path(f"/proc/{pid}/statm").exists() and Path(f"/proc/{pid}/statm").read_text().split()[0] != "0"
                for pid in workers
            )
        )
    )
