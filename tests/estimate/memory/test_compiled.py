"""What a program that XLA compiled holds, in closed forms."""

import pytest

from traincast.estimate.memory import JobMemory
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.counts import parameters
from traincast.model.load import load_model

MODEL = load_model("llama3-70b")
CHIPS, TOKENS = 256, 2 * 4096
HIDDEN, INNER, VOCAB = MODEL.hidden, MODEL.ffn_hidden, MODEL.vocab


def terms(**options):
    options = {"framework": "maxtext-tpu-2025", "seq_length": 4096, "micro_batch": 2, "zero": 3} | options
    job = resolve_job(JobRequest(model=MODEL, gpus=CHIPS, global_batch=2 * CHIPS, tp=1, pp=1, **options))
    return dict(JobMemory(job).stages[0].terms)


def test_the_state_is_in_shards_and_matrices_are_whole_two_at_a_time():
    found, share = terms(), parameters(MODEL).total / CHIPS
    assert found["parameters"] == pytest.approx(4 * share)
    assert found["gradients"] == pytest.approx(4 * share)
    assert found["optimizer"] == pytest.approx(8 * share)
    assert found["copies of shards"] == pytest.approx(2 * share)
    # Gate and up-projection are one matrix here; what its GEMM writes as a gradient is whole, too.
    enter, leave = 2 * HIDDEN * INNER, HIDDEN * INNER
    table = VOCAB * HIDDEN
    assert found["gathered layers"] == pytest.approx(2 * max(enter + leave, table) + 2 * max(enter, table), rel=1e-4)


def test_logits_are_there_once_in_16_bits_or_a_part_of_them():
    whole, parts = terms(), terms(loss_tiles=8)
    assert whole["logits"] == pytest.approx(2 * TOKENS * VOCAB)
    assert parts["logits"] == pytest.approx(whole["logits"] / 8)


def test_a_layer_that_is_recomputed_keeps_its_input_and_what_a_policy_names():
    found = terms(recompute="full", recompute_keeps=("linear_qkv", "linear_fc1"))
    layers, attention = MODEL.layers, MODEL.attention
    assert found["layer inputs"] == pytest.approx(2 * TOKENS * HIDDEN * layers)
    width = (attention.heads + 2 * attention.kv_heads) * attention.head_dim
    assert found["kept outputs"] == pytest.approx(2 * TOKENS * (width + 2 * INNER) * layers)


def test_nothing_of_cuda_is_on_other_chips():
    found, gpu = terms(), terms(framework="maxtext-2024")
    assert found["cuda context"] == pytest.approx(5e8)
    assert not {"nccl buffers", "GEMM workspaces"} & set(found)
    assert {"nccl buffers", "GEMM workspaces"} <= set(gpu)
