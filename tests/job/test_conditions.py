"""Conditions of tables of facts: what each form says, and what is not known yet."""

import pytest

from traincast.errors import ConfigError
from traincast.job.conditions import Condition, broken, read_conditions


@pytest.mark.parametrize(
    ("text", "holds_of", "breaks_of"),
    [
        ("experts", {"experts": True}, {"experts": None}),
        ("ep>1", {"ep": 2}, {"ep": 1}),
        ("capability>=9", {"capability": 9.0}, {"capability": 8.9}),
        ("pp<2", {"pp": 1}, {"pp": 2}),
        ("pp<=2", {"pp": 2}, {"pp": 3}),
        ("precision=mxfp8|nvfp4", {"precision": "nvfp4"}, {"precision": "bf16"}),
        ("recompute!=full", {"recompute": "none"}, {"recompute": "full"}),
        (
            "recompute_modules!=moe|mlp",
            {"recompute_modules": ("layernorm",)},
            {"recompute_modules": ("mlp", "moe_act")},
        ),
        ("overlap_tp=false", {"overlap_tp": False}, {"overlap_tp": True}),
        ("recompute_modules=none", {"recompute_modules": ()}, {"recompute_modules": ("mlp",)}),
    ],
)
def test_each_form_holds_and_breaks(text, holds_of, breaks_of):
    (condition,) = read_conditions(text)
    assert condition.holds(holds_of)
    assert not condition.holds(breaks_of)
    assert condition.text == text


def test_what_is_not_known_yet_is_not_held_against_a_job():
    conditions = read_conditions("ep>1; recompute!=full")
    assert broken(conditions, {"ep": 8}) is None
    assert broken(conditions, {"ep": 8, "recompute": "full"}) == Condition("recompute", "!=", ("full",))


def test_a_number_that_is_not_given_is_not_above_another():
    assert broken(read_conditions("domain>8"), {"domain": None}) is not None


@pytest.mark.parametrize("text", ["ep >", "EP>1", "ep>many", ">1", "ep==1x y"])
def test_another_form_is_refused_in_words(text):
    with pytest.raises(ConfigError, match="is '"):
        read_conditions(text)
