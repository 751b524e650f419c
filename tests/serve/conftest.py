"""A server of the command line, in a process of its own, and what asks it."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MISSING = [name for name in ("litestar", "uvicorn") if importlib.util.find_spec(name) is None]


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.fspath).parents and MISSING:
            item.add_marker(pytest.mark.skip(reason=f"the extra serve is not installed ({', '.join(MISSING)})"))


class Answer(NamedTuple):
    status: int
    headers: dict
    body: bytes

    def json(self):
        return json.loads(self.body)


class Server:
    """A running server."""

    def __init__(self, *arguments):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, "-m", "traincast.cli", "serve", "--no-browser", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        line = self.process.stdout.readline()
        self.url = re.search(r"http://\S+", line)[0]
        self.port = int(re.search(r":(\d+)/", self.url)[1])

    @property
    def workers(self):
        """Ids of the worker processes."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return {int(each) for each in listed.split()}

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.stdout.close()

    def ask(self, method, path, body=None, headers=None):
        """Send a request as it is."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, headers or {})
            found = connection.getresponse()
            return Answer(found.status, {key.lower(): text for key, text in found.getheaders()}, found.read())
        finally:
            connection.close()

    def get(self, path):
        return self.ask("GET", path)

    def post(self, name, /, **said):
        """Ask an endpoint."""
        headers = {"Content-Type": "application/json", "X-Traincast-Tab": "test"}
        return self.ask("POST", f"/api/{name}", json.dumps(said), headers)

    def answer(self, name, /, **said):
        """Return what an endpoint answers; it must."""
        found = self.post(name, **said)
        assert found.status in (200, 202), found.body[:2000]
        return found.json()

    def error(self, name, status=400, /, **said):
        """Return the problem that an endpoint has; it must have one."""
        found = self.post(name, **said)
        assert found.status == status, found.body[:2000]
        assert found.headers["content-type"].startswith("application/json")
        return found.json()["error"]

    def events(self, task):
        """Yield the events of a task with what they tell."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/tasks/{task}/events", timeout=120) as stream:
            kind = ""
            for line in stream:
                word, _, rest = line.decode().rstrip("\n").partition(": ")
                if word == "event":
                    kind = rest
                elif word == "data":
                    yield kind, json.loads(rest)

    def done(self, name, /, **said):
        """Return what a task answers in the end."""
        return self.end_of(self.answer(name, **said)["task"])

    def end_of(self, task):
        *_, (kind, told) = self.events(task)
        assert kind == "done", told
        return told

    def upload(self, name, files, words=None, headers=None):
        """Send files by their paths."""
        line = b"----parts"
        pieces = []
        for path, content in files:
            head = f'Content-Disposition: form-data; name="files"; filename="{path}"'.encode()
            pieces += [b"--" + line, head, b"Content-Type: application/octet-stream", b"", content]
        for word, value in (words or {}).items():
            pieces += [b"--" + line, f'Content-Disposition: form-data; name="{word}"'.encode(), b"", value.encode()]
        body = b"\r\n".join([*pieces, b"--" + line + b"--", b""])
        sent = {"Content-Type": f"multipart/form-data; boundary={line.decode()}", "X-Traincast-Tab": "test"}
        return self.ask("POST", f"/api/{name}", body, {**sent, **(headers or {})})


@pytest.fixture(scope="session")
def server():
    started = Server()
    yield started
    started.stop()


@pytest.fixture
def start():
    """Start further servers."""
    begun = []

    def begin(*arguments):
        begun.append(Server(*arguments))
        return begun[-1]

    yield begin
    for each in begun:
        each.stop()


JOB = {"model": "llama3-8b", "cluster": "h100", "gpus": "16", "global_batch": "64", "seq_length": "4k", "tp": "2"}


@pytest.fixture
def job():
    return dict(JOB)
