import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from job_parts import TINY, TINY_ALL, TINY_LATENT, calls_of, exchanged, job_of, total_flops, workload_of
from traincast.model.counts import hardware_flops_per_token, model_flops_per_token
from traincast.model.recompute import RECOMPUTE_MODULES, available_modules
from traincast.workload.words import Group, Operation, Phase

LAYOUT = {"gpus": 8, "tp": 2, "ep": 2, "etp": 1, "sequence_parallel": True}
PRODUCTS = ("gemm", "grouped_gemm", "attention")


def again(modules, model=TINY_ALL, **layout):
    """Return a job that recomputes modules."""
    return job_of(model, recompute="selective", recompute_modules=modules, **(layout or LAYOUT))


def more_exchanges(modules, **layout):
    """Return what is exchanged beyond the same job without recomputation."""
    found = exchanged(again(modules, **layout), "backward")
    found.subtract(exchanged(job_of(TINY_ALL, recompute="none", **(layout or LAYOUT)), "backward"))
    return {key: size for key, size in found.items() if abs(size) > 1e-6}


@pytest.mark.parametrize("module", RECOMPUTE_MODULES)
def test_recomputed_products_are_those_that_hfu_counts(module):
    job = again((module,))
    found = total_flops(job, "backward", phases=(Phase.RECOMPUTE,), families=PRODUCTS)
    plain = model_flops_per_token(TINY_ALL, job.batch.seq_length)
    counted = hardware_flops_per_token(TINY_ALL, job.batch.seq_length, "selective", modules=(module,)) - plain
    assert found == pytest.approx(counted * job.batch.tokens_per_step)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(modules=st.sets(st.sampled_from(RECOMPUTE_MODULES), min_size=1))
def test_modules_add_up(modules):
    """A checkpoint within another runs once more: the work of several modules is the sum of each one's."""
    plain = calls_of(job_of(TINY_ALL, recompute="none", **LAYOUT), "backward")
    expected = plain.copy()
    for module in modules:
        alone = calls_of(again((module,)), "backward")
        alone.subtract(plain)
        expected.update(alone)
    found = calls_of(again(tuple(modules)), "backward")
    assert set(found) == set(expected)
    assert all(found[call] == pytest.approx(expected[call]) for call in found)


def test_all_of_a_layer_is_what_full_recomputes_but_for_the_ends_of_attention():
    """Queries' and keys' down-projections, the output projection and residual sums are in no module."""
    modules = ("core_attn", "mla_up_proj", "layernorm", "mlp", "moe")
    jobs = (job_of(TINY_ALL, recompute="full", **LAYOUT), again(modules))
    full, part = (total_flops(job, "backward", phases=(Phase.RECOMPUTE,), families=PRODUCTS) for job in jobs)
    latent, hidden = TINY_ALL.attention.latent, TINY_ALL.hidden
    outside = hidden * (latent.q_rank + latent.kv_rank + latent.rope_head_dim)
    outside += TINY_ALL.attention.heads * latent.v_head_dim * hidden
    tokens = job_of(TINY_ALL, **LAYOUT).batch.tokens_per_step
    assert full - part == pytest.approx(2 * outside * TINY_ALL.layers * tokens)


def test_recomputed_experts_repeat_their_exchanges():
    forward = exchanged(job_of(TINY_ALL, recompute="none", **LAYOUT), "forward")
    found = more_exchanges(("moe",))
    all_to_all = (Group.EP, Operation.ALL_TO_ALL)
    assert found[all_to_all] == pytest.approx(forward[all_to_all])
    shared = more_exchanges(("shared_experts",))
    assert {key: size for key, size in found.items() if key != all_to_all} == shared
    assert set(shared) == {(Group.TP, Operation.ALL_GATHER), (Group.TP, Operation.REDUCE_SCATTER)}


def test_a_recomputed_mlp_gathers_and_scatters_its_tokens_again():
    job = again(("mlp",))
    found = more_exchanges(("mlp",))
    size = job.batch.micro_batch * job.batch.seq_length * TINY_ALL.hidden * 2
    dense = TINY_ALL.experts.first_dense_layers * job.parallel.microbatches
    assert found == pytest.approx(
        {(Group.TP, Operation.ALL_GATHER): size * dense, (Group.TP, Operation.REDUCE_SCATTER): size * dense}
    )


@pytest.mark.parametrize("module", ["layernorm", "moe_act"])
def test_discarded_outputs_are_recomputed_without_any_exchange(module):
    assert more_exchanges((module,)) == {}


def test_recomputed_up_projections_gather_their_narrow_inputs_again():
    latent, job = TINY_ALL.attention.latent, again(("mla_up_proj",))
    size = job.batch.micro_batch * job.batch.seq_length * (latent.q_rank + latent.kv_rank) * 2
    often = TINY_ALL.layers * job.parallel.microbatches
    assert more_exchanges(("mla_up_proj",)) == pytest.approx({(Group.TP, Operation.ALL_GATHER): size * often})


def test_attention_over_context_parallel_ranks_exchanges_again():
    layout = LAYOUT | {"cp": 2, "ep": 1}
    kept = exchanged(job_of(TINY_ALL, recompute="none", **layout), "forward")
    assert more_exchanges(("core_attn",), **layout)[Group.CP, Operation.ALL_GATHER] == pytest.approx(
        kept[Group.CP, Operation.ALL_GATHER]
    )


def test_no_module_is_nothing_again():
    workload = workload_of(again(()))
    assert Phase.RECOMPUTE not in {Phase(int(phase)) for phase in workload.ops.phase_T}


def test_models_have_the_modules_of_their_layers():
    assert available_modules(TINY) == ("core_attn", "mlp")
    assert available_modules(TINY_LATENT) == ("core_attn", "mla_up_proj", "layernorm", "mlp")
    assert available_modules(TINY_ALL) == RECOMPUTE_MODULES
