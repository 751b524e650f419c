"""What the tests of all commands need."""

import pytest

from traincast import api
from traincast.cli.main import main


@pytest.fixture
def call(capsys, monkeypatch):
    """Run the command in this process and return its exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("TRAINCAST_DEBUG", raising=False)

    def run(*words):
        try:
            main([str(word) for word in words])
            code = 0
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return run


@pytest.fixture
def made_once(monkeypatch):
    """Make a function of the facade work out its answer once for commands that ask the same and print it otherwise."""

    def remember(name):
        work, known = getattr(api, name), {}

        def remembered(*words, **more):
            asked = repr((words, {each: value for each, value in more.items() if each != "tell"}))
            if asked not in known:
                known[asked] = work(*words, **more)
            return known[asked]

        monkeypatch.setattr(api, name, remembered)

    return remember
