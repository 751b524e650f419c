"""What the tests of all commands need."""

import pytest

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
