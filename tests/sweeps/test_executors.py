"""Every executor runs chunks, hands on what they raise, and outlives a worker."""

import os
import subprocess
import sys
import threading

import pytest

from sweep_work import points, work
from traincast.errors import ConfigError
from traincast.sweeps.executors import EXECUTORS, WorkerLostError


@pytest.fixture(params=["local", "ray"])
def executor(request, monkeypatch):
    if request.param == "ray":
        pytest.importorskip("ray", reason="needs Ray: pip install 'traincast[ray]'")
        # Ray's workers are processes of their own: they look for the work where the environment says.
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    made = EXECUTORS.get(request.param)(work, 2, "")
    yield made
    made.close()


def test_chunks_come_back_with_their_keys(executor):
    executor.start(7, points("run", "run"))
    executor.start(8, points("run"))
    found = dict(executor.done() for _ in range(2))
    assert {key: [row["step_s"] for row in rows] for key, rows in found.items()} == {7: [0.0, 1.0], 8: [0.0]}


def test_what_work_raises_is_handed_on(executor):
    executor.start(0, points("raise"))
    key, error = executor.done()
    assert key == 0
    assert isinstance(error, RuntimeError)
    assert "a defect" in str(error)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_worker_that_dies_is_lost_and_another_takes_its_place(executor):
    executor.start(0, points("die"))
    key, error = executor.done()
    assert key == 0
    assert isinstance(error, WorkerLostError)
    executor.start(1, points("run"))
    assert executor.done() == (1, [{"status": "ok", "step_s": 0.0}])


@pytest.mark.parametrize("finished", [True, False])
def test_a_pool_that_is_closed_leaves_no_thread_to_the_end_of_the_process(finished):
    before = set(threading.enumerate())
    pool = EXECUTORS.get("local")(work, 1, "")
    pool.start(0, points("run"))
    if finished:
        pool.done()
    pool.close()
    assert set(threading.enumerate()) <= before


def test_this_machine_has_no_address():
    with pytest.raises(ConfigError, match="this machine and has no address"):
        EXECUTORS.get("local")(work, 1, "elsewhere:1")


@pytest.mark.slow
@pytest.mark.parametrize("as_file", [True, False])
def test_a_plain_script_sweeps(tmp_path, as_file):
    """Without ``if __name__ == "__main__"``, and also where there is no file of it."""
    code = (
        "import traincast\n"
        'job = {"model": "llama3-8b", "cluster": "h100", "gpus": 8, "global_batch": 8, "seq_length": 2048}\n'
        "print(traincast.sweep(job, tp=[1, 2], workers=2)['status'].tolist())\n"
    )
    (tmp_path / "script.py").write_text(code)
    done = subprocess.run(
        [sys.executable, *(["script.py"] if as_file else ["-"])],
        input=None if as_file else code,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.stdout, done.stderr) == ("['ok', 'ok']\n", "")
