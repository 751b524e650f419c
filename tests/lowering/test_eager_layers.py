"""Layers of a model library, kernel by kernel: what each moves and launches, counted by hand, and casts of autocast."""

from math import prod

import pytest

from job_parts import job_of
from traincast.hardware.clusters import load_cluster
from traincast.job.share import rank_share
from traincast.lowering.casts import casts_of
from traincast.lowering.launches import layer_launches
from traincast.model.blocks import eager
from traincast.model.structure import RankParts, layer_blocks
from traincast.simulation.job_step import run_job
from traincast.simulation.step import Setting

LIBRARY = {"framework": "transformers-2024", "gpus": 1, "micro_batch": 1, "global_batch": 1, "seq_length": 2048}


def of(**changes):
    job = job_of("llama3.2-1b", **{**LIBRARY, **changes})
    parts = RankParts(rank_share(job))
    return job, parts, layer_blocks(job.model, 0)


def moved_bytes(kernels, *, forward):
    return sum(
        each.count * prod(each.shape) * sum(float(dict(each.options)[name]) for name in ("inputs", "outputs")) * 4
        for each in kernels
        if each.has_forward == forward
    )


def test_a_layer_launches_what_its_framework_counts_one_by_one():
    job, parts, blocks = of()
    found = layer_launches(blocks, parts, job).forward
    # Two norms of 6 with 5 casts, 7 GEMMs with 7 casts of weights, positions, attention, activation and gate, two sums.
    assert found.launches == 2 * 6 + 5 + 2 * 7 + 12 + 1 + 2 + 2
    assert found.seconds(job.framework) == pytest.approx(job.framework.host_layer_s)


def test_an_rms_norm_moves_fp32_and_is_cast_for_each_who_reads_it():
    _, parts, _ = of()
    share = parts.share
    elements = share.tokens * share.model.hidden
    kernels = eager.norm(share, "input_layernorm")
    # Squares, mean, product, product with the weight; three casts.
    assert moved_bytes(kernels, forward=True) == pytest.approx(elements * (8 + 4 + 8 + 8 + 3 * 6), rel=1e-5)
    # Products with weights and their gradients, with the root, the mean's, the squares', a sum; three casts, two sums.
    back = (8 + 12 + 4) + (8 + 12 + 4) + 4 + (8 + 8 + 12) + 12 + 3 * 6 + 2 * 12
    assert moved_bytes(kernels, forward=False) == pytest.approx(elements * back, rel=1e-5)


def test_autocast_casts_weights_that_are_trained_where_ranks_have_them_whole():
    def cast(**changes):
        job, parts, _ = of(**changes)
        gemm = next(gemm for part in parts.of_blocks(layer_blocks(job.model, 0)) for gemm in part.gemms)
        found = casts_of(gemm, parts.share, trained=parts.share.trains_weights)
        return gemm, found.forward + found.backward

    gemm, casts = cast()
    assert sum(moved_bytes([each], forward=each.has_forward) for each in casts) == pytest.approx(12 * gemm.n * gemm.k)
    for changes in ({"task": "lora"}, {"precision": "fp32"}, {"zero": 3, "gpus": 8, "global_batch": 8}):
        assert cast(**changes)[1] == ()


def test_the_hidden_state_is_fp32_under_autocast_alone():
    assert of()[1].share.hidden_bytes == 4
    assert of(task="lora")[1].share.hidden_bytes == 2
    assert of(framework="deepspeed-2024")[1].share.hidden_bytes == 2
    assert of(framework="torchtitan-2025")[1].share.hidden_bytes == 2


def test_what_runs_kernel_by_kernel_takes_longer_than_compiled_layers_and_no_factor_stands_for_it_twice():
    cluster = load_cluster("h100")
    fields = {**LIBRARY, "micro_batch": 8, "global_batch": 8, "attention_kernel": "cudnn"}
    eager_s, compiled_s = (
        run_job(job_of("llama3.2-1b", **{**fields, "framework": name}), Setting(cluster=cluster)).step_s
        for name in ("transformers-2024", "torchtitan-2025")
    )
    assert 1.1 < eager_s / compiled_s < 1.6
