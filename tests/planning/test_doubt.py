"""Doubt in a choice: errors that layouts share, those of their own, and what no published run has."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from traincast.estimate.factors import shipped_factors
from traincast.hardware.clusters import load_cluster
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model
from traincast.planning import doubt
from traincast.planning.changes import layout_of
from traincast.planning.choosing import chosen_first
from traincast.planning.finalists import Finalist
from traincast.planning.published import kind_of, published_counts, settings_of, software_of, unpublished
from traincast.simulation.confidence import basis_of_step
from traincast.simulation.differences import moves
from traincast.simulation.forecast import forecast_step
from traincast.simulation.step import Setting
from traincast.simulation.widths import causes, deviation

H100 = load_cluster("h100")


def finalist(model="llama3-8b", **said):
    request = JobRequest(model=load_model(model), gpus=16, global_batch=32, seq_length=4096, **said)
    job = resolve_job(request, H100)
    result, done = forecast_step(job, Setting(cluster=H100), allow_oom=True)
    return Finalist(layout=layout_of(job), screened_s=done.step_s, peak_bytes=1.0, result=result, done=done)


@pytest.fixture(scope="module")
def plain():
    return finalist(tp=2, pp=1)


@pytest.fixture(scope="module")
def piped():
    return finalist(tp=1, pp=4)


def choice(step_s, deviation=doubt.OWN_DEVIATION, **said):
    """Return what the choice of a plan reads of a layout."""
    known = {"tied": True, "regret": 0.0, "peak_bytes": 1.0, "result": SimpleNamespace(collectives=())}
    return SimpleNamespace(step_s=step_s, cautious_s=step_s * math.exp(doubt.CAUTION * deviation), **{**known, **said})


def test_causes_add_up_to_the_variance_of_the_interval(plain, piped):
    table = shipped_factors()
    for each in (plain, piped):
        basis = basis_of_step(each.done)
        assert sum(cause**2 for cause in causes(basis, table).values()) == pytest.approx(deviation(basis, table) ** 2)


def test_layouts_are_drawn_as_far_apart_as_their_difference_is_uncertain(plain, piped):
    one, other = np.log(doubt.drawn_steps([plain, piped]))
    moved = [moves(each.result.doubts) for each in (plain, piped)]
    of_both = math.hypot(*(moved[0].get(name, 0.0) - moved[1].get(name, 0.0) for name in {**moved[0], **moved[1]}))
    own = [doubt.own_deviation(each) for each in (plain, piped)]
    assert (one - other).std() == pytest.approx(math.hypot(of_both, *own), rel=0.05)
    assert np.median(one - other) == pytest.approx(math.log(plain.step_s / piped.step_s), abs=0.01)
    assert sum(doubt.probabilities(np.exp([one, other]))) == pytest.approx(1.0, abs=1e-12)


def test_equal_layouts_differ_by_their_own_errors_alone(plain):
    one, other = np.log(doubt.drawn_steps([plain, plain]))
    assert (one - other).std() == pytest.approx(math.sqrt(2) * doubt.own_deviation(plain), rel=0.05)
    assert doubt.chance_faster(plain, plain) == pytest.approx(0.5, abs=0.03)


def test_a_schedule_that_hardly_any_published_run_has_is_risky(plain, piped):
    unknown = replace(piped, layout=replace(piped.layout, schedule="dualpipe_v"))
    assert unpublished(unknown.layout, unknown.done.job) == (("schedule", "dualpipe_v"),)
    (text,) = doubt.risks(unknown)
    assert text.endswith("have schedule dualpipe_v") and "dense models" in text
    assert doubt.risks(plain) == doubt.risks(piped) == ()
    assert doubt.own_deviation(unknown) > doubt.own_deviation(piped) == doubt.OWN_DEVIATION
    assert doubt.cautious_s(unknown) > doubt.cautious_s(piped) > piped.step_s
    # Without a pipeline there is no schedule, whatever the layout says.
    assert not unpublished(replace(plain.layout, schedule="dualpipe_v"), plain.done.job)


def test_between_published_degrees_others_are_as_good():
    found = finalist(tp=2, pp=1)
    job, layout = found.done.job, replace(found.layout, micro_batch=3)
    known = {}
    for name, value in settings_of(layout, software_of(job)):
        known.setdefault((job.framework.kin, kind_of(job.model), name), {})[value] = 2
    assert unpublished(layout, job, known) == ()
    sizes = known[job.framework.kin, "dense", "micro_batch"]
    sizes |= {"1": 5, "4": 2, "3": 0}
    assert unpublished(layout, job, known) == ()
    sizes |= {"2": 2, "4": 1}
    assert unpublished(layout, job, known) == (("micro_batch", "3"),)
    assert set(settings_of(layout)) <= set(unpublished(layout, job, {}))


def test_published_runs_are_counted_by_code_and_kind_of_model():
    counts = published_counts()
    assert counts["megatron", "MoE", "moe_dispatcher"]["hybridep"] > 20
    assert "moe_dispatcher" not in {name for _, kind, name in counts if kind == "dense"}


def test_a_layout_of_which_less_is_known_does_not_win_by_one_per_cent():
    known, risky = choice(1.0), choice(0.99, math.hypot(doubt.OWN_DEVIATION, doubt.UNPUBLISHED_DEVIATION))
    assert chosen_first((risky, known))[0] is known
    # It wins where it is faster by more than it may be off.
    far = choice(0.9, math.hypot(doubt.OWN_DEVIATION, doubt.UNPUBLISHED_DEVIATION))
    assert chosen_first((far, known))[0] is far


def test_of_equal_widths_the_choice_is_that_of_the_steps():
    crossing = SimpleNamespace(collectives=[SimpleNamespace(group="dp", nodes=2)])
    fast, slow = choice(1.0, result=crossing), choice(1.004)
    assert chosen_first((fast, slow))[0] is slow
    assert chosen_first((fast, choice(1.006)))[0] is fast
    assert chosen_first((fast, choice(1.004, tied=False)))[0] is fast
