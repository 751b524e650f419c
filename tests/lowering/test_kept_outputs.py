"""Layers that are recomputed whole but for outputs that they keep."""

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_ALL, TINY_EXPERTS, job_of
from traincast.errors import ConfigError
from traincast.lowering.stage import stages_of
from traincast.mechanisms.activations import LayerModel
from traincast.model.counts import hardware_flops_per_token
from traincast.model.recompute import RECOMPUTE_KEEPS
from traincast.workload.words import Phase

MODELS = pytest.mark.parametrize("model", [TINY, TINY_EXPERTS, TINY_ALL], ids=lambda each: each.name)
ALL = tuple(RECOMPUTE_KEEPS)


def calls(job):
    """Return what the backward pass recomputes of the only stage: GEMMs and attention, by how often."""
    made = stages_of(job, 8)[0].recomputed()[1].calls
    return {call: often for call, often in made.items() if "gemm" in call.family or call.family == "attention"}


@MODELS
def test_what_makes_a_kept_output_does_not_run_again(model):
    whole = calls(job_of(model, recompute="full"))
    forward = stages_of(job_of(model, recompute="full"), 8)[0].in_pass(Phase.FORWARD).calls
    assert whole == {call: forward[call] for call in whole}
    left = calls(job_of(model, recompute="full", recompute_keeps=ALL))
    # Latent attention makes its narrow vectors again, and experts are chosen again.
    assert sum(left.values()) < sum(whole.values())
    assert not [call for call in left if call.family in ("attention", "grouped_gemm")]
    for name in ALL:
        less = calls(job_of(model, recompute="full", recompute_keeps=(name,)))
        assert all(often <= whole[call] for call, often in less.items())


@MODELS
def test_flops_of_hardware_leave_out_what_is_kept(model):
    whole, least = (hardware_flops_per_token(model, 1024, "full", keeps=each) for each in ((), ALL))
    assert least < whole
    assert hardware_flops_per_token(model, 1024) < least or model is TINY
    one = hardware_flops_per_token(model, 1024, "full", keeps=("core_attn",))
    assert whole - one == pytest.approx(hardware_flops_per_token(model, 1024, "selective") - _plain(model))


def _plain(model):
    return hardware_flops_per_token(model, 1024)


def test_kept_outputs_are_kept_in_memory():
    def saved(*keeps):
        job = job_of(TINY, recompute="full", recompute_keeps=keeps)
        return sum(LayerModel(job).stage(range(1)).layers[0].saved.values())

    tokens = 8 * 1024 // job_of(TINY).parallel.microbatches
    heads = TINY.attention.heads + 2 * TINY.attention.kv_heads
    assert saved("linear_qkv") - saved() == 2 * tokens * heads * TINY.attention.head_dim
    assert saved("linear_proj") - saved() == 2 * tokens * TINY.hidden


def test_a_compiler_leaves_out_what_nothing_needs():
    assert job_of(TINY, framework="maxtext-2024", recompute="full").recompute.keeps == ("linear_fc2",)
    assert not job_of(TINY, framework="torchtitan-2025", recompute="full").recompute.keeps
    # A norm behind the MLP needs what its last GEMM made.
    normed = replace(TINY, norms_per_layer=4)
    assert not job_of(normed, framework="maxtext-2024", recompute="full").recompute.keeps


def test_what_is_kept_is_said_with_layers_that_are_recomputed():
    assert job_of(TINY, recompute_keeps=("core_attn",)).recompute.granularity == "full"
    with pytest.raises(ConfigError, match="kept output"):
        job_of(TINY, recompute="full", recompute_keeps=("core_atn",))
