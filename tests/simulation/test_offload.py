"""Offloading to the host: what leaves the GPU, what it takes, and that nothing changes without it."""

import numpy as np
import pytest
from msgspec.structs import replace

from job_parts import TINY_ALL, TINY_EXPERTS, job_of
from traincast.errors import ConfigError, InfeasibleError
from traincast.estimate.memory import stage_memory
from traincast.hardware.clusters import load_cluster
from traincast.hardware.gpu import load_gpu
from traincast.hardware.host import ADAM_SHARE, LINK_SHARE, host_of
from traincast.lowering.plans import plan_of_job
from traincast.simulation.forecast import forecast
from traincast.simulation.job_step import run_job
from traincast.simulation.step import Setting
from traincast.workload.words import Phase, Stream

H100 = load_cluster("h100")
GIB = 2**30
LAYOUTS = {
    "one GPU": {"gpus": 1},
    "replicas": {"gpus": 8, "zero": 1},
    "sharded": {"gpus": 8, "zero": 3},
    "gradients sharded": {"gpus": 8, "zero": 2},
    "a pipeline": {"gpus": 8, "tp": 2, "pp": 2, "zero": 1},
    "interleaved": {"gpus": 8, "pp": 2, "vpp": 2, "tp": 2, "schedule": "interleaved", "zero": 1},
    "experts": {"gpus": 8, "ep": 4, "model": TINY_ALL, "zero": 1, "global_batch": 16},
    "recomputed": {"gpus": 2, "recompute": "full", "recompute_layers": 3, "zero": 1},
    "modules recomputed": {"gpus": 8, "model": TINY_ALL, "recompute": "selective", "recompute_modules": ("moe_act",)},
}
OFFLOADS = {
    "optimizer": {"offload_optimizer": 1.0},
    "half of it": {"offload_optimizer": 0.5},
    "activations": {"offload_activations": 2},
    "all activations": {"offload_activations": 99},
    "both": {"offload_optimizer": 1.0, "offload_activations": 2},
    "modules": {"offload_modules": ("core_attn", "mlp_norm")},
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def step_of(job, cluster=H100):
    return run_job(job, Setting(cluster=cluster))


def memory_of(job):
    return stage_memory(job, plan_of_job(job))


def with_host(cluster, **values):
    return replace(cluster, gpu=replace(cluster.gpu, **values))


@every_layout
def test_nothing_offloaded_is_as_if_nothing_was_said(layout):
    plain, said = job_of(**LAYOUTS[layout]), job_of(**LAYOUTS[layout], offload_optimizer=0.0, offload_activations=0)
    assert memory_of(plain) == memory_of(said)
    one, other = step_of(plain).step, step_of(said).step
    assert np.array_equal(one.timeline.end_s_N, other.timeline.end_s_N)
    assert one.program.ops.name_T == other.program.ops.name_T


@pytest.mark.slow
@every_layout
@pytest.mark.parametrize("offload", OFFLOADS)
def test_an_infinite_host_makes_no_step_longer_and_a_real_one_none_shorter_than_it(layout, offload):
    job = job_of(**LAYOUTS[layout], **OFFLOADS[offload])
    endless = with_host(H100, host_bytes_per_s=1e30, host_memory_bytes_per_s=1e30)
    plain_s, ideal_s, real_s = (
        step_of(job_of(**LAYOUTS[layout])).step_s,
        step_of(job, endless).step_s,
        step_of(job).step_s,
    )
    assert ideal_s <= plain_s * (1 + 1e-9)
    assert real_s >= ideal_s * (1 - 1e-9)
    slow = with_host(H100, host_bytes_per_s=H100.gpu.host_bytes_per_s / 1000)
    assert step_of(job, slow).step_s > real_s


@every_layout
def test_memory_falls_by_what_the_host_keeps(layout):
    plain = memory_of(job_of(**LAYOUTS[layout]))
    for share in (0.25, 1.0):
        job = job_of(**LAYOUTS[layout], offload_optimizer=share)
        for before, after in zip(plain, memory_of(job), strict=True):
            assert after.optimizer == pytest.approx((1 - share) * before.optimizer)
            assert after.activations == before.activations
            assert after.peak < before.peak
            updated = after.host / 16 / share
            gone = before.parameters + before.gradients + before.optimizer
            gone -= after.parameters + after.gradients + after.optimizer
            # Adam's two fp32 moments and its fp32 copy, and gradients where they are kept in shares.
            least = 12 if job.sharding.zero < 3 else 10
            assert gone >= least * share * updated * (1 - 1e-9)
            assert gone <= (least + 8) * share * updated


@pytest.mark.parametrize(
    ("modules", "tensors"),
    [
        (("core_attn",), {"queries, keys, values"}),
        (("attn_norm", "mlp_norm"), {"layernorm inputs"}),
        (("expert_fc1", "moe_act"), {"expert inputs", "expert FC1 outputs"}),
        (("attn_proj", "attn_proj"), {"attention outputs"}),
    ],
)
def test_inputs_of_modules_leave_by_themselves(modules, tensors):
    fields = {"gpus": 8, "model": TINY_EXPERTS, "ep": 4, "zero": 1}
    (before,), (after,) = memory_of(job_of(**fields)), memory_of(job_of(**fields, offload_modules=modules))
    gone = {name: size - dict(after.terms).get(name, 0.0) for name, size in before.terms if name in tensors}
    assert gone.keys() == tensors
    assert sum(gone.values()) == pytest.approx(after.host)
    assert sum(size for name, size in after.terms if name in tensors) == 0
    same = {
        name: size for name, size in before.terms if name not in (*tensors, "passing activations", "allocator slack")
    }
    assert same.items() <= dict(after.terms).items()


@every_layout
def test_activations_are_on_the_gpu_or_on_the_host(layout):
    fields = LAYOUTS[layout]
    plain = memory_of(job_of(**fields))
    for count in (1, 2, 99):
        for before, after in zip(plain, memory_of(job_of(**fields, offload_activations=count)), strict=True):
            here, kept = (sum(size for name, size in each.terms if name not in _OTHERS) for each in (after, before))
            assert after.host > 0
            assert after.host + here == pytest.approx(kept, rel=1e-6)
            assert (after.parameters, after.gradients, after.optimizer) == (
                before.parameters,
                before.gradients,
                before.optimizer,
            )


_OTHERS = (
    *("parameters", "gradients", "optimizer", "cuda context", "nccl buffers", "pipeline messages", "gathered layers"),
    *("communication buckets", "8-bit copies of weights", "fp32 gradients of the step", "unused weight gradients"),
    *("allocator slack", "passing activations"),
)


def update_s(job, host, count):
    """Return the seconds of an update: its first piece down, the slowest of what runs at once, its last piece up."""
    out, back = 4 * count, 2 * count
    apart = job.model.layers if job.offload.overlap else 1
    first, last = -(-out // apart), -(-back // apart)
    link = host.link_bytes_per_s
    meanwhile = max(30 * count / host.adam_bytes_per_s, (out - first) / link, (back - last) / link)
    return first / link + meanwhile + last / link


def test_the_update_is_as_long_as_the_slowest_of_what_runs_at_once():
    for fields in ({}, {"overlap_offload": False}, {"gpus": 8, "zero": 1}):
        job = job_of(offload_optimizer=1.0, **fields)
        job = replace(job, framework=replace(job.framework, host_layer_s=0.0))
        done = step_of(job)
        ops, duration_T = done.compute.ops, done.compute.ops.duration_s_T
        moved = {each: ops.size_bytes_T[ops.stream_T == each].sum() for each in Stream if each.name.startswith("OFF")}
        host = host_of(H100.gpu, job.parallel.world_size)
        (through,) = ops.size_bytes_T[ops.stream_T == Stream.HOST_MEMORY].tolist()
        count = through // 30
        assert moved[Stream.OFFLOAD_OUT] == 4 * count
        assert moved[Stream.OFFLOAD_IN] == 2 * count
        of_host = np.isin(ops.stream_T, [Stream.OFFLOAD_OUT, Stream.OFFLOAD_IN, Stream.HOST_MEMORY])
        wanted = update_s(job, host, count)
        assert wanted <= duration_T[of_host].sum() * (1 + 1e-9)
        if not job.offload.overlap:
            assert wanted == pytest.approx(duration_T[of_host].sum())
        plain_s = step_of(job.with_values(offload_optimizer=0.0))
        optimizer = plain_s.compute.ops.name_T.index("optimizer")
        spared_s = plain_s.compute.ops.duration_s_T[optimizer]
        assert done.step_s == pytest.approx(plain_s.step_s - spared_s + wanted, rel=1e-4)


def test_the_host_is_shared_by_those_that_use_it():
    gpu = load_gpu("h100")
    alone, all_of_them = host_of(gpu, 1), host_of(gpu, 8)
    assert alone.adam_bytes_per_s == pytest.approx(8 * all_of_them.adam_bytes_per_s)
    assert alone.memory_bytes == 8 * all_of_them.memory_bytes == 2e12
    assert all_of_them.adam_bytes_per_s == pytest.approx(ADAM_SHARE * 614.4e9 / 8)
    assert all_of_them.link_bytes_per_s == pytest.approx(LINK_SHARE * 63e9)
    assert host_of(load_gpu("gb200"), 72).memory_bytes == 240e9
    assert host_of(load_gpu("gh200"), 4).link_bytes_per_s > 6 * alone.link_bytes_per_s
    assert not alone.assumed
    assert len(host_of(load_gpu("Gaudi3"), 8).assumed) == 3


def test_a_host_without_room_is_refused_with_what_is_missing():
    job = job_of(gpus=8, offload_optimizer=1.0)
    poor = with_host(H100, host_memory_bytes=GIB // 4)
    with pytest.raises(InfeasibleError, match=r"offloads .* of which it has 32 MiB, over by") as caught:
        forecast(job, Setting(cluster=poor))
    assert caught.value.needed_bytes > caught.value.limit_bytes == GIB / 32
    warned = forecast(job, Setting(cluster=poor), allow_oom=True).warnings
    assert any(note.code == "host-out-of-memory" for note in warned)


def test_what_contradicts_itself_is_refused():
    with pytest.raises(InfeasibleError, match=r"offload_parameters needs sharded parameters"):
        job_of(gpus=8, zero=1, offload_parameters=True)
    with pytest.raises(ConfigError, match="offload_optimizer"):
        job_of(gpus=8, zero=3, offload_parameters=True, offload_optimizer=0.5)
    with pytest.raises(ConfigError, match="offload_optimizer"):
        job_of(offload_optimizer=1.5)
    assert job_of(gpus=8, zero=3, offload_parameters=True).offload.optimizer == 1
    with pytest.raises(ConfigError, match="give one of them"):
        job_of(offload_activations=2, offload_modules=("core_attn",))
    unused = job_of(offload_modules=("core_attn",), recompute="full")
    assert any(note.code == "offload-modules-unused" for note in unused.assumptions)
    capped = job_of(offload_activations=99)
    assert capped.offload.activations == capped.model.layers
    assert any(note.code == "offload-activations-capped" for note in capped.assumptions)


def test_gradients_of_one_gpu_leave_where_they_are_kept_in_shares():
    """ZeRO-Offload on one GPU is ZeRO-2 whose one share is all: 16-bit parameters stay, 2 bytes each of 16."""
    said = {"framework": "deepspeed-2024", "offload_optimizer": 1.0}
    whole, shared = (job_of(**said, zero=zero) for zero in (None, 2))
    assert (whole.sharding.zero, shared.sharding.zero) == (0, 0)
    before, after = memory_of(whole)[0], memory_of(shared)[0]
    assert (after.gradients, after.optimizer) == (0, 0)
    assert before.gradients > 0
    tables = [step_of(each).step.program.ops for each in (whole, shared)]
    leaving = [ops.phase_T[np.array(ops.name_T) == "gradients out"].tolist() for ops in tables]
    assert [set(phases) for phases in leaving] == [{Phase.STEP}, {Phase.WEIGHT_GRADIENT}]


def test_offloaded_parameters_come_for_every_gather():
    job = job_of(gpus=8, zero=3, offload_parameters=True, global_batch=32)
    slow = with_host(H100, host_bytes_per_s=1e8)
    plain, done = step_of(job.with_values(offload_parameters=False), slow), step_of(job, slow)
    assert done.step_s > plain.step_s
    ops = done.step.program.ops
    names = [ops.name_T[row] for row in done.step.program.row_N[done.step.program.rank_slice(0)].tolist()]
    # One for each forward and each backward pass, and none in the step.
    assert names.count("parameters in") == 2 * job.parallel.microbatches
    before, after = (memory_of(each)[0] for each in (job.with_values(offload_parameters=False), job))
    assert after.parameters == 0
    assert after.host == pytest.approx(before.host + before.parameters)
