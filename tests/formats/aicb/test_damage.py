"""Whatever happens to a file, reading it succeeds or names the line that is wrong."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.errors import FormatError
from traincast.formats.aicb.grammar import parse
from traincast.formats.aicb.inspection import generation, structural_warnings
from traincast.formats.aicb.meaning import structure
from traincast.formats.aicb.sniff import looks_like

EXAMPLES = Path(__file__).parents[3] / "examples"
SAMPLES = [
    b"\n".join((EXAMPLES / name).read_bytes().split(b"\n")[:18])
    for name in ("aicb_gpt_405b_1024gpu.txt", "aicb_scaled_512gpu.txt")
]
DAMAGE = st.lists(
    st.tuples(
        st.floats(0, 1), st.integers(0, 8), st.one_of(st.binary(max_size=6), st.sampled_from([b"\t", b":", b"e9"]))
    ),
    max_size=5,
)
WORDS = st.sampled_from(
    [
        "HYBRID_CUSTOMIZED",
        "ep:",
        "pp",
        ":",
        "ga",
        "checkpoints:",
        "0",
        "1",
        "-1",
        "1e6",
        "NONE",
        "a",
        "\n",
        "\t",
        "\r\n",
        "\0",
    ]
)


def survive(text):
    looks_like(text)
    try:
        file = parse("w.txt", text)
    except FormatError as problem:
        assert problem.line is not None or "empty" in str(problem)
        assert problem.line is None or 1 <= problem.line <= text.count("\n") + text.count("\r") + 1
        return
    split = structure(file)
    placed = [*split.leading, *split.trailing, *split.embedding_norm]
    for block in split.blocks:
        placed += [*block.embedding, *block.final, *(row for layer in block.layers for row in layer)]
        assert all(block.layers)
    assert sorted(placed) == list(range(len(file.rows)))
    assert 0 <= generation(file).confidence <= 1
    structural_warnings(file, split)


@settings(max_examples=250, deadline=None)
@given(sample=st.sampled_from(SAMPLES), damage=DAMAGE)
def test_damaged_samples(sample, damage):
    for where, length, bytes_in in damage:
        start = int(where * len(sample))
        sample = sample[:start] + bytes_in + sample[start + length :]
    survive(sample.decode("utf-8", errors="replace"))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_random_text(text):
    survive(text)


@settings(max_examples=250, deadline=None)
@given(st.lists(WORDS, max_size=40))
def test_random_words_of_the_format(words):
    survive("MICRO " + " ".join(words))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(["embedding_layer", "embedding_norm", "norm", "attention", "mlp", "final_x", "optimizer1"])
    )
)
def test_random_orders_of_rows(names):
    rows = [f"{name} -1 1 NONE 0 1 NONE 0 1 NONE 0 1" for name in names]
    survive("\n".join(["MICRO ga: 2", str(len(rows)), *rows]))
