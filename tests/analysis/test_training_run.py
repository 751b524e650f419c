"""A whole run: its closed forms, its bounds, and what each command says of it."""

import pytest

import traincast
from traincast import api
from traincast.analysis.goodput import goodput
from traincast.analysis.summary import Interval
from traincast.analysis.training_run import training_run
from traincast.errors import ConfigError
from traincast.hardware.clusters import load_cluster
from traincast.job.draft import Draft
from traincast.job.failures import Failures
from traincast.job.training_run import RunTerms, run_terms
from traincast.units import format_count, parse_token_count

JOB = Draft(model="llama3-8b", fields={"gpus": 8, "global_batch": 8, "tp": 8, "seq_length": 4096})
STEP = {"step_s": 10.0, "tokens_per_step": 4e6, "gpus": 1024}


def test_a_run_is_its_steps_and_all_else_is_proportional_to_its_time():
    terms = RunTerms(tokens=8e12, gpu_hour_price=2.5, currency="EUR", gpu_power_w=1000, pue=1.2, grid_intensity=400)
    run = training_run(terms, **STEP, interval=Interval(level=0.9, low_s=8.0, high_s=15.0))
    hours = 8e12 / 4e6 * 10.0 / 3600
    assert run.days == pytest.approx(hours / 24)
    assert run.gpu_hours == pytest.approx(1024 * hours)
    assert run.cost == pytest.approx(2.5 * 1024 * hours)
    assert run.energy_mwh == pytest.approx(1024 * hours * 1000 * 1.2 / 1e6)
    assert run.co2_t == pytest.approx(run.energy_mwh * 1000 * 400 / 1e6)
    for name in ("days", "gpu_hours", "cost", "energy_mwh", "co2_t"):
        middle = getattr(run, name)
        assert getattr(run, f"{name}_low") == pytest.approx(0.8 * middle)
        assert getattr(run, f"{name}_high") == pytest.approx(1.5 * middle)


def test_failures_lengthen_a_run_by_its_goodput():
    often = Failures(mtbf_s=3.6e6, checkpoint_s=60.0)
    useful = goodput(often, STEP["gpus"], STEP["step_s"]).goodput
    plain, failing = (
        training_run(RunTerms(tokens=1e12, gpu_hour_price=2, failures=each), **STEP) for each in (None, often)
    )
    assert failing.goodput == useful < 1
    assert failing.days == pytest.approx(plain.days / useful)
    assert failing.cost == pytest.approx(plain.cost / useful)
    with pytest.raises(ConfigError, match="the run has no end"):
        training_run(RunTerms(tokens=1e12, failures=Failures(mtbf_s=1.0)), **STEP)


def test_what_is_not_known_is_not_said():
    run = training_run(RunTerms(tokens=1e12), **STEP)
    assert (run.cost, run.energy_mwh, run.co2_t, run.days_low, run.gpu_hours_high) == (None,) * 5
    with pytest.raises(ConfigError, match="the power of the GPU is not known"):
        training_run(RunTerms(tokens=1e12, grid_intensity=400), **STEP)
    design = training_run(RunTerms(tokens=1e12), **STEP, tdp_w=700)
    assert design.power_is_design
    assert design.energy_mwh == pytest.approx(design.gpu_hours * 700 / 1e6)
    assert not training_run(RunTerms(tokens=1e12, gpu_power_w=900), **STEP, tdp_w=700).power_is_design


def test_emissions_are_counted_as_those_of_llama_3_are():
    # Model card of Llama 3.1: GPU-hours at 700 W, and tonnes by the location of the sites.
    for gpu_hours, tonnes in ((1.46e6, 420), (7.0e6, 2040), (30.84e6, 8930)):
        terms = RunTerms(tokens=1.0, gpu_power_w=700, grid_intensity=414)
        run = training_run(terms, step_s=gpu_hours * 3600, tokens_per_step=1.0, gpus=1)
        assert run.gpu_hours == pytest.approx(gpu_hours)
        assert run.co2_t == pytest.approx(tonnes, rel=0.01)


def test_tokens_are_decimal():
    assert [parse_token_count(text) for text in ("15T", "300B", "15.6 T", "1.4e12", "4m")] == [
        15e12,
        300e9,
        15.6e12,
        1.4e12,
        4e6,
    ]
    assert [format_count(count) for count in (15e12, 300e9, 4e6, 12.0)] == ["15 T", "300 B", "4 M", "12"]
    for text in ("", "15 tokens", "-3T", "nan", "1e30", "15TT"):
        with pytest.raises(ConfigError, match=r"token|number"):
            parse_token_count(text)


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"gpu_hour_price": 2.0}, "gpu_hour_price: belongs to a whole run"),
        ({"tokens": 1e12, "currency": "EUR"}, "currency: needs a price"),
        ({"tokens": 1e12, "gpu_hour_price": 0}, "must be above 0"),
        ({"tokens": 1e12, "pue": 0.9}, "must be a number from 1"),
        ({"tokens": 0}, "must be a number from 1"),
        ({"price": 3}, "unknown option 'price'"),
        ({"failures": True}, "failures: belongs to a whole run"),
    ],
)
def test_terms_that_mean_nothing_are_refused(terms, said):
    with pytest.raises(ConfigError, match=said):
        run_terms(terms)


def test_a_forecast_a_plan_and_a_comparison_say_the_same():
    terms = {"tokens": "1T", "gpu_hour_price": 2.0, "grid_intensity": 300, "failures": "checkpoint=30s"}
    options = traincast.api.StepOptions(**terms)
    result = api.predict(JOB, "h100", options=options)
    run = result.training_run
    assert run.tokens_per_step == 8 * 4096
    assert run.days == pytest.approx(1e12 / (8 * 4096) * result.goodput.useful_step_s / 86400)
    assert run.energy_mwh == pytest.approx(run.gpu_hours * load_cluster("h100").gpu.tdp_w / 1e6)
    assert run.cost_low < run.cost < run.cost_high
    side = api.compare(result, api.predict(JOB, "h100"), **terms).b.training_run
    assert side.days == pytest.approx(run.days)
    assert side.co2_t_high == pytest.approx(run.co2_t_high)
    planned = api.plan(JOB, "h100", top=1, **terms).best[0]
    again = training_run(
        run_terms(terms),
        step_s=planned.step_s,
        tokens_per_step=8 * 4096,
        gpus=8,
        interval=planned.result.interval,
        tdp_w=700,
    )
    assert planned.training == again


def test_a_run_with_failures_is_as_long_as_its_useful_steps():
    result = api.predict(JOB, "h100", options=traincast.api.StepOptions(tokens=1e12, failures="mtbf=1000h"))
    steps = 1e12 / (8 * 4096)
    assert result.training_run.goodput == result.goodput.goodput < 1
    assert result.training_run.days == pytest.approx(steps * result.goodput.useful_step_s / 86400)


def test_a_job_says_the_tokens_of_a_step_itself():
    with pytest.raises(ConfigError, match="applies to a file"):
        api.predict(JOB, "h100", options=traincast.api.StepOptions(tokens=1e12, tokens_per_step=1e6))
