"""A NeuSight file is read value by value, in both forms, and what is wrong is named with its place."""

import json

import pytest

from neusight_files import GPT2_LARGE, QUIET, bert_rows, gradient, json_columns, json_rows, pipeline_rows, row, text_of
from traincast.errors import FormatError
from traincast.formats.neusight.grammar import COLUMNS, Cell, parse
from traincast.workload.words import Group, Operation

ROW = row("addmm", (9.5, "None", 0), (19, "ALLREDUCE_ASYNC", 4919040), (1.5, "NONE", 0))


def test_times_are_milliseconds_and_sizes_elements():
    (read,) = parse("w.tsv", text_of([ROW])).rows
    assert (read.name, read.number, read.process_s) == ("addmm", 2, 0)
    assert read.forward == Cell(0.0095, Operation.NONE, False, 0, Group.NONE)
    assert read.backward == Cell(0.019, Operation.ALL_REDUCE, True, 4919040, Group.DP)
    assert read.weight_grad == Cell(0.0015, Operation.NONE, False, 0, Group.NONE)


@pytest.mark.parametrize(
    ("column", "kind", "operation", "group"),
    [
        (0, "ALLREDUCE", Operation.ALL_REDUCE, Group.TP),
        (1, "allreduce", Operation.ALL_REDUCE, Group.TP),
        (2, "ALLREDUCE", Operation.ALL_REDUCE, Group.DP),
        (0, "ALLGATHER_ASYNC", Operation.ALL_GATHER, Group.DP),
        (1, "REDUCESCATTER_ASYNC", Operation.REDUCE_SCATTER, Group.DP),
        (1, "ALLTOALL", Operation.ALL_TO_ALL, Group.TP),
        (2, "BROADCAST_ASYNC", Operation.BROADCAST, Group.DP),
        (0, "none", Operation.NONE, Group.NONE),
    ],
)
def test_the_kind_and_column_of_a_communication_say_its_group(column, kind, operation, group):
    cells = [QUIET, QUIET, QUIET]
    cells[column] = (1, kind, 8)
    cell = parse("w.tsv", text_of([row("x", *cells)])).rows[0].cells[column]
    assert (cell.operation, cell.group, cell.asynchronous) == (operation, group, kind.endswith("_ASYNC"))


def test_the_sample_is_read_whole():
    file = parse(str(GPT2_LARGE), GPT2_LARGE.read_text())
    assert (len(file.rows), file.entries, file.warnings) == (51, False, ())
    assert sum(cell.elements for line in file.rows for cell in line.reductions) == 85_369_937
    assert sum(line.forward.compute_s for line in file.rows) == pytest.approx(0.18754, rel=1e-4)


def same(rows):
    return [(line.name, line.cells, line.process_s) for line in rows]


@pytest.mark.parametrize("rows", [bert_rows(2, 1.5), pipeline_rows(), [ROW]], ids=["bert", "pipeline", "one"])
def test_every_form_reads_the_same(rows):
    text = parse("w.tsv", text_of(rows))
    forms = [json_rows(rows), json_columns(rows), json_columns(rows, by_number=True), "\ufeff " + json_rows(rows)]
    for form in forms:
        file = parse("w.json", form)
        assert file.entries
        assert same(file.rows) == same(text.rows)
        assert [line.number for line in file.rows] == list(range(len(rows)))
    assert file.place(0) == "w.json[0]"
    assert file.line(0) is None


def test_blank_lines_bom_line_ends_spaces_and_column_order_do_not_matter():
    plain = parse("w.tsv", text_of([ROW, ROW]))
    crlf = "\ufeff\r\n" + text_of([ROW, ROW]).replace("\n", "\r\n\r\n") + "\0\0"
    assert same(parse("w.tsv", crlf).rows) == same(plain.rows)
    assert [line.number for line in parse("w.tsv", crlf).rows] == [4, 6]
    assert same(parse("w.tsv", text_of([ROW, ROW]).replace("\t", "  ")).rows) == same(plain.rows)
    turned = text_of([ROW[::-1], ROW[::-1]], COLUMNS[::-1])
    assert same(parse("w.tsv", turned).rows) == same(plain.rows)


def changed(column, value):
    values = list(ROW)
    values[column] = value
    return values


BROKEN = [
    (1, "", "forward_compute_time"),
    (1, "fast", "write milliseconds"),
    (1, "nan", "not a finite number"),
    (4, "inf", "backward_compute_time"),
    (7, "-1", "weight_grad_compute_time"),
    (1, "1.1e12", r"from 0 to 1e\+12 ms"),
    (1, "1_000", "not a number"),
    (2, "ALLREDUCES", "None, ALLREDUCE, ALLGATHER"),
    (5, "SENDRECV_ASYNC", "unknown communication"),
    (8, "SENDRECV", "forward_comm_type or backward_comm_type"),
    (3, "1.5", "is not a whole number"),
    (6, "-4", "from 0 to 2\\^50 - 1"),
    (6, str(2**50), "from 0 to 2\\^50 - 1"),
    (6, "1" * 60, "not a number"),
    (9, "None", "write a number of elements"),
    (10, "x", "process_time"),
    (0, "", "write the name"),
]


@pytest.mark.parametrize(("column", "value", "words"), BROKEN)
def test_a_wrong_value_is_named_with_line_and_column(column, value, words):
    with pytest.raises(FormatError, match=words) as caught:
        parse("w.tsv", text_of([ROW, changed(column, value)]))
    assert str(caught.value).startswith("w.tsv:3: ")
    assert COLUMNS[column] in str(caught.value)


@pytest.mark.parametrize(("column", "value", "words"), BROKEN)
def test_a_wrong_value_in_json_is_named_with_entry_and_column(column, value, words):
    with pytest.raises(FormatError, match=words) as caught:
        parse("w.json", json_rows([ROW, changed(column, value)]))
    assert str(caught.value).startswith("w.json: entry [1]: ")
    assert COLUMNS[column] in str(caught.value)


@pytest.mark.parametrize("value", [True, [1], {"a": 1}, float("nan"), float("-inf"), 10**400])
def test_a_json_value_that_is_no_number_is_refused(value):
    with pytest.raises(FormatError, match=r"entry \[0\]: column backward_compute_time"):
        parse("w.json", json_rows([changed(4, value)]))


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("", "empty", None),
        (text_of([]), "rows are missing", 1),
        (text_of([ROW], COLUMNS[:-1]), "lacks process_time", 1),
        (text_of([[*ROW, 1]], [*COLUMNS, "extra"]), "unknown 'extra'", 1),
        (text_of([[*ROW, 1]], [*COLUMNS, "name"]), "twice", 1),
        ("\n" + text_of([ROW, ROW[:-1]]), "found 10", 4),
        (text_of([[*ROW, "x", "y", "z"]]), "found 14", 2),
        (text_of([row("s", (0, "SENDRECV", 1)), ROW]), "stand before", 2),
        (text_of([ROW, row("s", (0, "SENDRECV", 1))]), "stand after", 3),
        (text_of([ROW, row("s", (1, "SENDRECV", 1)), row("t", (0, "SENDRECV", 1)), ROW]), "stand before", 4),
    ],
)
def test_a_wrong_table_is_named_with_its_line(text, words, line):
    with pytest.raises(FormatError, match=words) as caught:
        parse("w.tsv", text)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "no rows"),
        ("[1]", r"entry \[0\] is not an object"),
        ("[{}]", r"entry \[0\] lacks name"),
        ("{}", "the object lacks name"),
        ("[", "is not JSON"),
        ("[" * 100_000, "too deep"),
        ("[1" + "0" * 5000 + "]", "too long"),
        (json.dumps(dict.fromkeys(COLUMNS, 1)), "column name is not a list"),
        (json.dumps({name: [] for name in COLUMNS}), "no rows"),
        (json.dumps({name: [0] * (name != "name") for name in COLUMNS}), "has 1 values and column name has 0"),
        (json_columns([ROW, ROW], by_number=True).replace('{"0"', '{"2"', 1), "does not number its rows"),
        (json.dumps({name: None if name == "name" else [] for name in COLUMNS}), "column name is not a list"),
        (json_rows([ROW]).replace('"name"', '"nom"'), "lacks name"),
    ],
)
def test_wrong_json_is_refused(text, words):
    with pytest.raises(FormatError, match=words):
        parse("w.json", text)


def test_json_that_breaks_off_is_named_with_its_line():
    with pytest.raises(FormatError, match=r"w.json:2: is not JSON"):
        parse("w.json", '[\n{"name": ]')


def test_what_is_unusual_is_kept_as_a_warning():
    rows = [row("x", (1, "None", 7)), row("x", (1, "ALLREDUCE", 0), process_ms=2), gradient("y", 3)]
    assert [note.code for note in parse("w.tsv", text_of(rows)).warnings] == [
        "size-beside-none",
        "name-repeated",
        "process-time",
        "zero-size",
    ]
    notes = parse("w.json", json_rows([*rows, *rows])).warnings
    assert notes[0].place == "w.json[0]"
    assert notes[0].text.endswith("2 times, the last in entry 3")


def test_half_a_character_does_not_reach_the_output():
    name = parse("w.json", json_rows([ROW]).replace("addmm", "\\ud800")).rows[0].name
    assert name.encode() == b"?"


def test_a_large_file_is_read_whole():
    assert len(parse("w.tsv", text_of([ROW] * 20_000)).rows) == 20_000
