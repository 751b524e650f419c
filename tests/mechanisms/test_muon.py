"""Muon: FLOPs of its steps, what it keeps, who updates which matrix, and what is exchanged for that."""

import numpy as np
import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, job_of
from traincast import plan, predict
from traincast.errors import ConfigError
from traincast.estimate.memory import JobMemory
from traincast.job.optimizer import TP_MODES
from traincast.lowering.plans import plan_of_job
from traincast.lowering.stage import stages_of
from traincast.mechanisms import all as mechanisms
from traincast.mechanisms.mechanism import Update
from traincast.mechanisms.muon import NewtonSchulz
from traincast.mechanisms.rank import RankParameters, RankState, Where
from traincast.model.blocks.part import Elements, Gemm

LAYERS, HIDDEN, FFN, HEADS = 8, 512, 1536, 8 + 2 * 4
MATRICES = [(HEADS * 64, HIDDEN), (HIDDEN, HIDDEN), (2 * FFN, HIDDEN), (HIDDEN, FFN)]
"""Of a layer of `TINY`: QKV, projection, both halves of the gate, and back."""


def muon(model=TINY, **fields):
    return job_of(model, optimizer="muon", **fields)


def weights_of(job):
    return sum((stage.weights() for stage in stages_of(job, 8, plan=plan_of_job(job))), Elements())


def update_of(job):
    weights = weights_of(job)
    return mechanisms.updated(job, weights, weights.trained)


def gemm_flops(update):
    return sum(run.what.flops * run.count for run in update.runs if isinstance(run.what, Gemm))


def step_flops(rows, columns):
    """Return the FLOPs of a Newton-Schulz step."""
    m, n = sorted((rows, columns))
    return 4 * m * m * n + 2 * m**3


def whole_flops(steps=5):
    return steps * LAYERS * sum(step_flops(*each) for each in MATRICES)


def adam_parameters(update):
    """Return the parameters that the last kernel updates."""
    (shape,) = update.runs[-1].what.shape
    return shape


def elements(matrices=MATRICES):
    return LAYERS * sum(rows * columns for rows, columns in matrices)


@pytest.mark.parametrize("steps", [1, 5, 7])
def test_steps_take_the_flops_of_every_hidden_matrix_and_adam_updates_the_rest(steps):
    update = update_of(muon(muon_steps=steps))
    assert gemm_flops(update) == pytest.approx(whole_flops(steps), rel=1e-12)
    assert adam_parameters(update) == weights_of(muon()).trained - elements()
    assert not any(each.size_bytes for each in update.exchanges)


def test_one_moment_is_spared_of_every_hidden_matrix():
    spared = JobMemory(job_of()).stages[0].optimizer - JobMemory(muon()).stages[0].optimizer
    assert spared == pytest.approx(4 * elements(), rel=1e-9)


def test_steps_need_the_largest_matrix_and_its_square_twice_and_its_update():
    """X and A in bf16, each with what is being made of it, and the update in fp32."""
    job = muon()
    held = RankParameters(total=weights_of(job), ends=Elements(), largest_layer=0, largest_trained=0)
    rank = RankState(job, held, 1, 1)
    found = {each.term: each for each in NewtonSchulz().lasting(rank)}["Newton-Schulz steps"]
    sides = [sorted(each) for each in MATRICES]
    assert found.where is Where.UPDATE
    assert found.size_bytes == max(2 * 2 * (m * n + m * m) + 4 * m * n for m, n in sides)


def test_ranks_own_whole_matrices():
    """Of 32 matrices each of 8 ranks has 4; of 2 layers on 8 ranks one has at most the largest matrix."""
    update = update_of(muon(gpus=8, zero=1))
    assert gemm_flops(update) == pytest.approx(whole_flops() / 8, rel=1e-12)
    thin = update_of(muon(replace(TINY, layers=2), gpus=16, global_batch=16, zero=1))
    share = 2 * FFN * HIDDEN / elements()
    assert gemm_flops(thin) == pytest.approx(whole_flops() * share, rel=1e-12)
    assert thin.exchanges == ()


def test_adam_updates_what_a_rank_has_of_the_rest():
    """Of 8 shares; where a rank has matrices alone, nothing is left to Adam."""
    job, weights = muon(gpus=8, zero=1), weights_of(muon())
    rest = (weights.trained - elements()) / 8
    for parameters, left in ((weights.trained / 8, rest), (elements() / 8, 0)):
        assert NewtonSchulz().update(job, Update(weights=weights, parameters=parameters)).parameters == left


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_what_shards_cut_is_gathered(ranks):
    """Each rank has one matrix more than its share, and as many bytes in bf16 come to it."""
    update = update_of(muon(gpus=ranks, global_batch=2 * ranks, zero=1, muon_owned=False))
    part = 1 / ranks + 1 / (4 * LAYERS)
    assert gemm_flops(update) == pytest.approx(whole_flops() * part, rel=1e-12)
    (gathered,) = update.exchanges
    assert (gathered.group, gathered.operation) == ("dp", "all_gather")
    assert gathered.size_bytes == pytest.approx(2 * elements() * part, abs=1)


def test_one_rank_gathers_nothing():
    update = update_of(muon(gpus=1, global_batch=2, zero=1, muon_owned=False))
    assert gemm_flops(update) == pytest.approx(whole_flops(), rel=1e-12)
    assert sum(each.size_bytes for each in update.exchanges) == 0


def test_sharded_parameters_go_to_owners_and_back_or_are_gathered_by_all():
    owned = update_of(muon(gpus=8, zero=3, framework="torchtitan-2025"))
    (sent,) = owned.exchanges
    assert (sent.operation, sent.count, sent.size_bytes) == ("all_to_all", 2, 2 * elements() / 8)
    gathered = update_of(muon(gpus=8, zero=3, framework="torchtitan-2025", muon_owned=False))
    assert gemm_flops(gathered) == pytest.approx(whole_flops(), rel=1e-12)
    assert gathered.exchanges[0].size_bytes == 2 * elements()


def split_flops(tp):
    """Return the FLOPs of steps on the parts of matrices: QKV and gate are split by rows, the others by columns."""
    (qkv, width), (out, heads), (gate, _), (back, ffn) = MATRICES
    parts = [(qkv // tp, width), (out, heads // tp), (gate // tp, width), (back, ffn // tp)]
    return 5 * LAYERS * sum(step_flops(*each) for each in parts)


def test_tensor_parallel_ranks_update_parts_or_whole_matrices():
    updates = {mode: update_of(muon(gpus=4, tp=4, zero=0, muon_tp_mode=mode)) for mode in TP_MODES}
    flops = {mode: gemm_flops(update) for mode, update in updates.items()}
    assert flops["blockwise"] == pytest.approx(split_flops(4), rel=1e-12)
    assert flops["duplicated"] == pytest.approx(whole_flops(), rel=1e-12)
    assert flops["layer_sharded"] == pytest.approx(whole_flops() / 4, rel=1e-12)
    assert flops["blockwise"] < flops["distributed"] < flops["duplicated"]
    sent = {mode: sum(each.size_bytes * each.count for each in update.exchanges) for mode, update in updates.items()}
    # Momentum in fp32: the parts of all; or a rank's part out, and as much back. Gram matrices in bf16 in each step.
    assert sent["blockwise"] == 0
    assert sent["duplicated"] == 4 * elements()
    assert sent["layer_sharded"] == 2 * 4 * elements() / 4
    unsplit = [HIDDEN, HIDDEN, HIDDEN, HIDDEN]
    assert sent["distributed"] == 5 * LAYERS * sum(2 * side * side for side in unsplit)
    assert {each.group for update in updates.values() for each in update.exchanges} == {"tp"}


@pytest.mark.parametrize("mode", TP_MODES)
def test_without_tensor_parallelism_all_ways_are_one(mode):
    update = update_of(muon(gpus=1, zero=0, muon_tp_mode=mode))
    assert gemm_flops(update) == pytest.approx(whole_flops(), rel=1e-12)
    assert sum(each.size_bytes for each in update.exchanges) == 0


def test_experts_are_matrices_of_their_own():
    """With ep 8 a rank has one of 8 experts in each layer; of all else each of 8 ranks owns one layer's worth."""
    update = update_of(muon(TINY_EXPERTS, gpus=8, ep=8, zero=1))
    expert = [(2 * 768, HIDDEN), (HIDDEN, 768)]
    router, shared = (8, HIDDEN), [(2 * 512, HIDDEN), (HIDDEN, 512)]
    dense = [*MATRICES[:2], router, *shared]
    expected = 5 * (LAYERS * sum(step_flops(*each) for each in expert) + sum(step_flops(*each) for each in dense))
    assert gemm_flops(update) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mode", TP_MODES)
@pytest.mark.parametrize("owned", [True, False])
def test_arrays_say_what_numbers_say(mode, owned):
    job = muon(gpus=16, tp=4, global_batch=16, zero=1, muon_tp_mode=mode, muon_owned=owned)
    rows = [weights_of(muon(model, gpus=16, tp=4, global_batch=16)) for model in (TINY, replace(TINY, hidden=768))]
    numbers = [mechanisms.updated(job, each, each.trained) for each in rows]
    both = rows[0].changed(lambda value: np.array([value]))
    arrays = mechanisms.updated(job, both, both.trained)
    assert float(gemm_flops(arrays)[0]) == pytest.approx(gemm_flops(numbers[0]), rel=1e-12)
    sent = sum(each.size_bytes * each.count for each in arrays.exchanges)
    expected = sum(each.size_bytes * each.count for each in numbers[0].exchanges)
    assert float(np.asarray(sent).reshape(-1)[0]) == pytest.approx(expected, abs=1)


def test_a_step_is_longer_by_what_the_update_takes():
    given = {"model": "llama3-8b", "cluster": "h100", "gpus": 16, "global_batch": 32, "seq_length": "4k", "tp": 2}
    adam, least, most = (
        predict(**given, **more).iteration_time_s
        for more in ({}, {"optimizer": "muon", "muon_steps": 1}, {"optimizer": "muon", "muon_steps": 9})
    )
    assert adam < least < most


@pytest.mark.slow
def test_plans_screen_what_is_simulated():
    given = {"model": "llama3-8b", "cluster": "h100", "gpus": 16, "global_batch": 32, "seq_length": "4k"}
    found = plan(**given, optimizer="muon", muon_tp_mode="duplicated")
    assert found.screen_error_most < 0.05


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"offload_optimizer": 0.5}, "the host updates with Adam alone"),
        ({"exp_avg_dtype": "bf16", "gpus": 8}, "keeps Adam's state in other types"),
        ({"muon_tp_mode": "sideways"}, "unknown TP mode of Muon"),
    ],
)
def test_what_cannot_be_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        muon(**fields)


def test_adam_has_no_use_for_settings_of_muon():
    job = job_of(muon_steps=3)
    assert job.optimizer.muon is None
    assert any(note.code == "muon-unused" for note in job.assumptions)
