"""The changes that would help most are what trying them shows."""

from pathlib import Path

import pytest

import traincast
from traincast.job.draft import Draft

EXAMPLES = Path(__file__).parents[2] / "examples"
SUGGEST = traincast.StepOptions(suggest=True)
FIELDS = {"gpus": 32, "tp": 4, "pp": 2, "seq_length": 4096, "global_batch": 64}


def found(result):
    return {each.change: each for each in result.suggestions}


@pytest.mark.slow
@pytest.mark.parametrize("path", ["aicb_gpt_405b_1024gpu.txt", "megatron_pp4_tp2"])
def test_what_is_suggested_of_files_is_what_trying_it_saves(path):
    result = traincast.simulate(EXAMPLES / path, cluster="h100", suggest=True)
    assert 2 <= len(result.suggestions) <= 3
    savings = [each.saving_s for each in result.suggestions]
    assert savings == sorted(savings, reverse=True)
    tried = traincast.simulate(EXAMPLES / path, cluster="h100", what_if=tuple(found(result)))
    for each in tried.what_if[:-1]:
        suggestion = found(result)[each.change]
        # What overlaps is found anew when it is tried, so that a little may differ.
        assert suggestion.saving_s == pytest.approx(each.saving_s, rel=0.1)
        assert 0 < suggestion.low_s <= suggestion.saving_s <= suggestion.high_s


def test_a_slow_rank_is_suggested_and_measured_times_are_sure():
    result = traincast.simulate(EXAMPLES / "megatron_pp4_tp2", suggest=True)
    suggestion = found(result)["rank7.own=peers"]
    assert suggestion.saving_s > 0.2 * result.iteration_time_s
    assert suggestion.low_s == suggestion.high_s == suggestion.saving_s


def test_forecasts_say_how_sure_and_are_less_so_on_links_that_nobody_measured():
    result = traincast.predict(Draft(model="llama3-8b", cluster="h100", fields=FIELDS), options=SUGGEST)
    for each in result.suggestions:
        assert each.low_s < each.saving_s < each.high_s

    def doubt(cluster):
        job = Draft(model="llama3-8b", cluster=cluster, fields=FIELDS)
        told = found(traincast.predict(job, options=SUGGEST))["tp_comm*0.5"]
        return told.high_s / told.low_s

    assert doubt("l40s") > doubt("h100")


def test_a_job_has_sensitivities_alone_and_its_options_are_advice():
    said = {**FIELDS, "pp": 1, "global_batch": 8, "overlap_grad_reduce": False, "overlap_param_gather": False}
    job = Draft(model="llama3-8b", cluster="h100", fields=said)
    result = traincast.predict(job, options=SUGGEST, allow_oom=True)
    assert all("*" in each.change for each in result.suggestions)
    advised = next(each for each in result.advice if "overlap_grad_reduce" in each.fields)
    on = Draft(model="llama3-8b", cluster="h100", fields={**said, **advised.fields})
    saved_s = result.iteration_time_s - traincast.predict(on, allow_oom=True).iteration_time_s
    assert advised.alone_s == pytest.approx(saved_s)


def test_suggestions_run_again_to_the_same():
    result = traincast.simulate(EXAMPLES / "megatron_pp4_tp2", suggest=True)
    assert traincast.run_again(result).suggestions == result.suggestions
