import io
from pathlib import Path

import pytest
from msgspec.structs import replace

from traincast.errors import ConfigError, TraincastError, UnknownNameError
from traincast.report.files import REPORTS, FileReport, write_directory

ALL = ["ops.csv", "report.html", "result.json", "trace.json.gz"]


def contents(path):
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


def use(monkeypatch, write):
    """Make the last report fail in its own way."""
    REPORTS.names()
    monkeypatch.setitem(REPORTS._entries, "trace", FileReport("trace", "trace.json.gz", write, True))


def test_writes_every_report_and_nothing_else(result, tmp_path):
    out = tmp_path / "deep" / "out"
    paths = write_directory(result, out)
    assert [path.name for path in paths] == ["ops.csv", "report.html", "result.json", "trace.json.gz"]
    assert contents(out) == ALL
    assert all(path.stat().st_size for path in paths)


def test_names_choose_and_order(result, tmp_path):
    assert write_directory(result, tmp_path, ["json", "csv", "json"]) == [
        tmp_path / "result.json",
        tmp_path / "ops.csv",
    ]
    with pytest.raises(UnknownNameError, match="trace"):
        write_directory(result, tmp_path / "new", ["pdf"])
    assert contents(tmp_path) == ["ops.csv", "result.json"]


def test_without_a_timeline(result, tmp_path):
    result = replace(result, program=None, timeline=None)
    assert [path.name for path in write_directory(result, tmp_path)] == ["result.json"]
    with pytest.raises(ConfigError, match="simulate again"):
        write_directory(result, tmp_path, ["trace"])


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), TraincastError("no"), KeyError("bug")])
@pytest.mark.parametrize("exists", [True, False])
def test_a_failing_writer_leaves_nothing(result, tmp_path, monkeypatch, error, exists):
    def write(_result, stream):
        stream.write(b"half")
        raise error

    use(monkeypatch, write)
    out = tmp_path / "a" / "b"
    if exists:
        out.mkdir(parents=True)
        (out / "result.json").write_text("old")
    with pytest.raises((TraincastError, KeyError)) as caught:
        write_directory(result, out)
    if isinstance(error, OSError):
        assert str(caught.value) == "trace.json.gz cannot be written: No space left on device"
    assert contents(tmp_path) == (["a", "a/b", "a/b/result.json"] if exists else [])
    assert not exists or (out / "result.json").read_text() == "old"


def test_a_failing_move_leaves_nothing(result, tmp_path, monkeypatch):
    move = Path.replace

    def fail(self, target):
        if target.name == "trace.json.gz":
            raise OSError(1, "Operation not permitted")
        return move(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(TraincastError, match=r"trace\.json\.gz cannot be written: Operation not permitted"):
        write_directory(result, tmp_path / "out")
    assert contents(tmp_path) == []


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_file_in_the_way_is_a_plain_message(result, tmp_path, out):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"is a file|cannot be created"):
        write_directory(result, tmp_path / out)
    (tmp_path / "result.json").mkdir()
    with pytest.raises(ConfigError, match=r"result.json is a directory"):
        write_directory(result, tmp_path)
    assert contents(tmp_path) == ["file", "result.json"]


@pytest.mark.parametrize("name", ["csv", "json", "trace"])
def test_the_same_bytes_every_time(result, name):
    first, second = io.BytesIO(), io.BytesIO()
    REPORTS.get(name).write(result, first)
    REPORTS.get(name).write(result, second)
    assert first.getvalue() == second.getvalue() != b""
