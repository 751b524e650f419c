"""Results as columns of numpy and polars, and as HTML for notebooks."""

from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import traincast
from traincast.diagnostics import Note
from traincast.errors import ConfigError, UnknownNameError
from traincast.report.json import result_from_json, to_json
from traincast.simulation.columns import TABLES

RUN = "examples/megatron_pp4_tp2"


@pytest.fixture(scope="module")
def result():
    return traincast.simulate(RUN, suggest=True, what_if=("rank7.compute=peers",))


def test_operations_are_columns_of_one_length_that_make_up_the_step(result):
    columns = result.columns()
    assert {len(column) for column in columns.values()} == {len(result.program)}
    assert columns["end_s"].max() == result.iteration_time_s
    compute = columns["kind"] == "compute"
    for rank in result.ranks:
        mine = compute & (columns["rank"] == rank.rank)
        assert columns["duration_s"][mine].sum() == pytest.approx(rank.compute_s)
    assert set(columns["group"][columns["kind"] == "send"]) == {"pp"}
    # Every operation's slack stands beside it.
    assert len(traincast.explain(result).slack_s_N) == len(columns["rank"])


@pytest.mark.parametrize("of", [each for each in TABLES if each != "operations"])
def test_other_tables_have_a_line_for_each_entry(result, of):
    columns = result.columns(of)
    lines = getattr(result, of)
    assert lines and {len(column) for column in columns.values()} == {len(lines)}
    if of == "ranks":
        assert columns["bubble"].tolist() == [rank.breakdown_s["bubble"] for rank in result.ranks]


def test_what_is_not_known_is_nan(result):
    parts = result.columns("parts")
    known = [each.measured_s is not None for each in result.parts]
    assert (~np.isnan(parts["measured_s"])).tolist() == known


def test_what_there_is_not_is_refused(result):
    with pytest.raises(UnknownNameError, match="unknown table"):
        result.columns("kernels")
    with pytest.raises(ConfigError, match="no single operations"):
        result_from_json(to_json(result), "result.json").columns()


def test_frames_are_the_same_columns(result):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = result.frame()
    assert isinstance(frame, polars.DataFrame)
    assert frame.columns == list(result.columns())
    assert frame["end_s"].max() == result.iteration_time_s
    assert result.frame("ranks").height == len(result.ranks)


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, _):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


def test_a_notebook_shows_step_breakdown_causes_and_what_would_help(result):
    page = _Tags()
    page.feed(result._repr_html_())
    for said in ("Step 3.851 s", "measured 3.855 s", "bubble", "slow worker", "What would help most", "rank7"):
        assert said in page.text
    assert not {"script", "img", "link", "iframe"} & set(page.tags)


def test_what_comes_from_an_input_is_escaped(result):
    note = Note("x", "<script>alert(1)</script> & more")
    shown = replace(result, warnings=(note,))._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown
