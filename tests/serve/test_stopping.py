"""A server that is stopped answers whoever waits, and says so in one line."""

import json
import signal
import socket
import subprocess
from http.client import HTTPConnection

import pytest
from tests.serve.conftest import Server

BIG = {"model": "deepseek-v3", "cluster": "h100", "gpus": "2048", "global_batch": "15360", "allow_oom": True}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Start a server whose errors go to a file."""
    told = (tmp_path / "stderr").open("w+")
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **more: popen(*words, **more, stderr=told))
    started = Server()
    monkeypatch.undo()
    started.told = told
    yield started
    started.stop()
    told.close()


def ended(own, number):
    """Stop a server, and return what it printed of it."""
    own.process.send_signal(number)
    own.process.wait(20)
    own.told.seek(0)
    return own.told.read().splitlines()


@pytest.mark.parametrize(
    ("number", "line"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped by SIGTERM")], ids=["INT", "TERM"]
)
def test_requests_and_tasks_end_with_it(own, number, line):
    task = own.answer("plan", job=BIG)["task"]
    events = own.events(task)
    assert next(events)[0] == "progress"
    asked = HTTPConnection("127.0.0.1", own.port, timeout=60)
    body = json.dumps({"job": {**BIG, "pp": "16", "ep": "64"}})
    asked.request("POST", "/api/advice", body, {"Content-Type": "application/json", "X-Traincast-Tab": "test"})
    assert own.get("/").status == 200
    assert ended(own, number) == [line]
    found = asked.getresponse()
    assert (found.status, json.loads(found.read())["error"]["kind"]) == (503, "stopped")
    asked.close()
    kind, told = list(events)[-1]
    assert (kind, told["error"]["kind"]) == ("failed", "stopped")


def test_a_request_that_is_not_all_there_ends_with_it(own):
    with socket.create_connection(("127.0.0.1", own.port)) as half:
        head = f"POST /api/forecast HTTP/1.1\r\nHost: 127.0.0.1:{own.port}\r\n"
        half.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{".encode())
        assert own.get("/").status == 200
        *_, line = lines = ended(own, signal.SIGTERM)
        assert line == "stopped by SIGTERM"
        assert not any("Traceback" in each for each in lines)
        assert len(lines) <= 2
        head, _, body = half.recv(65536).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert "stopped" in json.loads(body)["error"]["message"]
