import errno
import io
import secrets
from pathlib import Path

import pytest
from msgspec.structs import replace

from traincast.errors import ConfigError, TraincastError, UnknownNameError
from traincast.report.files import REPORTS, FileReport, check_writable, write_directory, write_whole

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
    result = replace(result, timed=None)
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


@pytest.mark.parametrize("failing", range(len(ALL)))
def test_a_failure_leaves_what_an_earlier_run_wrote(result, tmp_path, monkeypatch, failing):
    """Whichever file cannot be moved into its place, all of the earlier run are as they were, and no other is there."""
    out = tmp_path / "out"
    write_directory(result, out)
    (out / "report.html").unlink()
    for path in out.iterdir():
        path.write_text(f"earlier {path.name}")
    before = {path.name: path.read_text() for path in out.iterdir()}
    real, refused = Path.replace, ALL[failing]

    def replace_but_one(self, target):
        if Path(target) == out / refused and self.parent.name.startswith(".traincast-"):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace_but_one)
    with pytest.raises(TraincastError, match=rf"{refused} cannot be written: Operation not permitted"):
        write_directory(result, out)
    assert {path.name: path.read_text() for path in out.iterdir()} == before


def test_files_are_kept_where_the_file_system_has_no_links(result, tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    test_a_failure_leaves_what_an_earlier_run_wrote(result, tmp_path, monkeypatch, len(ALL) - 1)


def test_of_a_link_the_file_that_it_leads_to_is_written(tmp_path):
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    link.symlink_to(real)
    for content in (b"one", b"two"):
        write_whole(link, content)
        assert link.is_symlink()
        assert real.read_bytes() == content
    assert contents(tmp_path) == ["link.csv", "real.csv"]
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(ConfigError, match="circle cannot be written"):
        write_whole(circle, b"")


def test_a_name_as_long_as_any_may_be_is_written(tmp_path):
    path = tmp_path / ("a" * 251 + ".csv")
    write_whole(path, [b"a", b"b"])
    assert path.read_bytes() == b"ab"


def test_a_temporary_file_is_nobody_elses(tmp_path, monkeypatch):
    """One that is there already is not written to, whatever it is."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    (tmp_path / ".traincast-guessed").symlink_to(victim)
    with pytest.raises(ConfigError, match="File exists"):
        write_whole(tmp_path / "out.csv", b"theirs")
    assert victim.read_bytes() == b"mine"
    assert contents(tmp_path) == [".traincast-guessed", "victim"]


def test_what_could_not_be_written_is_refused_beforehand(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    for path, message in ((tmp_path / "folder.csv", "is a directory"), (tmp_path / "no" / "t.csv", "is not there")):
        with pytest.raises(ConfigError, match=message):
            check_writable(path)
    check_writable(tmp_path / "table.csv")
