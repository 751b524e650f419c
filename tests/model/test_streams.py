"""Several residual streams: what mixes them, and what passes between layers and stages."""

import pytest
from msgspec.structs import replace

from job_parts import job_of, workload_of
from traincast.estimate.memory import stage_memory
from traincast.lowering.plans import plan_of_job
from traincast.model.blocks.share import Execution, Sequences, Share
from traincast.model.counts import parameters, token_flops
from traincast.model.load import load_model
from traincast.model.structure import last_blocks, layer_blocks, parts_of

HIDDEN, TOKENS = 4096, 4096


@pytest.fixture(scope="module")
def models():
    """Return Llama 3 8B with one residual stream and with four."""
    plain = load_model("llama3-8b")
    return plain, replace(plain, residual_streams=4)


def test_a_hyper_connection_by_hand(models):
    """24 weights of 4 streams for each of both blocks: 4 before, 4 behind, 16 between; a bias each, three factors."""
    plain, streams = models
    each = 24 * 4 * HIDDEN + 24 + 3
    last = 4 * 4 * HIDDEN + 4 + 1
    assert parameters(streams).total - parameters(plain).total == 32 * 2 * each + last
    flops, usual = (token_flops(model, TOKENS) for model in (streams, plain))
    assert flops.forward - usual.forward == 2 * (32 * 2 * 24 * 4 * HIDDEN + 4 * 4 * HIDDEN)
    parts = parts_of(
        layer_blocks(streams, 0), Share(model=streams, sequences=Sequences(length=TOKENS), tp=2, sequence_parallel=True)
    )
    mixed = next(part for part in parts if part.name == "self_attn_bda")
    assert {kernel.shape for kernel in mixed.kernels} == {(TOKENS // 2, HIDDEN)}
    # Forward 4 streams are summed up, and mixed with an output; backward these, and two sums of three gradients.
    assert moved(mixed, "has_forward") == (4 + 1) + (5 + 4)
    assert moved(mixed, "has_backward") == (5 + 4) + (9 + 5) + 2 * (8 + 4)
    assert mixed.saved == {"residual streams": 2 * (4 + 1) * TOKENS // 2 * HIDDEN}
    ends = parts_of(last_blocks(streams, with_embedding=True), Share(model=streams, sequences=Sequences(length=TOKENS)))
    assert ends[0].gemms[0].n == 4
    assert moved(ends[0], "has_forward") == 4 + 1
    assert moved(ends[0], "has_backward") == (5 + 4) + (8 + 4)


def moved(part, direction):
    """Return the tensors of the width of one stream that the kernels of a pass read and write."""
    kernels = (dict(each.options) for each in part.kernels if getattr(each, direction))
    return sum(int(each["inputs"]) + int(each["outputs"]) for each in kernels)


def test_a_compiler_leaves_what_norms_of_all_streams_move(models):
    execution = Execution(fuses_pointwise=True)
    share = Share(model=models[1], sequences=Sequences(length=TOKENS), execution=execution)
    mixed = next(part for part in parts_of(layer_blocks(models[1], 0), share) if part.name == "self_attn_bda")
    assert [(each.family, each.shape) for each in mixed.kernels] == 2 * [("norm", (TOKENS, 4 * HIDDEN))]


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_stages_send_all_streams(models, sequence_parallel):
    sizes = []
    for model in models:
        job = job_of(model, gpus=8, tp=2, pp=2, global_batch=4, sequence_parallel=sequence_parallel)
        sizes.append(int(workload_of(job).message_bytes_Q[0]))
        kept = dict(stage_memory(job, plan_of_job(job))[0].terms)
        sizes.append(kept["pipeline messages"])
    assert [sizes[2] / sizes[0], sizes[3] / sizes[1]] == [4, 4]


def test_recomputed_layers_keep_all_streams(models):
    inputs = []
    for model in models:
        job = job_of(model, gpus=1, global_batch=1, recompute="full")
        inputs.append(dict(stage_memory(job, plan_of_job(job))[0].terms)["layer inputs"])
    assert inputs[1] == 4 * inputs[0]
