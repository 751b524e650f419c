"""Gradients that autograd makes anew: with one microbatch on one GPU they come as activations go."""

import pytest

from job_parts import job_of
from traincast.estimate.memory.stage import stage_memory
from traincast.lowering.plans import plan_of_job
from traincast.mechanisms.gradients import made_as_activations_go

ONE = {"framework": "transformers-2024", "gpus": 1, "micro_batch": 1, "seq_length": 4096}


def peak(**changes):
    job = job_of("llama3.2-1b", **{**ONE, **changes})
    return job, stage_memory(job, plan_of_job(job))[0]


def test_a_second_microbatch_begins_with_the_gradients_of_the_first():
    first, one = peak(global_batch=1)
    second, two = peak(global_batch=2)
    assert made_as_activations_go(first)
    assert not made_as_activations_go(second)
    assert two.peak - one.peak == pytest.approx(two.gradients, rel=0.1)


def test_with_few_tokens_the_update_has_them_all():
    _, few = peak(seq_length=64, global_batch=1)
    _, two = peak(seq_length=64, global_batch=2)
    assert few.peak < two.peak
    assert few.peak > two.peak - 0.5 * two.gradients


def test_other_frameworks_keep_their_gradients():
    for changes in ({"framework": "megatron-core-2025"}, {"precision": "fp32"}, {"gpus": 2, "global_batch": 2}):
        job, _ = peak(**{"global_batch": 1, **changes})
        assert not made_as_activations_go(job)
