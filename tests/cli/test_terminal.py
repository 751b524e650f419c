"""What a command prints is written whole or fails, steers no terminal, and a stopped command tidies up."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from msgspec.structs import replace

import traincast
from fuzzing.measured import MEASURED
from support import row, write_aicb
from traincast.report.files import REPORTS
from traincast.report.plain import shown

UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
ESCAPE = "\x1b]0;title\x07\u202e\x9b31m"


@pytest.fixture
def workload(tmp_path):
    rows = [row("attention_layer", (10**6, "ALLREDUCE", 1 << 20), 10**6)] * 2
    return write_aicb(tmp_path / "w.txt", rows, tp=2, pp=2)


def shell(script, **environment):
    """Run a shell script in which ``$T`` is the command; return exit code, stdout and stderr."""
    paths = os.pathsep.join([str(Path(traincast.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    known = {**os.environ, "PYTHONPATH": paths, "T": f"{sys.executable} -m traincast.cli", **environment}
    done = subprocess.run(["bash", "-c", script], capture_output=True, env=known, timeout=60, check=False)  # noqa: S607
    return done.returncode, done.stdout, done.stderr.decode()


# --- a disk that is full, a stdout that is closed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "environment"),
    [("clusters --json", UNBUFFERED), ("clusters --json", {}), ("simulate w.txt", UNBUFFERED), ("init", UNBUFFERED)],
)
@pytest.mark.usefixtures("workload")
def test_a_cut_output_is_an_error(call, tmp_path, monkeypatch, command, environment):
    monkeypatch.chdir(tmp_path)
    assert len(call(*command.split())[1]) > 1024
    code, _, err = shell(f"ulimit -f 1; $T {command} > x", **environment)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("error: standard output cannot be written: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "environment"), [("models", UNBUFFERED), ("models --help", {}), ("--version", UNBUFFERED)]
)
def test_a_full_disk_is_one_message_whoever_prints(command, environment):
    code, _, err = shell(f"$T {command} > /dev/full", **environment)
    assert (code, err) == (1, "error: standard output cannot be written: No space left on device\n")


@pytest.mark.slow
@pytest.mark.usefixtures("workload")
def test_a_closed_stdout_is_an_error_where_something_is_printed(tmp_path):
    code, _, err = shell("$T init >&-")
    assert (code, err) == (1, "error: standard output is closed; nothing can be printed\n")
    # Its number belongs to a file that is written meanwhile: nothing may be printed into that.
    code, _, err = shell(f"cd {tmp_path}; $T simulate w.txt --json --out out >&-")
    assert (code, err) == (1, "error: standard output is closed; nothing can be printed\n")
    assert json.loads((tmp_path / "out" / "result.json").read_bytes())["schema"] == "traincast.result/1"
    assert shell(f"cd {tmp_path}; $T simulate w.txt --quiet --out quiet >&-") == (0, b"", "")


def test_a_closed_stderr_changes_no_exit_code():
    assert shell("$T models nowhere 2>&-")[:2] == (1, b"")
    assert shell("$T models nowhere 2> /dev/full")[:2] == (1, b"")


@pytest.mark.parametrize("environment", [UNBUFFERED, {}], ids=["unbuffered", "buffered"])
def test_a_reader_that_leaves_gets_no_second_message(environment):
    code, out, err = shell("set -o pipefail; $T clusters --json | head -1", **environment)
    assert (out, err) == (b"{\n", "")
    assert code in (0, 1)


def test_a_name_that_the_encoding_lacks_is_escaped(tmp_path):
    path = write_aicb(tmp_path / "\u00e9.txt", [row("x", (10**6, "ALLREDUCE", 8))], tp=2)
    code, out, err = shell(f"$T inspect '{path}'", PYTHONIOENCODING="ascii")
    assert (code, err) == (0, "")
    assert b"\\xe9.txt" in out


# --- what steers a terminal, and long values


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.toml", f'base = "h100"\n[fabric]\n{json.dumps(ESCAPE)} = 1\n'),
        ("w.txt", f"{ESCAPE} 1 2 3\n1\nx\n"),
        ("m.csv", f"{ESCAPE},size_bytes\n1,2\n"),
        ("result.json", json.dumps({"schema": ESCAPE})),
    ],
)
def test_errors_show_no_control_characters(call, tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    commands = {
        "c.toml": ["clusters", "inspect"],
        "w.txt": ["simulate", "inspect"],
        "m.csv": ["validate"],
        "result.json": ["report"],
    }
    for command in commands[name]:
        code, out, err = call(command, path)
        assert (code, out) == (1, "")
        assert all(char.isprintable() or char == "\n" for char in err)


def test_arguments_come_back_without_control_characters(call, tmp_path):
    for words in ([f"{ESCAPE}"], ["simulate", ESCAPE], ["models", ESCAPE], ["collective", ESCAPE]):
        code, out, err = call(*words)
        assert (code in (1, 2), out) == (True, "")
        assert all(char.isprintable() or char == "\n" for char in err)
    code, out, err = call("init", tmp_path / "a\x1b[31m.toml")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "\\x1b[31m.toml" in out


def test_json_steers_no_terminal_and_reads_back_equal(call, tmp_path):
    path = write_aicb(tmp_path / "w\x9b31m\u202e.txt", [row("x", (10**6, "ALLREDUCE", 8))], tp=2)
    code, out, err = call("simulate", path, "--json")
    assert (code, err) == (0, "")
    assert not any(char in out for char in "\x9b\u202e\x7f")
    assert str(path) in json.dumps(json.loads(out), ensure_ascii=False)


def test_a_long_value_is_cut_short(call):
    long = "A" * 5000
    for words in (["simulate", long], ["collective", long], [long], ["simulate", "x", "--tp", long]):
        code, _, err = call(*words)
        assert code in (1, 2)
        assert len(err) < 1000
        assert re.search(r"A\[\.\.\. 4,7\d\d characters \.\.\.\]A|A'\.\.\. ", err)


def test_only_what_is_long_is_cut():
    assert shown("/a/" + "b" * 300) == "/a/" + "b" * 300
    assert shown("word " * 500) == "word " * 500
    assert shown(f"{'x' * 1000} is long") == f"{'x' * 160}[... 780 characters ...]{'x' * 60} is long"


# --- wrong usage, and files that are written whole


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "w.txt", "--out", ""],
        ["simulate", "w.txt", "--out="],
        ["simulate", ""],
        ["simulate", "w.txt", "--cluster", ""],
        ["calibrate", "x.log", "--cluster", "h100", "--out", ""],
        ["validate", "m.csv", "--out", ""],
        ["init", ""],
        [""],
    ],
)
@pytest.mark.usefixtures("workload")
def test_an_empty_argument_is_wrong_usage(call, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: traincast ")
    assert "is empty" in err or "has no value" in err
    assert [path.name for path in tmp_path.iterdir()] == ["w.txt"]


def test_init_writes_whole(tmp_path):
    code, _, err = shell(f"cd {tmp_path}; ulimit -f 1; $T init job.toml")
    assert (code, err.count("\n")) == (1, 1)
    assert "job.toml cannot be written" in err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "job.toml").write_text("mine")
    assert shell(f"cd {tmp_path}; ulimit -f 1; $T init --force job.toml")[0] == 1
    assert (tmp_path / "job.toml").read_text() == "mine"


def test_a_device_is_written_to_and_not_replaced(call, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert call("init", "--force", pipe)[0] == 0
        assert os.read(reader, 1 << 16).startswith(b"# A job for traincast")
    finally:
        os.close(reader)
    assert pipe.is_fifo()


# --- a command that is told to stop


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_stopped_command_leaves_no_temporary_folder(call, workload, tmp_path, monkeypatch, stop):
    report = next(each for each in REPORTS.entries() if each.name == "json")
    # Whoever runs the tests may ignore it, as nohup does.
    before = signal.signal(stop, signal.SIG_DFL)

    def write(_result, stream):
        stream.write(b"half")
        os.kill(os.getpid(), stop)

    monkeypatch.setattr("traincast.report.files._chosen", lambda *_: [replace(report, write=write)])
    try:
        code, out, err = call("simulate", workload, "--out", tmp_path / "out")
        said = "interrupted\n" if stop == signal.SIGINT else f"stopped by {stop.name}\n"
        assert (code, out, err) == (128 + stop, "", said)
        assert not (tmp_path / "out").exists()
        assert signal.getsignal(stop) is signal.SIG_DFL
    finally:
        signal.signal(stop, before)


def test_ctrl_c_ends_a_sweep_and_its_workers_with_one_line(tmp_path):
    """A terminal sends it to all of them; what is done stays in the journal, and there is no table yet."""
    spec = tmp_path / "sweep.toml"
    spec.write_text(
        '[base]\nmodel = { name = "llama3-8b" }\ncluster = { name = "h100", gpus = 64 }\n'
        "batch = { seq_length = 4096, global_batch = 512 }\n"
        '[grid]\n"parallel.tp" = [1, 2, 4, 8]\n"batch.global_batch" = [512, 1024, 2048]\n"parallel.pp" = [1, 2, 4]\n'
    )
    # Whoever runs the tests may ignore it, as nohup does, and what they start then would, too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = subprocess.Popen(
        [sys.executable, "-m", "traincast.cli", "sweep", str(spec), "--out", str(tmp_path / "t.csv"), "--workers", "2"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    signal.signal(signal.SIGINT, before)
    journal = tmp_path / "t.csv.journal"
    while begun.poll() is None and not journal.exists():
        time.sleep(0.05)
    os.killpg(begun.pid, signal.SIGINT)
    out, err = begun.communicate(timeout=60)
    assert (begun.returncode, out) == (130, "")
    assert err.splitlines()[1:] == ["interrupted"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep.toml", "t.csv.journal"]


def test_an_ignored_signal_stays_ignored(call):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert call("init")[0] == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_many_rows_are_announced(call, tmp_path, monkeypatch):
    # By its module: traincast.calibrate is also the function of that name.
    monkeypatch.setattr(import_module("traincast.calibration.validate"), "ANNOUNCED_ROWS", 3)
    path = tmp_path / "m.csv"
    path.write_text(MEASURED["named"])
    code, out, err = call("validate", path, "--json")
    assert (code, err) == (0, "predicting 6 rows\n")
    assert out.startswith("{")
    path.write_text(MEASURED["attention"])
    assert call("validate", path)[2] == ""


# --- one place


def test_one_module_writes_to_the_terminal():
    folder = Path(traincast.__file__).parent
    writes = re.compile(r"click\.echo\(|(?<![\w.])print\(|sys\.(?:stdout|stderr)|secho\(")
    # Examples in docstrings print, too.
    example = re.compile(r"^ *(?:>>>|\.\.\.) .*$", re.MULTILINE)
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if writes.search(example.sub("", path.read_text("utf-8")))
    }
    # What times a job's operators is written out as a script, too, for a machine without traincast.
    # A worker of the planner speaks to its server over standard output.
    # A sweep in Python shows how far it is where it is asked to.
    assert found == {"cli/terminal.py", "measuring/run.py", "api/sweep.py", "serve/answers/worker.py"}
