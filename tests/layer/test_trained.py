"""Which parameters are trained, and what their update moves."""

import pytest

from layer import product
from layer.cases import case_of
from layer.state import ADAPTERS, ATTENTION_ALONE, EVERYWHERE, LAYER

LLAMA = case_of("llama3-70b", "alone")


@pytest.mark.parametrize(
    ("model", "mlp", "widths"),
    [
        # Inputs and outputs of each adapted matrix (Hu et al., arXiv 2106.09685, section 4.1); queries, keys and values
        # are one, as are gate and up (NeMo, linear_qkv, linear_proj, linear_fc1, linear_fc2).
        ("llama3-70b", False, 80 * ((8192 + 10240) + (8192 + 8192))),
        ("llama3-70b", True, 80 * ((8192 + 10240) + (8192 + 8192) + (8192 + 2 * 28672) + (28672 + 8192))),
        ("gpt3-175b", True, 96 * ((12288 + 36864) + 2 * 12288 + 2 * (12288 + 49152))),
        ("mixtral-8x7b", True, 32 * ((4096 + 6144) + 2 * 4096 + 8 * (2 * 4096 + 3 * 14336))),
        (
            "deepseek-v3",
            True,
            61 * ((7168 + 1536) + (1536 + 24576) + (7168 + 576) + (512 + 32768) + (16384 + 7168))
            + 3 * (2 * 7168 + 3 * 18432)
            + 58 * 257 * (2 * 7168 + 3 * 2048),
        ),
    ],
)
def test_adapters_of_whole_models(model, mlp, widths):
    assert product.adapters(model, 16, mlp=mlp) == 16 * widths


@pytest.mark.parametrize(("zero", "ranks"), [(0, 1), (1, 8), (2, 8), (3, 8)])
def test_adapters_alone_have_gradients_and_an_optimizer(zero, ranks):
    """Frozen weights are kept in 16 bits, sharded with stage 3 alone; the adapters' own are less than 0.1 % of them."""
    found = product.states(LLAMA, gpus=8, zero=zero, task="lora", lora_rank=16, grad_reduce_bytes=4, **ATTENTION_ALONE)
    assert found["parameters"] == pytest.approx(2 * LAYER / (8 if zero == 3 else 1), rel=2e-3)
    assert found["gradients"] == pytest.approx(4 * ADAPTERS / (8 if zero >= 2 else 1), rel=1e-6)
    assert found["optimizer"] == pytest.approx((8 if zero == 3 else 12) * ADAPTERS / ranks, rel=1e-6)


def test_full_training_has_no_adapters():
    for task in ("pretrain", "sft"):
        assert product.updated(LLAMA, task=task) == LAYER
    assert product.updated(LLAMA, task="lora", lora_rank=16, **ATTENTION_ALONE) == ADAPTERS
    assert product.updated(LLAMA, task="lora", lora_rank=32, **ATTENTION_ALONE) == 2 * ADAPTERS
    assert product.updated(LLAMA, task="lora", lora_rank=16, lora_targets=("linear_proj",)) == 16 * (8192 + 8192)
    # Queries, keys and values; the attention output; gate and up; down.
    widths = (8192 + 10240) + (8192 + 8192) + (8192 + 57344) + (28672 + 8192)
    assert product.updated(LLAMA, task="lora", lora_rank=16, **EVERYWHERE) == 16 * widths


@pytest.mark.parametrize(
    ("fields", "moved"),
    [
        # Adam in fp32 is a kernel of its own family.
        ({}, None),
        # Megatron Core's precision-aware optimizer reads the gradient, reads and writes both moments and the 16 bits
        # of the master copy that bf16 leaves out, and reads and writes the bf16 parameter itself.
        ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16", "grad_reduce_bytes": 4}, 4 + 2 * 4 + 2 * 2 + 2 * 2),
        ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16", "grad_reduce_bytes": 2}, 2 + 2 * 4 + 2 * 2 + 2 * 2),
        ({"exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp8", "grad_reduce_bytes": 4}, 4 + 2 * 2 + 2 * 2 + 2 * 2),
        ({"precision_aware_optimizer": True, "grad_reduce_bytes": 4}, 4 + 2 * 8 + 2 * 2 + 2 * 2),
        # A master copy of 2 bytes is not a remainder: the parameter is written alone.
        ({"main_params_dtype": "fp16", "grad_reduce_bytes": 4}, 4 + 2 * 8 + 2 * 2 + 2),
    ],
)
def test_bytes_that_a_step_moves(fields, moved):
    assert product.bytes_of_a_step(LLAMA, gpus=8, zero=1, **fields) == moved
