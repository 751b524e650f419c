"""The server is small, since it knows records alone; what is answered is done in workers."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import traincast
from traincast.serve import answers
from traincast.serve.endpoints import ENDPOINTS

SOURCE = Path(traincast.__file__).parent


def test_the_server_loads_nothing_that_only_workers_need():
    code = "import sys, traincast.serve.run, traincast.serve.app; print(*sys.modules)"
    environment = {"PYTHONPATH": str(SOURCE.parent)}
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    ours = {name.split(".")[1] for name in loaded.stdout.split() if name.startswith("traincast.")}
    assert ours <= {"serve", "report", "errors", "files", "lazy", "names", "shipped", "units"}
    assert not {"numpy", "rich", "traincast.serve.answers"} & {*loaded.stdout.split()}


def test_every_endpoint_has_an_answer_of_its_name_and_no_other_is_there():
    assert sorted(ENDPOINTS) == dir(answers)


@pytest.mark.parametrize("name", ENDPOINTS)
def test_an_answer_takes_and_returns_what_its_endpoint_says(name):
    endpoint, answer = ENDPOINTS[name], getattr(answers, name)
    taken, bench = inspect.signature(answer).parameters.values()
    assert (taken.annotation, bench.annotation.__name__) == (endpoint.takes, "Workbench")
    assert inspect.signature(answer).return_annotation is endpoint.answers
    assert inspect.getdoc(answer).splitlines()[0] == endpoint.text
