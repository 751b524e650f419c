"""``report.html`` without a browser: what it holds, and that nothing in it can escape."""

import base64
import io
import json
import re
import zlib

import numpy as np
import pytest
from msgspec.structs import replace

from support import with_ops
from traincast import api
from traincast.analysis.summary import Suggestion
from traincast.errors import ConfigError
from traincast.job.changes import WORK, WorkEdit, parse_change
from traincast.report.explorer.columns import MAX_OPS
from traincast.report.explorer.page import write_page
from traincast.report.suggestions import meaning
from traincast.report.terminal.step import print_result
from traincast.shipped import shipped_text
from traincast.simulation.edits import edited
from traincast.workload.words import Group, Kind, Phase

_SEEN_APART = 28
"""Distance of two colours in red, green and blue from which they are told apart."""
AICB = "examples/aicb_gpt_405b_1024gpu.txt"


def page_of(*runs):
    stream = io.BytesIO()
    write_page(runs, stream)
    return stream.getvalue().decode()


def script(page, name):
    (text,) = re.findall(rf'<script type="[\w/]+" id="{name}">(.*?)</script>', page, re.DOTALL)
    return text


def columns_of(page, run=0):
    """Return the header of a run, and its columns as the page's script reads them."""
    header = json.loads(script(page, f"run-{run}"))
    content = zlib.decompress(base64.b64decode(script(page, f"columns-{run}")))
    found, at = {}, 0
    for name, kind, length, from_the_last in header["columns"]:
        width = int(kind[1])
        part = np.frombuffer(content, np.uint8, length * width, at).reshape(width, length).T
        numbers = np.ascontiguousarray(part).view(f"<{kind}").ravel()
        found[name] = np.cumsum(numbers) if from_the_last else numbers
        at += length * width
    assert at == len(content)
    return header, found


@pytest.fixture(scope="module")
def result():
    return api.simulate(AICB, cluster="h100")


@pytest.fixture(scope="module")
def traced():
    return api.simulate("examples/megatron_pp4_tp2")


def test_the_columns_hold_every_operation_to_a_tick(result):
    header, columns = columns_of(page_of(("a", result)))
    program, timeline = result.program, result.timeline
    tick_s = header["tick_s"]
    assert sum(rank["operations"] for rank in header["ranks"]) == len(program) == len(columns["ready"])
    for name, edge_s_N in (
        ("ready", timeline.ready_s_N),
        ("wait", timeline.start_s_N - timeline.ready_s_N),
        ("run", timeline.end_s_N - timeline.start_s_N),
    ):
        assert np.abs(columns[name] * tick_s - edge_s_N).max() <= 1.5 * tick_s
    names = [header["strings"][at] for at in columns["name_T"][columns["row"]]]
    assert names == [program.ops.name_T[row] for row in program.row_N]
    assert header["result"]["iteration_time_s"] == result.iteration_time_s


def test_the_path_begins_and_ends_with_the_step(result):
    header, columns = columns_of(page_of(("a", result)))
    first, last = columns["path"][0], columns["path"][-1]
    end = columns["ready"] + columns["wait"] + columns["run"]
    assert columns["ready"][first] == 0
    assert end[last] == end.max()
    assert abs(end.max() * header["tick_s"] - result.iteration_time_s) <= header["tick_s"]


def test_the_same_result_gives_the_same_page_and_a_small_one(result):
    page = page_of(("a", result))
    assert page == page_of(("a", result))
    assert len(page) < 6_000_000


SUGGESTED = (
    *(f"{work}*0.9" for work in WORK),
    *(pytest.param(f"{work}*0.5", marks=pytest.mark.slow) for work in WORK),
    *("rank1.own=peers", "stage1.own=peers", "rank0.tp_comm*0.5", "stage1.backward*0.9"),
    *("vpp=2", "recompute=selective", "overlap_grad_reduce=true", "nic_bandwidth=800Gb/s"),
)


@pytest.mark.slow
@pytest.mark.parametrize("change", SUGGESTED)
def test_a_suggestion_is_told_in_the_words_of_the_terminal_and_points_at_what_changes(traced, change, shown):
    saved = Suggestion(change=change, saving_s=0.1, low_s=0.05, high_s=0.2)
    result = replace(traced, stragglers=(), causes=(), suggestions=(saved,))
    header, columns = columns_of(page_of(("a", result)))
    (told,) = header["advice"]
    assert meaning(change) in told["text"]
    assert change not in told["text"]
    assert meaning(change) in " ".join(shown(print_result, result, width=140).split())
    edit = parse_change(change)
    if not isinstance(edit, WorkEdit):
        return
    try:
        changed_s_N = edited(result.program, np.ones(len(result.program)), [replace(edit, factor=0.5, like="")])
    except ConfigError:
        assert told["ranks"] == told["rows"] == []
        return
    rank_N = np.repeat([rank["rank"] for rank in header["ranks"]], [rank["operations"] for rank in header["ranks"]])
    lit_N = np.isin(columns["row"], told["rows"]) & np.isin(rank_N, told["ranks"])
    took_N = columns["wait"] + columns["run"] > 0
    # A transfer changes on the other member's rank, too, which the sentence is not about.
    met_N = (columns["rendezvous"] >= 0) & bool(edit.ranks or edit.stages)
    assert ((lit_N == (changed_s_N < 1)) | ~took_N | met_N).all()
    assert 0 <= told["from_s"] < told["to_s"] <= result.iteration_time_s
    assert told["culprit"] == (edit.like == "peers")


def test_what_ifs_that_were_tried_are_told_instead_and_those_with_a_name_by_it(traced):
    tried = api.simulate("examples/megatron_pp4_tp2", what_if=["tp_comm*0.8", "rank7.own=peers"])
    header, _ = columns_of(page_of(("a", tried)))
    told = [each["text"] for each in header["advice"]]
    assert told[0].startswith("rank 7 is 2.21 times slower")
    assert told[1].startswith("all together: saves ")
    assert told[2].startswith("tp communication takes 20 % less: saves ")
    assert [bool(each["ranks"]) for each in header["advice"]] == [True, False, True]
    nothing = replace(traced, stragglers=(), causes=(), suggestions=())
    assert columns_of(page_of(("a", nothing)))[0]["advice"] == []


def test_what_is_shown_of_a_slow_rank_is_where_it_loses_its_time():
    slowed = api.simulate("examples/megatron_pp4_tp2", compute_slowdown={7: 1 / 2.2, 2: 3.0})
    told = columns_of(page_of(("a", slowed)))[0]["advice"][0]
    assert (told["ranks"], told["culprit"]) == ([2], True)
    program, timeline = slowed.program, slowed.timeline
    own_N = (program.rank_N == 2) & (program.ops.kind_T[program.row_N] == Kind.COMPUTE)
    inside_N = (timeline.start_s_N >= told["from_s"]) & (timeline.end_s_N <= told["to_s"])
    took_s_N = timeline.end_s_N - timeline.start_s_N
    assert took_s_N[own_N & inside_N].sum() > 0.8 * took_s_N[own_N].sum()


def test_a_page_asks_nothing_of_any_network(result):
    page = page_of(("a", result))
    assert set(re.findall(r"https?://[\w./-]+", page)) == {"https://ui.perfetto.dev", "http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in page
    assert not re.search(r"<(link|img|iframe|object|script)[^>]+(src|href)=\"(?!data:)", page)


def test_nothing_of_a_file_becomes_markup(result):
    bad = "</script><img src=x onerror=alert(1)><!--"
    ops = replace(result.program.ops, name_T=tuple(bad for _ in result.program.ops.name_T))
    page = page_of((bad, with_ops(result, ops)))
    assert "<img" not in page
    assert page.count("</script>") == 3
    header, columns = columns_of(page)
    assert header["name"] == bad
    assert header["strings"][columns["name_T"][0]] == bad


@pytest.mark.slow
def test_a_large_run_shows_the_ranks_that_explain_it():
    whole = api.simulate(AICB, cluster="h100", unfold=True)
    assert len(whole.program) > MAX_OPS
    header, columns = columns_of(page_of(("a", whole)))
    assert len(columns["ready"]) <= MAX_OPS
    shown = [rank["rank"] for rank in header["ranks"]]
    assert {0, 1023} <= set(shown) < set(range(1024))
    assert "at most 300,000 operations" in header["shown"]


def colours_of(theme):
    """Return the colour of every kind and of every part of a breakdown that is not a kind, in one theme."""
    blocks = re.findall(
        r"^:root(?:\[data-theme=\"(\w+)\"\])? \{(.*?)^\}", shipped_text("explorer/palette.css"), re.M | re.S
    )
    (values,) = (re.findall(r"--([\w-]+): (#\w{6});", text) for name, text in blocks if (name or "light") == theme)
    kinds, owners = re.findall(r"^const COLOUR_OF_\w+ = \{(.*?)^\};", shipped_text("explorer/colours.js"), re.M | re.S)
    named = dict(re.findall(r"(\w+): \"(\w+)\"", kinds))
    own = {name: place for name, place in re.findall(r"(\w+): \"(\w+)\"", owners) if place not in named.values()}
    return {name: dict(values)[place] for name, place in (named | own).items()}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_kind_has_a_colour_of_its_own(theme):
    colours = colours_of(theme)
    shown = {each.name.lower() for each in (*Phase, *Group, Kind.GAP, Kind.COPY, Kind.WAIT)} - {"none"}
    assert shown | {"bubble", "other"} <= set(colours)
    parts = {name: np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) for name, colour in colours.items()}
    close = [(a, b) for a in parts for b in parts if a < b and np.linalg.norm(parts[a] - parts[b]) < _SEEN_APART]
    assert close == []
