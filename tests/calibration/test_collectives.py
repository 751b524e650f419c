"""Measured collectives as CSV: columns by their names."""

import pytest

from traincast.calibration.collectives import read_collectives
from traincast.errors import FormatError
from traincast.hardware.clusters import load_cluster


def read(tmp_path, text):
    path = tmp_path / "m.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_collectives([path])


@pytest.mark.parametrize(
    "text",
    [
        "gpus,nodes,size_bytes,time_us\n16,2,1024,34.7\n",
        "ms, message_bytes ,OP,num_gpus,note\n0.0347,1024,AllReduce,16,x\n",
        '\ufefftime_s,ranks,size_bytes,suspect,op\r\n"3.47e-5",16,1024,,all-reduce\r\n\r\n',
        "time_ms,ranks,size_bytes\n0.0347,16,1024",
    ],
)
def test_columns_in_any_order_and_unit(tmp_path, text):
    measured, _, skipped = read(tmp_path, text)
    assert (measured.op, measured.ranks.tolist(), measured.size_bytes.tolist()) == (("all_reduce",), [16], [1024])
    assert measured.time_s.tolist() == pytest.approx([34.7e-6], rel=1e-12)
    assert measured.on(load_cluster("h100")).nodes.tolist() == [2]
    assert measured.source[0].endswith("m.csv:2")
    assert skipped == ()


def test_rows_that_cannot_be_used_are_kept_apart(tmp_path):
    text = "id,ranks,size_bytes,time_us,suspect,op\n"
    text += "a,8,1024,5,cold start,\nb,1,1024,5,,\nc,8,,5,,\nd,8,1024,5,,scan\ne,8,1024,5,,\n"
    measured, ids, skipped = read(tmp_path, text)
    assert ids == ("e",)
    assert len(measured) == 1
    assert [row.id for row in skipped] == ["a", "b", "c", "d"]
    assert skipped[0].reason == "cold start"
    assert "known: all_reduce" in skipped[3].reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r":1: the file is empty"),
        ("ranks,size_bytes,time_us\n", r":1: the file has no rows"),
        ("ranks,size_bytes,time_us\n8,1024\n", r":2: the file has no whole row; the row has 2 cells, the header 3"),
        ("ranks,ranks,size_bytes,time_us\n2,3,1024,5\n", r":1: the header names the column ranks twice"),
        ('ranks,size_bytes,time_us\n8,"1024,5\n', r":\d: is not CSV"),
        ("ranks,size_bytes\n8,1024\n", r"needs columns for size .*, time .* and ranks"),
        (b"\xff\xfe\x00", r"is not UTF-8 text"),
    ],
)
def test_bad_input_is_named_with_its_line(tmp_path, text, said):
    with pytest.raises(FormatError, match=said):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        ("ranks,size_bytes,time_us", "8,1024", "the row has 2 cells, the header 3"),
        ("ranks,size_bytes,time_us", "8,1024,5,6", "the row has 4 cells, the header 3"),
        ("ranks,size_bytes,time_us", "8,1024,fast", "column time_us is 'fast'"),
        ("ranks,size_bytes,time_us", "8,1024,nan", "column time_us is 'nan'"),
        ("ranks,size_bytes,time_us", "8,-1,5", "column size_bytes is '-1'"),
        ("ranks,size_bytes,time_us", "7.5,1024,5", "column ranks is '7.5'; it must be a whole number"),
        ("ranks,nodes,size_bytes,time_us", "2,3,1024,5", "2 ranks cannot sit on 3 nodes"),
    ],
)
def test_a_bad_row_is_left_out_and_named(tmp_path, header, row, said):
    good = ",".join("8" if name in ("ranks", "nodes") else "1024" for name in header.split(","))
    measured, ids, skipped = read(tmp_path, f"{header}\n{good}\n{row}\n{good}\n")
    assert len(measured) == len(ids) == 2
    assert [(each.id.endswith(":3"), said in each.reason) for each in skipped] == [(True, True)]


def test_a_missing_file(tmp_path):
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        read_collectives([tmp_path / "none.csv"])


def test_rows_can_be_chosen_and_files_read_together(tmp_path):
    text = "ranks,size_bytes,time_us\n" + "".join(f"{ranks},1024,{ranks}\n" for ranks in (2, 4, 8))
    measured = read(tmp_path, text).measurements
    by_mask, by_position = measured.select(measured.ranks > 2), measured.select([2, 0])
    assert by_mask.ranks.tolist() == [4, 8]
    assert by_position.ranks.tolist() == [8, 2]
    path = tmp_path / "more.csv"
    path.write_text(text)
    joined = read_collectives([path, path]).measurements
    assert joined.ranks.tolist() == [2, 4, 8, 2, 4, 8]
    assert len(joined) == len(joined.source) == len(joined.gpu) == joined.time_s.size == 6
    assert len(read_collectives([]).measurements) == 0
