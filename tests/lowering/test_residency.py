"""When sharded parameters are gathered and their gradients reduced under a pipeline, in closed form."""

from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

from job_parts import TINY_EXPERTS, exchanged, job_of
from support import forecast
from traincast.errors import ConfigError
from traincast.hardware.clusters import load_cluster
from traincast.lowering.stage import stages_of
from traincast.lowering.state import residency
from traincast.schedules.check import plan_of
from traincast.schedules.schedule import SCHEDULES
from traincast.workload.words import Group, Operation

GATHER, SCATTER = Operation.ALL_GATHER, Operation.REDUCE_SCATTER
H100 = load_cluster("h100")


def titan(**fields):
    """A job of torchtitan over dp 4, 4 stages and 8 microbatches, unless told otherwise."""
    given = {"gpus": 16, "pp": 4, "zero": 3, "framework": "torchtitan-2025", "global_batch": 32} | fields
    return job_of(**given)


def of_step(job):
    total = Counter()
    for which in ("start", "forward", "backward", "end"):
        total.update(exchanged(job, which))
    return total


def elements(job):
    return sum(stage.weights().dense for stage in stages_of(job, 8))


@pytest.mark.parametrize(("schedule", "virtual"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
def test_whole_parameters_are_gathered_in_the_first_pass_alone(schedule, virtual):
    plan = SCHEDULES.get(schedule).plan(4, virtual, 8)
    found = residency(plan, 8, reshard_after_forward=False, pipelined=True)
    assert found.forward_gathers_QM[:, 0].all()
    assert not found.forward_gathers_QM[:, 1:].any()
    assert not found.backward_gathers_QM.any()
    assert found.last_backward_Q.tolist() == [7] * 4 * virtual
    assert found.ends_rank_Q.tolist() == [True] * 4 + [False] * 4 * (virtual - 1)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [1, 2, 8])
def test_resharding_under_1f1b_gathers_again_after_each_forward_pass(stages, microbatches):
    """Stage s has P - 1 - s forward passes before its first pair, each of which gathers; later ones follow a backward
    pass that leaves the parameters whole. A backward pass gathers unless it follows another."""
    plan = SCHEDULES.get("1f1b").plan(stages, 1, microbatches)
    found = residency(plan, microbatches, reshard_after_forward=True, pipelined=True)
    for stage in range(stages):
        warmup = min(stages - 1 - stage, microbatches)
        assert found.forward_gathers_QM[stage].sum() == min(warmup + 1, microbatches)
        assert found.backward_gathers_QM[stage].sum() == max(microbatches - warmup, 1)


def test_without_a_pipeline_each_pass_gathers_unless_the_backward_pass_finds_them_whole():
    plan = SCHEDULES.get("1f1b").plan(1, 1, 4)
    freed = residency(plan, 4, reshard_after_forward=True, pipelined=False)
    assert freed.forward_gathers_QM.all()
    assert freed.backward_gathers_QM.all()
    kept = residency(plan, 4, reshard_after_forward=False, pipelined=False)
    assert kept.forward_gathers_QM.all()
    assert not kept.backward_gathers_QM.any()


@pytest.mark.parametrize("more", [{}, {"vpp": 2, "schedule": "interleaved"}, {"global_batch": 64}])
def test_pipeline_stages_exchange_their_state_once_a_step(more):
    """However many microbatches: parameters in 16 bits, gradients in 32."""
    job = titan(**more)
    found = of_step(job)
    assert found[Group.DP, GATHER] == pytest.approx(2 * elements(job))
    assert found[Group.DP, SCATTER] == pytest.approx(4 * elements(job))


def test_other_frameworks_exchange_it_in_every_microbatch():
    job = titan(framework="llm-foundry-2023")
    found, microbatches = of_step(job), job.parallel.microbatches
    assert found[Group.DP, GATHER] == pytest.approx(2 * 2 * elements(job) * microbatches)
    assert found[Group.DP, SCATTER] == pytest.approx(2 * elements(job) * microbatches)


def test_without_a_pipeline_nothing_is_kept_whole():
    job = titan(pp=1, gpus=4)
    found = of_step(job)
    assert job.reshard_after_forward
    assert found[Group.DP, GATHER] == pytest.approx(2 * 2 * elements(job) * job.parallel.microbatches)
    kept = of_step(titan(pp=1, gpus=4, reshard_after_forward=False))
    assert kept[Group.DP, GATHER] == pytest.approx(found[Group.DP, GATHER] / 2)
    assert kept[Group.DP, SCATTER] == found[Group.DP, SCATTER]


def test_hybrid_shards_sum_their_gradients_once():
    job = titan(shard=2)
    dense = sum(-(-stage.weights().dense // 2) for stage in stages_of(job, 8))
    assert of_step(job)[Group.REPLICA, Operation.ALL_REDUCE] == pytest.approx(4 * dense)


def test_eight_bit_weights_halve_what_is_gathered_of_the_layers():
    plain, eight = titan(precision="fp8"), titan(precision="fp8", param_gather_bytes=1)
    matrices = sum(stage.weights().matrices for stage in stages_of(eight, 8))
    assert 0 < matrices < elements(eight)
    assert of_step(eight)[Group.DP, GATHER] == pytest.approx(of_step(plain)[Group.DP, GATHER] - matrices)
    assert of_step(eight)[Group.DP, SCATTER] == of_step(plain)[Group.DP, SCATTER]


def test_experts_are_gathered_in_eight_bits_where_they_are_kept_so():
    """Megatron's 8-bit parameters hold the experts; FSDP2's 8-bit gather is that of linear layers."""
    for zero, framework, share in ((1, "megatron-core-2025", 0.5), (3, "torchtitan-2025", 1.0)):
        usual = {"model": TINY_EXPERTS, "gpus": 4, "zero": zero, "framework": framework, "precision": "fp8", "ep": 2}
        plain, eight = (of_step(job_of(**usual, param_gather_bytes=size)) for size in (2, 1))
        assert eight[Group.EDP, GATHER] == pytest.approx(share * plain[Group.EDP, GATHER])


def test_eight_bit_weights_need_eight_bit_products():
    with pytest.raises(ConfigError, match="param_gather_bytes: is 1, but GEMMs run in bf16"):
        titan(param_gather_bytes=1)


def test_whole_state_takes_memory():
    """Per parameter of a stage: 2 bytes gathered, 4 of the gradient; sharded, only a few layers at a time."""
    job = titan()
    plan = plan_of(job)
    whole = forecast(job, H100).memory_bytes
    sharded = forecast(
        replace(job, framework=replace(job.framework, pipelined_fsdp=False), reshard_after_forward=True), H100
    )
    for stage, held in enumerate(stages_of(job, 8)):
        assert whole[stage]["gradients"] == pytest.approx(4 * held.weights().dense, rel=1e-3)
        assert whole[stage]["peak"] > sharded.memory_bytes[stage]["peak"]
    assert len(plan.slots) == 4


def test_gathering_once_is_faster_than_in_every_microbatch():
    large = {"model": "llama3-8b", "gpus": 64, "global_batch": 128, "seq_length": 4096}
    once, always = (forecast(titan(**large, reshard_after_forward=said), H100, allow_oom=True) for said in (None, True))
    assert once.breakdown_s["exposed_dp"] < always.breakdown_s["exposed_dp"]
    assert once.iteration_time_s < always.iteration_time_s
    codes = {note.code for note in once.assumptions}
    assert {"fsdp-with-pipeline", "assumed-reshard-after-forward"} <= codes
    assert np.isclose(sum(once.breakdown_s.values()), once.iteration_time_s)
