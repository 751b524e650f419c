"""How far long work is: parts of it, the bar on a terminal, lines elsewhere."""

import time

import pytest

from traincast.cli import bar, terminal
from traincast.diagnostics import advanced, announce, listening, part, parts, told


def heard(work, *, every=True):
    found = []
    with listening(lambda what, share: found.append((what, round(share, 9))), every=every):
        work()
    return list(dict.fromkeys(found))


def step():
    advanced(0.5)


def test_parts_count_from_where_they_begin_to_where_they_end():
    def work():
        with part(0.0, 0.6):
            step()
        for _ in parts([1, 2], 0.6, 1.0):
            step()

    assert [share for _, share in heard(work)] == [0.0, 0.3, 0.6, 0.7, 0.8, 0.9, 1.0]


def test_short_work_is_told_to_who_wants_every_share_alone():
    assert heard(step, every=False) == []
    assert heard(step) == [("", 0.5)]


def test_a_part_does_not_begin_the_whole_again():
    def work():
        announce("all")
        for _ in told("rows", [1, 2], 2):
            announce("one of them")
            step()
        step()

    assert heard(work, every=False) == [
        *(("all", 0.0), ("rows", 0.0), ("rows", 0.25), ("rows", 0.5), ("rows", 0.75), ("rows", 1.0), ("all", 0.5))
    ]


def test_a_part_that_fails_leaves_the_whole_as_it_was():
    def work():
        with pytest.raises(ValueError, match="no"), part(0.0, 0.5):
            raise ValueError("no")
        step()

    assert heard(work) == [("", 0.0), ("", 0.5)]


@pytest.fixture
def watched(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "_is_watched", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    return lambda: capsys.readouterr().err


def test_a_bar_comes_late_and_says_share_and_time(watched, monkeypatch):
    monkeypatch.setattr(bar, "PATIENCE_S", 0.05)
    with terminal.progress("simulating", quiet=False):
        advanced(0.25)
        time.sleep(0.4)
        advanced(0.1)
        time.sleep(0.2)
    said = watched()
    assert "simulating" in said
    assert "25%" in said
    assert "10%" not in said, "it does not go back"


def test_short_work_shows_nothing_and_neither_does_quiet_work(watched, monkeypatch):
    with terminal.progress("simulating", quiet=False):
        advanced(0.5)
    monkeypatch.setattr(bar, "PATIENCE_S", 0.01)
    with terminal.progress("simulating", quiet=True), terminal.counted("predicting", quiet=True) as tell:
        assert tell is None
        time.sleep(0.1)
    assert watched() == ""


def test_a_bar_is_gone_when_its_work_fails(watched, monkeypatch):
    monkeypatch.setattr(bar, "PATIENCE_S", 0.01)
    with pytest.raises(KeyError), terminal.counted("predicting", quiet=False) as tell:
        tell(1, 4)
        time.sleep(0.3)
        raise KeyError
    said = watched()
    assert "25%" in said
    assert said.rindex("\x1b[?25h") > said.rindex("25%"), "the cursor is shown again"
