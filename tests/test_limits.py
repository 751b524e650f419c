"""Files that are small on disk and large in memory are refused with the number and the limit, whatever their kind."""

import csv
import gzip
import io
import random

import pytest

import traincast
from straggler_tables import trace, write
from traincast import files
from traincast.calibration.tables import read_table as read_measurements
from traincast.errors import FormatError, TraincastError
from traincast.estimate.operators.constants import constants_of_text
from traincast.formats.kineto.grammar import read_trace
from traincast.formats.straggler_st.grammar import read_table
from traincast.formats.straggler_st.parquet import check_size


@pytest.fixture(scope="module")
def rows():
    return trace(lambda *_: 0.05, dp=2, pp=2)


@pytest.fixture
def parquet(rows, tmp_path):
    polars = pytest.importorskip("polars")
    polars.DataFrame(rows).write_parquet(tmp_path / "trace.parquet")
    return tmp_path / "trace.parquet"


@pytest.fixture
def table(rows, tmp_path):
    return write(tmp_path / "trace.csv", rows)


def test_parquet_and_csv_say_the_same(parquet, table):
    one, other = read_table(parquet), read_table(table)
    assert one.optype_N.tolist() == other.optype_N.tolist()
    for name, column in one.columns.items():
        assert column.tolist() == other.columns[name].tolist(), name


@pytest.mark.parametrize("kind", ["parquet", "table"])
def test_too_many_rows_are_refused_before_they_are_read(kind, request, monkeypatch, rows):
    path = request.getfixturevalue(kind)
    monkeypatch.setattr(files, "MOST_ROWS", len(rows) - 1)
    if kind == "parquet":
        monkeypatch.setattr("polars.read_parquet", None)
    with pytest.raises(FormatError, match=rf"has {len(rows):,} rows; {len(rows) - 1:,} is the limit: cut it to fewer"):
        read_table(path)


def test_too_many_bytes_of_parquet_are_refused_before_they_are_unpacked(tmp_path, monkeypatch, rows):
    polars = pytest.importorskip("polars")
    long = [{**row, "optype": "a" * 50_000 + str(at)} for at, row in enumerate(rows)]
    path = tmp_path / "trace.parquet"
    polars.DataFrame(long).write_parquet(path)
    assert path.stat().st_size < 50_000
    monkeypatch.setattr(files, "MOST_UNPACKED_BYTES", 2**22)
    monkeypatch.setattr(polars, "read_parquet", None)
    with pytest.raises(FormatError, match="has more than 4 MiB unpacked, the limit; cut it to fewer rows"):
        read_table(path)


def test_rows_that_the_metadata_hide_are_counted(parquet, monkeypatch, rows):
    monkeypatch.setattr(files, "MOST_ROWS", len(rows) - 1)
    monkeypatch.setattr("traincast.formats.straggler_st.parquet._chunks", hidden_rows)
    with pytest.raises(FormatError, match=rf"has {len(rows)} rows"):
        check_size(parquet.read_bytes(), ["rank", "optype"], "trace.parquet")


def hidden_rows(data, real=check_size.__globals__["_chunks"]):
    return 1, real(data)[1]


def test_damaged_parquet_is_refused_in_words(parquet, tmp_path, capfd):
    """Every cut and every bit: nothing but a refusal, or a table, and nothing on the terminal."""
    data, rng = parquet.read_bytes(), random.Random(1)  # noqa: S311
    damaged = tmp_path / "damaged.parquet"
    refused = 0
    for at in range(150):
        broken = bytearray(data if at % 3 else data[: rng.randrange(5, len(data))])
        place = rng.randrange(4, len(broken)) if at % 2 else rng.randrange(max(4, len(broken) - 900), len(broken))
        broken[place] ^= 1 << rng.randrange(8)
        damaged.write_bytes(broken)
        try:
            read_table(damaged)
        except FormatError:
            refused += 1
    assert refused > 50
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_table_is_read_whatever_its_lines_end_in(table, end):
    expected = read_table(table)
    table.write_bytes(end.join(table.read_text().splitlines()).encode())
    found = read_table(table)
    assert (found.start_s_N == expected.start_s_N).all()
    assert (found.line_N == expected.line_N).all()


LONG_CELL = "a" * (csv.field_size_limit() + 1)


def read_constants(path):
    return constants_of_text(path.read_text(), str(path))


@pytest.mark.parametrize("row", [f"{LONG_CELL},1,2\n", '"a,1,2\n', '"a"b,1,2\n'], ids=["long", "open", "after"])
@pytest.mark.parametrize("read", [read_table, read_measurements, read_constants])
def test_what_is_no_csv_is_refused_in_words(tmp_path, row, read):
    path = tmp_path / "table.csv"
    path.write_text(f"gpu,family,dtype\nh100,gemm,bf16\n{row}")
    with pytest.raises(FormatError, match=r"table.csv:3: is not CSV: "):
        read(path)
    for call in (lambda: traincast.inspect(path), lambda: traincast.compare(path, path)):
        with pytest.raises(TraincastError):
            call()


def test_what_expands_more_than_any_file_does_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FREE_BYTES", 2**16)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b"{}," * 2**16 + b"{}]}"))
    message = "expands to more than 100 times its size; unpack it yourself if it is meant"
    for read in (files.read_unpacked, lambda path: list(files.chunks_of(path, 2**12))):
        with pytest.raises(FormatError, match=message):
            read(path)


def test_what_packs_as_traces_do_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FREE_BYTES", 0)
    rng = random.Random(1)  # noqa: S311
    text = "".join(
        f'{{"name": "void kernel<float>", "ts": {rng.random()}, "dur": 1, "pid": 0}},\n' for _ in range(5000)
    )
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert files.read_unpacked(path).decode() == text
    assert io.BytesIO(b"".join(files.chunks_of(path, 2**12))).read().decode() == text


def test_a_profiler_trace_of_too_many_events_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_ROWS", 99)
    kernel = '{"ph": "X", "cat": "kernel", "name": "a", "ts": %d, "dur": 1, "args": {"stream": 7, "device": 0}}'
    events = ",".join(kernel % (2 * each) for each in range(100))
    path = tmp_path / "trace.json"
    path.write_text(f'{{"schemaVersion": 1, "traceEvents": [{events}]}}')
    with pytest.raises(FormatError, match=r"has 100 or more events of GPU and host; 99 is the limit: cut it to fewer"):
        read_trace(path)
