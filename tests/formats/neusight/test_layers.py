"""The layer block is found by names, given by the user, and repeated."""

import pytest

from neusight_files import GPT2_LARGE, bert_rows, node, opt_rows, pipeline_rows, row, text_of
from traincast.diagnostics import Notebook
from traincast.errors import ConfigError
from traincast.formats.neusight.grammar import parse
from traincast.formats.neusight.layers import MAX_ROWS, arrange, find_layers, forward_s
from traincast.job.options import LayoutOptions

GPT2_ROWS = [line.split("\t") for line in GPT2_LARGE.read_text().splitlines()[1:]]
PLAIN = [row("linear", 1), row("gelu", 2), *node("linear_1", 3, 10), row("add", 1)]


def file_of(rows):
    return parse("w.tsv", text_of(rows))


def ends(rows):
    file, found = file_of(rows), find_layers(file_of(rows))
    return file.rows[found.last.start].name, file.rows[found.last.stop - 1].name


def arranged(rows, **options):
    notes = Notebook("w.tsv")
    file = file_of(rows)
    return [(file.rows[index].name, layer) for index, layer in arrange(file, LayoutOptions(**options), notes)], notes


def test_the_layer_of_the_sample():
    file = parse(str(GPT2_LARGE), GPT2_LARGE.read_text())
    found = find_layers(file)
    assert ends(GPT2_ROWS) == ("transformer_h_0_ln_1_grad", "add_15")
    assert [file.rows[index].number for index in (found.last.start, found.last.stop - 1)] == [9, 48]
    parts = (range(found.starts[0]), found.last, range(found.end, len(file.rows)))
    prologue, layer, epilogue = (forward_s(file, part) * 1e3 for part in parts)
    assert prologue == pytest.approx(0.1913, abs=5e-5)
    assert layer == pytest.approx(59.765, abs=5e-4)
    assert epilogue == pytest.approx(127.583, abs=5e-4)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (bert_rows(), ("bert_encoder_layer_0_attention_self_query_grad", "bert_encoder_layer_0_output_LayerNorm")),
        (bert_rows(3), ("bert_encoder_layer_2_attention_self_query_grad", "bert_encoder_layer_2_output_LayerNorm")),
        (opt_rows(), ("model_decoder_layers_0_self_attn_layer_norm_grad", "add_1")),
        (
            [[each[0].removeprefix("bert_"), *each[1:]] for each in bert_rows()],
            ("encoder_layer_0_attention_self_query_grad", "encoder_layer_0_output_LayerNorm"),
        ),
        ([row("layers_3_fc", 1), row("add", 1)], ("layers_3_fc", "add")),
        ([row("blocks_0_fc", 1), row("add_1", 1), row("head", 1)], ("blocks_0_fc", "add_1")),
        ([row("h_0_fc", 1), row("add_1", 1), row("s", (0, "SENDRECV", 1)), row("x", 1)], ("h_0_fc", "add_1")),
    ],
    ids=["bert", "bert of 3", "opt", "bare bert", "to the end", "to the head", "to the next stage"],
)
def test_layers_of_other_models(rows, expected):
    assert ends(rows) == expected


def test_no_layer_is_seen_where_no_name_says_one():
    names = ["addmm_1", "layer_norm", "layer_norm_1", "layer_1x_fc", "softmax_3", "flash_0_x", "layers"]
    assert find_layers(file_of([row(name, 1) for name in names])) is None


def test_the_layer_is_repeated_where_it_stands():
    rows, notes = arranged(opt_rows(), layers=3)
    names = [name for name, _ in rows]
    block = names[3:8]
    assert block[0] == "model_decoder_layers_0_self_attn_layer_norm_grad"
    assert names == names[:3] + block * 3 + names[18:]
    assert [layer for _, layer in rows] == [-1] * 3 + [0] * 5 + [1] * 5 + [2] * 5 + [3] * 4
    assert "0.75 ms + 3 x 4 ms + 8.5 ms = 21.25 ms" in notes.assumptions[0].text
    assert notes.warnings == []


def test_listed_layers_are_kept_and_the_last_one_repeated():
    rows, notes = arranged(bert_rows(2), layers=4)
    named = [(name, layer) for name, layer in rows if name.endswith("query")]
    first, second = "bert_encoder_layer_0_attention_self_query", "bert_encoder_layer_1_attention_self_query"
    assert named == [(first, 0), (second, 1), (second, 2), (second, 3)]
    assert "the last of 2 listed layers" in notes.assumptions[0].text
    assert arranged(bert_rows(2), layers=2)[1] == Notebook("w.tsv")


def test_without_layers_a_file_is_taken_as_written_and_says_so():
    rows, notes = arranged(bert_rows())
    assert len(rows) == len(bert_rows())
    assert [note.code for note in notes.warnings] == ["layers-as-listed"]
    assert notes.warnings[0].place == "w.tsv:5"
    assert arranged(PLAIN) == ([(each[0], -1) for each in PLAIN], Notebook("w.tsv"))
    assert arranged(PLAIN, layers=1) == arranged(PLAIN)


def test_the_user_names_the_layer_and_its_first_gradient_row_is_taken_along():
    rows, _ = arranged(PLAIN, layers=2, layer_block="linear_1:add")
    assert [name for name, _ in rows] == ["linear", "gelu", *["linear_1_grad", "linear_1", "add"] * 2]
    assert [layer for _, layer in rows] == [-1, -1, 0, 0, 0, 1, 1, 1]
    assert arranged(PLAIN, layers=2, layer_block="linear_1_grad:add")[0] == rows
    assert [name for name, _ in arranged(PLAIN, layers=3, layer_block="gelu:gelu")[0]].count("gelu") == 3


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (PLAIN, {"layers": 2}, "layer_block=FIRST:LAST"),
        (PLAIN, {"layer_block": "gelu:add"}, "give layers=..., too"),
        (PLAIN, {"layers": 2, "layer_block": "gelu:sub"}, "no row 'sub'"),
        (PLAIN, {"layers": 2, "layer_block": "add:gelu"}, "stands before"),
        (bert_rows(3), {"layers": 2}, "lists 3 layers; give 3 or more"),
        (pipeline_rows(), {"layers": 2, "layer_block": "linear_0:linear_1"}, "two stages"),
        (PLAIN, {"layers": MAX_ROWS // 4, "layer_block": "gelu:add"}, "above the limit"),
    ],
)
def test_layers_that_cannot_be_are_refused(rows, options, words):
    with pytest.raises(ConfigError, match=words):
        arranged(rows, **options)


@pytest.mark.parametrize("block", ["", "a", "a:", ":b", " : "])
def test_a_block_is_two_names(block):
    with pytest.raises(ConfigError, match="FIRST:LAST"):
        LayoutOptions(layer_block=block)


def test_further_layers_of_a_pipeline_run_in_one_stage_with_a_warning():
    rows = [row("h_0_fc", 1), row("s", (0, "SENDRECV", 1)), row("h_1_fc", 1)]
    _, notes = arranged(rows, layers=4)
    assert [note.code for note in notes.warnings] == ["layers-in-one-stage"]
