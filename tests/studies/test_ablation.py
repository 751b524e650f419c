"""Mechanisms are switched off where they are, and only there; the table finds its place on the page."""

from importlib import import_module
from types import SimpleNamespace

import pytest

import ablation
from ablation import (
    BEGIN,
    END,
    MECHANISMS,
    PAGE,
    Forecasts,
    Mechanism,
    forecasts_without,
    switched_off,
    table_of,
    table_of_moved,
    with_table,
)


def owner_of(path):
    module, _, name = path.partition(":")
    owner = import_module(module)
    *outer, last = name.split(".")
    for each in outer:
        owner = getattr(owner, each)
    return owner, last


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=[each.name for each in MECHANISMS])
def test_what_is_switched_off_is_put_back(mechanism):
    before = [getattr(*owner_of(path)) for path, _ in mechanism.instead]
    with switched_off(mechanism):
        assert [getattr(*owner_of(path)) for path, _ in mechanism.instead] == [each for _, each in mechanism.instead]
    assert [getattr(*owner_of(path)) for path, _ in mechanism.instead] == before


def test_only_runs_that_a_mechanism_may_change_are_forecast_again(monkeypatch):
    rows = [SimpleNamespace(id=name) for name in "abc"]
    asked = []
    monkeypatch.setattr(ablation, "forecast_runs", lambda runs, _: asked.append([run.id for run in runs]) or asked[-1])
    assert forecasts_without(MECHANISMS[0], rows, {}) == ["a", "b", "c"]
    mine = Mechanism("mine", changes=lambda run: run.id == "b")
    assert forecasts_without(mine, rows, dict.fromkeys("abc", "as it was")) == ["as it was", "b", "as it was"]
    assert asked == [["a", "b", "c"], ["b"]]


def test_the_table_goes_between_its_markers():
    figures = {each.name: {"MoE": (3, 0.05, 0.2), "dense FP8": (4, 0.04, 0.1)} for each in MECHANISMS}
    text = table_of(figures)
    assert "| (nothing) | 5.0 %, 20.0 % | 4.0 %, 10.0 % |" in text
    page = with_table(f"before\n{BEGIN}old\n{END}after\n", text)
    assert page == f"before\n{BEGIN}{text}{END}after\n"
    assert with_table(page, text) == page
    assert text in with_table(PAGE.read_text(encoding="utf-8"), text)
    with pytest.raises(ValueError, match="end of ablation"):
        with_table(f"{BEGIN}no end", text)


def test_what_a_mechanism_moves_is_told_of_these_runs_alone():
    runs = [SimpleNamespace(id=name) for name in "abcd"]
    whole = Forecasts.from_rows(
        runs, [SimpleNamespace(step_s=each) for each in (1.0, 1.0, 1.0, None)], [0.1, -0.02, 0.5, 0.0]
    )
    without = Forecasts.from_rows(
        runs, [SimpleNamespace(step_s=each) for each in (0.8, 0.9, 1.005, 2.0)], [-0.12, -0.2, 0.5, 0.0]
    )
    assert whole.moved(without) == pytest.approx((2, 0.06, 0.16))
    assert whole.moved(whole)[0] == 0
    text = table_of_moved({"mine": (whole.moved(without), whole.moved(whole))})
    assert text.splitlines()[-1] == "| mine | 2 | 6.0 % | 16.0 % | 0 |  |  |"
