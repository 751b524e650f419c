"""Small NeuSight files for tests: a GPT-2, BERT and OPT like model, and tensor and pipeline parallel ones."""

import json
from pathlib import Path

from traincast.formats.neusight.grammar import COLUMNS

GPT2_LARGE = Path(__file__).parent.parent / "examples" / "neusight_gpt2_large_dp.tsv"
QUIET = (0, "None", 0)


def row(name, forward=QUIET, backward=QUIET, weight_grad=QUIET, process_ms=0):
    """Return the values of a row; a cell is (compute ms, kind, elements), or the compute time alone."""
    cells = [cell if isinstance(cell, tuple) else (cell, "None", 0) for cell in (forward, backward, weight_grad)]
    return [name, *(value for cell in cells for value in cell), process_ms]


def gradient(name, elements):
    """Return the row that reduces the gradient of a node."""
    return row(f"{name}_grad", QUIET, (0, "ALLREDUCE_ASYNC", elements))


def node(name, forward, elements=0, backward=0, accumulate=0):
    """Return the rows of a node: its gradient row, if it has parameters, and itself."""
    return [gradient(name, elements)] * bool(elements) + [row(name, forward, backward, accumulate)]


def text_of(rows, header=COLUMNS):
    """Return the tab-separated form."""
    return "\n".join("\t".join(str(value) for value in line) for line in (header, *rows)) + "\n"


def json_rows(rows):
    """Return the JSON form with an object per row; no communication is null."""
    return json.dumps([dict(zip(COLUMNS, _nulled(line), strict=True)) for line in rows])


def json_columns(rows, by_number=False):
    """Return the JSON form with a list, or as pandas writes it an object by row number, per column."""
    columns = dict(zip(COLUMNS, (list(column) for column in zip(*map(_nulled, rows), strict=True)), strict=True))
    return json.dumps({name: dict(enumerate(column)) if by_number else column for name, column in columns.items()})


def _nulled(line):
    return [None if value == "None" else value for value in line]


def bert_rows(layers=1, backward=0):
    """Return a BERT like file: a norm ends the layer, a pooler follows."""
    rows = [*node("bert_embeddings_word_embeddings", 0.5, 30522 * 64, backward), row("add", 0.25, backward)]
    for layer in range(layers):
        stem = f"bert_encoder_layer_{layer}"
        rows += node(f"{stem}_attention_self_query", 2, 64 * 65, backward)
        rows += [row(f"matmul_{layer}", 1, backward), row(f"add_{layer + 1}", 0.5, backward)]
        rows += node(f"{stem}_output_LayerNorm", 0.5, 128, backward)
    return [*rows, *node("bert_pooler_dense", 1, 64 * 65, backward), *node("cls_seq_relationship", 0.25, 130, backward)]


def opt_rows(layers=1):
    """Return an OPT like file: the sum that ends the layer has no name of it, a norm and the head follow."""
    rows = [*node("model_decoder_embed_tokens", 0.5, 50272 * 64), row("add", 0.25)]
    for layer in range(layers):
        stem = f"model_decoder_layers_{layer}"
        rows += node(f"{stem}_self_attn_layer_norm", 0.5, 128)
        rows += node(f"{stem}_fc2", 3, 64 * 65)
        rows += [row(f"add_{layer + 1}", 0.5)]
    return [*rows, *node("model_decoder_final_layer_norm", 0.5, 128), *node("lm_head", 8, 50272 * 64)]


def tensor_rows(elements=1 << 20):
    """Return a tensor parallel file: blocking all-reduces, the backward one before its node."""
    return [
        row("linear_1_comm", QUIET, (0, "ALLREDUCE", elements)),
        row("linear_1", 2, 4),
        row("linear_2", 2, 4, 0.5),
        row("linear_2_comm", (0, "ALLREDUCE", elements)),
    ]


def pipeline_rows(stages=4, elements=1 << 18):
    """Return a pipeline parallel file: stages of 3 ms forward and 6 ms backward, SENDRECV between."""
    rows = []
    for stage in range(stages):
        rows += [row(f"linear_{stage}", 2, 4), row(f"softmax_{stage}", 1, 2)]
        if stage < stages - 1:
            rows.append(row(f"send_{stage}", (0, "SENDRECV", elements), (0, "SENDRECV", elements)))
    return rows


def write(path, rows):
    """Write the tab-separated form and return its path."""
    path.write_text(text_of(rows), encoding="utf-8")
    return path
