"""Every point gets one row, in order, whatever its neighbours do; what is journalled is not run again."""

import errno
import os

import pytest

import traincast
from sweep_work import work
from traincast.errors import ConfigError, FormatError
from traincast.sweeps.executors import WorkerLostError
from traincast.sweeps.journal import Heading, Journal
from traincast.sweeps.run import TRIES, run_sweep
from traincast.sweeps.spec import Spec

HEADING = Heading(fingerprint="this", version="1", points=6, chunk=2)


class InTurn:
    """Runs chunks one after another, here; who is told to die is lost with all that was begun."""

    workers = 2

    def __init__(self):
        self.running, self.ran = [], []

    def start(self, key, points):
        self.running.append((key, points))

    def done(self):
        key, chunk = self.running.pop(0)
        self.ran.append([point.index for point in chunk])
        if any(point.document["x"]["do"] == "die" for point in chunk):
            return key, WorkerLostError("its process died")
        try:
            return key, [{"status": "ok", "step_s": work([_flat(point)])[0]["step_s"]} for point in chunk]
        except RuntimeError as error:
            return key, error

    def close(self):
        pass


def _flat(point):
    return type(point)(point.index, point.said, point.document["x"])


def spec(*whats):
    cases = tuple({"x.do": what, "x.at": at} for at, what in enumerate(whats))
    return Spec(path="here", base={}, grid={}, cases=cases, prices={})


def ran(tmp_path, asked, executor, heading=HEADING):
    journal = Journal(tmp_path / "journal", heading)
    try:
        return [row for _, row in run_sweep(asked, executor, journal, heading.chunk)]
    finally:
        journal.close()


def test_what_raises_or_dies_is_named_and_the_rest_completes(tmp_path):
    executor = InTurn()
    rows = ran(tmp_path, spec("run", "raise", "run", "run", "die", "run"), executor)
    assert [row["status"] for row in rows] == ["ok", "failed", "ok", "ok", "failed", "ok"]
    assert "a defect" in rows[1]["message"]
    assert "its process died" in rows[4]["message"]
    assert executor.ran.count([1]) == executor.ran.count([4]) == TRIES
    assert [rows[at]["step_s"] for at in (0, 2, 3, 5)] == [0.0, 2.0, 3.0, 5.0]


def test_progress_counts_every_point_once(tmp_path):
    told = []
    journal = Journal(tmp_path / "journal", HEADING)
    list(run_sweep(spec(*["run"] * 5), InTurn(), journal, 2, lambda done, total: told.append((done, total))))
    journal.close()
    assert told == [(0, 5), (2, 5), (4, 5), (5, 5)]


def test_what_is_journalled_is_not_run_again(tmp_path):
    asked, stopped = spec(*["run"] * 6), InTurn()
    journal = Journal(tmp_path / "journal", HEADING)
    journal.add(1, [{"status": "ok", "step_s": 2.0}, {"status": "ok", "step_s": 3.0}])
    journal.close()
    rows = ran(tmp_path, asked, stopped)
    assert stopped.ran == [[0, 1], [4, 5]]
    assert [row["step_s"] for row in rows] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_line_that_was_cut_off_is_run_again(tmp_path):
    asked, path = spec(*["run"] * 6), tmp_path / "journal"
    whole = ran(tmp_path, asked, InTurn())
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    again = InTurn()
    assert ran(tmp_path, asked, again) == whole
    assert again.ran == [[4, 5]]
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Heading(fingerprint="that", version="1", points=6, chunk=2), "belongs to another sweep; --restart"),
        (Heading(fingerprint="this", version="2", points=6, chunk=2), "by traincast 1, and this is 2; --restart"),
        (Heading(fingerprint="this", version="1", points=6, chunk=3), "chunks of 2 points, not of 3"),
    ],
)
def test_a_journal_of_something_else_is_refused(tmp_path, other, message):
    Journal(tmp_path / "journal", HEADING).close()
    with pytest.raises(ConfigError, match=message):
        Journal(tmp_path / "journal", other)


def test_a_journal_belongs_to_one_sweep_at_a_time(tmp_path):
    pytest.importorskip("fcntl")
    first = Journal(tmp_path / "journal", HEADING)
    with pytest.raises(ConfigError, match="belongs to a sweep that is running"):
        Journal(tmp_path / "journal", HEADING)
    first.close()
    Journal(tmp_path / "journal", HEADING).close()


def test_a_restart_leaves_the_journal_of_a_sweep_that_runs(tmp_path):
    pytest.importorskip("fcntl")
    path, rows = tmp_path / "journal", [{"status": "ok", "step_s": 2.0}]
    first = Journal(path, HEADING)
    first.add(0, rows)
    with pytest.raises(ConfigError, match="belongs to a sweep that is running"):
        Journal(path, HEADING, restart=True)
    first.close()
    last = Journal(path, HEADING)
    last.close()
    assert last.rows_of == {0: rows}


def test_a_restart_begins_anew_and_the_end_takes_only_its_own_journal_away(tmp_path):
    path = tmp_path / "journal"
    first = Journal(path, HEADING)
    first.add(0, [{"status": "ok", "step_s": 2.0}])
    first.close()
    again = Journal(path, Heading(fingerprint="that", version="1", points=6, chunk=2), restart=True)
    assert again.rows_of == {}
    path.rename(tmp_path / "moved")
    other = Journal(path, HEADING)
    again.close(remove=True)
    assert path.exists()
    other.close(remove=True)
    assert not path.exists()


def test_a_live_sweep_keeps_its_journal_beside_a_restart(tmp_path):
    pytest.importorskip("fcntl")
    table = tmp_path / "table.csv"
    told = []

    def beside(done, _):
        told.append(done)
        with pytest.raises(ConfigError, match="belongs to a sweep that is running"):
            traincast.sweep(**LIVE, out=table, restart=True)

    assert traincast.sweep(**LIVE, out=table, tell=beside) == {"ok": 2}
    assert told
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


LIVE = {
    "model": "llama3-8b",
    "cluster": "h100",
    "gpus": 8,
    "global_batch": 8,
    "seq_length": 512,
    "tp": [1, 2],
    "workers": 1,
}


def test_a_full_disk_is_said_in_words_and_what_is_done_stays(tmp_path, monkeypatch):
    path = tmp_path / "journal"
    journal = Journal(path, HEADING)
    journal.add(0, [{"status": "ok", "step_s": 2.0}])

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"journal: cannot be written: No space left on device; what it holds"):
        journal.add(1, [{"status": "ok", "step_s": 3.0}])
    journal.close()
    monkeypatch.undo()
    last = Journal(path, HEADING)
    last.close()
    assert 0 in last.rows_of


@pytest.mark.parametrize("content", [b"no journal\n", b'{"schema": 3}\n', b"\xff\xfe\n"])
def test_what_is_no_journal_is_refused(tmp_path, content):
    (tmp_path / "journal").write_bytes(content)
    with pytest.raises(FormatError, match="not a journal of a sweep"):
        Journal(tmp_path / "journal", HEADING)


def test_a_journal_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        Journal(tmp_path / "nowhere" / "journal", HEADING)


def test_progress_is_a_line_of_standard_error(capsys):
    traincast.sweep(**LIVE, progress=True)
    shown = capsys.readouterr().err.split("\r")
    assert shown[-1] == "2 of 2 points\n"
