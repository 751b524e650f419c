"""A specification lists its points; what is wrong with it is said where it is wrong."""

import pytest

from traincast.errors import ConfigError
from traincast.sweeps.spec import MAX_POINTS, read_spec

GRID = '[grid]\n"parallel.tp" = [1, 2]\n"model.name" = ["a", "b", "c"]\n'


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "sweep.toml"
        path.write_text(text)
        return read_spec(path)

    return read


def test_every_case_is_crossed_with_the_grid_and_the_last_key_varies_fastest(read):
    spec = read("[base.batch]\nseq_length = 8\n[[cases]]\n'cluster.name' = 'x'\n[[cases]]\n'parallel.pp' = 4\n" + GRID)
    points = list(spec.points())
    assert len(spec) == len(points) == 12
    assert spec.keys == ("cluster.name", "parallel.pp", "parallel.tp", "model.name")
    assert [point.index for point in points] == list(range(12))
    assert [point.document["model"]["name"] for point in points] == ["a", "b", "c"] * 4
    assert points[0].document == {
        "batch": {"seq_length": 8},
        "cluster": {"name": "x"},
        "parallel": {"tp": 1},
        "model": {"name": "a"},
    }
    assert points[-1].document["parallel"] == {"pp": 4, "tp": 2}


def test_a_point_does_not_change_the_base(read):
    spec = read("[base.parallel]\npp = 2\n" + GRID)
    list(spec.points())
    assert spec.base == {"parallel": {"pp": 2}}


def test_the_base_may_be_a_job_file(read, tmp_path):
    (tmp_path / "job.toml").write_text("[parallel]\npp = 2\n")
    assert next(read('base = "job.toml"\n' + GRID).points()).document["parallel"] == {"pp": 2, "tp": 1}


def test_the_fingerprint_is_of_all_that_is_said_and_of_nothing_else(read):
    plain = read(GRID).fingerprint
    assert read("# a comment\n" + GRID).fingerprint == plain
    others = [GRID.replace("[1, 2]", "[2, 1]"), GRID + "[prices]\nh100 = 2.0\n", GRID + "[base.batch]\nx = 1\n"]
    others += ['work = "plan"\n' + GRID, 'work = "plan"\n[plan]\nheadroom = 0.1\n' + GRID]
    assert len({plain, *(read(text).fingerprint for text in others)}) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gird]\n", "gird: is not a section of a sweep; .* did you mean grid"),
        ("", "nothing varies"),
        ('work = "plain"\n' + GRID, "work: is 'plain'; .* did you mean plan"),
        ("[plan]\nheadroom = 0.1\n" + GRID, 'plan: says how plans are made; give work = "plan"'),
        ('work = "plan"\n[plan]\nfast = true\n' + GRID, "plan.fast: is unknown"),
        ('work = "plan"\n[plan]\nheadroom = true\n' + GRID, "plan.headroom: is True; it must be a number"),
        ("grid = 3\n", "grid: is 3; it must be a table"),
        ('[grid]\n"tp" = [1]\n', r'grid.tp: is not a key of a job file; write "section.key"'),
        ('[grid]\n"a.b.c" = [1]\n', r"grid.a.b.c: is not a key of a job file"),
        ('[grid]\n"parallel.tp" = []\n', "grid.parallel.tp: is empty"),
        ('[grid]\n"parallel.tp" = [1, 1]\n', "grid.parallel.tp: lists 1 twice"),
        ('[grid]\n"parallel.tp" = [{}]\n', "parallel.tp: is .* it must be text, a number"),
        ('cases = 1\n"x" = 1\n', "x: is not a section"),
        ("cases = 1\n", "cases: is 1; it must be tables"),
        ("[[cases]]\n", "cases: .*must be tables"),
        ('[[cases]]\n"parallel.tp" = 1\n' + GRID, r"parallel.tp: is in \[grid\] and in \[\[cases\]\]"),
        (GRID + "[prices]\nh100 = -1\n", "prices.h100"),
        (GRID + '[prices]\nh100 = "cheap"\n', "prices.h100"),
        ("base = 3\n" + GRID, "base: is 3; it must be tables, or the path of a job file"),
        (f'[grid]\n"a.b" = {list(range(4000))}\n"a.c" = {list(range(4000))}\n', f"at most {MAX_POINTS:,} are run"),
    ],
)
def test_what_is_wrong_is_said_where_it_is(read, text, message):
    with pytest.raises(ConfigError, match=message):
        read(text)
