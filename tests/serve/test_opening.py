"""What ``traincast serve`` and ``traincast report --serve`` open with."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.serve.conftest import SOURCE

import traincast

EXAMPLES = Path(__file__).parents[2] / "examples"


def state_of(server):
    fragment = server.url.partition("#")[2]
    return json.loads(base64.urlsafe_b64decode(fragment + "=" * (-len(fragment) % 4)))


def test_a_job_file_fills_the_form(start):
    state = state_of(start(str(EXAMPLES / "llama3_70b_512gpu.toml")))
    assert state["view"] == "forecast"
    assert {"model": "llama3-70b", "tp": 8, "gpus": 512}.items() <= state["scenarios"][0]["job"].items()


def test_traces_and_results_are_explained(start, tmp_path):
    server = start(str(EXAMPLES / "megatron_pp4_tp2"))
    state = state_of(server)
    assert state["view"] == "explain"
    told = server.end_of(state["look"]["explain"]["task"])
    assert [each["rank"] for each in told["stragglers"]] == [7]
    result = traincast.predict(model="llama3-8b", cluster="h100", gpus=16, tp=2, global_batch=64, seq_length=4096)
    traincast.save_result(result, tmp_path / "run")
    other = start(str(tmp_path / "run"))
    told = other.end_of(state_of(other)["look"]["explain"]["task"])
    assert (told["kind"], told["shown"]["step"]["value"]) == ("result", result.iteration_time_s)


def test_without_files_the_page_opens_as_it_was(server):
    assert "#" not in server.url


def test_a_file_that_is_not_there_is_said(tmp_path):
    words = [sys.executable, "-m", "traincast.cli", "serve", str(tmp_path / "none.toml")]
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}, check=False
    )
    assert done.returncode == 1
    assert "is not there" in done.stderr


def test_a_port_that_is_taken_is_said(server):
    words = [sys.executable, "-m", "traincast.cli", "serve", "--no-browser", "--port", str(server.port)]
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}, check=False
    )
    assert done.returncode == 1
    assert "choose another port" in done.stderr


def test_a_report_is_served(tmp_path):
    result = traincast.predict(model="llama3-8b", cluster="h100", gpus=16, tp=2, global_batch=64, seq_length=4096)
    traincast.save_result(result, tmp_path / "run")
    words = [sys.executable, "-m", "traincast.cli", "report", str(tmp_path / "run"), "--serve"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "BROWSER": "true"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert re.match(r"serving http://127\.0\.0\.1:\d+/#", process.stdout.readline())
    finally:
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        process.wait(30)
        process.stdout.close()
    assert time.monotonic() - begin < 25
