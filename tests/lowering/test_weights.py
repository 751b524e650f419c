"""The weights that ranks hold add up to the model's parameters."""

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, TINY_LATENT, exchanged, job_of
from model_counts import adapter_parameters
from traincast.lowering.stage import stages_of
from traincast.lowering.state import StateExchange
from traincast.model.blocks.share import LORA_TARGETS
from traincast.model.counts import parameters
from traincast.workload.words import Group, Operation

MODELS = {"gqa": TINY, "experts": TINY_EXPERTS, "latent": TINY_LATENT}


def held(job):
    """Return the weights of one rank of every stage, dense and of experts."""
    weights = [stage.weights() for stage in stages_of(job, 8)]
    return sum(each.dense for each in weights), sum(each.experts for each in weights)


def copied(job):
    """Return the elements that every tensor parallel rank holds: norms, routers, narrow latent projections, biases.

    Those of the model's ends are those of rank 0 of the stage that has them.
    """
    model, latent = job.model, job.model.attention.latent
    norm = model.hidden * (2 if model.norm == "layer" else 1)
    each = model.norms_per_layer * norm
    each += 2 * model.hidden if model.linear_bias else 0
    if latent is not None:
        each += model.hidden * (latent.q_rank + latent.kv_rank + latent.rope_head_dim) + latent.q_rank + latent.kv_rank
    if model.experts is not None:
        each += model.hidden * model.experts.experts
    return each * model.layers + norm + model.learned_positions * model.hidden


def total(job):
    dense, expert = held(job)
    parallel = job.parallel
    return dense * parallel.tp - (parallel.tp - 1) * copied(job) + expert * parallel.ep * parallel.expert_tp


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"gpus": 4, "tp": 4},
        {"gpus": 8, "pp": 8},
        {"gpus": 16, "tp": 2, "cp": 2, "pp": 2, "vpp": 4},
        {"gpus": 4, "zero": 3},
    ],
)
def test_weights_of_all_ranks_are_the_parameters_of_the_model(name, layout):
    job = job_of(MODELS[name], **layout)
    assert total(job) == parameters(job.model, job.kernels.padded_vocab).total


@pytest.mark.parametrize(
    "layout",
    [
        {"gpus": 8, "ep": 8},
        {"gpus": 8, "tp": 4, "ep": 4, "etp": 2},
        {"gpus": 8, "tp": 4, "ep": 2, "etp": 4},
        {"gpus": 8, "tp": 2, "pp": 2, "ep": 4, "etp": 1},
    ],
)
def test_experts_are_split_over_ep_and_etp(layout):
    job = job_of(TINY_EXPERTS, **layout)
    counted = parameters(job.model, job.kernels.padded_vocab)
    assert held(job)[1] * job.parallel.ep * job.parallel.expert_tp == counted.layers.experts
    assert total(job) == counted.total


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("llama3-70b", {"gpus": 32, "tp": 8, "pp": 4}),
        ("mixtral-8x7b", {"gpus": 16, "pp": 2, "ep": 8, "tp": 1, "global_batch": 16}),
        ("deepseek-v3", {"gpus": 64, "pp": 4, "ep": 16, "tp": 1, "global_batch": 64}),
        ("gemma2-9b", {"gpus": 4, "tp": 4}),
        ("gpt3-175b", {"gpus": 64, "tp": 8, "pp": 8}),
    ],
)
def test_weights_of_known_models(name, layout):
    job = job_of(name, **layout)
    counted = parameters(job.model, job.kernels.padded_vocab)
    # A tied table stands on the first and on the last stage, and so does one that further tokens are looked up in.
    both = job.model.tied_embeddings or job.model.mtp_layers
    twice = counted.embedding if both and job.parallel.pp > 1 else 0
    assert total(job) == counted.trained + twice


def test_layers_for_further_tokens_are_held_by_the_last_stage():
    plain, further = job_of(gpus=2, pp=2), job_of(replace(TINY, mtp_layers=1), gpus=2, pp=2)
    gained = [b.weights().dense - a.weights().dense for a, b in zip(stages_of(plain, 8), stages_of(further, 8),
                                                                      strict=True)]  # fmt: skip
    counted = parameters(further.model)
    # They read the embedding's table, which the last stage has no other use for.
    assert gained == [0, counted.mtp.total + counted.mtp_projections + counted.embedding]


def test_tied_tables_stand_once_on_one_stage_and_are_summed_over_two():
    tied = replace(TINY, tied_embeddings=True)
    table = TINY.vocab * TINY.hidden
    alone, apart = job_of(tied), job_of(tied, gpus=2, pp=2)
    assert held(alone)[0] == held(job_of())[0] - table
    assert held(apart)[0] == held(alone)[0] + table
    size = table * apart.framework.grad_reduce_bytes
    # Once on the first and once on the last stage, which are the two members.
    assert exchanged(apart, "end")[Group.EMB, Operation.ALL_REDUCE] == 2 * size
    split = job_of(tied, gpus=4, tp=2, pp=2)
    assert exchanged(split, "end")[Group.EMB, Operation.ALL_REDUCE] == size
    assert (Group.EMB, Operation.ALL_REDUCE) not in exchanged(alone, "end")
    assert (Group.EMB, Operation.ALL_REDUCE) not in exchanged(job_of(gpus=2, pp=2), "end")


def test_adapters_alone_are_trained():
    job = job_of(task="lora", lora_rank=8, lora_targets=LORA_TARGETS, gpus=2)
    weights = stages_of(job, 8)[0].weights()
    assert weights.trained_dense == adapter_parameters(job.model, 8)
    assert weights.trained_experts == 0
    assert weights.dense - weights.trained_dense == held(job_of())[0]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_replicas_update_the_state_once_where_it_is_sharded(zero):
    job = job_of(TINY_EXPERTS, gpus=8, ep=2, zero=zero)
    weights = stages_of(job, 8)[0].weights()
    updated = StateExchange(job, weights).updated()
    dense, expert = weights.trained_dense, weights.trained_experts
    assert updated == (dense + expert if zero == 0 else -(-dense // 8) + -(-expert // 4))


def test_hybrid_sharding_updates_the_share_of_its_group():
    job = job_of(gpus=8, zero=3, shard=2)
    weights = stages_of(job, 8)[0].weights()
    assert StateExchange(job, weights).updated() == -(-weights.trained_dense // 2)


def test_uneven_layers_are_held_where_they_are():
    job = job_of(gpus=2, pp=2, stage_layers=(5, 3), vpp=None)
    first, last = (stage.weights().dense for stage in stages_of(job, 8))
    even, _ = (stage.weights().dense for stage in stages_of(job_of(gpus=2, pp=2), 8))
    layer = first - even
    # Embedding and head are alike, but for the norm before the head.
    assert first - last == 2 * layer - TINY.hidden


@pytest.mark.parametrize("overlap", [False, True])
def test_gradients_in_shares_with_copies_are_summed_over_the_copies_once(overlap):
    """ZeRO-2 reduces every microbatch's gradients inside a shard, and sums over the shards' copies at the end."""
    job = job_of(gpus=8, zero=2, shard=4, global_batch=16, overlap_grad_reduce=overlap)
    (stage,) = stages_of(job, 8)
    found, dense = exchanged(job, "backward"), stage.weights().trained_dense
    assert job.parallel.microbatches == 2
    width = job.framework.grad_reduce_bytes
    assert found[Group.SHARD, Operation.REDUCE_SCATTER] == 2 * dense * width
    assert found[Group.REPLICA, Operation.ALL_REDUCE] == -(-dense // 4) * width


@pytest.mark.parametrize(("gpus", "messages"), [(4, 4), (64, 34)])
def test_whole_tensors_are_broadcast_by_the_ranks_that_own_them(gpus, messages):
    """At most one broadcast a rank and one a tensor: four weights of eight layers, embedding and head."""
    job = job_of(gpus=gpus, zero=1, global_batch=gpus)
    job = replace(job, framework=replace(job.framework, owns_tensors=True))
    (stage,) = stages_of(job, 8)
    state = StateExchange(job, stage.weights())
    (sent,), (reduced,) = state.gathered(), state.reduced()
    assert (sent.operation, sent.messages) == (Operation.BROADCAST, messages)
    assert sent.size_bytes == 2 * stage.weights().dense
    assert reduced.operation is Operation.ALL_REDUCE


def test_gradients_of_whole_tensors_are_summed_over_all_replicas_however_few_share_a_copy_of_the_states():
    job = job_of(gpus=64, zero=1, shard=8, global_batch=64)
    (stage,) = stages_of(job, 8)
    parts = StateExchange(job, stage.weights())
    assert {each.group for each in parts.all_reduced()} == {Group.SHARD, Group.REPLICA}
    job = replace(job, framework=replace(job.framework, owns_tensors=True))
    whole = StateExchange(job, stage.weights())
    (reduced,), (sent,) = whole.all_reduced(), whole.gathered()
    assert (reduced.group, reduced.operation) == (Group.DP, Operation.ALL_REDUCE)
    assert reduced.size_bytes == job.framework.grad_reduce_bytes * stage.weights().trained_dense
    assert (sent.group, sent.operation, sent.messages) == (Group.SHARD, Operation.BROADCAST, 8)
    assert whole.updated() == parts.updated()


def test_a_framework_may_reduce_whole_gradients_though_each_rank_updates_a_part():
    """An all-reduce moves twice what a reduce-scatter does; parameters are gathered as they are without."""
    job = job_of(gpus=8, zero=1)
    (stage,) = stages_of(job, 8)
    parts = StateExchange(job, stage.weights())
    job = replace(job, framework=replace(job.framework, reduces_whole=True))
    whole = StateExchange(job, stage.weights())
    (scattered,), (reduced,) = parts.all_reduced(), whole.all_reduced()
    assert scattered.operation is Operation.REDUCE_SCATTER
    assert reduced == scattered._replace(operation=Operation.ALL_REDUCE)
    assert (whole.gathered(), whole.updated()) == (parts.gathered(), parts.updated())
