"""Reading a trace in pieces gives what reading it whole gives, wherever it is cut, and says where it is wrong."""

import gzip
import json
import tracemalloc

import msgspec
import pytest

from kineto_traces import Writer
from traincast.errors import FormatError
from traincast.formats.kineto import stream
from traincast.formats.kineto.grammar import read_trace
from traincast.formats.kineto.stream import EventStream

NASTY = [
    {"ph": "X", "name": "a }, { b", "args": {"x": "},\n {"}},
    {"ph": "X", "name": 'quote " and \\ and ]} , {', "args": {"list": [{"a": 1}, {"b": [2, {"c": "]"}]}]}},
    {"ph": "X", "name": "traceEvents", "args": {"traceEvents": [{"x": 1}, {"y": 2}]}},
    {"ph": "i", "name": ""},
]
"""Events whose strings and arguments look like what stands between events."""


def decode(text):
    return msgspec.json.decode(text, type=list[dict])


def read(path):
    source = EventStream(path, decode)
    pieces = list(source.pieces())
    assert [piece.first for piece in pieces] == [
        sum(len(each.events) for each in pieces[:at]) for at in range(len(pieces))
    ]
    outside = {}
    for _, text in source.outside:
        outside |= json.loads(text)
    return [event for piece in pieces for event in piece.events], outside, len(pieces)


@pytest.mark.parametrize("size", [8, 17, 40, 64, 200, 1 << 20])
@pytest.mark.parametrize("indent", [None, 1])
def test_pieces_are_the_whole_wherever_they_are_cut(tmp_path, monkeypatch, size, indent):
    monkeypatch.setattr(stream, "PIECE_BYTES", size)
    top = {"schemaVersion": 1, "note": '"traceEvents": [', "deviceProperties": [{"id": 0}]}
    tail = {"distributedInfo": {"rank": 3, "pg_config": [{"a": 1}, {"b": 2}]}, "traceName": "x"}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**top, "traceEvents": NASTY * 5, **tail}, indent=indent))
    events, outside, pieces = read(path)
    assert events == NASTY * 5
    assert outside == {**top, **tail}
    assert (pieces > 1) == (size < 1000)


@pytest.mark.parametrize("events", [[], NASTY[:1]])
def test_a_short_list_and_one_without_anything_around_it(tmp_path, events):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert read(path)[:2] == (events, {})


def test_a_packed_trace_is_read_like_a_plain_one(tmp_path):
    text = json.dumps({"traceEvents": NASTY, "rank": 1}).encode()
    (tmp_path / "a.json").write_bytes(text)
    # Two members, as parts that were packed one after the other.
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(text[:100]) + gzip.compress(text[100:]))
    assert read(tmp_path / "a.json") == read(tmp_path / "b.json.gz")


def trace_text():
    writer = Writer()
    for at in range(20):
        writer.work(f"kernel_{at}", at * 10.0, at * 10.0 + 5, at * 10.0 + 9)
    return writer.text()


@pytest.mark.parametrize("size", [64, 1 << 20])
def test_a_trace_that_is_cut_off_says_at_which_byte(tmp_path, monkeypatch, size):
    monkeypatch.setattr(stream, "PIECE_BYTES", size)
    text, path = trace_text(), tmp_path / "trace.json"
    for share in (0.4, 0.7, 0.95):
        cut = int(len(text) * share)
        path.write_text(text[:cut])
        with pytest.raises(
            FormatError, match=f"is cut off: its list of events does not end; the text ends at byte {cut}"
        ):
            read_trace(path)


@pytest.mark.parametrize("size", [64, 1 << 20])
def test_text_that_is_no_json_is_refused_with_its_byte(tmp_path, monkeypatch, size):
    monkeypatch.setattr(stream, "PIECE_BYTES", size)
    text, path = trace_text(), tmp_path / "trace.json"
    at = text.index('"kernel_7"')
    path.write_text(text[:at] + "kernel" + text[at + 6 :])
    with pytest.raises(FormatError, match=f"is not JSON: invalid character at byte {at}$"):
        read_trace(path)


@pytest.mark.parametrize("word", ["kernel_7", "NVIDIA H100"])
def test_bytes_that_are_no_text_are_refused_with_their_place(tmp_path, word):
    data, path = trace_text().encode(), tmp_path / "trace.json"
    at = data.index(word.encode()) + 3
    path.write_bytes(data[:at] + b"\xdf" + data[at + 1 :])
    with pytest.raises(FormatError, match=f"is not UTF-8 text: invalid continuation byte at byte {at}$"):
        read_trace(path)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"schemaVersion": 1}, "is not a profiler trace: it has no list 'traceEvents'; the text ends at byte"),
        ({"a": {"traceEvents": []}}, "it has no list 'traceEvents'"),
        ({"traceEvents": {}}, "'traceEvents' is not a list at byte 16"),
        ({"traceEvents": [1]}, "event 0: expected `object`, got `int`"),
        ({"traceEvents": [{}, {"cat": "kernel", "ts": "x"}]}, r"event 1 \(ts\): expected `float`, got `str`"),
        ({"traceEvents": [{"cat": "kernel", "name": "k", "dur": 1}]}, r"event 0 \('k'\) has no ts"),
        ({"traceEvents": [{"cat": "kernel", "name": "k", "ts": 1}]}, r"event 0 \('k'\) has no dur"),
        (
            {"traceEvents": [{"ph": "M"}, {"cat": "cpu_op", "name": "k", "ts": 1, "dur": -2.5}]},
            r"event 1 \('k'\) has a dur of -2.5 us",
        ),
        ({"distributedInfo": 3, "traceEvents": []}, "the object around its events is not one of a profiler"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_place(tmp_path, document, message):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match=message):
        read_trace(path)


def test_events_of_unknown_kinds_and_without_one_are_read_over(tmp_path):
    writer = Writer()
    writer.event("new_kind", "x", 0, 5, 1, nested={"kernel": [1, {"ph": "X"}]})
    writer.events.append({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}})
    writer.work("kernel", 1.0, 2.0, 3.0)
    trace = read_trace(writer.write(tmp_path / "t.json"))
    assert len(trace.gpu) == 1
    assert trace.gpu.event_G.tolist() == [4]
    assert trace.events == 7


def test_arguments_written_as_text_are_read_like_numbers(tmp_path):
    writer = Writer()
    writer.work("kernel", 1.0, 2.0, 3.0)
    for event in writer.events:
        if event["cat"] == "kernel":
            event["args"]["stream"] = "0x1f"
            event["args"]["device"] = "what"
    trace = read_trace(writer.write(tmp_path / "t.json"))
    assert (trace.gpu.stream_G.tolist(), trace.gpu.device_G.tolist()) == ([31], [-1])


def test_memory_does_not_grow_with_what_is_read_over(tmp_path):
    writer, path = Writer(), tmp_path / "trace.json"
    for at in range(200):
        writer.event("python_function", f"module.py({at}): call", at, at + 1, 1)
    line = ",\n".join(json.dumps(event) for event in writer.events)
    peaks = []
    for repeats in (200, 600):
        path.write_text('{"traceEvents": [\n' + ",\n".join([line] * repeats) + "]}")
        tracemalloc.start()
        assert read_trace(path).events == 200 * repeats
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert path.stat().st_size > 15e6
    assert peaks[1] < 1.05 * peaks[0]
