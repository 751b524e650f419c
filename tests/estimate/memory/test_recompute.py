import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from job_parts import TINY, TINY_ALL, job_of
from traincast.estimate.memory import JobMemory, fits, stage_memory
from traincast.lowering.plans import plan_of_job
from traincast.mechanisms.activations import LayerModel
from traincast.model.recompute import RECOMPUTE_MODULES

LAYOUT = {"gpus": 8, "tp": 2, "ep": 2, "etp": 1, "sequence_parallel": True, "pp": 2}
DENSE, EXPERTS = 0, 2
"""A layer of each kind."""


def again(*modules, model=TINY_ALL, **fields):
    return job_of(model, **LAYOUT | fields, recompute="selective", recompute_modules=modules)


def plain(model=TINY_ALL, **fields):
    return job_of(model, **LAYOUT | fields, recompute="none")


def layer_of(job, index):
    return LayerModel(job).layer(index)


def freed(*modules, index, **fields):
    """Return the bytes that a layer saves less."""
    job = again(*modules, **fields)
    return layer_of(plain(**fields), index).all_bytes - sum(layer_of(job, index).saved.values())


def sizes(job):
    """Return the tokens of a rank with and without the split of the sequence, and its copies of routed tokens."""
    tokens = job.batch.micro_batch * job.batch.seq_length
    return tokens, tokens / job.parallel.tp, tokens / job.parallel.tp * job.model.experts.topk


def test_discarded_outputs_are_what_a_layer_saves_less():
    tokens, split, routed = sizes(plain())
    latent, heads = TINY_ALL.attention.latent, TINY_ALL.attention.heads / 2
    query = latent.nope_head_dim + latent.rope_head_dim
    for index in (DENSE, EXPERTS):
        wide, normed = tokens * heads * (2 * query + latent.v_head_dim), split * (latent.q_rank + latent.kv_rank)
        assert freed("mla_up_proj", index=index) == pytest.approx(2 * (wide + normed))
    assert freed("layernorm", index=DENSE) == pytest.approx(2 * split * TINY_ALL.hidden)
    assert freed("layernorm", index=EXPERTS) == pytest.approx(2 * 2 * split * TINY_ALL.hidden)
    assert freed("moe_act", index=EXPERTS) == pytest.approx(2 * routed * TINY_ALL.experts.ffn_hidden)
    assert freed("moe_act", index=DENSE) == 0


def test_eight_bit_activations_free_a_byte_each():
    _, _, routed = sizes(plain())
    assert freed("moe_act", index=EXPERTS, precision="fp8") == pytest.approx(routed * TINY_ALL.experts.ffn_hidden)


def test_plain_checkpoints_keep_their_input_alone():
    tokens, split, routed = sizes(plain())
    # Both halves of the gated activation and its result; the layernorm before a dense MLP is fused with it.
    mlp = 2 * 3 * tokens * TINY_ALL.ffn_hidden / 2 + 2 * split * TINY_ALL.hidden
    assert freed("mlp", index=DENSE) == pytest.approx(mlp)
    assert freed("mlp", index=EXPERTS) == 0
    shared = 2 * 3 * tokens * TINY_ALL.experts.shared_ffn_hidden / 2
    assert freed("shared_experts", index=EXPERTS) == pytest.approx(shared)
    experts = 2 * routed * (TINY_ALL.hidden + 3 * TINY_ALL.experts.ffn_hidden) + 8 * split * TINY_ALL.experts.experts
    assert freed("moe", index=EXPERTS) == pytest.approx(experts + shared)
    assert freed("moe", "moe_act", "shared_experts", index=EXPERTS) == pytest.approx(experts + shared)
    kept = layer_of(again("moe"), EXPERTS).saved
    assert "layernorm inputs" in kept
    assert kept["MLP inputs"] == pytest.approx(2 * split * TINY_ALL.hidden)


def test_recomputed_attention_drops_scores_or_the_sums_of_flash_attention():
    tokens = sizes(plain())[0]
    assert freed("core_attn", index=DENSE) == pytest.approx(4 * tokens * TINY_ALL.attention.heads / 2)
    unfused = freed("core_attn", index=DENSE, attention_kernel="unfused")
    assert unfused == pytest.approx(2 * tokens * plain().batch.seq_length * TINY_ALL.attention.heads / 2)


@settings(max_examples=40, deadline=None)
@given(modules=st.sets(st.sampled_from(RECOMPUTE_MODULES)), more=st.sampled_from(RECOMPUTE_MODULES))
def test_recomputing_more_never_saves_more_and_never_less_than_full(modules, more):
    fewer, further = layer_of(again(*modules), EXPERTS), layer_of(again(*modules, more), EXPERTS)
    assert sum(further.saved.values()) <= sum(fewer.saved.values())
    assert further.recomputed >= fewer.recomputed
    assert sum(further.saved.values()) + sum(further.dropped.values()) == pytest.approx(further.all_bytes)
    assert max(further.dropped.values(), default=0) <= further.recomputed <= sum(further.dropped.values())
    assert sum(further.saved.values()) >= further.input_bytes


@pytest.mark.parametrize("module", RECOMPUTE_MODULES)
def test_what_a_layer_saves_less_counts_for_each_in_flight(module):
    """Of a pipeline's first stage: two microbatches are in flight, and one layer has its tensors there again."""
    job, other = again(module), plain()
    saved, usual = (stage_memory(each, plan_of_job(each))[0] for each in (job, other))
    flights = min(job.parallel.pp, job.parallel.microbatches)
    expected = flights * sum(freed(module, index=index) for index in range(4))
    passing = dict(saved.terms)["passing activations"] - dict(usual.terms)["passing activations"]
    assert usual.activations - saved.activations == pytest.approx(expected - passing)


def test_modules_that_a_model_has_not_change_nothing():
    job = again("moe", "shared_experts", model=TINY, ep=None, etp=None)
    assert job.recompute.modules == ()
    assert "recompute-modules-unused" in {note.code for note in job.assumptions}
    usual = plain(TINY, ep=None, etp=None)
    assert stage_memory(job, plan_of_job(job)) == stage_memory(usual, plan_of_job(usual))


def test_modules_are_among_what_would_free_memory():
    job = plain()
    saved = dict(fits(JobMemory(job), 1e6).remedies)
    alone = {name.removeprefix("recompute ") for name in saved if name.startswith("recompute ")}
    assert alone >= {"mla_up_proj", "layernorm", "moe", "mla_up_proj layernorm moe_act", "full"}
    usual, cheap = (
        max(stage.peak for stage in stage_memory(each, plan_of_job(each)))
        for each in (job, again("mla_up_proj", "layernorm", "moe_act"))
    )
    assert saved["recompute mla_up_proj layernorm moe_act"] == pytest.approx(usual - cheap)
    more = again("moe")
    assert "recompute moe" not in dict(fits(JobMemory(more), 1e6).remedies)
    old = job_of(TINY_ALL, **LAYOUT, framework="megatron-core-2024")
    assert not [name for name, _ in fits(JobMemory(old), 1e6).remedies if "moe" in name]


def test_layers_in_groups_keep_one_input_and_come_back_together():
    """Megatron-LM's uniform method: four layers of a stage, two groups of two."""
    one, two = (
        job_of(
            TINY, **LAYOUT | {"ep": None, "etp": None}, recompute="full", recompute_method="uniform", recompute_layers=n
        )
        for n in (1, 2)
    )
    assert (one.recompute.layers, one.recompute.group, two.recompute.group) == (None, 1, 2)
    layer = layer_of(two, DENSE)
    terms = [dict(stage_memory(job, plan_of_job(job))[0].terms) for job in (one, two)]
    kept = [sum(size for name, size in each.items() if name.startswith("layer inputs")) for each in terms]
    assert kept == pytest.approx([2 * 4 * layer.input_bytes, 2 * 2 * layer.input_bytes])
    passing = [each["passing activations"] for each in terms]
    assert passing[1] - passing[0] == pytest.approx(layer.all_bytes)
    usual = job_of(TINY, **LAYOUT | {"ep": None, "etp": None}, recompute="full")
    assert stage_memory(usual, plan_of_job(usual)) == stage_memory(one, plan_of_job(one))


def test_outputs_of_experts_are_kept_where_router_weights_multiply_them():
    """Megatron Core 0.12 of 2025 multiplies the experts' activations instead."""
    layout = LAYOUT | {"framework": "megatron-core-2024"}
    before, since = (layer_of(job_of(TINY_ALL, **fields, recompute="none"), EXPERTS) for fields in (layout, LAYOUT))
    routed = sizes(plain())[2]
    assert before.tensors["expert outputs"] == pytest.approx(2 * routed * TINY_ALL.hidden)
    assert before.all_bytes - since.all_bytes == pytest.approx(before.tensors["expert outputs"])


def test_gradients_are_copied_to_fp32_in_the_step_when_activations_are_gone():
    fields = LAYOUT | {"zero": 0, "recompute": "full"}
    wide, narrow = (job_of(TINY_ALL, **fields, grad_reduce_bytes=size) for size in (4, 2))
    for seq_length, beyond in ((64, True), (65536, False)):
        memory = [
            stage_memory(job, plan_of_job(job))[0]
            for job in (each.with_values(seq_length=seq_length) for each in (wide, narrow))
        ]
        assert memory[0].optimizer == memory[1].optimizer
        copies = 2 * memory[1].gradients
        step = dict(memory[1].terms).get("fp32 gradients of the step", 0.0)
        assert step == pytest.approx(max(0.0, copies - memory[1].activations))
        assert (step > 0) == beyond
        assert "fp32 gradients of the step" not in dict(memory[0].terms)


def test_a_group_of_layers_of_both_kinds_has_the_gradients_of_the_larger():
    """Four layers of the first stage in one group: two dense ones, two with experts."""
    job = job_of(TINY_ALL, **LAYOUT, recompute="full", recompute_method="uniform", recompute_layers=4)
    dense, experts = layer_of(job, DENSE), layer_of(job, EXPERTS)
    assert dense.backward != experts.backward
    found = dict(stage_memory(job, plan_of_job(job))[0].terms)
    saved = 2 * dense.all_bytes + 2 * experts.all_bytes - dense.input_bytes
    assert found["passing activations"] == pytest.approx(max(dense.backward, experts.backward) + saved)
