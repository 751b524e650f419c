"""What mechanisms keep of the state of training: closed forms of each, and arrays as numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from job_parts import TINY, TINY_EXPERTS
from traincast.estimate.memory import JobMemory
from traincast.estimate.memory.states import states
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.mechanisms import all as mechanisms
from traincast.mechanisms.finetuning import FrozenWeights
from traincast.mechanisms.gradients import KeptGradients, one_of_each
from traincast.mechanisms.mechanism import Lasting, Mechanism
from traincast.mechanisms.offload import HostMemory, update_bytes
from traincast.mechanisms.optimizer import Adam
from traincast.mechanisms.precision import WeightTypes
from traincast.mechanisms.rank import RankParameters, RankState, Where
from traincast.mechanisms.recompute import Recomputing
from traincast.mechanisms.sharding import ShardedParameters
from traincast.model.blocks.part import Elements, Matrices, Matrix

PSI = 7_500_000_000
"""Parameters of the example of arXiv 1910.02054, figure 1."""
LARGEST, ENDS = 200_000_000, 500_000_000
SHAPES = Matrices(
    (
        Matrix(300, 100, 32, "attention", "outputs", False, True),
        Matrix(100, 300, 32, "attention", "inputs", False, True),
        Matrix(300, 100, 2, "experts", "", True, True),
        Matrix(8, 100, 32, "router", "", False, True),
    )
)


def job_of(model=TINY, **given):
    said = {"gpus": 8, "seq_length": 2048, "global_batch": 64, "framework": "megatron-core-2025"} | given
    return resolve_job(JobRequest(model=model, **said))


def parameters(dense=PSI, experts=0, trained=None, largest=LARGEST, ends=ENDS):
    trained_dense, trained_experts = (dense, experts) if trained is None else trained
    total = Elements(
        dense=dense, experts=experts, trained_dense=trained_dense, trained_experts=trained_experts, shapes=SHAPES
    )
    return RankParameters(
        total=total,
        ends=Elements(dense=ends, trained_dense=ends),
        largest_layer=largest,
        largest_trained=largest,
        one_of_each=one_of_each(SHAPES),
    )


def state_of(job, dense_shards=1, expert_shards=1, **held):
    return RankState(job, parameters(**held), dense_shards, expert_shards)


def of(mechanism, rank):
    """Return what one mechanism keeps, by term."""
    return {each.term: each.size_bytes for each in mechanism.lasting(rank)}


@pytest.mark.parametrize("shards", [8, 64, 60])
@pytest.mark.parametrize(
    ("zero", "whole", "shared"),
    [(0, 16, 0), (1, 2 + 2, 12), (2, 2, 2 + 12), (3, 0, 2 + 12)],
    ids=str,
)
def test_a_stage_of_zero_divides_what_its_paper_says(zero, whole, shared, shards):
    """Figure 1: 16 bytes a parameter, 4 + 12 / N, 2 + 14 / N, and of stage 3 what is not gathered: 16 / N.

    Sharded parameters are fp32 and their own main copy, so that here 14 bytes are divided with stage 3.
    """
    job = job_of(zero=zero, grad_reduce_bytes=2, framework="deepspeed-2021")
    found = states(state_of(job, *((shards, shards) if zero else (1, 1))))
    kept = sum(found.gpu[name] for name in ("parameters", "gradients", "optimizer"))
    assert kept == pytest.approx(PSI * (whole + shared / shards), rel=1e-12)
    assert found.host == 0


@pytest.mark.parametrize(
    ("types", "bytes_each"),
    [
        ({}, 12),
        ({"main_params_dtype": "fp16"}, 2 + 8),
        ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, 2 + 2 + 2),
        ({"exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp8"}, 2 + 1 + 1),
    ],
)
def test_adam_keeps_main_parameters_and_two_moments_in_their_types(types, bytes_each):
    """Of an fp32 main parameter beside a bf16 one Megatron Core's precision-aware optimizer keeps the lower 16 bits."""
    rank = state_of(job_of(zero=1, **types), 4, 4)
    assert of(Adam(), rank) == {"optimizer": bytes_each * PSI / 4}


def test_adam_of_fp32_weights_keeps_moments_alone():
    assert of(Adam(), state_of(job_of(zero=0, precision="fp32"))) == {"optimizer": 8 * PSI}


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_what_the_host_updates_is_there_and_not_here(share):
    """arXiv 2101.06840, section 4: main parameters, moments and gradients, 16 bytes for each, go to the host."""
    rank = state_of(job_of(zero=1, offload_optimizer=share), 8, 8)
    (found,) = HostMemory().lasting(rank)
    assert found.where is Where.HOST
    assert found.size_bytes == pytest.approx(16 * share * PSI / 8)
    assert of(Adam(), rank)["optimizer"] == pytest.approx(12 * (1 - share) * PSI / 8)
    assert not list(HostMemory().lasting(state_of(job_of(zero=1))))


def test_parameters_go_to_the_host_in_16_bits_with_their_optimizer():
    job = job_of(zero=3, framework="deepspeed-2024", offload_parameters=True)
    found = states(state_of(job, 8, 8))
    assert found.host == pytest.approx((16 + 2) * PSI / 8)
    assert "parameters" not in found.gpu
    assert found.gpu["optimizer"] == 0


def test_gathered_layers_are_two_and_the_ends_with_the_gradients_of_one():
    job = job_of(zero=3, framework="torchtitan-2025")
    found = of(ShardedParameters(), state_of(job, 8, 8))
    gradients = job.memory_policy.gradient_bytes * max(LARGEST, ENDS)
    assert found["gathered layers"] == 2 * (ENDS + 2 * LARGEST) + gradients
    assert found["parameters"] == pytest.approx(4 * PSI / 8)
    # Alone there is nobody to share with.
    assert not of(ShardedParameters(), state_of(job))


def test_parameters_that_stay_whole_are_gathered_once():
    job = job_of(zero=3, framework="torchtitan-2025", reshard_after_forward=False)
    found = of(ShardedParameters(), state_of(job, 8, 8))
    assert found["gathered layers"] == 2 * PSI + job.memory_policy.gradient_bytes * ENDS


def test_parameters_that_stay_whole_in_8_bits_are_a_byte_but_for_the_ends():
    said = {"framework": "torchtitan-2025", "reshard_after_forward": False, "precision": "fp8", "param_gather_bytes": 1}
    job = job_of(zero=3, **said)
    found = of(ShardedParameters(), state_of(job, 8, 8))
    assert found["gathered layers"] == (PSI - ENDS) + 2 * ENDS + job.memory_policy.gradient_bytes * ENDS


def test_experts_are_divided_among_their_own_replicas():
    job = job_of(TINY_EXPERTS, zero=1, ep=4)
    rank = RankState.alone(job, parameters(dense=800, experts=600, ends=0))
    assert (rank.dense_shards, rank.expert_shards) == (8, 2)
    assert rank.trained_share == 800 / 8 + 600 / 2
    assert RankState.alone(job_of(zero=0), parameters()).trained_share == PSI


@pytest.mark.parametrize(("precision", "copies"), [("fp8", 2), ("nvfp4", 2 * (1 / 2 + 1 / 16))])
def test_copies_in_8_bits_are_of_the_layers_and_gathered_ones_are_one_of_them(precision, copies):
    layers = PSI - ENDS
    rank = state_of(job_of(zero=1, precision=precision), 8, 8)
    assert of(WeightTypes(), rank) == {"parameters": 2 * PSI, "8-bit copies of weights": copies * layers}
    gathered = state_of(job_of(zero=1, precision=precision, param_gather_bytes=1), 8, 8)
    assert of(WeightTypes(), gathered) == {
        "parameters": 2 * ENDS + layers,
        "8-bit copies of weights": (copies - 1) * layers,
    }


@pytest.mark.parametrize("zero", [0, 1])
def test_mxfp8_weights_of_megatron_bridge_have_no_others_next_to_them(zero):
    layers = PSI - ENDS
    sizes = {}
    for name in ("megatron-core-2025", "megatron-bridge-2025"):
        rank = state_of(job_of(zero=zero, precision="mxfp8", framework=name), 8, 8)
        sizes[name] = sum(of(WeightTypes(), rank).values())
    # Without a sharded optimizer nothing is gathered, and the 16-bit weights are the model's own.
    spared = sizes["megatron-core-2025"] - sizes["megatron-bridge-2025"]
    assert spared == pytest.approx(2 * layers if zero else 0)


@pytest.mark.parametrize("shards", [1, 8])
def test_frozen_weights_in_8_bits_spare_half_of_their_bytes(shards):
    adapters = 1000
    job = job_of(zero=3, task="lora", precision="fp8")
    rank = state_of(job, shards, shards, trained=(adapters, 0), ends=0)
    frozen = PSI - adapters
    assert of(FrozenWeights(), rank) == {"parameters": -frozen / shards}
    found = states(rank)
    trained_bytes = 2 if shards == 1 else 4
    assert found.gpu["parameters"] == pytest.approx((frozen + trained_bytes * adapters) / shards)
    assert found.gpu["8-bit copies of weights"] == 0
    assert not of(FrozenWeights(), state_of(job_of(zero=3, task="lora"), 8, 8))


def test_gradients_in_16_bits_become_fp32_in_the_step():
    """Megatron-LM, docs on the distributed optimizer: 6 + 12 / d bytes a parameter, 4 + 16 / d with bf16 gradients."""
    narrow = states(state_of(job_of(zero=1, grad_reduce_bytes=2), 8, 8))
    assert narrow.gpu["gradients"] == 2 * PSI
    assert narrow.update == {"fp32 gradients of the step": 4 * PSI / 8}
    wide = states(state_of(job_of(zero=1, grad_reduce_bytes=4), 8, 8))
    assert wide.gpu["gradients"] == 4 * PSI
    assert not any(wide.update.values())


def test_gradients_that_pass_through_buckets_have_a_place_of_their_own():
    """nanotron accumulates in fp32, and PyTorch DDP's 16-bit buckets pass the gradients on: 6 bytes a parameter."""
    rank = state_of(job_of(zero=1, framework="nanotron-2024"), 8, 8)
    assert of(KeptGradients(), rank)["gradients"] == (4 + 2) * PSI


def test_counts_of_bytes_are_whole_numbers():
    assert isinstance(states(state_of(job_of(zero=1), 8, 8)).gpu["gradients"], int)


def test_sharded_experts_are_divided_by_their_own_shards():
    job = job_of(TINY_EXPERTS, zero=3, framework="torchtitan-2025")
    found = of(ShardedParameters(), state_of(job, 8, 2, dense=800, experts=600, largest=0, ends=0))
    assert found["parameters"] == 4 * (800 / 8 + 600 / 2)
    frozen = RankState(job, parameters(800, 600, trained=(80, 0), largest=0, ends=0), 8, 2)
    assert of(ShardedParameters(), frozen)["parameters"] == 4 * 80 / 8 + 2 * (720 / 8 + 600 / 2)
    # One copy of each expert is no reason to keep the dense parameters whole.
    assert RankState(job, parameters(800, 600), 8, 1).shards_parameters


def test_the_host_reads_and_writes_thirty_bytes_of_a_parameter():
    """arXiv 2101.06840: a gradient of 4 bytes goes down, Adam moves 30, a parameter of 2 comes up."""
    assert update_bytes(job_of(zero=1, offload_optimizer=0.5), 1000) == (4 * 500, 30 * 500, 2 * 500)
    # Shares of gradients leave in the passes, and parameters that stay there come for each gather.
    assert update_bytes(job_of(zero=2, offload_optimizer=1.0), 10) == (0, 300, 20)
    job = job_of(zero=3, framework="deepspeed-2024", offload_parameters=True)
    assert update_bytes(job, 10) == (0, 300, 0)


def test_changes_that_would_free_memory_are_those_that_can_be_run():
    def names(changes):
        return [name for name, _ in changes]

    def stages(**given):
        return [name for name in names(mechanisms.remedies(job_of(**given))) if name.startswith("zero")]

    assert stages(zero=0) == ["zero 1", "zero 2", "zero 3"]
    assert stages(zero=1, pp=2) == []
    assert stages(zero=0, pp=2) == ["zero 1"]
    assert stages(zero=0, gpus=1, global_batch=8) == []
    host = dict(mechanisms.host_remedies(job_of(zero=1, offload_modules=("core_attn",))))
    layers = "offload_activations 8"
    assert list(host) == ["offload_optimizer 1", layers, f"offload_optimizer 1 with {layers}"]
    # Modules go with their layers: both at once are refused.
    assert host[layers].offload.modules == ()
    assert names(mechanisms.host_remedies(job_of(zero=1, offload_optimizer=1.0, offload_activations=8))) == []


def test_weight_gradients_that_are_kept_in_vain_are_of_the_model_itself():
    unused = "unused weight gradients"
    assert of(KeptGradients(), state_of(job_of(zero=1)))[unused] == 2 * (300 * 100 + 100 * 300)
    assert unused not in of(KeptGradients(), state_of(job_of(zero=1, task="lora")))


JOBS = [
    job_of(zero=0),
    job_of(zero=1, precision="mxfp8", param_gather_bytes=1),
    job_of(zero=2, offload_optimizer=0.5, framework="deepspeed-2021"),
    job_of(zero=3, framework="torchtitan-2025"),
    job_of(zero=3, framework="torchtitan-2025", pp=2),
    job_of(zero=3, framework="deepspeed-2024", offload_parameters=True),
    job_of(zero=3, task="lora", precision="fp8"),
    job_of(zero=1, task="lora", exp_avg_dtype="bf16"),
]
SIZES = st.integers(1, 10**9)


@settings(max_examples=60, deadline=None)
@given(
    job=st.sampled_from(JOBS),
    rows=st.lists(st.tuples(SIZES, SIZES, SIZES, st.integers(2, 512), st.integers(2, 64)), min_size=1, max_size=4),
)
def test_arrays_stand_for_the_numbers_in_them(job, rows):
    def state(dense, experts, ends, *shards):
        trained = (dense // 7, 0 * experts) if job.finetuning.trains_adapters else None
        held = parameters(dense + ends, experts, trained, largest=dense // 3, ends=ends)
        return RankState(job, held, *shards)

    together = states(state(*(np.array(column) for column in zip(*rows, strict=True))))
    for place, row in enumerate(rows):
        alone = states(state(*row))
        for terms, found in ((together.gpu, alone.gpu), (together.update, alone.update)):
            assert terms.keys() == found.keys()
            for name, size in terms.items():
                at = np.broadcast_to(size, len(rows))[place]
                assert at == pytest.approx(found[name], rel=1e-12, abs=1e-3), name
        assert np.broadcast_to(together.host, len(rows))[place] == pytest.approx(alone.host, rel=1e-12)


def test_adam_updates_on_the_gpu_what_the_host_leaves():
    for share, left in ((0.0, 1000), (0.25, 750), (1.0, 0)):
        ((kernel, _),) = mechanisms.updated(job_of(zero=1, offload_optimizer=share), Elements(), 1000).runs
        assert (kernel.family, kernel.shape, kernel.options) == ("optimizer", (left,), ())
    counts = np.array([1000, 5, 0])
    ((kernel, _),) = mechanisms.updated(job_of(zero=1, offload_optimizer=0.5), Elements(), counts).runs
    assert kernel.shape[0].tolist() == [500, 3, 0]


def test_types_of_a_precision_aware_optimizer_move_other_bytes():
    """Lower 16 bits of a main parameter read and written, two moments of 2 bytes each way, the gradient of 4 read."""
    job = job_of(zero=1, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16", grad_reduce_bytes=4)
    ((kernel, _),) = mechanisms.updated(job, Elements(), 1000).runs
    assert dict(kernel.options) == {"bytes_per_parameter": str(2 * 4 + 2 * 2 + 2 * 2 + 4)}


class OuterMomentum(Mechanism):
    """What DiLoCo keeps of each trained parameter, arXiv 2311.08105: the outer copy and its momentum, in fp32."""

    def __init__(self, where):
        self.where = where

    def lasting(self, rank):
        yield Lasting("outer momentum", 8 * rank.trained_share, self.where)


@pytest.mark.parametrize("where", [Where.GPU, Where.HOST])
def test_memory_sums_a_mechanism_that_it_has_never_heard_of(where, monkeypatch):
    job = job_of(zero=1, pp=2)
    before = JobMemory(job).stages
    monkeypatch.setattr(mechanisms, "MECHANISMS", (*mechanisms.MECHANISMS, OuterMomentum(where)))
    for stage, old in zip(JobMemory(job).stages, before, strict=True):
        kept = 8 / 12 * old.optimizer
        if where is Where.HOST:
            assert (stage.host - old.host, stage.peak) == (pytest.approx(kept), old.peak)
        else:
            assert dict(stage.terms)["outer momentum"] == pytest.approx(kept)
            assert stage.allocated == pytest.approx(old.allocated + kept)


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({"zero": 0}, ["zero 1", "zero 2", "zero 3"]),
        ({"zero": 1}, ["zero 2", "zero 3"]),
        ({"zero": 2}, ["zero 3"]),
        ({"zero": 3}, []),
        ({"zero": 0, "pp": 2}, ["zero 1"]),
        ({"zero": 1, "pp": 2}, []),
        ({"zero": 0, "cp": 8}, ["zero 1", "zero 2", "zero 3"]),
        ({"zero": 0, "tp": 8}, []),
    ],
)
def test_further_stages_of_zero_are_proposed_where_ranks_share_state(said, names):
    job = job_of(**{"tp": 1, "pp": 1} | said)
    found = dict(ShardedParameters().remedies(job))
    assert [*found] == names
    assert [f"zero {each.sharding.zero}" for each in found.values()] == names


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({}, ["offload_optimizer 1", "offload_activations 8"]),
        ({"pp": 2, "vpp": 1}, ["offload_optimizer 1", "offload_activations 4"]),
        ({"offload_optimizer": 0.5}, ["offload_optimizer 1", "offload_activations 8"]),
        ({"offload_optimizer": 1.0}, ["offload_activations 8"]),
        ({"offload_activations": 7}, ["offload_optimizer 1", "offload_activations 8"]),
        ({"offload_activations": 8}, ["offload_optimizer 1"]),
        ({"recompute": "full"}, ["offload_optimizer 1"]),
        ({"recompute": "full", "offload_optimizer": 1.0}, []),
    ],
)
def test_the_host_is_proposed_for_what_it_does_not_keep(said, names):
    job = job_of(**{"tp": 1, "pp": 1, "zero": 1} | said)
    found = dict(HostMemory().host_remedies(job))
    assert [*found] == [*names, *([" with ".join(names)] if len(names) > 1 else [])]
    layers = job.pipeline.most_layers
    for name, each in found.items():
        assert each.offload.optimizer == (1.0 if "optimizer" in name else job.offload.optimizer)
        assert each.offload.activations == (layers if "activations" in name else job.offload.activations)


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({}, ["recompute full"]),
        ({"attention_kernel": "unfused"}, ["recompute selective", "recompute full"]),
        ({"attention_kernel": "unfused", "recompute": "selective"}, ["recompute full"]),
        ({"recompute": "full", "recompute_layers": 3}, ["recompute full"]),
        ({"recompute": "full"}, []),
    ],
)
def test_recomputation_is_proposed_as_far_as_it_is_not_done(said, names):
    # A framework that recomputes no single modules.
    job = job_of(**{"tp": 1, "pp": 1, "framework": "megatron-core-2024", "recompute": "none"} | said)
    assert [name for name, _ in Recomputing().remedies(job)] == names
    assert all(each.recompute.all_layers for name, each in Recomputing().remedies(job) if name == "recompute full")


def test_matrices_of_one_shape_count_once_among_numbers_and_arrays():
    """Three shapes of 2 x 3, 3 x 2 and, on the second of two layouts, 2 x 3 again; a router's are not among them."""
    rows = np.array([4, 2])
    shapes = [(2, 3, "mlp"), (3, 2, "mlp"), (rows, 3, "mlp"), (2, 3, "attention"), (9, 9, "router")]
    matrices = [Matrix(*shape, 1, part, "", False, True) for *shape, part in shapes]
    assert one_of_each(matrices).tolist() == [6 + 6 + 12, 6 + 6]
    assert one_of_each(each for each in matrices if each.rows is not rows) == 12


@pytest.mark.parametrize("zero", [0, 1])
def test_without_zero_a_rank_has_the_state_of_all_that_it_holds(zero):
    """Of 8 replicas with experts on 4 ranks each, the state of dense parameters is in 8 shares, of experts in 2."""
    job = job_of(TINY_EXPERTS, ep=4, zero=zero)
    rank = RankState.alone(job, parameters(dense=80, experts=40))
    assert (rank.dense_shards, rank.expert_shards) == ((8, 2) if zero else (1, 1))
    assert rank.share == (80 / 8 + 40 / 2 if zero else 120)
