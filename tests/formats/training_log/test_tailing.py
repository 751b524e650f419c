"""Lines of a log that is still written, moved away, cut short or piped."""

import gzip
from itertools import islice

from traincast.formats.training_log.tailing import lines_as_written


def until_waiting(lines):
    found = []
    for line in lines:
        if line is None:
            return found
        found.append(line)
    return found


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def test_a_line_comes_when_it_is_whole(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("one\ntw")
    lines = lines_as_written(path, once=False)
    assert until_waiting(lines) == ["one"]
    append(path, "o\nthree\n")
    assert until_waiting(lines) == ["two", "three"]


def test_a_log_that_is_renamed_is_read_to_its_end_and_then_the_new_one(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("one\n")
    lines = lines_as_written(path, once=False)
    assert until_waiting(lines) == ["one"]
    append(path, "two\n")
    path.rename(tmp_path / "run.log.1")
    assert until_waiting(lines) == ["two"]
    append(tmp_path / "run.log.1", "three\n")
    path.write_text("four\n")
    assert until_waiting(lines) == ["three", "four"]


def test_a_log_that_is_cut_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("one\ntwo\n")
    lines = lines_as_written(path, once=False)
    assert until_waiting(lines) == ["one", "two"]
    path.write_text("new\n")
    assert until_waiting(lines) == ["new"]


def test_once_ends_with_the_last_line_also_without_an_end_and_packed(tmp_path):
    path, packed = tmp_path / "run.log", tmp_path / "run.log.gz"
    path.write_text("one\r\ntwo")
    packed.write_bytes(gzip.compress(b"one\ntwo"))
    for each in (path, packed):
        assert list(lines_as_written(each, once=True)) == ["one", "two"]


def test_a_line_without_an_end_takes_no_memory_for_ever(tmp_path):
    path = tmp_path / "run.log"
    path.write_bytes(b"x" * (3 * 2**20) + b"\nlast\n")
    first, last = islice(lines_as_written(path, once=True), 2)
    assert len(first) <= 2**20 + 2**18
    assert last == "last"
