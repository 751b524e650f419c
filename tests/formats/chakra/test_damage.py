"""Whatever happens to the bytes of a trace, reading it succeeds or names the file."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.errors import FormatError, TraincastError
from traincast.formats.chakra.grammar import parse
from traincast.formats.chakra.read import read_workload
from traincast.formats.chakra.sniff import looks_like
from traincast.formats.chakra.wire import DamagedError, fields, read_varint, signed, uints, varint, zigzag
from traincast.job.options import LayoutOptions

SAMPLES = Path(__file__).parents[2] / "conformance" / "samples" / "chakra"
TRACES = [SAMPLES / "process_groups" / "run.3.et", SAMPLES / "schema_0_0_3" / "resnet.1.et"]
CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


@pytest.mark.parametrize("source", TRACES, ids=lambda path: path.parent.name)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(changes=CHANGES)
def test_changed_bytes_are_read_or_refused(source, folder, changes):
    data = bytearray(source.read_bytes())
    for place, byte in changes:
        data[place % len(data)] = byte
    others = [path for path in source.parent.iterdir() if path != source]
    victim = folder / source.name
    victim.write_bytes(data)
    try:
        workload = read_workload([*others, victim], "chakra", LayoutOptions())
    except TraincastError as error:
        assert str(error).isprintable()
        assert str(folder) in str(error) or str(source.parent) in str(error)
    else:
        assert len(workload.program)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_with_a_place(data):
    looks_like(data.decode(errors="replace"))
    try:
        parse("x.et", data)
    except FormatError as error:
        assert "at byte" in str(error)


@given(value=st.integers(0, 2**64 - 1))
def test_numbers_come_back(value):
    data = varint(value)
    assert read_varint(data, 0, len(data)) == (value, len(data))
    assert uints(data + data) == [value, value]
    assert signed(value) % 2**64 == value
    assert zigzag(value) * (2 if zigzag(value) >= 0 else -2) - (zigzag(value) < 0) == value


@pytest.mark.parametrize("data", [b"\xff" * 10, b"\xff" * 9 + b"\x02", b"\x80", b""])
def test_numbers_that_are_none_are_refused(data):
    with pytest.raises(DamagedError):
        read_varint(data, 0, len(data))


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01",  # field 0
        b"\x0e",  # wire type 6
        b"\x0c",  # the end of a group that did not begin
        b"\x0a\x05abc",  # five bytes of three
        b"\x09\x01\x02",  # eight bytes of two
        b"\x0b\x10\x01",  # a group without end
        b"\x0b\x14",  # a group that another one ends
    ],
)
def test_messages_that_are_none_are_refused(data):
    with pytest.raises(DamagedError):
        list(fields(data, 0, len(data)))
