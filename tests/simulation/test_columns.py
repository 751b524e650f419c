"""Results as columns of numpy and polars, and as HTML for notebooks."""

import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from msgspec.structs import replace

import traincast
from traincast.diagnostics import Note
from traincast.errors import ConfigError, UnknownNameError
from traincast.report.json import result_from_json, to_json
from traincast.simulation.result import TABLES

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


@pytest.mark.parametrize("of", [each for each in TABLES if each not in ("operations", "advice")])
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
    with pytest.raises(ConfigError, match="not hold single operations"):
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


def test_the_bar_of_the_step_is_as_long_as_the_step(result):
    shares = [float(width) for width in re.findall(r"width:([\d.]+)%", result._repr_html_())]
    assert len(shares) == sum(time_s > 0 for time_s in result.breakdown_s.values())
    assert sum(shares) == pytest.approx(100, abs=0.1)


def test_a_table_is_its_columns(result):
    table = result.table("ranks")
    assert len(table) == len(result.ranks)
    assert table["wait_s"].tolist() == [rank.wait_s for rank in result.ranks]
    assert repr(table).startswith("<Table: 8 rows of rank, stage, ")
    with pytest.raises(UnknownNameError, match="unknown column"):
        table["wait"]


def test_a_plan_has_its_layouts_as_a_table():
    plan = traincast.plan(model="llama3-8b", cluster="h100", gpus=8, global_batch=8, tokens="1T", top=3)
    table = plan.table()
    assert table["step_s"].tolist() == [each.result.iteration_time_s for each in plan.shown]
    assert table["tp"].tolist() == [each.layout.tp for each in plan.shown]
    assert (table["days"] > 0).all()


@pytest.mark.parametrize("of", TABLES)
def test_polars_takes_tables_as_streams_of_arrow(result, of):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame, columns = polars.DataFrame(result.table(of)), result.columns(of)
    assert frame.columns == list(columns)
    for name, column in columns.items():
        assert frame[name].to_list() == pytest.approx(column.tolist(), nan_ok=True)


def test_pandas_takes_tables_as_streams_of_arrow(result):
    pandas, _ = (pytest.importorskip(name, reason=f"{name} is not installed") for name in ("pandas", "pyarrow"))
    if not hasattr(pandas.DataFrame, "from_arrow"):
        pytest.skip("this pandas has no DataFrame.from_arrow")
    frame = pandas.DataFrame.from_arrow(result.table("ranks"))
    assert frame["rank"].tolist() == [rank.rank for rank in result.ranks]


def test_a_stream_without_a_library_says_what_to_install(result, monkeypatch):
    for name in ("polars", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match="frames need polars or pyarrow"):
        result.table("ranks").__arrow_c_stream__()


@pytest.mark.parametrize("of", TABLES)
def test_a_table_is_a_mapping_that_pandas_takes(result, of):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table, columns = result.table(of), result.columns(of)
    assert list(dict(table)) == list(table.keys()) == list(columns)
    for frame in (pandas.DataFrame(table), pandas.DataFrame(dict(table)), table.to_pandas(), result.to_pandas(of)):
        assert list(frame.columns) == list(columns)
        assert len(frame) == len(table)
        for name, column in columns.items():
            assert (
                frame[name].fillna(0).tolist() == pytest.approx(np.nan_to_num(column).tolist())
                or column.dtype == object
            )


def test_a_table_goes_to_polars(result):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    assert result.table("ranks").to_polars().equals(polars.DataFrame(result.table("ranks")))


def test_frames_say_what_to_install(result, monkeypatch):
    for name in ("pandas", "polars", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        result.to_pandas()
    with pytest.raises(ConfigError, match=r"pip install 'traincast\[frames\]'"):
        result.frame()
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        result.plot()


class _Axes:
    """What a picture draws, as matplotlib's axes are asked for it."""

    def __init__(self):
        self.bars = []

    def barh(self, stages, width, left, color, label):
        self.bars.append((stages, width, left, color, label))

    def __getattr__(self, name):
        return lambda *_, **__: None


def test_a_picture_has_a_bar_for_each_stage_as_long_as_its_rank_takes(result):
    axes = _Axes()
    assert result.plot(axes) is axes
    assert len({color for *_, color, _ in axes.bars}) == len(axes.bars)
    *_, (stages, width, left, _, _) = axes.bars
    assert stages == ["0", "1", "2", "3"]
    assert [a + b for a, b in zip(left, width, strict=True)] == pytest.approx([result.iteration_time_s] * 4)
