"""What stands before the first and after the last layer: embedding, LM head and loss of Llama 3 70B and DeepSeek-V3.

Sources: Shoeybi et al., arXiv 1909.08053, section 3 (the vocabulary is split: an all-reduce after the embedding, and
in the loss, which needs of each token the largest logit, the sum and the target's logit); Megatron-LM,
megatron/core/tensor_parallel/layers.py and cross_entropy.py (with sequence parallelism a reduce-scatter after the
embedding, an all-gather before the head, both again reversed in the backward pass, and the head's input gathered again
for its weight gradient; three all-reduces of fp32 in the loss). Padded vocabulary: megatron/training/arguments.py
(``--make-vocab-size-divisible-by`` 128, times tp). Layers that predict a further token: DeepSeek-V3, arXiv 2412.19437,
section 2.2.
"""

import pytest

from layer import product
from layer.cases import case_of
from layer.rows import Exchange, Kernel, exchange_counts, gemm, kernel_counts, pointwise

HIDDEN_STATE = 8192 * 8192 * 2
LOSS = Exchange("largest logit, sum and target's logit", "tp", "all_reduce", 8192 * 4, 3, 0)
FURTHER_STATE = 4096 * 7168 * 2
ENDS = {
    # 128,256 tokens are 1,002 times 128.
    "alone": (8192, 128_256, 128_256, ()),
    # 129,024 are 126 times 128 x 8.
    "tp 8": (
        8192,
        129_024,
        16_128,
        (
            Exchange("after the embedding", "tp", "all_reduce", HIDDEN_STATE, 1, 0),
            Exchange("gradient of the head's input", "tp", "all_reduce", HIDDEN_STATE, 0, 1),
            LOSS,
        ),
    ),
    "tp 8 sp": (
        1024,
        129_024,
        16_128,
        (
            Exchange("after the embedding", "tp", "reduce_scatter", HIDDEN_STATE, 1, 0),
            Exchange("before the head; its input again", "tp", "all_gather", HIDDEN_STATE, 1, 1),
            Exchange("gradient of the head's input", "tp", "reduce_scatter", HIDDEN_STATE, 0, 1),
            Exchange("gradient of the embedding", "tp", "all_gather", HIDDEN_STATE, 0, 1),
            LOSS,
        ),
    ),
}


@pytest.mark.parametrize("name", list(ENDS))
def test_ends_of_llama(name):
    rows, vocabulary, own, exchanges = ENDS[name]
    kernels = (
        pointwise("embedding", "embedding", 8192, 8192, vocabulary),
        pointwise("final RMSNorm", "norm", rows, 8192),
        gemm("LM head", 8192, own, 8192),
        pointwise("cross-entropy", "cross entropy", 8192, own),
    )
    found, exchanged = product.ends(case_of("llama3-70b", name))
    assert found == {name: dict(counts) for name, counts in kernel_counts(kernels).items()}
    assert exchanged == {name: dict(counts) for name, counts in exchange_counts(exchanges).items()}


def test_ends_stay_in_16_bits():
    found, _ = product.ends(case_of("llama3-70b", "alone"), precision="fp8")
    assert found == product.ends(case_of("llama3-70b", "alone"))[0]


def test_frozen_ends_have_no_gradients_of_weights():
    plain, _ = product.ends(case_of("llama3-70b", "alone"))
    found, _ = product.ends(case_of("llama3-70b", "alone"), task="lora")
    assert "weight gradient" not in {name for name, counts in found.items() if counts}
    assert found["forward"] == plain["forward"]
    embedding = ("embedding", (8192, 8192, 128_256), "bf16")
    assert found["input gradient"] == {key: often for key, often in plain["input gradient"].items() if key != embedding}


FURTHER = {
    "alone": (4096, 1, ()),
    "tp 2 sp, ep 8 etp 1": (
        2048,
        2,
        (
            Exchange("after the embedding", "tp", "reduce_scatter", FURTHER_STATE, 1, 0),
            Exchange("gradient of the embedding", "tp", "all_gather", FURTHER_STATE, 0, 1),
            # The projection reads two hidden states; what it makes of them is split over ranks, and then along the
            # sequence: gathered and cut, in the backward pass gathered alone.
            Exchange("both inputs of the projection; again", "tp", "all_gather", 2 * FURTHER_STATE, 1, 1),
            Exchange("gradient of both", "tp", "reduce_scatter", 2 * FURTHER_STATE, 0, 1),
            Exchange("outputs of the projection; their gradient", "tp", "all_gather", FURTHER_STATE, 1, 1),
            Exchange("before the head; its input again", "tp", "all_gather", FURTHER_STATE, 1, 1),
            Exchange("gradient of the head's input", "tp", "reduce_scatter", FURTHER_STATE, 0, 1),
            Exchange("largest logit, sum and target's logit", "tp", "all_reduce", 4096 * 4, 3, 0),
        ),
    ),
}


@pytest.mark.parametrize("name", list(FURTHER))
def test_a_layer_that_predicts_a_further_token(name):
    """One more layer with experts, its projection of two hidden states, and embedding, head and loss again.

    Source: Megatron-LM, megatron/core/transformer/multi_token_prediction.py.
    """
    rows, tp, exchanges = FURTHER[name]
    case = case_of("deepseek-v3", name)
    kernels = (
        *case.kernels,
        pointwise("embedding of the next token", "embedding", 4096, 7168, 129_280),
        Kernel("projection", "gemm", (4096, 7168 // tp, 2 * 7168), 1, 1, 1),
        pointwise("RMSNorms of both inputs, and the final one", "norm", rows, 7168, count=3),
        gemm("LM head", 4096, 129_280 // tp, 7168),
        pointwise("cross-entropy", "cross entropy", 4096, 129_280 // tp),
    )
    found, exchanged = product.of_further_token(case)
    assert found == {name: dict(counts) for name, counts in kernel_counts(kernels).items()}
    expected = exchange_counts((*case.exchanges, *exchanges))
    assert exchanged == {name: dict(counts) for name, counts in expected.items() if counts}


def test_the_gradients_norm_is_one_number_over_all_ranks():
    for name, ranks in (("alone", 1), ("tp 8", 8)):
        _, exchanged = product.ends(case_of("llama3-70b", name))
        of_step = product.step_ends(case_of("llama3-70b", name))
        assert of_step == ({("world", "all_reduce", 4): 1} if ranks > 1 else {})
        assert not [key for counts in exchanged.values() for key in counts if key[0] == "world"]


def test_the_projection_of_a_further_token_casts_both_hidden_states():
    """Its GEMM reads 8 bits, as the layers' do: two hidden states of 7,168 for each token. What comes back is the
    gradient of the one that it makes of them, as wide as those of the layer's output projection and shared expert."""
    case = case_of("deepseek-v3", "alone")
    found, _ = product.of_further_token(case._replace(fields=case.fields | {"precision": "fp8_block"}))
    assert found["forward"]["cast to 2", (1, 4096 * 2 * 7168), "fp8_block"] == 1
    assert found["input gradient"]["cast to 2", (1, 4096 * 7168), "fp8_block"] == 1 + 2


def test_a_frozen_table_is_looked_up_without_a_backward_pass_wherever_it_is_looked_up():
    """The first layer and those that predict further tokens read the same frozen table under adapters."""
    case = case_of("deepseek-v3", "alone")
    found, _ = product.of_further_token(case._replace(fields=case.fields | {"task": "lora", "lora_rank": 16}))
    lookup = ("embedding", (4096, 7168, 129_280), "bf16")
    assert found["forward"][lookup] == 1
    assert not any(lookup in counts for name, counts in found.items() if name != "forward")
