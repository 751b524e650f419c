"""Local steps: an island alone, plus what its exchange with the others takes in closed form, over the steps between."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

import traincast
from job_parts import TINY, TINY_EXPERTS, job_of
from traincast.errors import ConfigError, InfeasibleError
from traincast.estimate.memory import stage_memory
from traincast.hardware.clusters import load_cluster
from traincast.hardware.host import host_of
from traincast.lowering.plans import plan_of_job
from traincast.mechanisms import all as mechanisms
from traincast.model.blocks.part import Elements
from traincast.model.counts import parameters
from traincast.simulation.job_step import run_job
from traincast.simulation.step import Setting

H100 = load_cluster("h100")
RATE, LATENCY_S = 1e9, 0.02
TWO = replace(H100, name="two", islands=("east", "west"), island_bandwidth_bytes_per_s=RATE, island_latency_s=LATENCY_S)
FIVE = replace(TWO, islands=("a", "b", "c", "d", "e"))
OURS = parameters(TINY).total
LAYOUTS = {
    "one GPU": {"gpus": 1},
    "replicas": {"gpus": 8, "zero": 1},
    "whole copies": {"gpus": 8, "zero": 0},
    "sharded": {"gpus": 8, "zero": 3},
    "a pipeline": {"gpus": 8, "tp": 2, "pp": 2, "zero": 1},
    "interleaved": {"gpus": 8, "pp": 2, "vpp": 2, "tp": 2, "schedule": "interleaved", "zero": 1},
    "experts": {"gpus": 8, "ep": 4, "model": TINY_EXPERTS, "zero": 1, "global_batch": 16},
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
STEPS = 50


def step_s(cluster=TWO, *, unfold=False, **fields):
    job = job_of(cluster=cluster, **fields)
    return run_job(job, Setting(cluster=cluster, unfold=unfold)).step_s


def memory_of(**fields):
    job = job_of(cluster=TWO, **fields)
    return stage_memory(job, plan_of_job(job))


def ring_s(elements, *, bits=16, islands=2, fragments=1, rate=RATE):
    """Return what a ring over islands takes, by hand."""
    hops = 2 * (islands - 1)
    return hops / islands * elements * bits / 8 / rate + hops * LATENCY_S * fragments


def host_s(elements, bits=16, ranks=8):
    """Return what it takes the host of a GPU to get parameters, make and apply outer gradients, and return them."""
    host, moved = host_of(H100.gpu, ranks), 12 + 24 + (0 if bits == 32 else 2 * (4 + bits / 8))
    return elements * (8 / host.link_bytes_per_s + moved / host.adam_bytes_per_s)


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
@pytest.mark.parametrize("cluster", [TWO, FIVE], ids=["two", "five"])
def test_a_step_is_that_of_an_island_and_its_part_of_a_ring_over_islands(cluster, bits):
    fields = LAYOUTS["replicas"]
    once = ring_s(OURS, bits=bits, islands=len(cluster.islands)) + host_s(OURS / 8, bits)
    found = step_s(cluster, **fields, local_steps=STEPS, outer_bits=bits)
    assert found == pytest.approx(step_s(cluster, **fields) + once / STEPS, rel=1e-6)


def test_whole_copies_are_sent_by_every_replica():
    alone = step_s(**LAYOUTS["whole copies"])
    found = step_s(**LAYOUTS["whole copies"], local_steps=STEPS)
    assert found == pytest.approx(alone + (ring_s(8 * OURS) + host_s(OURS)) / STEPS, rel=1e-6)


def test_each_fragment_has_its_latency():
    one, four = (step_s(gpus=8, zero=1, local_steps=STEPS, outer_fragments=count) for count in (1, 4))
    assert four - one == pytest.approx(2 * LATENCY_S * 3 / STEPS, rel=1e-6)


@every_layout
def test_an_island_that_never_exchanges_is_alone(layout):
    alone = step_s(**LAYOUTS[layout])
    for further in ({}, {"overlap_outer": True}, {"offload_outer": False}):
        assert step_s(**LAYOUTS[layout], local_steps=2**31 - 1, **further) == pytest.approx(alone, rel=1e-5)


@pytest.mark.slow
@every_layout
def test_more_steps_fewer_bits_and_faster_links_are_never_slower(layout):
    fields = LAYOUTS[layout]
    for further in ({"offload_outer": False}, {"overlap_outer": True}):
        steps = [step_s(**fields, local_steps=count, **further) for count in (1, 10, 500)]
        bits = [step_s(**fields, local_steps=5, outer_bits=each, **further) for each in (32, 4)]
        links = [
            step_s(replace(TWO, island_bandwidth_bytes_per_s=rate), **fields, local_steps=5, **further)
            for rate in (1e8, 1e10, 1e12)
        ]
        for falling in (steps, bits, links):
            assert all(after <= before * (1 + 1e-9) for before, after in pairwise(falling))


@every_layout
def test_an_overlapped_exchange_is_hidden_as_far_as_the_step_is_long(layout):
    fields = {**LAYOUTS[layout], "cluster": replace(TWO, island_bandwidth_bytes_per_s=RATE / 4)}
    alone, waiting = (step_s(**fields, **more) for more in ({}, {"local_steps": 1}))
    exchange = waiting - alone
    slow = step_s(**fields, local_steps=1, overlap_outer=True)
    assert exchange > alone
    assert exchange <= slow <= waiting * (1 + 1e-9)
    steps = int(10 * exchange / alone) + 1
    assert step_s(**fields, local_steps=steps, overlap_outer=True) == pytest.approx(alone, rel=1e-9)


def test_a_local_step_is_not_faster_than_data_parallelism_by_more_than_its_bytes():
    """Islands that are nodes, joined by the same network cards, and exchange in every step."""
    cards = 8 * H100.inter.bandwidth_bytes_per_s
    nodes = replace(TWO, island_bandwidth_bytes_per_s=cards, island_latency_s=0.0)
    said = {"zero": 1, "overlap_grad_reduce": False, "overlap_param_gather": False, "micro_batch": 1}
    plain = step_s(H100, gpus=16, global_batch=16, **said)
    for bits in (32, 16, 4):
        local = step_s(nodes, gpus=8, global_batch=8, local_steps=1, outer_bits=bits, offload_outer=False, **said)
        # Gradients in FP32 and parameters in 16 bits cross the cards of a node instead.
        spared = max(0.0, 6 - bits / 8) * OURS / cards
        latencies = 2 * 30 * (H100.inter.hop_latency_s + H100.inter.fill_latency_s)
        assert plain - local <= spared + latencies


@every_layout
def test_all_ranks_are_as_the_ranks_that_stand_for_them(layout):
    for overlap in (False, True):
        fields = {**LAYOUTS[layout], "local_steps": 10, "overlap_outer": overlap}
        assert step_s(**fields, unfold=True) == step_s(**fields)


def test_the_host_keeps_twelve_bytes_of_each_parameter_that_a_rank_updates():
    (before,), (after,) = memory_of(gpus=8, zero=1), memory_of(gpus=8, zero=1, local_steps=10)
    assert (after.peak, before.host) == (before.peak, 0)
    assert after.host == pytest.approx((8 + 4) * OURS / 8)
    (parts,) = memory_of(gpus=8, zero=1, local_steps=10, outer_fragments=4)
    assert parts.host == pytest.approx((8 + 1) * OURS / 8)


def test_or_the_gpu_keeps_them():
    plain, kept, passing = (
        memory_of(gpus=8, zero=1, **more)[0]
        for more in (
            {},
            {"local_steps": 10, "offload_outer": False},
            {"local_steps": 10, "offload_outer": False, "overlap_outer": True},
        )
    )
    assert (kept.host, passing.host) == (0, 0)
    assert kept.optimizer - plain.optimizer == pytest.approx(8 * OURS / 8)
    # Outer gradients that nothing waits for are there all the time, others after the passes alone.
    assert dict(passing.terms)["outer gradients"] == pytest.approx(4 * OURS / 8)


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_the_gpu_updates_what_it_keeps_and_waits_for_no_host(bits):
    """Outside the step is the ring alone; in it one kernel more, over the part of a step."""
    fields = {"gpus": 8, "zero": 1, "local_steps": STEPS, "outer_bits": bits, "offload_outer": False}
    job, ours = job_of(cluster=TWO, **fields), OURS // 8
    (exchange,) = mechanisms.outside(job, ours)
    assert exchange.duration_s == pytest.approx(ring_s(8 * ours, bits=bits) / STEPS, rel=1e-12)
    run = mechanisms.updated(job, Elements(dense=ours, trained_dense=ours), ours).runs[0]
    moved = 12 + 24 + (0 if bits == 32 else 2 * (4 + bits / 8))
    assert run.what.shape == (round(ours / STEPS),)
    assert float(dict(run.what.options)["bytes_per_parameter"]) == moved


def test_what_has_no_islands_or_does_not_fit_one_is_told():
    with pytest.raises(ConfigError, match=r"local_steps: is 10, but the cluster h100 names no islands .* islands = \["):
        job_of(local_steps=10)
    with pytest.raises(InfeasibleError, match=r"16 GPUs, but an island of two has 8: .* of one of its 2 islands"):
        job_of(cluster=replace(TWO, island_gpus=8), gpus=16, global_batch=16, local_steps=10)
    with pytest.raises(InfeasibleError, match="shard 4 with local_steps: the copies of sharded state are the other"):
        job_of(cluster=TWO, gpus=8, shard=4, zero=3, local_steps=10)
    with pytest.raises(ConfigError, match="outer_bits: is 12; it must be one of 32, 16, 8, 4"):
        job_of(cluster=TWO, local_steps=10, outer_bits=12)
    with pytest.raises(ConfigError, match="outer_fragments: is 20, but local_steps is 10"):
        job_of(cluster=TWO, local_steps=10, outer_fragments=20)
    with pytest.raises(ConfigError, match="islands: are east, east; name two or more"):
        replace(TWO, islands=("east", "east"))


def test_what_is_assumed_is_said():
    notes = {note.code: note.text for note in job_of(cluster=TWO, gpus=8, zero=1, local_steps=10).assumptions}
    assert "one of 2 islands" in notes["one-island"]
    assert "about 157.5 ms for an exchange in every 10 steps, of 58.73 M parameters" in notes["one-island"]
    assert "offload_outer is not given: on" in notes["assumed-offload-outer"]
    unused = {note.code: note.text for note in job_of(overlap_outer=True, outer_bits=4).assumptions}
    assert unused["outer-unused"] == "outer_bits, overlap_outer: no effect without local_steps"


def test_a_cluster_file_says_its_islands(tmp_path):
    file = tmp_path / "sites.toml"
    file.write_text(
        'base = "h100"\nislands = ["oslo", "turin", "lille"]\nisland_gpus = 512\n'
        'island_bandwidth_bytes_per_s = "100Gb/s"\nisland_latency_s = "30ms"\n'
    )
    cluster = load_cluster(file)
    assert (cluster.islands, cluster.island_gpus) == (("oslo", "turin", "lille"), 512)
    assert (cluster.island_bandwidth_bytes_per_s, cluster.island_latency_s) == (12.5e9, 0.03)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
def test_a_plan_knows_what_local_steps_take(overlap):
    fix = {"micro_batch": [1], "tp": [2], "pp": [1, 2]}
    asked = {"model": "llama3-8b", "gpus": 16, "seq_length": 4096, "global_batch": 16, "fix": fix}
    alone = traincast.plan(**asked, cluster=TWO)
    found = traincast.plan(**asked, cluster=TWO, local_steps=2, overlap_outer=overlap)
    assert found.best[0].step_s > alone.best[0].step_s
    assert found.screen_error_most < alone.screen_error_most + 0.01


def test_communication_that_takes_no_time_takes_none_between_islands():
    ideal = replace(TWO, ideal=True)
    fields = LAYOUTS["replicas"]
    found = step_s(ideal, **fields, local_steps=1)
    assert found == pytest.approx(step_s(ideal, **fields) + host_s(OURS / 8), rel=1e-6)
