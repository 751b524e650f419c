"""Layouts of pipelines as strings: what the letters mean, both ways, and which layouts fit a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from job_parts import TINY, job_of
from traincast.errors import ConfigError, InfeasibleError
from traincast.job.pipeline_layout import PipelineLayout, check_layout, layout_of, parse_layout

LETTERS = st.text(alphabet="EtmL|", min_size=1, max_size=6)
TIMES = st.integers(0, 12)
PIECES = st.one_of(
    st.sampled_from("EtmL|").map(lambda letter: (letter, letter)),
    st.tuples(st.sampled_from("EtmL|"), TIMES).map(lambda each: (f"{each[0]}*{each[1]}", each[0] * each[1])),
    st.tuples(LETTERS, TIMES).map(lambda each: (f"({each[0]})*{each[1]}", each[0] * each[1])),
    st.tuples(LETTERS, st.sampled_from("EtmL|"), TIMES, TIMES).map(
        lambda each: (f"({each[0]}{each[1]}*{each[2]})*{each[3]}", (each[0] + each[1] * each[2]) * each[3])
    ),
)
"""Texts of the grammar, each with what it stands for."""
STAGES = st.lists(st.text(alphabet="EtmL", max_size=9), min_size=1, max_size=30)


@given(st.lists(st.tuples(PIECES, st.sampled_from(["", ",", " ", ", "])), min_size=1, max_size=12))
def test_a_text_stands_for_its_letters_written_out(pieces):
    text = "".join(written + cosmetic for (written, _), cosmetic in pieces)
    assert parse_layout(text).stages == tuple("".join(meant for (_, meant), _ in pieces).split("|"))


@given(STAGES.filter(lambda stages: len(stages) > 1 or stages[0]))
def test_a_layout_that_is_written_is_read_as_itself(stages):
    layout = PipelineLayout(tuple(stages))
    assert parse_layout(str(layout)) == layout
    assert len(str(layout)) <= len("|".join(stages))


def test_examples_of_megatron_lm():
    """Its own comments: parse_str_to_list, and the help of --pipeline-model-parallel-layout."""
    assert parse_layout("Ettt|(tt|)*29,m|L").stages == ("Ettt", *["tt"] * 29, "m", "L")
    assert parse_layout("xy(ab|cd|ef)*2,pq".translate(str.maketrans("xyabcdefpq", "EEttmmttLL"))).stages == (
        "EEtt",
        "mm",
        "tttt",
        "mm",
        "ttLL",
    )
    assert parse_layout("E|(t|)*3,m|m||L").stages == ("E", "t", "t", "t", "m", "m", "", "L")
    assert str(parse_layout("Et*4|" + "tttt|" * 14 + "tmL")) == "Et*4|(t*4|)*14tmL"


@given(layers=st.lists(st.integers(0, 9), min_size=1, max_size=20), mtp=st.integers(0, 3), data=st.data())
def test_layers_and_their_layout_say_the_same(layers, mtp, data):
    at = data.draw(st.integers(0, len(layers) - 1))
    layout = parse_layout(str(layout_of(layers, mtp, at)))
    assert layout.layers_Q == tuple(layers)
    assert layout.mtp_layers == mtp
    assert layout.mtp_stage == (at if mtp else None)
    written = "".join(layout.stages)
    assert written[0] == "E"
    assert written[-1] == "L"
    assert len(written) == 2 + mtp + sum(layers)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write it like"),
        ("ExtL", "'x' is not a letter"),
        ("E(t|L", "write it like"),
        ("E(t|)L", "a group needs its number"),
        ("E((t|)*2)*2L", "groups cannot be nested"),
        ("Et*2*3L", "write it like"),
        ("E*t", "write it like"),
        ("()*3", "write it like"),
        ("t*99999", "more than 65536 letters"),
        ("(t*999)*999", "more than 65536 letters"),
    ],
)
def test_what_is_no_layout_is_refused(text, words):
    with pytest.raises(ConfigError, match="pipeline_layout: is") as caught:
        parse_layout(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("tttt|ttttL", ConfigError, r"it has E \(the embedding\) 0 times"),
        ("EEtttt|ttttL", ConfigError, r"it has E \(the embedding\) 2 times"),
        ("tEttt|ttttL", ConfigError, "E .the embedding. must be the first"),
        ("Etttt|Ltttt", ConfigError, "L .the LM head with the loss. must be the last of the last"),
        ("Ettt|mtttttL", ConfigError, "must come before MTP layers"),
        ("Ettttm|ttttL", ConfigError, "must come before MTP layers"),
        ("Etttt|ttttm|mm|mL", ConfigError, "on one virtual stage, not on 3"),
        ("Ettttttttm|||L", ConfigError, "one of the last 2"),
        ("Ettt|ttt|ttL", InfeasibleError, "3 virtual stages, which pp 2 does not divide: 1 too few or 1 too many"),
        ("EttttttttL", InfeasibleError, "1 virtual stage, which pp 2 does not divide: 1 too few$"),
        ("Et*4|t*5L", InfeasibleError, "places 9 layers, but tiny has 8: 1 too many"),
        ("Et*4|t*1L", InfeasibleError, "places 5 layers, but tiny has 8: 3 too few"),
        ("Et*4|t*4mL", InfeasibleError, "places 1 MTP layer, but tiny has 0: 1 too many"),
        ("Et*2|t*2|t*2|t*2L", InfeasibleError, "4 virtual stages, so that vpp is 2, not 1"),
    ],
)
def test_a_layout_that_does_not_fit_says_by_how_much(text, error, words):
    with pytest.raises(error, match=words):
        check_layout(parse_layout(text), name="tiny", layers=8, mtp_layers=0, pp=2, vpp=1)


@given(data=st.data(), pp=st.sampled_from([1, 2, 4]), chunks=st.integers(1, 3), mtp=st.integers(0, 2))
def test_every_layer_is_placed_once(data, pp, chunks, mtp):
    """Whatever the layout, a job has each layer, both ends and all MTP layers on some virtual stage, and once."""
    count = pp * (chunks if pp > 1 else 1)
    layers = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count).filter(sum))
    at = data.draw(st.integers(count - pp, count - 1)) if not any(layers[count - pp :]) else count - 1
    model = replace(TINY, layers=sum(layers), mtp_layers=mtp)
    job = job_of(model, gpus=pp, pp=pp, vpp=None, pipeline_layout=str(layout_of(layers, mtp, at)))
    assert job.pipeline.layers_Q == tuple(layers)
    assert job.pipeline.mtp_stage_index == (at if mtp else count - 1)
    assert job.layout == layout_of(layers, mtp, at)
    assert job.parallel.vpp == count // pp


@pytest.mark.parametrize("other", [{"stage_layers": (4, 4)}, {"first_stage_layers": 4}, {"head_as_layer": True}])
def test_one_job_has_one_layout(other):
    with pytest.raises(ConfigError, match=f"pipeline_layout: cannot be combined with {next(iter(other))}"):
        job_of(gpus=2, pp=2, pipeline_layout="Et*4|t*4L", **other)


def test_ends_that_count_as_layers_cannot_be_said_twice():
    """Megatron Core refuses both, as one of them would be ignored."""
    with pytest.raises(ConfigError, match="first_stage_layers: cannot be combined with embedding_as_layer"):
        job_of(gpus=2, pp=2, first_stage_layers=4, embedding_as_layer=True)


def test_stages_need_a_pipeline():
    with pytest.raises(InfeasibleError, match="2 virtual stages, which need pp above 1"):
        job_of(gpus=1, pp=1, vpp=None, pipeline_layout="Et*4|t*4L")
    assert job_of(gpus=1, pp=1, pipeline_layout="Et*8L").pipeline.layers_Q == (8,)


def test_mtp_layers_of_a_job_replace_those_of_its_model():
    assert job_of(replace(TINY, mtp_layers=1), mtp_layers=0).model.mtp_layers == 0
    assert job_of(mtp_layers=2).model.mtp_layers == 2
    with pytest.raises(ConfigError, match="mtp_layers: is -1"):
        job_of(mtp_layers=-1)
