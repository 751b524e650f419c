"""Processes that share work find what one alone finds, in the same order, and one that ends is noticed."""

import multiprocessing
import os
import time
from functools import partial

import pytest

from traincast.crew import Crew, LostError, crew

COUNTS = (1, 2, 3)


def squares(own, lists, told=None, found=None):
    """Work lists of pieces off, each list from what the one before gave."""
    found = [] if found is None else found
    for count in lists:
        before = sum(map(sum, found))
        found.append(own.each([partial(pow, number + before, 2) for number in range(count)], told))
    return found


@pytest.mark.parametrize("count", COUNTS)
def test_all_find_what_one_finds_alone(count):
    lists = (5, 0, 1, 12)

    def all_tell(own):
        found = squares(own, lists)
        return own.each([lambda: (busy(), found)] * 9)

    with crew(count, all_tell) as own:
        assert own.count == count
        assert own.is_first
        told = all_tell(own)
    assert len({process for process, _ in told}) == count
    assert all(found == squares(Crew(), lists) for _, found in told)


def busy():
    time.sleep(0.05)
    return os.getpid()


@pytest.mark.parametrize("count", COUNTS)
def test_each_piece_is_worked_out_by_one_of_them(count):
    def both(own):
        return own.each([busy] * 9)

    with crew(count, both) as own:
        found = both(own)
    assert len(set(found)) == count
    assert found.count(os.getpid()) < 9 or count == 1


@pytest.mark.parametrize("count", COUNTS)
def test_others_are_sent_what_they_need_of_it(count):
    def both(own):
        return own.each([busy] * 9, sent=lambda found: {number: -of for number, of in found.items()})

    with crew(count, both) as own:
        found = both(own)
    assert {each for each in found if each > 0} == {os.getpid()}
    assert len({abs(each) for each in found}) == count


@pytest.mark.parametrize("count", COUNTS)
def test_the_first_begins_with_the_first_pieces_and_the_others_with_the_last(count):
    def both(own):
        return own.each([busy] * 8)

    with crew(count, both) as own:
        found = both(own)
    of_first = [number for number, process in enumerate(found) if process == os.getpid()]
    assert of_first == list(range(len(of_first)))


@pytest.mark.parametrize("count", COUNTS)
def test_all_get_what_the_first_has(count):
    def both(own, value=None):
        return own.each([partial(pow, own.of_first(value), 2)] * 9)

    with crew(count, both) as own:
        assert both(own, 7) == [49] * 9


@pytest.mark.parametrize("count", COUNTS)
def test_the_first_is_told_of_each_piece_once(count):
    told = []
    with crew(count, partial(squares, lists=(7, 3))) as own:
        found = squares(own, (7, 3), told.append)
    assert sorted(told) == sorted([*found[0], *found[1]])


def test_a_copy_that_ends_in_its_work_is_noticed_not_waited_for():
    first = os.getpid()

    def ends():
        if os.getpid() != first:
            os._exit(3)
        time.sleep(0.05)

    def both(own):
        return own.each([ends] * 40)

    with pytest.raises(LostError), crew(2, both) as own:
        both(own)
    with pytest.raises(LostError), crew(2, lambda _: 1 / 0) as own:
        own.each([busy] * 3)


def test_what_is_wrong_in_the_first_ends_the_copies():
    def both(own):
        return own.each([busy] * 1000)

    begin = time.monotonic()
    with pytest.raises(ZeroDivisionError), crew(3, both) as own:
        own.each([lambda: 1 / 0] * 1000)
    assert time.monotonic() - begin < 30
    # Not os.waitpid: a server that other tests asked may be a child of this process, too.
    assert multiprocessing.active_children() == []


def test_nothing_is_copied_where_that_cannot_be(monkeypatch):
    monkeypatch.delattr(os, "fork")
    with crew(4, lambda own: own.each([])) as own:
        assert own.count == 1
