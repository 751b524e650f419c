"""Boards of accuracy and coverages of intervals do not get worse unnoticed."""

import pytest

import boards
from boards import Score


def test_no_board_of_the_page_is_worse_than_its_limit():
    shown = boards.of_page(boards.PAGE.read_text(encoding="utf-8"))
    allowed = {key: limit for key, limit in boards.limits().items() if key[0] != boards.SAMPLE}
    assert boards.worse(shown, allowed) == []
    assert set(shown) == set(allowed)


@pytest.mark.slow
def test_forecasts_of_a_sample_of_runs_are_as_close_as_they_were():
    """Of all kinds of runs; what shows here first shows on the boards when they are printed again."""
    found = boards.of_sample(boards.sampled())
    allowed = {key: limit for key, limit in boards.limits().items() if key[0] == boards.SAMPLE}
    assert set(found) == set(allowed)
    assert boards.worse(found, allowed) == []


@pytest.mark.parametrize(
    ("score", "noticed"),
    [
        (Score(5.3, 15.0, 90.0), False),
        (Score(5.4, 15.0, 90.0), True),
        (Score(1.0, 16.1, 90.0), True),
        (Score(1.0, 1.0, 87.0), True),
        (Score(1.0, 1.0, 99.0), False),
    ],
)
def test_each_figure_that_gets_worse_is_noticed(score, noticed):
    limit = {("family", "MoE"): Score(5.0, 15.0, 90.0)}
    assert bool(boards.worse({("family", "MoE"): score}, limit)) == noticed


def test_a_board_that_is_not_shown_any_more_is_noticed(tmp_path):
    known = {("family", "MoE"): Score(5.0, 15.0, 90.0), ("sample", "all"): Score(4.0, 9.5, 91.25)}
    path = tmp_path / "boards.toml"
    path.write_text(boards.as_toml(known))
    assert boards.limits(path) == known
    assert boards.worse({}, known) == ["family, MoE: is not shown any more", "sample, all: is not shown any more"]
