"""How far long work is: parts of it, the bar on a terminal, lines elsewhere."""

import math
import time
from itertools import pairwise

import pytest

from traincast.cli import bar, terminal
from traincast.cli.time_left import TimeLeft, shown_time_left
from traincast.progress import advanced, announce, listening, part, parts, told


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


def told_times(done_at):
    """Return what is told of the time left, once a second, of work of which `done_at` says the share by the second."""
    left = TimeLeft(0.0)
    times = ((second, left.at(second, done_at(second))) for second in range(1000) if done_at(second) < 1)
    return [(second, left_s) for second, left_s in times if left_s is not None]


def wavy(second):
    return min(1.0, second / 100 + 0.03 * math.sin(second / 3))


@pytest.mark.parametrize(
    "done_at",
    [
        lambda second: second / 40,
        lambda second: (second / 300) ** 0.9,
        lambda second: (second / 60) ** 1.5,
        lambda second: min(1.0, 0.05 * (second // 5)),
        lambda second: 0.4 if second < 4 else 0.45 if second < 9 else second / 20,
        wavy,
    ],
)
def test_the_time_left_falls_without_jumps(done_at):
    told = told_times(done_at)
    assert len(told) > 5
    for (before, first_s), (after, second_s) in pairwise(told):
        assert second_s <= first_s
        # A second of work takes no more than a few seconds, or a fifth of the rest, away.
        assert first_s - second_s <= max(4 * (after - before), 0.25 * first_s)


def test_the_time_left_of_even_work_is_right_and_of_work_that_got_slower_rises():
    assert all(left_s == pytest.approx(40 - second) for second, left_s in told_times(lambda second: second / 40))
    slower = told_times(lambda second: second / 40 if second < 20 else 0.5 + (second - 20) / 400)
    rises = [(first, second) for (_, first), (_, second) in pairwise(slower) if second > first]
    assert 1 <= len(rises) <= 8
    assert all(second > 2 * first for first, second in rises)


@pytest.mark.parametrize(("left_s", "shown"), [(0.2, "1 s"), (7.6, "8 s"), (41, "40 s"), (200, "3 min")])
def test_the_time_left_is_told_no_finer_than_it_is_known(left_s, shown):
    assert shown_time_left(left_s) == shown
