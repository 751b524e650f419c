"""A NeuSight file is recognised, counted and summed, and what looks wrong is named with its line."""

import json

import pytest

from neusight_files import (
    GPT2_LARGE,
    bert_rows,
    gradient,
    json_columns,
    json_rows,
    opt_rows,
    pipeline_rows,
    row,
    text_of,
)
from traincast import api
from traincast.errors import FormatError
from traincast.formats.neusight.grammar import COLUMNS, parse
from traincast.formats.neusight.inspection import structural_warnings
from traincast.formats.neusight.sniff import looks_like


@pytest.fixture
def inspect_text(tmp_path):
    def inspect(text):
        path = tmp_path / "file"
        path.write_text(text, encoding="utf-8")
        return api.inspect(path)

    return inspect


def test_the_sample_is_described():
    found = api.inspect(GPT2_LARGE)
    assert found.counts == {
        "rows": 51,
        "operators": 42,
        "layers": 1,
        "rows_per_layer": 40,
        "dp_elements": 85_369_937,
    }
    assert found.layout == {
        "layer_block": "transformer_h_0_ln_1_grad:add_15",
        "dtype": None,
        "tp": None,
        "dp": None,
        "pp": 1,
        "layer_rows": "lines 9 to 48",
        "forward_before_layers": "0.191294 ms",
        "forward_of_a_layer": "59.7653 ms",
        "forward_after_layers": "127.583 ms",
    }
    totals = {(total.group, total.what): (total.count, total.size_bytes, total.time_s) for total in found.totals}
    assert totals == {
        ("compute", "forward"): (42, 0, pytest.approx(0.1875395, rel=1e-5)),
        ("compute", "backward"): (0, 0, 0),
        ("compute", "weight_gradient"): (0, 0, 0),
        ("dp", "all_reduce"): (9, 4 * 85_369_937, None),
    }


def test_the_warnings_of_the_sample_have_their_lines():
    notes = {note.code: note for note in api.inspect(GPT2_LARGE).oddities}
    lines = {code: int(note.place.rpartition(":")[2]) for code, note in notes.items()}
    assert lines == {
        "no-backward": 2,
        "no-kernel": 2,
        "view-has-time": 14,
        "embedding-gradient-small": 5,
        "head-bias": 51,
    }
    assert "12 rows take" in notes["no-kernel"].text
    assert "1310720 = 1024 x hidden 1280" in notes["embedding-gradient-small"].text
    assert "50257 x hidden 1280 + a bias of 50257" in notes["head-bias"].text


def codes(rows):
    return [note.code for note in structural_warnings(parse("w.tsv", text_of(rows)))]


def test_sound_files_have_no_such_warning():
    assert codes(bert_rows(2, backward=1)) == []
    assert codes(opt_rows()) == ["no-backward"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([gradient("a", 4), row("b", 1, 1)], ["gradient-without-node"]),
        ([row("a", 1, 1), gradient("a", 4)], ["gradient-without-node"]),
        ([row("a", 1, 1), row("b")], ["empty-row"]),
        ([row("view_2", 1, 1), row("contiguous", 1, 1)], ["view-has-time"]),
        ([row("a", 1e-9, 1e-9), row("b", 1, 1)], ["no-kernel"]),
    ],
)
def test_each_warning(rows, expected):
    assert codes(rows) == expected


def test_a_pipeline_is_counted(inspect_text):
    found = inspect_text(text_of(pipeline_rows(3)))
    assert found.layout["pp"] == 3
    assert found.counts["pp_elements"] == 4 << 18
    assert found.counts["layers"] == 0
    assert found.layout["layer_block"] is None


@pytest.mark.parametrize("rows", [bert_rows(2, backward=1), opt_rows(), pipeline_rows()])
def test_json_is_described_alike(inspect_text, rows):
    text = inspect_text(text_of(rows))
    for form in (json_rows(rows), json_columns(rows), json_columns(rows, by_number=True)):
        found = inspect_text(form)
        assert (found.format, found.generation) == ("neusight", "NeuSight operator forecast, JSON form")
        assert (found.counts, found.totals) == (text.counts, text.totals)
        assert found.layout["layer_block"] == text.layout["layer_block"]


def test_a_file_is_recognised_by_its_head():
    head = GPT2_LARGE.read_text()
    for text in (head, head[:400], "\ufeff\r\n" + head.replace("\n", "\r\n"), json_rows(bert_rows())):
        assert looks_like(text).confidence == 0.95
    assert looks_like(text_of(bert_rows(), COLUMNS[:-1])).confidence == 0.6
    assert looks_like('{"name": [' + '"x", ' * 20_000).confidence == 0.3
    for text in ("", "name\tage\n", "{}", "[1]", '{"name": "x"}', "DATA x", "rank:0,mbs:1"):
        assert looks_like(text).confidence == 0


def test_a_long_column_object_is_recognised_before_its_other_columns(tmp_path):
    rows = [row(f"a_long_name_of_an_operator_{number:08}", 1) for number in range(3000)]
    path = tmp_path / "w.json"
    path.write_text(json_columns(rows))
    assert api.inspect(path).counts["rows"] == 3000


def test_a_damaged_header_is_refused_by_name(inspect_text):
    with pytest.raises(FormatError, match="lacks process_time") as caught:
        inspect_text(text_of(bert_rows(), COLUMNS[:-1]))
    assert caught.value.line == 1
    with pytest.raises(FormatError, match=r"entry \[0\]: column forward_compute_time"):
        inspect_text(json.dumps([dict.fromkeys(COLUMNS, "x")]))
