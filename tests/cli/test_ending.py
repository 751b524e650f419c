"""Whatever ends a command, ``--json`` tells it as one document, and stderr and the exit code as without it."""

import json

import pytest

from traincast import errors
from traincast.cli import ending, main
from traincast.cli.ending import StoppedError

JOB = ("--model", "llama3-70b", "--cluster", "h100", "--gpus", "8", "--global-batch", "8", "--seq-length", "8192")
WRONG = {
    "inspect": ("no_such_file",),
    "simulate": ("no_such_file",),
    "predict": ("--model", "llama3-8b"),
    "plan": (*JOB, "--tp", "3"),
    "sweep": ("no_such_file", "--out", "table.csv"),
    "compare": ("no_such_file", "neither_this"),
    "check": ("no_such_file",),
    "watch": ("no_such_file", "--once"),
    "convert": ("no_such_file", "out", "--to", "chakra"),
    "measure": ("no_such_file", "--out", "table.csv"),
    "calibrate": ("no_such_file",),
    "validate": ("no_such_file",),
    "collective": ("all_reduce", "--gpus", "0"),
    "operator": ("no_such_operator",),
    "report": ("no_such_file",),
    "init": ("no_such_folder/job.toml",),
    "serve": ("no_such_file",),
    "models": ("no-such-model",),
    "recipes": ("no-such-recipe",),
    "clusters": ("no-such-cluster",),
    "schema": ("no-such-document",),
    "completion": ("no-such-shell",),
    "man": ("what",),
}
NUMBERED = [
    errors.FormatError("is not one", "a.txt", 7),
    errors.ConfigError("is wrong", "parallel.tp"),
    errors.UnknownNameError("model", "lama", ["llama"]),
    errors.InfeasibleError("does not fit", needed_bytes=9e10, limit_bytes=8e10, stage=3),
    errors.ProgramError("breaks a rule"),
    errors.DeadlockError("waits for ever", [1, 2]),
    errors.CalibrationError("too few", rows=1, needed_rows=4),
    errors.MeasurementError("no GPU"),
    FileNotFoundError(2, "No such file or directory", "gone"),
    MemoryError(),
    KeyboardInterrupt(),
    StoppedError(15),
    ZeroDivisionError("by zero"),
]


def document_of(out):
    """Return the one document that stdout holds."""
    found = json.loads(out)
    assert found["schema"] == "traincast.error/1"
    assert len(found) == 15
    return found


def test_every_command_is_asked_wrongly_here():
    assert set(WRONG) == set(main._COMMANDS)


@pytest.mark.parametrize("command", WRONG)
@pytest.mark.parametrize("words", [None, ("--no-such-option",)])
def test_an_error_is_one_document_beside_the_message(command, words, call):
    words = WRONG[command] if words is None else words
    code, out, err = call(command, *words)
    assert (code > 0, out) == (True, "")
    again = call(command, *words, "--json")
    found = document_of(again[1])
    assert found["exit_code"] == again[0]
    usage = found["code"] == "usage"
    assert usage == (again[0] == 2)
    if "--json" not in found["message"]:
        assert (again[0], again[2]) == (code, err)
    assert found["message"] in " ".join(again[2].split()) or found["message"] in again[2]


@pytest.mark.parametrize("error", NUMBERED, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_numbers_and_places(error, call, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(main.cli, "main", fail)
    code, out, err = call("predict", "--json")
    found = document_of(out)
    assert found["message"] in err
    assert found["exit_code"] == code
    assert found["code"] == getattr(error, "code", None) or not isinstance(error, errors.TraincastError)
    for name in ("field", "path", "line", "stage", "name"):
        assert found[name] == getattr(error, name, found[name])
    for name, unit in (("needed_bytes", "bytes"), ("needed_rows", "rows")):
        if hasattr(error, name):
            limits = {"bytes": "limit_bytes", "rows": "rows"}
            assert (found["needed"], found["limit"]) == (getattr(error, name), getattr(error, limits[unit]))
            assert found["unit"] == unit


def test_each_kind_of_error_has_a_code_of_its_own():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_json_among_pasted_flags_is_theirs():
    assert not ending._wants_json(["predict", "--like", "megatron", "--", "--json"])
    assert ending._wants_json(["predict", "--json", "--", "--x"])
