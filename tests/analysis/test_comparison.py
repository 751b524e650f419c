"""Two steps side by side."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast import predict
from traincast.analysis.comparison import Difference, Side, Unmatched, compare
from traincast.analysis.logged import logged_side
from traincast.analysis.part_words import PASSES, common_part
from traincast.errors import ConfigError, FormatError
from traincast.formats.training_log.reader import parse
from training_logs import megatron_line, megatron_world, torchtitan_line

A = Side(
    name="a",
    what="measured",
    step_s=4.0,
    end_s={0: 4.0, 1: 2.0, 2: 3.0},
    part_s={0: {"forward": 1.0, "gap": 0.5}, 1: {"forward": 2.0}, 2: {"forward": 9.0}},
    breakdown_s={"compute": 3.0, "bubble": 1.0, "other": 0.0},
)
B = Side(
    name="b",
    what="simulated",
    step_s=5.0,
    end_s={3: 1.0, 1: 5.0, 0: 4.5},
    part_s={0: {"forward": 1.5, "send": 0.25}, 1: {"gap": 0.125}, 3: {"forward": 7.0}},
    breakdown_s={"compute": 3.0, "bubble": 1.5, "exposed_tp": 0.5, "other": 0.0},
)
NONE = Unmatched((), {})


def test_step_ends_and_breakdown():
    found = compare(A, B)
    assert found.step == Difference(4.0, 5.0)
    assert (found.step.difference_s, found.step.relative) == (1.0, 0.25)
    assert list(found.ends.items()) == [(0, Difference(4.0, 4.5)), (1, Difference(2.0, 5.0))]
    assert found.breakdown == {
        "compute": Difference(3.0, 3.0),
        "bubble": Difference(1.0, 1.5),
        "other": Difference(0.0, 0.0),
    }


def test_parts_are_summed_over_the_ranks_that_both_know():
    found = compare(A, B)
    assert found.rank_parts == {0: {"forward": Difference(1.0, 1.5)}, 1: {}}
    assert found.parts == {"forward": Difference(3.0, 1.5), "gap": Difference(0.5, 0.125)}


def test_what_only_one_side_has_is_listed():
    found = compare(A, B)
    assert found.only_a == Unmatched((2,), {0: {"gap": 0.5}, 1: {"forward": 2.0}})
    assert found.only_b == Unmatched((3,), {0: {"send": 0.25}, 1: {"gap": 0.125}})


def test_nothing_in_common():
    other = Side(name="c", what="simulated", step_s=1.0, end_s={7: 1.0}, part_s={7: {"forward": 1.0}})
    found = compare(A, other)
    assert (found.parts, found.ends, found.rank_parts, found.breakdown) == ({}, {}, {}, None)
    assert (found.only_a, found.only_b) == (Unmatched((0, 1, 2), {}), Unmatched((7,), {}))


def test_a_side_without_parts_leaves_all_of_the_other_unmatched():
    bare = Side(name="c", what="simulated", step_s=4.0, end_s=A.end_s)
    found = compare(A, bare)
    assert found.parts == {}
    assert (found.only_a, found.only_b) == (Unmatched((), A.part_s), NONE)


@pytest.mark.parametrize("zero", [0.0, -0.0, 5e-324])
def test_a_relative_difference_to_nothing_is_none(zero):
    assert Difference(zero, 1.0).relative is None
    assert Difference(0.0, zero).relative is None


def test_parts_of_an_unknown_rank_are_refused():
    with pytest.raises(ConfigError, match="rank 1 has parts"):
        Side(name="x", what="simulated", step_s=1.0, end_s={0: 1.0}, part_s={1: {}})


TIMES = st.floats(0, 1e6)
SIDES = st.builds(
    lambda end_s, part_s, step_s: Side(
        name="s",
        what="simulated",
        step_s=step_s,
        end_s=end_s,
        part_s={rank: parts for rank, parts in part_s.items() if rank in end_s},
    ),
    st.dictionaries(st.integers(0, 5), TIMES),
    st.dictionaries(st.integers(0, 5), st.dictionaries(st.sampled_from("pqr"), TIMES)),
    TIMES,
)


@pytest.mark.slow
@given(SIDES, SIDES)
def test_nothing_is_dropped(a, b):
    found = compare(a, b)
    for side, only in ((a, found.only_a), (b, found.only_b)):
        assert sorted([*found.ends, *only.ranks]) == sorted(side.end_s)
        for rank in found.ends:
            known = side.part_s.get(rank, {})
            assert {*found.rank_parts[rank], *only.part_s.get(rank, {})} == set(known)
    every = [found.step, *found.ends.values(), *found.parts.values()]
    assert all(each.relative is None or math.isfinite(each.relative) for each in every)


@given(SIDES)
def test_a_side_does_not_differ_from_itself(side):
    found = compare(side, side)
    every = [found.step, *found.ends.values(), *found.parts.values()]
    assert {each.difference_s for each in every} <= {0.0}
    assert {each.relative for each in every} <= {0.0, None}
    assert found.only_a == found.only_b == NONE


def test_a_part_is_taken_from_both_sides():
    assert Difference(5.0, 7.0).without(Difference(1.0, 4.0)) == Difference(4.0, 3.0)


def log_of(*lines):
    return parse("run.log", "\n".join(lines) + "\n")


def test_a_log_is_a_measured_side_and_what_the_other_side_contradicts_is_said():
    """64 GPUs of tp 4 and pp 2 in the log; the other side speaks of tp 8, of as many stages, and of layers."""
    log = log_of(megatron_world(64, 8, 1, 4, 2), *(megatron_line(step, 2000) for step in range(1, 31)))
    side = logged_side(log, "mine", {"tp": 8, "pp": 2, "layers": 80, "seq_length": 8192})
    assert (side.name, side.what, side.step_s, side.end_s) == ("mine", "measured", 2.0, {})
    assert side.how.startswith("median of 20 lines of Megatron")
    assert (side.interval.low_s, side.interval.high_s) == (2.0, 2.0)
    # 128 sequences of 8,192 tokens in 2 s on 64 GPUs.
    assert side.tokens_per_s_per_gpu == 128 * 8192 / 2.0 / 64
    assert [note.text for note in side.warnings] == ["tp is 4 in the log and 8 on the other side"]


def test_a_log_of_rates_alone_needs_the_job():
    log = log_of(*(torchtitan_line(step, 6000) for step in range(1, 31)))
    with pytest.raises(FormatError, match=r"^run\.log:1: gives tokens per second and GPU, but not how many"):
        logged_side(log, "mine", {})
    side = logged_side(log, "mine", {"global_batch": 64, "seq_length": 8192, "gpus": 64})
    assert side.step_s == pytest.approx(64 * 8192 / 64 / 6000)


# --- one vocabulary of parts


def test_a_forecast_and_timers_of_passes_have_parts_in_common():
    """Megatron-LM's timers contain what a forecast tells apart, so that both say the whole."""
    parts = {"layers forward": 1.0, "layers weight gradient": 0.5, "tp all_reduce": 0.25, "host launches": 0.125}
    forecast = Side(
        name="f", what="simulated", step_s=9.0, end_s={0: 9.0},
        part_s={0: parts | {"optimizer": 2.0, "send_forward": 1.0}},
        wait_s={0: {"tp all_reduce": 0.125, "send_forward": 0.5}},
    )  # fmt: skip
    timers = {"forward_step": 1.5, "backward_step": 3.0, "optimizer_step": 2.5, "recv_forward": 4.0, "get_batch": 0.5}
    measured = Side(name="m", what="measured", step_s=10.0, end_s={0: 10.0}, part_s={0: timers})
    found = compare(forecast, measured)
    assert found.parts == {
        PASSES: Difference(1.875, 4.5),
        "optimizer": Difference(2.0, 2.5),
        "pp": Difference(1.0, 4.0),
    }
    assert found.only_a == NONE
    assert found.only_b == Unmatched((), {0: {"host": 0.5}})
    assert compare(measured, forecast).parts == {
        name: Difference(each.b_s, each.a_s) for name, each in found.parts.items()
    }


def test_a_forecast_and_a_profilers_trace_have_passes_and_groups_in_common():
    forecast = Side(
        name="f", what="simulated", step_s=9.0, end_s={0: 9.0},
        part_s={0: {"layers backward": 1.0, "layers recompute": 0.5, "ep all_to_all": 0.25, "host launches": 0.125}},
    )  # fmt: skip
    traced = {"backward": 1.25, "weight_gradient": 0.25, "ep": 0.5, "host_gap": 0.25, "copy": 0.125}
    found = compare(forecast, Side(name="m", what="measured", step_s=10.0, end_s={0: 10.0}, part_s={0: traced}))
    assert found.parts == {
        "backward": Difference(1.5, 1.5),
        "ep": Difference(0.25, 0.5),
        "host": Difference(0.125, 0.25),
    }


def test_two_forecasts_keep_their_own_words():
    a, b = (
        Side(name=name, what="simulated", step_s=1.0, end_s={0: 1.0}, part_s={0: {part: 1.0, "layers forward": 2.0}})
        for name, part in (("a", "dp all_reduce"), ("b", "dp reduce_scatter"))
    )
    assert set(compare(a, b).parts) == {"layers forward"}


@pytest.mark.parametrize(
    "job",
    [
        {"model": "llama3-8b", "tp": 2, "pp": 2, "cp": 2, "recompute": "full"},
        {"model": "mixtral-8x7b", "tp": 2, "ep": 8},
        {"model": "llama3-8b", "zero": 3, "framework": "torchtitan-2025"},
    ],
)
def test_every_part_of_a_forecast_is_one_that_measurements_know(job):
    found = predict(**job, cluster="h100", gpus=32, global_batch=32, seq_length=4096)
    known = {"forward", "backward", "optimizer", "host", "tp", "cp", "ep", "dp", "pp", "emb"}
    assert {common_part(each.part, whole_passes=False) for each in found.parts} <= known
