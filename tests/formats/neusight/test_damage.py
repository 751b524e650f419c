"""Whatever happens to a file, it runs or an error of ours says what is wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight_files import GPT2_LARGE, bert_rows, json_columns, json_rows, pipeline_rows, tensor_rows, text_of
from traincast import api
from traincast.errors import FormatError, TraincastError
from traincast.formats.contract import FORMATS
from traincast.formats.neusight.grammar import COLUMNS, parse
from traincast.job.options import LayoutOptions

SAMPLES = [
    GPT2_LARGE.read_bytes(),
    text_of(bert_rows(2, backward=1)).encode(),
    text_of([*tensor_rows(), *pipeline_rows(3)]).encode(),
    json_rows(bert_rows()).encode(),
    json_columns(pipeline_rows()).encode(),
]
PIECES = [b"\t", b"\n", b"\0", b"nan", b"1e300", b"-", b"None", b"ALLREDUCE", b"SENDRECV", b'"', b"{", b"[", b"h_1_"]
DAMAGE = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 40), st.one_of(st.binary(max_size=6), st.sampled_from(PIECES))),
    min_size=1,
    max_size=5,
)
OPTIONS = st.sampled_from(
    [{}, {"layers": 3}, {"layers": 5, "microbatches": 2}, {"forward_only": True, "dp": 2}, {"gpus": 12}]
)
WORDS = st.sampled_from(["a", "a_grad", "h_0_x", "h_1_x", "lm_head", "getitem", "0", "1.5", "None", "SENDRECV", "x"])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("damage") / "w"


def survive(path, data, options):
    path.write_bytes(data)
    form = FORMATS.get("neusight")
    for work in (lambda: form.inspect(path), lambda: run(form, path, options)):
        try:
            work()
        except TraincastError as problem:
            if isinstance(problem, FormatError) and problem.line is not None:
                assert 1 <= problem.line <= data.count(b"\n") + data.count(b"\r") + 1


def run(form, path, options):
    workload = form.read([path], LayoutOptions(**options))
    if workload.parallel.world_size <= 64 and workload.parallel.microbatches <= 4:
        assert api.simulate(workload, cluster="a100").iteration_time_s >= 0


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(sample=st.sampled_from(SAMPLES), damage=DAMAGE, options=OPTIONS)
def test_damaged_samples(path, sample, damage, options):
    for where, length, bytes_in in damage:
        start = int(where * len(sample))
        sample = sample[:start] + bytes_in + sample[start + length :]
    survive(path, sample, options)


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=200), first=st.sampled_from(["", "[", "{", "\t".join(COLUMNS) + "\n"]), options=OPTIONS)
def test_random_text(path, text, first, options):
    survive(path, (first + text).encode("utf-8", "replace"), options)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.lists(WORDS, min_size=11, max_size=11), max_size=8), options=OPTIONS)
def test_random_rows(path, rows, options):
    survive(path, text_of(rows).encode(), options)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    names=st.lists(st.sampled_from(["a", "a_grad", "h_0_x", "h_1_x", "t_h_0_y", "lm_head", "add_1", "s"]), max_size=12),
    options=OPTIONS,
)
def test_random_orders_of_rows(path, names, options):
    kinds = {"s": "SENDRECV", "a_grad": "ALLREDUCE_ASYNC", "add_1": "ALLREDUCE"}
    rows = [[name, 1, "None", 0, 0, kinds.get(name, "None"), 8 * (name in kinds), 0, "None", 0, 0] for name in names]
    survive(path, text_of(rows).encode(), options)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(COLUMNS), inner, max_size=11),
        max_leaves=30,
    )
)
def test_random_json(value):
    import json

    text = json.dumps([value] if not isinstance(value, (list, dict)) else value)
    with pytest.raises(FormatError):
        parse("w.json", text)
