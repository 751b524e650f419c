"""Bytes of Adam's state, exchanges of islands and what Muon updates, worked out by hand."""

from itertools import product

import pytest
from msgspec.structs import replace

from job_parts import TINY, job_of
from traincast.hardware.clusters import load_cluster
from traincast.hardware.host import host_of
from traincast.job.optimizer import LocalSteps, Muon, OptimizerTypes
from traincast.model.counts import parameters

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
ISLANDS = replace(
    load_cluster("h100"), islands=("a", "b", "c", "d"), island_bandwidth_bytes_per_s=1e9, island_latency_s=0.5
)


@pytest.mark.parametrize(("first", "second"), list(product(BYTES, BYTES)))
def test_moments_take_the_bytes_of_their_types(first, second):
    types = OptimizerTypes(exp_avg=first, exp_avg_sq=second)
    assert types.moment_bytes == BYTES[first] + BYTES[second]


def by_hand(precision, *, aware, main, gradient, parameter):
    """Return the bytes of a main parameter, and of what a step moves without both moments, read and written."""
    fused = aware and (main != "fp32" or precision not in ("fp8_block", "mxfp8"))
    if precision in ("fp32", "tf32"):
        # The parameter of the GEMMs is the main one: 4 bytes read and written; gradients are read.
        return 0, 8 + gradient + (0 if fused or gradient == 4 else 8)
    remainder = fused and main == "fp32" and precision != "fp16" and parameter == 2
    kept = 2 if remainder else BYTES[main]
    narrow = parameter * (2 if remainder else 1)
    return kept, 2 * kept + narrow + gradient + (8 if gradient == 2 and not fused else 0)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32", "tf32", "fp8", "fp8_block", "mxfp8"])
@pytest.mark.parametrize(("aware", "main"), [(False, "fp32"), (True, "fp32"), (True, "fp16")])
@pytest.mark.parametrize("gradient", [2, 4])
@pytest.mark.parametrize("parameter", [1, 2])
def test_a_step_moves_what_its_types_say(precision, aware, main, gradient, parameter):
    types = OptimizerTypes(precision_aware=aware, main_params=main, exp_avg="bf16")
    kept, moved = by_hand(precision, aware=aware, main=main, gradient=gradient, parameter=parameter)
    assert types.main_parameter_bytes(precision, parameter) == kept
    assert types.step_bytes(precision, gradient, parameter) == 2 * (2 + 4) + moved
    assert types.copies_gradients(precision) is not types.fused(precision)


def test_usual_parameters_have_two_bytes():
    types = OptimizerTypes(precision_aware=True)
    assert types.main_parameter_bytes("bf16") == types.main_parameter_bytes("bf16", 2) == 2
    assert types.step_bytes("bf16", 4) == types.step_bytes("bf16", 4, 2)


@pytest.mark.parametrize("islands", [1, 2, 4])
@pytest.mark.parametrize("bits", [32, 16, 4])
@pytest.mark.parametrize("fragments", [1, 3])
def test_an_exchange_is_a_ring_over_islands(islands, bits, fragments):
    """2 (I - 1) messages of an I-th of the bytes each, for every fragment a latency each."""
    local = LocalSteps(steps=10, bits=bits, fragments=fragments, islands=islands, bytes_per_s=1e9, latency_s=0.5)
    hops = 2 * (islands - 1)
    assert local.exchange_s(8e9) == pytest.approx(hops / islands * bits + hops * 0.5 * fragments)
    assert replace(local, bytes_per_s=None).exchange_s(8e9) == hops * 0.5 * fragments
    assert local.exchange_s(0) == hops * 0.5 * fragments


def test_local_steps_are_those_of_the_request_among_the_islands_of_its_cluster():
    local = job_of(cluster=ISLANDS, gpus=4, local_steps=20).optimizer.local
    host = host_of(ISLANDS.gpu, 4)
    assert local == LocalSteps(
        steps=20,
        bits=16,
        fragments=1,
        overlap=False,
        on_host=True,
        islands=4,
        bytes_per_s=1e9,
        latency_s=0.5,
        host_link_bytes_per_s=host.link_bytes_per_s,
        host_update_bytes_per_s=host.adam_bytes_per_s,
    )
    said = {"outer_bits": 4, "outer_fragments": 5, "overlap_outer": True, "offload_outer": False}
    other = job_of(cluster=ISLANDS, gpus=4, local_steps=20, **said).optimizer.local
    assert (other.bits, other.fragments, other.overlap, other.on_host) == (4, 5, True, False)
    assert job_of().optimizer.local is None


def test_ranks_of_one_node_share_its_host():
    """No more than a node has, however many GPUs there are."""
    for gpus, ranks in ((1, 1), (4, 4), (8, 8), (16, 8)):
        local = job_of(cluster=ISLANDS, gpus=gpus, local_steps=20, global_batch=16).optimizer.local
        assert local.host_update_bytes_per_s == host_of(ISLANDS.gpu, ranks).adam_bytes_per_s


def test_an_ideal_cluster_exchanges_in_no_time():
    local = job_of(cluster=replace(ISLANDS, ideal=True), local_steps=20).optimizer.local
    assert (local.bytes_per_s, local.latency_s, local.islands) == (None, 0.0, 4)
    assert local.exchange_s(1e9) == 0


@pytest.mark.parametrize(("zero", "copies"), [(0, 4), (1, 1)])
def test_the_note_of_an_island_tells_what_all_its_ranks_exchange(zero, copies):
    """Each replica its own copy where the state is whole; the bytes are those of the ring above."""
    job = job_of(cluster=ISLANDS, gpus=4, local_steps=20, zero=zero)
    (note,) = (each for each in job.assumptions if each.code == "one-island")
    count = copies * parameters(TINY).total
    seconds = 6 * 0.5 + 6 / 4 * 2 * count / 1e9
    assert f"about {seconds:.3g}"[:9] in note.text
    assert "this is one of 4 islands alike" in note.text
    assert note.brief.startswith("one of 4 islands: about")
    lora = job_of(cluster=ISLANDS, gpus=4, local_steps=20, task="lora")
    (note,) = (each for each in lora.assumptions if each.code == "one-island")
    assert note.brief == "one of 4 islands"


def test_muon_is_as_asked_for():
    assert job_of().optimizer.muon is None
    assert job_of(optimizer="muon").optimizer.muon == Muon(steps=5, tp_mode="blockwise", owned=True)
    said = job_of(optimizer="muon", muon_steps=3, muon_tp_mode="distributed", muon_owned=False).optimizer.muon
    assert said == Muon(steps=3, tp_mode="distributed", owned=False)
    notes = [each.text for each in job_of(optimizer="muon", muon_steps=3).assumptions if each.code == "assumed-muon"]
    assert notes == [
        "muon_tp_mode is not given: blockwise, as Megatron-LM has it",
        "muon_owned is not given: true, as Megatron-LM has it",
    ]
    (unused,) = (each.text for each in job_of(muon_steps=3, muon_owned=True).assumptions if each.code == "muon-unused")
    assert unused == "muon_steps, muon_owned: no effect without optimizer muon"


@pytest.mark.parametrize(
    ("fields", "aware", "types"),
    [
        ({}, False, ("fp32", "fp32", "fp32")),
        ({"exp_avg_dtype": "fp32"}, False, ("fp32", "fp32", "fp32")),
        ({"exp_avg_dtype": "bf16"}, True, ("fp32", "bf16", "fp32")),
        ({"exp_avg_sq_dtype": "fp8"}, True, ("fp32", "fp32", "fp8")),
        ({"main_params_dtype": "fp16"}, True, ("fp16", "fp32", "fp32")),
        ({"main_grads_dtype": "bf16"}, True, ("fp32", "fp32", "fp32")),
        ({"precision_aware_optimizer": True}, True, ("fp32", "fp32", "fp32")),
    ],
)
def test_types_other_than_fp32_stand_for_the_optimizer_that_keeps_them(fields, aware, types):
    found = job_of(gpus=2, zero=1, **fields).optimizer
    assert (found.precision_aware, (found.main_params, found.exp_avg, found.exp_avg_sq)) == (aware, types)


@pytest.mark.parametrize(
    ("fields", "reduced"),
    [({}, 4), ({"grad_reduce_bytes": 2}, 2), ({"main_grads_dtype": "fp32"}, 4), ({"main_grads_dtype": "bf16"}, 2)],
)
def test_gradients_are_reduced_in_the_bytes_of_their_type(fields, reduced):
    assert job_of(gpus=2, zero=1, **fields).framework.grad_reduce_bytes == reduced
